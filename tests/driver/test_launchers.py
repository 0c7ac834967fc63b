"""What launchers say and compare, without a cluster; tests/driver/test_yarn.py has a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.driver.launchers.yarn_submission import _command, _submission_error
from airflow_provider_cdc.driver.request import DriverRequest
from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.spark.resource_manager import ResourceManager, _application_of

LOG = "http://node:8042/node/containerlogs/container_e17_1410901177871_0001_01_000005/someone"


def test_tries_of_a_task_ask_for_the_same() -> None:
    """Without passwords, and whichever groups are left; a cleared task, or other settings, are something else."""
    request = DriverRequest({"name": "p"}, {"c": {"password": "hunter2"}}, groups=[1, 2], task="t", task_request=3)
    retry = replace(request, groups=[2], holder="try 2", connections={"c": {"password": "other"}})
    assert request.description == retry.description and request.description.startswith("chunk groups ")
    others: list[dict[str, Any]] = [{"task_request": 4}, {"task": "u"}, {"pipeline": {"name": "q"}}]
    others += [{"groups": None}, {"groups": None, "catch_up": True}, {"groups": None, "maintain": True}]
    found = [replace(request, **other).description for other in others]
    assert len({request.description, *found}) == 7
    assert replace(request, groups=None).is_stream and not request.is_stream
    assert not replace(request, groups=None, reread="d.t").is_stream


@pytest.mark.parametrize(
    ("code", "text", "kind", "words"),
    [
        (
            1,
            '26/11/29 INFO Client: x\nException in thread "main" org.apache.hadoop.yarn.exceptions.YarnException: '
            "Failed to submit application_1 to YARN : Application application_1 submitted by user u to unknown "
            "queue: q\n\tat x",
            NotReadyError,
            "unknown queue: q",
        ),
        (
            1,
            'Exception in thread "main" java.lang.IllegalArgumentException: Required executor memory (9000 MB) is '
            "above the max threshold (8192 MB) of this cluster!",
            NotReadyError,
            "above the max threshold",
        ),
        (
            1,
            'Exception in thread "main" java.net.ConnectException: Call From a to rm:8032 failed\n'
            "Caused by: java.net.ConnectException: Connection refused",
            TransientError,
            "YARN cannot be reached: java.net.ConnectException: Connection refused",
        ),
        (
            1,
            "Error: When running with master 'yarn' either HADOOP_CONF_DIR or YARN_CONF_DIR must be set",
            NotReadyError,
            "HADOOP_CONF_DIR or YARN_CONF_DIR must be set",
        ),
        (
            1,
            'Exception in thread "main" org.apache.hadoop.yarn.exceptions.YarnException: Failed to submit '
            "application_1 to YARN : org.apache.hadoop.security.AccessControlException: User u does not have "
            "permission to submit application_1 to queue q",
            NotReadyError,
            "the rights to it",
        ),
        (
            1,
            'Exception in thread "main" org.apache.hadoop.yarn.exceptions.YarnException: Failed to submit '
            "application_1 to YARN : org.apache.hadoop.security.AccessControlException: Queue root.q already has 20 "
            "applications, cannot accept submission of application: application_1",
            TransientError,
            "could not be submitted to YARN (queue q): org.apache.hadoop.yarn.exceptions.YarnException: Failed to",
        ),
        (
            1,
            'Exception in thread "main" org.apache.hadoop.hdfs.server.namenode.SafeModeException: Cannot create '
            "directory /user/u/.sparkStaging. Name node is in safe mode.",
            TransientError,
            "Name node is in safe mode",
        ),
        (
            1,
            'Exception in thread "main" java.io.FileNotFoundException: File file:/nowhere/env.tar.gz does not exist',
            NotReadyError,
            "File file:/nowhere/env.tar.gz does not exist. Check",
        ),
        (
            1,
            "WARN Client: Exception encountered while connecting: GSSException: No valid credentials provided\n"
            'Exception in thread "main" org.apache.hadoop.security.AccessControlException: Permission denied: '
            'user=etl, access=WRITE, inode="/user":hdfs:supergroup:drwxr-xr-x\n\tat x',
            NotReadyError,
            "user etl of the Airflow worker lacks the right WRITE in HDFS on /user. Create the home folder of etl: "
            "hdfs dfs -mkdir -p /user/etl; hdfs dfs -chown etl /user/etl. Or set spark.yarn.stagingDir",
        ),
        (
            1,
            'Exception in thread "main" org.apache.hadoop.security.AccessControlException: Permission denied: '
            'user=etl, access=READ, inode="/cdc/env.tar.gz":hdfs:supergroup:-rw-------',
            NotReadyError,
            "lacks the right READ in HDFS on /cdc/env.tar.gz. Give etl the right READ there",
        ),
        (
            1,
            'Exception in thread "main" java.io.IOException: DestHost:destPort rm:8032. Failed on local '
            "exception: java.io.IOException: org.apache.hadoop.security.AccessControlException: Client "
            "cannot authenticate via:[TOKEN, KERBEROS]\n\tat x\nCaused by: java.io.IOException: Client cannot "
            "authenticate via:[TOKEN, KERBEROS]",
            TransientError,
            "Give the user of the Airflow worker a ticket (kinit; KRB5CCNAME names its file)",
        ),
        (
            -9,
            "",
            TransientError,
            "spark-submit ended by signal 9 (Killed). Try again. If it lasts, see whether the kern",
        ),
        (137, "", TransientError, "to YARN (queue q): spark-submit ended with exit code 137. Try again"),
    ],
)
def test_a_submission_that_failed(code: int, text: str, kind: type[Exception], words: str) -> None:
    """Only settings and rights end the pipeline's task; what may be over soon is tried again."""
    error = _submission_error(code, text, "q")
    assert type(error) is kind and words in str(error) and "\n" not in str(error)


