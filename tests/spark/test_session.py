"""How Spark is started: what it is told, who can reach it, and what its page shows."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.config.spark_conf import MANAGED_SETTINGS, is_local_master, is_loopback_master
from airflow_provider_cdc.model.errors import (
    FencedError,
    NotReadyError,
    OutOfMemoryError,
    SlowWorkerError,
    UnexpectedError,
    embed_error,
)
from airflow_provider_cdc.spark.errors import to_cdc_error
from airflow_provider_cdc.spark.session import (
    DEFAULT_SETTINGS,
    ENCRYPTION_SETTINGS,
    _session_settings,
    start_session,
)
from airflow_provider_cdc.system.temp_dirs import temporary_folder
from tests import ROOT
from tests.support.spark_cluster import SparkCluster


@pytest.mark.parametrize(
    ("master", "local", "loopback"),
    [
        ("local", True, True),
        ("local[4]", True, True),
        ("local[*]", True, True),
        ("spark://127.0.0.1:7077", False, True),
        ("spark://localhost:7077,127.9.9.9:1", False, True),
        ("spark://[::1]:7077", False, True),
        ("spark://127.0.0.1:7077,db.example:7077", False, False),
        ("spark://127.0.0.1.example:7077", False, False),
        ("spark://localhost.example:7077", False, False),
        ("spark://10.0.0.1:7077", False, False),
        ("k8s://https://127.0.0.1:6443", False, False),  # the pods are not on this host's loopback
        ("yarn", False, False),
    ],
)
def test_what_stays_on_the_host(master: str, local: bool, loopback: bool) -> None:
    assert (is_local_master(master), is_loopback_master(master)) == (local, loopback)


def test_what_the_project_decides_cannot_be_set() -> None:
    """Each setting of the session is one that a pipeline is refused; those of the address depend on the master."""
    decided = set(_session_settings("p", "yarn", {}, False)) - set(DEFAULT_SETTINGS)
    assert decided <= set(MANAGED_SETTINGS)
    assert set(_session_settings("p", "local", {}, False)) - decided - set(DEFAULT_SETTINGS) == {
        "spark.driver.host",
        "spark.driver.bindAddress",
    }
    assert (
        _session_settings("p", "yarn", dict.fromkeys(DEFAULT_SETTINGS, "own"), True).items()
        >= dict.fromkeys(DEFAULT_SETTINGS, "own").items()
    )
    assert _session_settings("p", "yarn", {"spark.executor.memory": "4g"}, True)["spark.executor.memory"] == "4g"


def test_a_failure_that_nobody_knows_is_worth_another_try() -> None:
    """A worker that a busy host was too slow to start is known; the project's own errors stay what they are."""
    unknown = to_cdc_error(RuntimeError("Executor heartbeat timed out"))
    assert type(unknown) is UnexpectedError and "heartbeat timed out" in unknown.message
    slow = to_cdc_error(RuntimeError("Python worker failed to connect back."))
    assert type(slow) is SlowWorkerError and "10 s" in slow.message
    for text in (
        "pyarrow.lib.ArrowMemoryError: malloc of size 2048000 failed",
        "java.lang.OutOfMemoryError: Java heap",
    ):
        full = to_cdc_error(RuntimeError(f"Job aborted: {text}"))
        assert type(full) is OutOfMemoryError and text in full.message and "more memory" in full.remedy
    assert type(to_cdc_error(MemoryError())) is OutOfMemoryError
    own = to_cdc_error(RuntimeError(f"Job aborted: {embed_error(FencedError('epoch 2 has begun'))}"))
    assert type(own) is FencedError and own.message == "epoch 2 has begun"


