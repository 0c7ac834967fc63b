"""Sessions of a Spark Connect server. Jobs run there, so that this process needs no Java and starts in a second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import util
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc import __version__
from airflow_provider_cdc.config.connections import remove_airflow_variables
from airflow_provider_cdc.config.spark_conf import ConnectServer, is_loopback_master
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.spark.errors import translate_spark_errors
from airflow_provider_cdc.spark.install_check import check_spark_install
from airflow_provider_cdc.spark.session import (
    ENCRYPTION_SETTINGS,
    is_connect_session,
    limit_retries,
    warn_while_waiting,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Packages of the client, none of which pyspark alone installs.
_CLIENT_PACKAGES = ("grpc", "grpc_status", "google.rpc", "zstandard", "pandas")
_OLDEST = (4, 0)
#: Retries of the first call, about 15 s: by default, a server that is not there is asked for ten minutes.
_FIRST_RETRIES = 5
#: Seconds for the task that compares versions: on a busy server, it waits for a core.
_CHECK_SECONDS = 120.0
#: Seconds for the server to end what a killed task was running there.
_INTERRUPT_SECONDS = 3.0


def open_connect_session(server: ConnectServer, report_line: Callable[[str], None] = lambda _: None) -> SparkSession:
    """Open a session.

    :param report_line: called with a line of text when the session is open.
    :raises NotReadyError: if the client is not installed, the server is too old, it refuses the token, or passwords
        would travel to its executors in clear text.
    :raises TransientError: if the server does not answer.
    """
    began = time.monotonic()
    check_client_install()
    remove_airflow_variables()
    from grpc import RpcError
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    try:
        spark: Any = ConnectSession.builder.remote(server.url).create()
        policies = limit_retries(spark, _FIRST_RETRIES)
        version = str(spark.version)
        master = spark.conf.get("spark.master", "")
        encrypted = [str(spark.conf.get(key, "false")).lower() == "true" for key in ENCRYPTION_SETTINGS]
        spark.client.set_retry_policies(policies)
    except (PySparkException, RpcError) as error:
        raise _session_error(server, error) from None
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        spark.stop()
        raise NotReadyError(f"the server at {server.address} is Spark {version}", "Spark 4.0 or newer is needed")
    if not is_loopback_master(str(master)) and not all(encrypted):
        spark.stop()
        raise NotReadyError(
            f"passwords would travel from the server at {server.address} to its executors in clear text",
            f"Set {' and '.join(ENCRYPTION_SETTINGS)} to true for the server",
        )
    _open_sessions.append(spark)
    report_line(f"session of Spark {version} at {server.address} after {time.monotonic() - began:.1f} s")
    return spark  # type: ignore[no-any-return]


def require_server(spark: SparkSession) -> None:
    """Check that the server of a session still answers and knows the session, if it belongs to a Spark Connect server.

    :raises TransientError: if not.
    """
    if not is_connect_session(spark):
        return
    policies = limit_retries(spark)
    try:
        spark.conf.get("spark.master", "")  # the client remembers the version
    except Exception as error:
        raise TransientError(
            f"the Spark Connect server does not answer, or has lost this session: {' '.join(str(error).split())[:300]}",
            "Check that it runs: a new session is opened then",
        ) from None
    client: Any = spark.client
    client.set_retry_policies(policies)


def check_client_install() -> str:
    """Check that the client of Spark Connect is installed, and return its version.

    :raises NotReadyError: if it is not.
    """
    version = check_spark_install()
    for package in _CLIENT_PACKAGES:
        with suppress(ModuleNotFoundError):
            if util.find_spec(package) is not None:
                continue
        raise NotReadyError(
            f"the client of Spark Connect is not installed: there is no package {package}",
            "Install it: pip install 'airflow-provider-cdc[connect]'",
        )
    return version


def describe_workers(spark: SparkSession, report_line: Callable[[str], None]) -> tuple[str, str | None]:
    """Return the version of Python in the workers of a server, such as ``3.11``, and that of this package there.

    :param report_line: called with a line of text if the server has no free core for a while.
    :returns: ``None`` instead of the latter if the package is missing there.
    :raises TransientError: if the server has not run the task in time.
    """

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import sys
        from importlib import metadata

        import pyarrow as pa

        for _ in batches:
            try:
                package = metadata.version("airflow-provider-cdc")
            except metadata.PackageNotFoundError:
                package = ""
            python = f"{sys.version_info[0]}.{sys.version_info[1]}"
            yield pa.RecordBatch.from_pydict({"python": [python], "package": [package]})

    is_late = threading.Event()

    def interrupt() -> None:
        is_late.set()
        spark.interruptAll()

    timer = threading.Timer(_CHECK_SECONDS, interrupt)
    timer.daemon = True
    timer.start()
    try:
        with translate_spark_errors(), warn_while_waiting(spark, report_line):
            row = spark.range(0, 1, 1, 1).mapInArrow(task, "python string, package string").collect()[0]
    except CdcError:
        if is_late.is_set():
            raise TransientError(
                f"the Spark Connect server has not run a task within {_CHECK_SECONDS:g} s",
                "Try again when it is less busy, or give it more cores",
            ) from None
        raise
    finally:
        timer.cancel()
    return row["python"], row["package"] or None


def check_workers(spark: SparkSession, server: ConnectServer, report_line: Callable[[str], None]) -> None:
    """Check that functions of this process can run in the workers of a server.

    :param report_line: called with a line of text if the server has no free core for a while.
    :raises NotReadyError: if Python or this package has another version there.
    :raises TransientError: if the server has not run the task in time.
    """
    python, package = f"{sys.version_info[0]}.{sys.version_info[1]}", __version__
    remote_python, remote_package = describe_workers(spark, report_line)
    if (remote_python, remote_package) != (python, package):
        there = f"Python {remote_python} and {f'version {remote_package} of' if remote_package else 'not'} this package"
        raise NotReadyError(
            f"the workers of the server at {server.address} have {there}, and this process has Python {python} and "
            f"version {package}",
            "Install the same versions there (spark.pyspark.python of the server names the interpreter)",
        )


def _session_error(server: ConnectServer, error: Exception) -> Exception:
    text = " ".join(str(error).split())
    if "UNAUTHENTICATED" in text:
        return NotReadyError(
            f"the Spark Connect server at {server.address} refuses the token",
            "Set the password of the connection to its token",
        )
    return TransientError(
        f"the Spark Connect server at {server.address} does not answer: {text[:300]}",
        "Check that it runs, and host and port of the connection",
    )


def interrupt_sessions() -> None:
    """Interrupt what the sessions of this process run: a server would go on for minutes after its client is gone."""

    def interrupt() -> None:
        for spark in _open_sessions:
            with suppress(Exception):
                spark.interruptAll()

    thread = threading.Thread(target=interrupt, name="spark-interrupt", daemon=True)
    thread.start()
    thread.join(_INTERRUPT_SECONDS)


_open_sessions = list[Any]()