def test_what_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)

    def settings(**conf: str) -> dict[str, str]:
        words = _command(
            "shop", {name.replace("_", "."): value for name, value in conf.items()}, "tag", Path("/x/app.py")
        )
        assert words[1:5] == ["--master", "yarn", "--deploy-mode", "cluster"] and words[-1] == "/x/app.py"
        return dict(word.split("=", 1) for word in words if "=" in word)

    found = settings()
    for name in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        assert found[name] == "true"
    assert (found["spark.yarn.maxAppAttempts"], found["spark.yarn.submit.waitAppCompletion"]) == ("1", "false")
    assert found["spark.yarn.tags"] == "tag" and found["spark.yarn.jars"].startswith("local:/")
    assert "spark.driver.extraJavaOptions" not in found and found["spark.app.name"] == "airflow-cdc shop"
    own = settings(spark_pyspark_python="./env/bin/python", spark_yarn_tags="team", spark_authenticate="false")
    assert own["spark.pyspark.python"] == "./env/bin/python" and "spark.yarn.jars" not in own
    assert own["spark.yarn.tags"] == "team,tag" and own["spark.authenticate"] == "false"  # which the driver refuses
    with pytest.raises(NotReadyError, match="spark.yarn.maxAppAttempts cannot be set with deploy-mode cluster"):
        settings(spark_yarn_maxAppAttempts="2")


def test_the_application_of_a_log() -> None:
    assert _application_of(LOG) == "application_1410901177871_0001"
    assert _application_of(LOG.replace("e17_", "")) == "application_1410901177871_0001"
    assert _application_of("/lake/_cdc/p/logs/stream-1.log") is None and _application_of(None) is None
    silent = ResourceManager("http://127.0.0.1:9")
    assert not silent.kill_by_log("/a/log") and silent.describe_by_log("/a/log") == ""
    assert not silent.kill_by_log(LOG) and silent.describe_by_log(LOG) == ""