def test_the_driver_of_a_loopback_master_listens_on_loopback_only() -> None:
    elsewhere = {"spark.driver.bindAddress": "0.0.0.0"}
    with pytest.raises(NotReadyError, match=r"spark.conf: spark.driver.bindAddress is '0.0.0.0'. Leave it out"):
        start_session("p", "spark://127.0.0.1:7077", elsewhere)
    assert _session_settings("p", "spark://db.example:7077", elsewhere, False)["spark.driver.bindAddress"] == "0.0.0.0"
    assert "spark.driver.host" not in _session_settings("p", "spark://db.example:7077", {}, False)


UNFIT = """
import sys
from airflow_provider_cdc.spark.errors import to_cdc_error
from airflow_provider_cdc.spark.session import start_session

spark = start_session("unfit", "local[1]")
for python in sys.argv[1:]:
    spark.sparkContext.pythonExec = python
    try:
        spark.sparkContext.parallelize([1], 1).map(str).collect()
    except Exception as error:
        print(type(to_cdc_error(error)).__name__, to_cdc_error(error))
spark.stop()
"""


@pytest.mark.spark
def test_workers_that_cannot_run_this_package(tmp_path: Path) -> None:
    """No interpreter, one without this package, and another Python: a retry does not help."""
    empty, other = tmp_path / "python-empty", tmp_path / "python-other"
    empty.write_text(f'#!/bin/sh\nPYTHONPATH= exec {sys.executable} -I -S "$@"\n')
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sitecustomize.py").write_text(
        "import sys, types, pyspark.worker_util\n"
        "pyspark.worker_util.sys = types.SimpleNamespace(**{**vars(sys), 'version_info': (3, 99)})\n"
    )
    other.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/other:$PYTHONPATH exec {sys.executable} "$@"\n')
    for file in (empty, other):
        file.chmod(0o755)
    command = [sys.executable, "-P", "-c", UNFIT, "/nowhere/python3", str(empty), str(other)]
    ran = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    found = [line for line in ran.stdout.splitlines() if line.startswith(("NotReady", "Unexpected"))]
    words = ['Cannot run program "/nowhere/python3"', "airflow_provider_cdc", "different version: 3.99"]
    assert len(found) == 3, ran
    for line, part in zip(found, words, strict=True):
        assert line.startswith("NotReadyError Spark's workers cannot run this package: ") and part in line, found
        assert "or set spark.pyspark.python" in line


# ---------------------------------------------------------------- one real session

SESSION = """
import contextlib, json, os, sys, urllib.request
from pathlib import Path
from airflow_provider_cdc.spark.session import start_session, ui_address

def sockets(pid):
    '''Addresses that a process listens on, as the kernel has them.'''
    own = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since
            own.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            word = line.split()
            if word[3] == "0A" and f"socket:[{word[9]}]" in own:
                yield word[1].rpartition(":")[0], int(word[1].rpartition(":")[2], 16)

secret = sys.stdin.read()
spark = start_session("page", "local[2]", {"spark.sql.shuffle.partitions": "3"}, ui=True)
java = spark.sparkContext._gateway.proc.pid
page = ui_address(spark)
served = "http://127.0.0.1:" + page.rpartition(":")[2]
local = [str(path) for path in Path.cwd().glob("disk?/airflow-cdc-*/*")]

def rows(_):
    yield len(secret)

def batches(found):
    for batch in found:
        assert secret
        yield batch

assert spark.sparkContext.parallelize([1, 2], 2).mapPartitions(rows).collect() == [len(secret)] * 2
assert spark.range(10).mapInArrow(batches, "id long").count() == 10
tabs = ["jobs", "jobs/job/?id=0", "stages", "stages/stage/?id=0&attempt=0", "storage", "environment", "executors",
        "executors/threadDump/?executorId=driver", "SQL", "SQL/execution/?id=0", "api/v1/applications"]
app = spark.sparkContext.applicationId
tabs += [f"api/v1/applications/{app}/{what}" for what in ("environment", "jobs", "stages?details=true", "sql",
                                                         "allexecutors", "executors/driver/threads")]
pages = {}
for tab in tabs:
    with urllib.request.urlopen(f"{served}/{tab}", timeout=30) as answer:
        pages[tab] = answer.read().decode()
listening = list(sockets(java))
conf = {k: spark.conf.get(k) for k in ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.app.name",
                                       "spark.driver.bindAddress", "spark.speculation", "spark.ui.killEnabled")}
left = sorted(name for name in os.environ if "AIRFLOW" in name)
environment = Path(f"/proc/{java}/environ").read_bytes().decode(errors="replace")
command = Path(f"/proc/{java}/cmdline").read_bytes().decode(errors="replace")
spark.stop()
print(json.dumps([page, pages, listening, conf, left, environment, command, local]))
"""


