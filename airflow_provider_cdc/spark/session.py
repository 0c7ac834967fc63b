"""The Spark session: its settings, its start and its end."""

from __future__ import annotations

import atexit
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.config.connections import remove_airflow_variables
from airflow_provider_cdc.config.spark_conf import SECRET_REMEDY, is_local_master, is_loopback_master
from airflow_provider_cdc.model.errors import (
    LESS_MEMORY_REMEDY,
    CdcError,
    NotReadyError,
    TerminalError,
    TransientError,
    UnexpectedError,
)
from airflow_provider_cdc.spark.errors import main_error_line, to_cdc_error
from airflow_provider_cdc.spark.install_check import check_spark_home, check_spark_install
from airflow_provider_cdc.spark.java import ensure_java_home
from airflow_provider_cdc.spark.jvm import launch_jvm
from airflow_provider_cdc.system.temp_dirs import temporary_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Settings that must be on before a secret may leave the host.
ENCRYPTION_SETTINGS = ("spark.authenticate", "spark.network.crypto.enabled")

#: Seconds without a running task after which a warning is printed, and seconds between repeated warnings.
_WAITING_SECONDS, _REPEAT_SECONDS = 30.0, 600.0

#: Retries of a call to a Spark Connect server that may be lost, less than a second.
_FEW_RETRIES = 2

#: Spark's web UI has no access control, and executors start in a folder that this project does not control.
#: Its Python workers are forked from a process that has the machine code loaded.
DEFAULT_SETTINGS = {
    "spark.ui.killEnabled": "false",
    "spark.executorEnv.PYTHONSAFEPATH": "1",
    "spark.python.daemon.module": "airflow_provider_cdc.spark.worker_daemon",
}
#: Values of ``SPARK_LOCAL_DIRS`` that this process has set.
_own_local_dirs: set[str] = set()
_LOOPBACK_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def start_session(
    name: str,
    master: str,
    conf: Mapping[str, str] | None = None,
    ui: bool = False,
    report_line: Callable[[str], None] = lambda _: None,
    *,
    short_lived: bool = False,
    archive_to: Path | None = None,
) -> SparkSession:
    """Start Spark.

    Connections must be resolved before: this removes them from the environment, so that neither the JVM nor a worker
    inherits a secret.

    :param name: name of the pipeline, shown in the application's name.
    :param master: Spark master, such as ``local[2]``.
    :param conf: further settings, such as those of :class:`~airflow_provider_cdc.config.Spark`.
    :param ui: whether Spark's web UI is served; see :func:`ui_address`.
    :param report_line: called with a line of text whenever a part of Spark that takes seconds has started.
    :param short_lived: whether a quick start matters more than the speed of what runs for minutes. This is so for jobs
        whose work is done by Python workers, but not for a stream, whose driver plans several batches per second.
    :param archive_to: file in which the JVM archives its classes when it ends; see :mod:`.class_archive`.
    :raises NotReadyError: if pyspark is a mix of versions, there is no Java runtime, or secrets would be sent to
        executors on other hosts in clear text.
    :raises TransientError: if the master does not accept the application.
    """
    began = time.monotonic()
    settings = _session_settings(name, master, conf or {}, ui)
    if "java.io.tmpdir" not in settings.get("spark.driver.defaultJavaOptions", ""):
        settings["spark.driver.extraJavaOptions"] += f' "-Djava.io.tmpdir={_java_temp_folder()}"'
    check_spark_home(check_spark_install())
    ensure_java_home()
    # Otherwise Spark uses the first python3 in PATH for its workers, which may lack this package.
    if python := settings.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONSAFEPATH"] = "1"  # Python workers must not import from the current folder
    if is_loopback_master(master) and not (ui and os.environ.get("SPARK_PUBLIC_DNS")):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # the address of the web UI has no setting
    _use_own_local_dirs(settings.get("spark.local.dir"))
    remove_airflow_variables()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        launch_jvm({"spark.master": master, **settings}, report_line, short_lived=short_lived, archive_to=archive_to)
        with _report_while_starting(master, report_line):
            spark = builder.getOrCreate()
    except Exception as error:
        raise _start_error(master, error) from None
    report_line(f"Spark runs after {time.monotonic() - began:.1f} s")
    if not is_loopback_master(master):
        _require_encryption(spark, master)
    return spark


