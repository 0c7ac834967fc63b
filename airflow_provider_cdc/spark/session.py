"""The Spark session, and errors that come through it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING

from airflow_provider_cdc.connections import strip_environment
from airflow_provider_cdc.exceptions import CdcError, TerminalError, unpack
from airflow_provider_cdc.spark.install_check import check_spark_install
from airflow_provider_cdc.spark.java import ensure_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start(name: str, master: str) -> SparkSession:
    """Start Spark.

    Connections must have been resolved before: the environment is stripped of them, so that neither the JVM nor a
    worker inherits a secret.

    :param name: name of the pipeline, shown as the application's.
    :param master: Spark master, such as ``local[2]``.
    :raises NotReadyError: if pyspark is a mixture of versions or there is no Java runtime.
    """
    check_spark_install()
    ensure_java_home()
    # Else Spark takes the first python3 of the PATH for its workers, which need not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    strip_environment()
    from pyspark.sql import SparkSession

    log4j = files("airflow_provider_cdc.spark").joinpath("log4j2.properties")
    return (
        SparkSession.builder.master(master)
        .appName(f"airflow-cdc {name}")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{log4j}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.speculation", "false")
        .config("spark.sql.streaming.numRecentProgressUpdates", "5")
        .getOrCreate()
    )


@contextmanager
def spark_errors() -> Iterator[None]:
    """Give errors of this project that happened in a Spark task or source their own face again."""
    try:
        yield
    except CdcError:
        raise
    except Exception as error:
        raise of_spark(error) from None


def of_spark(error: BaseException) -> CdcError:
    """The project's error inside of one that Spark reports, or one that quotes Spark."""
    text = str(error)
    own = unpack(text)
    if own is not None:
        return own
    lines = [line for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    told = next((line for line in reversed(lines) if "Error" in line and not line.startswith("\tat")), first)
    return TerminalError(f"Spark failed: {told[:500]}", "See the log of the Spark driver")
