"""The Spark session, and errors that come through it."""

from __future__ import annotations

import atexit
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_cdc.config.connections import remove_airflow_variables
from airflow_provider_cdc.config.spark_conf import SECRET_REMEDY, is_local_master, is_loopback_master
from airflow_provider_cdc.model.errors import (
    CdcError,
    NoRoomError,
    NotReadyError,
    SlowWorkerError,
    TerminalError,
    TransientError,
    UnexpectedError,
    extract_error,
)
from airflow_provider_cdc.spark.install_check import check_spark_install
from airflow_provider_cdc.spark.java import ensure_java_home
from airflow_provider_cdc.system.temp_dirs import temporary_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Settings without which nothing secret may leave the host.
ENCRYPTION_SETTINGS = ("spark.authenticate", "spark.network.crypto.enabled")

#: Seconds without any task of a job after which that is said, and seconds after which it is said again.
_WAITING_SECONDS, _REPEAT_SECONDS = 30.0, 600.0

#: Spark's page is open to all who reach it; executors are started in a folder that is not this project's.
DEFAULT_SETTINGS = {"spark.ui.killEnabled": "false", "spark.executorEnv.PYTHONSAFEPATH": "1"}
#: What was set as ``SPARK_LOCAL_DIRS``.
_own_local_dirs: set[str] = set()
_LOOPBACK_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def start_session(name: str, master: str, conf: Mapping[str, str] | None = None, ui: bool = False) -> SparkSession:
    """Start Spark.

    Connections must have been resolved before: the environment is stripped of them, so that neither the JVM nor a
    worker inherits a secret.

    :param name: name of the pipeline, shown as the application's.
    :param master: Spark master, such as ``local[2]``.
    :param conf: further settings, such as those of :class:`~airflow_provider_cdc.config.Spark`.
    :param ui: whether Spark's own page is served; see :func:`ui_address`.
    :raises NotReadyError: if pyspark is a mixture of versions, there is no Java runtime, or executors on other hosts
        would be sent secrets in the clear.
    :raises TransientError: if the master does not take the application.
    """
    settings = _session_settings(name, master, conf or {}, ui)
    if "java.io.tmpdir" not in settings.get("spark.driver.defaultJavaOptions", ""):
        settings["spark.driver.extraJavaOptions"] += f' "-Djava.io.tmpdir={_java_temp_folder()}"'
    check_spark_install()
    ensure_java_home()
    # Else Spark takes the first python3 of the PATH for its workers, which need not have this package.
    if python := settings.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONSAFEPATH"] = "1"  # Python workers import nothing from the folder that this process works in
    if is_loopback_master(master) and not (ui and os.environ.get("SPARK_PUBLIC_DNS")):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # the address of Spark's page has no setting
    _use_own_local_dirs(settings.get("spark.local.dir"))
    remove_airflow_variables()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise _start_error(master, error) from None
    missing = [key for key in ENCRYPTION_SETTINGS if str(spark.conf.get(key, "false")).lower() != "true"]
    if missing and not is_loopback_master(master):
        spark.stop()
        raise NotReadyError(
            f"passwords would travel to the executors of {master} in clear text: not enabled: {', '.join(missing)}",
            f"Set {' and '.join(ENCRYPTION_SETTINGS)} to true, in spark.conf and at the cluster",
        )
    return spark


#: Folders of this process's own, as long as it lives.
_temp_folders = ExitStack()
atexit.register(_temp_folders.close)


@cache
def _java_temp_folder() -> Path:
    """Where the JVM of this process makes temporary files that ``SPARK_LOCAL_DIRS`` does not concern."""
    return _temp_folders.enter_context(temporary_folder())


def _use_own_local_dirs(setting: str | None) -> None:
    """Give Spark folders of this process's own for its temporary files, within those that it would have used.

    :param setting: ``spark.local.dir``, which counts where ``SPARK_LOCAL_DIRS`` is not set.
    :raises NotReadyError: if none of them can be written.
    """
    if os.environ.get("SPARK_LOCAL_DIRS") in _own_local_dirs:
        return  # the JVM of this process has them
    parents = os.environ.get("SPARK_LOCAL_DIRS") or setting or tempfile.gettempdir()
    folders, failed = [], []
    for parent in parents.split(","):
        try:
            Path(parent).mkdir(parents=True, exist_ok=True)
            folders.append(str(_temp_folders.enter_context(temporary_folder(parent))))
        except OSError as error:
            failed.append(f"{parent}: {error.strerror}")
    if not folders:
        raise NotReadyError(
            f"Spark has no folder for its temporary files: {', '.join(failed)}",
            "Set SPARK_LOCAL_DIRS (or spark.local.dir in spark.conf, or TMPDIR) to a writable folder",
        )
    os.environ["SPARK_LOCAL_DIRS"] = ",".join(folders)
    _own_local_dirs.add(os.environ["SPARK_LOCAL_DIRS"])