def _require_encryption(spark: SparkSession, master: str) -> None:
    missing = [key for key in ENCRYPTION_SETTINGS if str(spark.conf.get(key, "false")).lower() != "true"]
    if missing:
        spark.stop()
        raise NotReadyError(
            f"passwords would travel to the executors of {master} in clear text: not enabled: {', '.join(missing)}",
            f"Set {' and '.join(ENCRYPTION_SETTINGS)} to true, in spark.conf and at the cluster",
        )


def cluster_settings(name: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with which a driver is submitted to YARN, where :func:`open_cluster_session` continues.

    Spark's parts authenticate and encrypt with a key that YARN hands them, unless the pipeline says otherwise.

    :param name: name of the pipeline.
    :param conf: further settings, which override the defaults.
    """
    settings = {
        **dict.fromkeys(ENCRYPTION_SETTINGS, "true"),
        "spark.io.encryption.enabled": "true",  # tasks contain passwords, and large ones go to disk
        "spark.log.level": "WARN",
        "spark.yarn.appMasterEnv.PYTHONSAFEPATH": "1",
        # Next to Java, a container has Python workers; that of the driver, also the key indexes.
        "spark.driver.minMemoryOverhead": "1g",
        "spark.executor.minMemoryOverhead": "1g",
        **_session_settings(name, "yarn", conf, ui=True),
    }
    del settings["spark.driver.extraJavaOptions"]  # names a file on this host
    return settings


#: Variable in the environment of a driver's pod with namespace and name of the pod.
DRIVER_POD_VARIABLE = "CDC_DRIVER_POD"


def runs_in_cluster() -> bool:
    """Return whether a cluster has started this process as a driver."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or DRIVER_POD_VARIABLE in os.environ


def open_cluster_session(*, require_encryption: bool = False) -> SparkSession:
    """Return the session of a driver that Spark has started, with the settings that it was submitted with.

    :param require_encryption: whether passwords are about to leave the host.
    :raises NotReadyError: if they would travel in clear text.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONSAFEPATH"] = "1"
    spark = SparkSession.builder.getOrCreate()
    if require_encryption:
        _require_encryption(spark, "YARN")
    return spark


#: Temporary folders of this process, removed when it ends.
_temp_folders = ExitStack()
atexit.register(_temp_folders.close)


@cache
def _java_temp_folder() -> Path:
    """Return the folder for temporary files of the JVM that ``SPARK_LOCAL_DIRS`` does not cover."""
    return _temp_folders.enter_context(temporary_folder())


def _use_own_local_dirs(setting: str | None) -> None:
    """Give Spark private folders for its temporary files, inside those that it would have used.

    :param setting: ``spark.local.dir``, which applies if ``SPARK_LOCAL_DIRS`` is not set.
    :raises NotReadyError: if none of them is writable.
    """
    if os.environ.get("SPARK_LOCAL_DIRS") in _own_local_dirs:
        return  # the JVM of this process uses them already
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
    from py4j.protocol import Py4JNetworkError

    text = str(error)
    if is_local_master(master):
        if "JAVA_GATEWAY_EXITED" in text or isinstance(error, OSError | Py4JNetworkError):
            return UnexpectedError(
                "Java ended while Spark was starting",
                "If the lines above in the log name an option that Java refuses, correct spark.conf. Otherwise, "
                f"Java was killed: {LESS_MEMORY_REMEDY}",
            )
        found = to_cdc_error(error)
        return TerminalError(found.message, found.remedy) if isinstance(found, UnexpectedError) else found
    if "spark.authenticate.secret" in text:
        return NotReadyError("spark.authenticate is on, but Spark has no spark.authenticate.secret", SECRET_REMEDY)
    # In the second case, the text is about the session, which was stopped while it was being created.
    stopped = "stopped SparkContext" in text
    reason = "it does not answer or does not accept the application" if stopped else main_error_line(text)
    return TransientError(
        f"Spark did not start at {master}: {reason}",
        "Check that this master is running and reachable, and has the same spark.authenticate settings",
    )


@contextmanager
def _report_while_starting(master: str, report_line: Callable[[str], None]) -> Iterator[None]:
    """Say every half minute that Spark has not started, because its own log, which would show that, is hidden."""
    ended, began = threading.Event(), time.monotonic()

    def watch() -> None:
        while not ended.wait(_WAITING_SECONDS):
            report_line(
                f"Spark has not started at {master} after {time.monotonic() - began:.0f} s: the master does not answer "
                "yet, or (YARN) the queue has no room for the application"
            )

    if not is_local_master(master):
        threading.Thread(target=watch, name="spark-start-report", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def warn_while_waiting(spark: SparkSession, report_line: Callable[[str], None]) -> Iterator[None]:
    """Warn if Spark waits for executors, because its own log, which would show that, is hidden.

    :param report_line: called with a line of text after half a minute in which a job had no task, and then every ten
        minutes.
    """
    ended, master = threading.Event(), str(spark.conf.get("spark.master", "the server"))
    waits = threading.Event()
    note_progress = _make_progress_handler(waits)
    is_connect: bool = is_connect_session(spark)
    idle = waits.is_set if is_connect else _idle_check(spark)

    def watch() -> None:
        last_busy, last_warned = time.monotonic(), -math.inf
        while not ended.wait(1):
            with suppress(Exception):  # the session may be ending
                now = time.monotonic()
                if not idle():
                    last_busy = now
                elif now - last_busy > _WAITING_SECONDS and now - last_warned > _REPEAT_SECONDS:
                    last_warned = now
                    report_line(
                        f"Spark at {master} has started no task for {now - last_busy:.0f} s: it is waiting for an "
                        "executor, that is, for free cores or memory in the cluster (see spark.cores.max and "
                        "spark.executor.memory in spark.conf)"
                    )

    thread = threading.Thread(target=watch, name="spark-idle-warning", daemon=True)
    if is_connect:
        spark.registerProgressHandler(note_progress)
    if not is_local_master(master) or is_connect:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if is_connect:
            spark.removeProgressHandler(note_progress)


def is_connect_session(spark: SparkSession) -> bool:
    """Return whether a session belongs to a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def stop_session(spark: SparkSession) -> None:
    """End a session. If its Spark Connect server is lost, do not ask for it for ten minutes more."""
    if is_connect_session(spark):
        limit_retries(spark)
    spark.stop()


def limit_retries(spark: SparkSession, retries: int = _FEW_RETRIES) -> Any:
    """Let a session of a Spark Connect server retry its calls fewer times: by default, that takes ten minutes.

    :returns: the policies until then, for ``spark.client.set_retry_policies``. While the server does not answer, the
        session keeps the new ones: it is asked again at the end of the process.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy

    client: Any = spark.client
    policies = client.get_retry_policies()
    client.set_retry_policies([DefaultPolicy(max_retries=retries)])
    return policies


def _idle_check(spark: SparkSession) -> Callable[[], bool]:
    """Return a function that tells whether a job has begun of which no task has started."""
    tracker = spark.sparkContext.statusTracker()

    def is_idle() -> bool:
        stages = [job.stageIds for number in tracker.getActiveJobsIds() if (job := tracker.getJobInfo(number))]
        stage_infos = [stage for ids in stages for stage_id in ids if (stage := tracker.getStageInfo(stage_id))]
        return bool(stage_infos) and not any(stage.numActiveTasks or stage.numCompletedTasks for stage in stage_infos)

    return is_idle


def _make_progress_handler(waits: threading.Event) -> Any:
    """Return a handler of the progress that a server reports: it sets an event while no task has started."""

    def note_progress(stages: Iterable[Any], inflight_tasks: int, *_: object, **__: object) -> None:
        is_waiting = inflight_tasks == 0 and not any(stage.num_completed_tasks for stage in stages)
        (waits.set if is_waiting else waits.clear)()

    return note_progress


def ui_address(spark: SparkSession) -> str | None:
    """Return the address of Spark's web UI; ``None`` if it is off."""
    try:
        address: str | None = spark.sparkContext.uiWebUrl
    except Exception:  # a session of Spark Connect has no context
        return None
    return address
