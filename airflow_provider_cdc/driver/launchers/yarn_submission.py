"""Submit a driver to YARN with spark-submit, in cluster mode. Nothing secret is in the command or its environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from airflow_provider_cdc.config.connections import environment_without_airflow
from airflow_provider_cdc.driver.launchers.sealed_request import DriverSecret, write_credentials
from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.spark.install_check import check_spark_home, check_spark_install
from airflow_provider_cdc.spark.java import ensure_java_home
from airflow_provider_cdc.spark.resource_manager import driver_tag
from airflow_provider_cdc.spark.session import cluster_settings
from airflow_provider_cdc.system.processes import describe_exit, end_session
from airflow_provider_cdc.system.temp_dirs import temporary_folder

#: Seconds for a submission. Jars that are not in the cluster yet are uploaded meanwhile.
_SUBMIT_SECONDS = 600.0
_GRACE_SECONDS = 2.0
#: What runs in the cluster: the package that is installed there.
_APPLICATION = "import sys\n\nfrom airflow_provider_cdc.driver.yarn_main import main\n\nsys.exit(main())\n"
#: Settings that decide how a driver is found again and how often it runs.
_DECIDED = {
    "spark.yarn.submit.waitAppCompletion": "false",  # else a JVM would wait as long as the driver runs
    "spark.yarn.maxAppAttempts": "1",  # the task decides whether a driver is started again
}
#: What a change of settings or rights must end. All else may be over soon: a cluster that starts, a disk that is full.
_WRONG_SETTINGS = re.compile(
    "unknown queue|non-leaf queue|is STOPPED|AccessControlException|does not have permission|"
    "cannot submit applications to queue|is above the max|greater than maximum allowed|HADOOP_CONF_DIR|"
    "FileNotFoundException"
)
#: YARN calls this an AccessControlException.
_FULL = re.compile("already has [0-9]+ applications|application limit reached")
_NO_RIGHT_IN_HDFS = re.compile(
    r'Permission denied: user=(?P<user>[^,\s]+), access=(?P<access>\w+), inode="(?P<path>[^"]+)"'
)
_NO_TICKET = re.compile("Client cannot authenticate via|GSSException|GSS initiate failed|No valid credentials provided")
_UNREACHABLE = re.compile(r"Connection refused|ConnectException|NoRouteToHost|SocketTimeout|UnknownHost")
_ERROR = re.compile(r"(?:Exception in thread \"main\" |Caused by: |Error: )(?P<text>.+)")


def submit(pipeline: str, conf: Mapping[str, str], secret: DriverSecret) -> None:
    """Submit a driver.

    :param pipeline: name of the pipeline.
    :param conf: the user's Spark settings.
    :param secret: what the driver must know.
    :raises NotReadyError: if settings or rights must be changed.
    :raises TransientError: if it failed otherwise.
    """
    check_spark_home(check_spark_install())
    with temporary_folder() as folder:
        credentials, application = folder / "credentials", folder / "airflow_cdc_driver.py"
        write_credentials(credentials, secret.to_bytes())
        application.write_text(_APPLICATION)
        command = _command(pipeline, conf, driver_tag(secret.driver), application)
        code, text = _run(command, folder, credentials)
    if code != 0:
        raise _submission_error(code, text, conf.get("spark.yarn.queue"))


def _command(pipeline: str, conf: Mapping[str, str], tag: str, application: Path) -> list[str]:
    for key in _DECIDED:
        if key in conf:
            raise NotReadyError(
                f"spark.conf: {key} cannot be set with deploy-mode cluster",
                f"Leave it out: it is always {_DECIDED[key]}",
            )
    settings = {**cluster_settings(pipeline, conf), **_DECIDED}
    settings["spark.yarn.tags"] = ",".join(filter(None, [conf.get("spark.yarn.tags"), tag]))
    home = _spark_home()
    if "spark.pyspark.python" not in conf:  # everything is at the same paths on all nodes
        settings["spark.pyspark.python"] = sys.executable
        if not {"spark.yarn.jars", "spark.yarn.archive"} & conf.keys():
            settings["spark.yarn.jars"] = f"local:{home}/jars/*"
    words = [f"{home}/bin/spark-submit", "--master", "yarn", "--deploy-mode", "cluster"]
    for key, value in settings.items():
        words += ["--conf", f"{key}={value}"]
    return [*words, str(application)]


def _run(command: list[str], folder: Path, credentials: Path) -> tuple[int, str]:
    """Run spark-submit, and end it with this process if that is interrupted."""
    ensure_java_home()
    environment = environment_without_airflow()
    options = ["-XX:TieredStopAtLevel=1", environment.get("SPARK_SUBMIT_OPTS", "")]
    environment["SPARK_SUBMIT_OPTS"] = " ".join([*options, f"-Dhadoop.token.files={credentials}"]).strip()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_SUBMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise TransientError(
            f"spark-submit has not submitted the driver within {_SUBMIT_SECONDS:g} s",
            "Check that the ResourceManager of HADOOP_CONF_DIR runs. If files are uploaded each time, put them into "
            "the cluster (spark.yarn.jars, spark.yarn.dist.archives)",
        ) from None
    finally:
        if process.poll() is None:
            end_session(process.pid, _GRACE_SECONDS)
            process.wait()
    return process.returncode, output.decode(errors="replace")


def _submission_error(code: int, text: str, queue: str | None) -> NotReadyError | TransientError:
    found = [match["text"].strip() for line in text.splitlines() if (match := _ERROR.search(line))]
    wrong = next((line for line in found if _WRONG_SETTINGS.search(line) and not _FULL.search(line)), None)
    reason = wrong or (found[-1] if found else text.strip()[-300:])
    reason = " ".join(reason.split())[:500]
    where = f"queue {queue}" if queue else "the default queue"
    if (denied := next(filter(None, map(_NO_RIGHT_IN_HDFS.search, found)), None)) is not None:
        return _hdfs_error(**denied.groupdict())
    if (ticket := next(filter(_NO_TICKET.search, found), None)) is not None:
        return TransientError(  # it may be about to be renewed
            f"spark-submit has no valid Kerberos ticket: {' '.join(ticket.split())[:500]}",
            "Give the user of the Airflow worker a ticket (kinit; KRB5CCNAME names its file), and keep it renewed",
        )
    if wrong:
        return NotReadyError(
            f"the driver was not accepted by YARN ({where}): {reason}",
            "Check the queue of the Spark connection and the rights to it, HADOOP_CONF_DIR, and spark.conf",
        )
    if _UNREACHABLE.search(text):
        return TransientError(f"YARN cannot be reached: {reason}", "Check HADOOP_CONF_DIR, and that YARN runs")
    if code < 0:
        return TransientError(
            f"spark-submit ended {describe_exit(code)}",
            "Try again. If it lasts, see whether the kernel's log says that the memory of the Airflow worker ran out",
        )
    return TransientError(
        f"the driver could not be submitted to YARN ({where}): {reason or f'spark-submit ended {describe_exit(code)}'}",
        "Try again. If it lasts, check spark.conf, the limits of the queue, and the logs of YARN and HDFS",
    )


def _hdfs_error(user: str, access: str, path: str) -> NotReadyError:
    home = f"/user/{user}"
    remedy = f"Give {user} the right {access} there"
    if home.startswith(path.rstrip("/")) or path.startswith(f"{home}/"):
        remedy = (
            f"Create the home folder of {user}: hdfs dfs -mkdir -p {home}; hdfs dfs -chown {user} {home}. Or set "
            f"spark.yarn.stagingDir in spark.conf to a folder that {user} may write to"
        )
    return NotReadyError(f"user {user} of the Airflow worker lacks the right {access} in HDFS on {path}", remedy)


def _spark_home() -> str:
    if home := os.environ.get("SPARK_HOME"):
        return home
    import pyspark

    return str(Path(pyspark.__file__).parent)