@pytest.mark.spark
@pytest.mark.parametrize("public", [None, "cdc.example"])
def test_a_session_with_its_page(tmp_path: Path, public: str | None) -> None:
    (tmp_path / "disk1").mkdir()
    with temporary_folder(tmp_path / "disk1") as left_by_another:
        shutil.copytree(left_by_another, left_by_another.with_name("airflow-cdc-left"))
    (tmp_path / "numbers.py").write_text("open('planted', 'w')")
    secret = f"C4n4ry-{secrets.token_hex(16)}"
    env = {
        **os.environ,
        "AIRFLOW_CONN_SOURCE": f"mysql://u:{secret}@h/",
        "AIRFLOW__CORE__FERNET_KEY": secret,
        "_AIRFLOW__STARTUP_MSG": secret,
        "AIRFLOW_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_DIRS": f"{tmp_path}/disk1,{tmp_path}/disk2",
    } | ({"SPARK_PUBLIC_DNS": public} if public else {})
    run = subprocess.run(
        [sys.executable, "-P", "-c", SESSION], input=secret, env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    page, pages, listening, conf, left, environment, command, local = json.loads(run.stdout.splitlines()[-1])
    assert conf == {
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.session.timeZone": "UTC",
        "spark.app.name": "airflow-cdc page",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.speculation": "false",
        "spark.ui.killEnabled": "false",
    }
    # Everything listens on 127.0.0.1; Spark's page too, unless people reach it by a name.
    assert page.startswith(f"http://{public or '127.0.0.1'}:")
    port = int(page.rpartition(":")[2])
    own = {address for address, its in listening if its == port}
    assert own and own <= ({"0" * 32, "0" * 8} if public else LOOPBACK)
    assert {address for address, its in listening if its != port} <= LOOPBACK
    # Temporary files are where the user wants them, and gone with the session; so are those of one that was killed.
    assert {Path(path).relative_to(tmp_path).parts[0] for path in local} == {"disk1", "disk2"}
    assert any("blockmgr" in path for path in local) and not any("airflow-cdc-left" in path for path in local)
    assert not [*tmp_path.glob("disk?/*")] and not (tmp_path / "planted").exists()
    # The environment is that of a process which knows no secret.
    assert left == ["AIRFLOW_HOME"]
    assert "JAVA_HOME" in environment
    together = "".join(pages.values())
    assert "spark.sql.shuffle.partitions" in together and "mapinarrow" in together.lower()
    shown = {**pages, "the JVM's environment": environment, "its command line": command, "the log": run.stderr}
    for form in (secret, secret.encode().hex(), base64.b64encode(secret.encode()).decode()[:-4]):
        assert [where for where, text in shown.items() if form in text] == []


KILLED = """
from airflow_provider_cdc.system.processes import kill_session
from airflow_provider_cdc.spark.session import start_session
import os

spark = start_session("killed", "local[2]")
assert spark.range(10).count() == 10
kill_session(os.getsid(0))
"""


@pytest.mark.spark
def test_a_session_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    """Beside Spark's own files the JVM makes some in ``TMPDIR``: the next process removes those, too."""
    env = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_DIRS"}
    run = subprocess.run(
        [sys.executable, "-P", "-c", KILLED],
        env={**env, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert run.returncode == -signal.SIGKILL, run.stderr[-3000:]
    left = [path.relative_to(tmp_path).parts for path in tmp_path.rglob("*")]
    assert {"blockmgr", "artifacts"} <= {parts[1].partition("-")[0] for parts in left if len(parts) == 2}
    with temporary_folder(tmp_path) as own:
        assert [*tmp_path.iterdir()] == [own]


#: 127.0.0.1 as the kernel writes it.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}

REFUSED = """
import sys
from airflow_provider_cdc.model.errors import CdcError
import airflow_provider_cdc.spark.session as session

# Nobody to connect to on another host here: the session is a local one that is held to the rule of a remote one.
session.is_loopback_master = lambda master: False
for conf in ({}, {"spark.authenticate": "true"}, {key: "true" for key in session.ENCRYPTION_SETTINGS}):
    try:
        spark = session.start_session("p", "local[1]", conf)
        print("started", session.ui_address(spark))
        spark.stop()
    except CdcError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.spark
def test_secrets_go_to_other_hosts_encrypted_only(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", REFUSED],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    both = " and ".join(ENCRYPTION_SETTINGS)
    assert run.stdout.splitlines() == [
        f"NotReadyError passwords would travel to the executors of local[1] in clear text: not enabled: {name}. "
        f"Set {both} to true, in spark.conf and at the cluster"
        for name in (", ".join(ENCRYPTION_SETTINGS), ENCRYPTION_SETTINGS[1])
    ] + ["started None"], run.stderr[-3000:]


def test_java_is_asked_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_cdc.spark import java

    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nenv > $0.env\necho 'openjdk version \"17.0.1\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("AIRFLOW_CONN_SOURCE", "hunter2")
    monkeypatch.setenv("KEPT", "kept")
    assert java.java_version(tmp_path) == 17
    seen: Any = (tmp_path / "bin" / "java.env").read_text()
    assert "hunter2" not in seen and "KEPT=kept" in seen


@pytest.mark.spark
def test_a_start_that_takes_long_is_no_silence() -> None:
    """A master that takes the connection and does not answer: Spark waits for a minute before it gives up."""
    program = """
import os, sys
from airflow_provider_cdc.spark import session
session._WAITING_SECONDS = 1
def report(line):
    if "not started" in line:
        print(line, flush=True)
        os._exit(0)
session.start_session("waits", sys.argv[1], report_line=report)
"""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        master = f"spark://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-c", program, master]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.stdout.startswith(f"Spark has not started at {master} after "), ran


@pytest.mark.spark
@pytest.mark.long
def test_a_cluster_without_room_is_no_silence() -> None:
    """A worker with one core, and two that want it: the one that gets none says so, and works when it is free."""
    program = """
import sys
from airflow_provider_cdc.spark import session
session._WAITING_SECONDS = 3
spark = session.start_session("waits", sys.argv[1], {"spark.cores.max": "1", "spark.executor.memory": "512m"})
with session.warn_while_waiting(spark, lambda text: print(text, flush=True)):
    print("begins", flush=True)
    print(spark.range(10).rdd.map(lambda row: row[0]).sum(), flush=True)
    print("works", flush=True)
    sys.stdin.read()
spark.stop()
"""

    def start_one() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, cluster.uri]
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with SparkCluster(workers=1) as cluster, start_one() as first:
        assert first.stdout and first.stdin
        while "works" not in (line := first.stdout.readline()):
            assert line, "it ended"  # on a busy machine it says that it waits, too
        with start_one() as second:
            assert second.stdout and second.stdin
            said = next(line for line in second.stdout if "begins" not in line)
            assert said.startswith(f"Spark at {cluster.uri} has started no task for ")
            assert "waiting for an executor" in said
            first.stdin.close()
            assert [line.strip() for line in (second.stdout.readline(), second.stdout.readline())] == ["45", "works"]
            second.stdin.close()