def _session_settings(name: str, master: str, conf: Mapping[str, str], ui: bool) -> dict[str, str]:
    log4j = files("airflow_provider_cdc.spark").joinpath("log4j2.properties")
    settings = {
        **conf,
        "spark.app.name": f"airflow-cdc {name}",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j}",
        "spark.ui.enabled": "true" if ui else "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.speculation": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "5",
    }
    for key, value in DEFAULT_SETTINGS.items():
        settings.setdefault(key, value)
    if is_loopback_master(master):
        for key, value in _LOOPBACK_SETTINGS.items():
            if settings.setdefault(key, value) != value:
                raise NotReadyError(
                    f"spark.conf: {key} is {settings[key]!r}",
                    f"Leave it out: with master {master} the driver listens on {value} only",
                )
    return settings


def _start_error(master: str, error: Exception) -> CdcError:
    text = str(error)
    if is_local_master(master):
        cdc_error = to_cdc_error(error)
        return (
            TerminalError(cdc_error.message, cdc_error.remedy) if isinstance(cdc_error, UnexpectedError) else cdc_error
        )
    if "spark.authenticate.secret" in text:
        return NotReadyError("spark.authenticate is on, but Spark has no spark.authenticate.secret", SECRET_REMEDY)
    # The text of the second is about the session, which was stopped while it was being made.
    reason = (
        "it does not answer, or does not take the application"
        if "stopped SparkContext" in text
        else _main_error_line(text)
    )
    return TransientError(
        f"Spark did not start at {master}: {reason}",
        "Check that this master runs, can be reached, and has the same settings of spark.authenticate",
    )


@contextmanager
def warn_while_waiting(spark: SparkSession, report_line: Callable[[str], None]) -> Iterator[None]:
    """Say so if Spark waits for executors: its own log, where it says that, is not shown.

    :param report_line: gets one line, after half a minute in which a job has had no task, and once more every ten
        minutes.
    """
    ended, master = threading.Event(), str(spark.sparkContext.master)
    tracker = spark.sparkContext.statusTracker()

    def idle() -> bool:
        stages = [job.stageIds for number in tracker.getActiveJobsIds() if (job := tracker.getJobInfo(number))]
        stage_infos = [stage for ids in stages for stage_id in ids if (stage := tracker.getStageInfo(stage_id))]
        return bool(stage_infos) and not any(stage.numActiveTasks or stage.numCompletedTasks for stage in stage_infos)

    def watch() -> None:
        last_busy, last_warned = time.monotonic(), -math.inf
        while not ended.wait(1):
            with suppress(Exception):  # a session that is ending
                now = time.monotonic()
                if not idle():
                    last_busy = now
                elif now - last_busy > _WAITING_SECONDS and now - last_warned > _REPEAT_SECONDS:
                    last_warned = now
                    report_line(
                        f"Spark at {master} has begun no task for {now - last_busy:.0f} s: it waits for an executor, "
                        "so "
                        "for cores or memory of the cluster (spark.cores.max, spark.executor.memory in spark.conf)"
                    )

    thread = threading.Thread(target=watch, name="waiting", daemon=True)
    if not is_local_master(master):
        thread.start()
    try:
        yield
    finally:
        ended.set()


def ui_address(spark: SparkSession) -> str | None:
    """Address of Spark's own page; ``None`` if it is off."""
    try:
        address: str | None = spark.sparkContext.uiWebUrl
    except Exception:  # a session of Spark Connect has no context
        return None
    return address


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Give errors of this project that happened in a Spark task or source their own face again."""
    try:
        yield
    except CdcError:
        raise
    except Exception as error:
        raise to_cdc_error(error) from None


def to_cdc_error(error: BaseException) -> CdcError:
    """The project's error inside of one that Spark reports, or one that quotes Spark.

    Of the others nobody can tell whether they pass (an executor that was lost does, an error in a batch does not), so
    they are worth a few more tries.
    """
    text = str(error)
    project_error = extract_error(text)
    if project_error is not None:
        return project_error
    if "Python worker failed to connect back" in text:
        return SlowWorkerError(
            "a Python worker of Spark was not up within the 10 s that Spark gives it",
            "The host of the driver is overloaded: run again when it has less to do, or start fewer drivers at a time",
        )
    if "No space left on device" in text:
        return NoRoomError(
            f"Spark failed: {_main_error_line(text)}",
            "Make room on the disks of sink.path and of SPARK_LOCAL_DIRS on the hosts of Spark, then run again",
        )
    return UnexpectedError(
        f"Spark failed: {_main_error_line(text) or type(error).__name__}", "See the log of the Spark driver"
    )


def _main_error_line(text: str) -> str:
    """The line of a long error text that says most."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat")]
    python = [line for line in reversed(lines) if "Error" in line]
    java = [line[2:] for line in lines if line.startswith(": ")]
    return next(iter(python + java + lines), "")[:500]
