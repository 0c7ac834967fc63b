"""What a driver leaves on its host, and what it takes from there: folders, logs, rights, modules."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.config.connections import ResolvedConnection, resolve_connection
from airflow_provider_cdc.config.selection import TableSelection
from airflow_provider_cdc.driver.launchers.local import (
    new_log_file,
    read_outcome,
    result_file,
    start_attached,
    start_detached,
)
from airflow_provider_cdc.driver.request import DriverRequest
from airflow_provider_cdc.model.errors import TerminalError, UnexpectedError
from airflow_provider_cdc.sinks.files.layout import LocalFiles
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.processes import rotate_log, rotated_log, tail_log
from airflow_provider_cdc.system.temp_dirs import temporary_folder
from tests.support.cli import Cli
from tests.support.servers import MySQLServer

NOBODY = ResolvedConnection.from_json(
    {"conn_id": "c", "conn_type": "mysql", "host": "127.0.0.1", "port": 1, "login": "u", "password": "p",
     "schema": None, "extra": {}}
)  # fmt: skip


def test_a_driver_imports_nothing_from_the_folder_that_it_works_in(tmp_path: Path) -> None:
    """Nor does it let its log grow; here it is too large from the beginning."""
    log = new_log_file(tmp_path / "lake" / "logs")
    log.write_text("before\n" * 100)
    for module in ("json", "signal", "airflow_provider_cdc"):
        (log.parent / f"{module}.py").write_text(f"import os; open({str(tmp_path / 'planted')!r}, 'w')")
    pipeline = {"name": "p", "source": {"conn_id": "c", "tables": ["a.b"]}, "sink": {"path": str(tmp_path / "lake")}}
    request = DriverRequest(
        pipeline, {"c": NOBODY.to_json()}, result=str(result_file(log)), log=str(log), log_bytes=500
    )
    code = start_detached(request, log).wait(120)
    assert not (tmp_path / "planted").exists()
    with pytest.raises(Exception, match="cannot be reached"):
        read_outcome(result_file(log), code)
    assert rotated_log(log).read_text() == "before\n" * 100
    assert "before" not in log.read_text() and tail_log(log, 50)[-2:] == ["before", log.read_text().strip()]
    for _ in range(21):
        new_log_file(log.parent).touch()
        time.sleep(0.002)
    assert not [path for path in (log, rotated_log(log), result_file(log)) if path.exists()]


def test_a_driver_that_crashes_says_where(tmp_path: Path) -> None:
    """In its log; the task names the signal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "airflow_provider_cdc.driver.main"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    status, deadline = Path(f"/proc/{process.pid}/status"), time.monotonic() + 60
    while not int(status.read_text().partition("SigCgt:")[2].split()[0], 16) >> signal.SIGSEGV - 1 & 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGSEGV)
    said = process.communicate()[1]
    assert "Segmentation fault" in said and "Current thread" in said and "driver/main.py" in said
    with pytest.raises(UnexpectedError, match=r"ended by signal 11 \(Segmentation fault\).*its last lines show where"):
        read_outcome(tmp_path / "result.json", process.returncode)
    with pytest.raises(UnexpectedError, match=r"ended by signal 9 \(Killed\).*memory of the host"):
        read_outcome(tmp_path / "result.json", -signal.SIGKILL)


def test_a_driver_compares_source_and_sink(mysql_server: MySQLServer, database: str, tmp_path: Path) -> None:
    """What it has found is its outcome; a difference is its error. It starts no Spark where that is local."""
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT)")
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, 1), (2, 2)")
    cli = Cli(tmp_path, mysql_server, f"{database}.t")
    cli.snapshot()
    cli.catch_up()
    known = cli.context.pipeline.source.conn_id
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_CDC_SOURCE", cli.env["AIRFLOW_CONN_CDC_SOURCE"])
        connection = resolve_connection(known)
    what = {**asdict(TableSelection()), "show_values": False}
    request = DriverRequest(cli.context.pipeline.to_dict(), {known: connection.to_json()}, verify=what)
    with start_attached(request) as driver:
        said = list(driver.output_lines())
        (found,) = driver.wait_for_outcome()["tables"]
    assert found["equal"] and found["rows"] == 2 and said[-1].endswith(f" {database}.t: 2 rows, equal")
    mysql_server.session(database, "SET sql_log_bin = 0", "UPDATE t SET v = 7 WHERE id = 2")
    with start_attached(request) as driver, pytest.raises(TerminalError, match="1 of 1 tables differ"):
        said = list(driver.output_lines())
        driver.wait_for_outcome()
    assert any(line.endswith(f"{database}.t: columns that differ: v (1)") for line in said)
    assert not any("UI" in line for line in said)


def test_a_log_is_emptied_under_those_who_write_to_it(tmp_path: Path) -> None:
    """Two processes, as the driver and its JVM: no line is torn, and no hole is left."""
    log = tmp_path / "log"
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # As logging does, each line in one write; `print` makes two where PYTHONUNBUFFERED is set.
    program = "import sys\nfor line in sys.stdin: sys.stdout.write(line), sys.stdout.flush()"
    writers = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=out, text=True) for _ in "ab"
    ]
    os.close(out)

    def said(*lines: str) -> None:
        size = log.stat().st_size
        for writer, line in zip(writers, lines, strict=True):
            assert writer.stdin
            print(line, file=writer.stdin, flush=True)
        while log.stat().st_size < size + sum(len(line) + 1 for line in lines):
            time.sleep(0.01)

    said("a1", "b1")
    rotate_log(log, 6)
    assert sorted(log.read_text().split()) == ["a1", "b1"] and not rotated_log(log).exists()
    rotate_log(log, 5)
    assert log.read_text() == "" and stat.S_IMODE(rotated_log(log).stat().st_mode) == 0o600
    said("a2", "b2")
    assert sorted(log.read_text().split()) == ["a2", "b2"]
    assert sorted(tail_log(log, 40)) == ["a1", "a2", "b1", "b2"] and sorted(tail_log(log, 2)) == ["a2", "b2"]
    rotate_log(log, 5)
    assert sorted(rotated_log(log).read_text().split()) == ["a2", "b2"]
    for writer in writers:
        writer.communicate()


HELD = """
import sys, time
from airflow_provider_cdc.system.temp_dirs import temporary_folder

with temporary_folder(sys.argv[1]) as folder:
    print(folder, flush=True)
    time.sleep(300)
"""


def test_folders_of_dead_processes_are_removed_and_no_others(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HELD, str(tmp_path)]
    other, link = tmp_path / "airflow-cdc-without-a-lock", tmp_path / "airflow-cdc-link"
    other.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / ".lock").touch()
    link.symlink_to(tmp_path / "elsewhere")
    with contextlib.ExitStack() as stack:
        dead, living = (
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) for _ in range(2)
        )
        for process in (dead, living):  # before they are waited for
            stack.callback(process.kill)
        assert dead.stdout and living.stdout
        left, held = Path(dead.stdout.readline().strip()), Path(living.stdout.readline().strip())
        (left / "blockmgr-1").mkdir()
        dead.kill()
        dead.wait()
        assert left.exists()
        with temporary_folder(tmp_path) as own:
            assert not left.exists() and held.exists() and stat.S_IMODE(own.stat().st_mode) == 0o700
            with temporary_folder(tmp_path):
                assert own.exists()
        assert not own.exists()
    with temporary_folder(tmp_path):
        assert not held.exists()
    assert sorted(tmp_path.iterdir()) == [link, other, tmp_path / "elsewhere"]
    assert (tmp_path / "elsewhere" / ".lock").exists()


@pytest.mark.parametrize(("umask", "group"), [(0o022, 0o040), (0o002, 0o060), (0o077, 0)])
def test_the_bookkeeping_is_nobody_elses(tmp_path: Path, umask: int, group: int) -> None:
    """It holds bounds of keys, and so does the plan. A group that shares the folder keeps what the umask gives it."""

    def modes() -> dict[str, int]:
        found = [local.folder, *local.folder.glob("bookkeeping.db*")]
        return {path.name: stat.S_IMODE(path.stat().st_mode) for path in found}

    local, before = LocalFiles.for_pipeline(tmp_path / "lake", "p"), os.umask(umask)
    wanted: dict[str, Any] = {"p": 0o770 & ~umask} | dict.fromkeys(
        ("bookkeeping.db", "bookkeeping.db-wal", "bookkeeping.db-shm"), 0o600 | group
    )
    try:
        local.create_folder()
        store = StateDatabase.open(f"sqlite:///{local.state_database}", migrate=True)
        assert modes() == wanted
        # Those of an earlier version.
        for path in (local.folder, *local.folder.glob("bookkeeping.db*")):
            path.chmod(path.stat().st_mode | 0o005)
        local.create_folder()
        other = StateDatabase.open(f"sqlite:///{local.state_database}", migrate=True)
        assert modes() == wanted
        other.close()
        store.close()
    finally:
        os.umask(before)


def test_a_link_that_airflow_does_not_take_ends_nothing() -> None:
    pytest.importorskip("airflow.sdk")
    from airflow_provider_cdc.airflow.links.cdc import push_spark_ui_link

    class Ti:
        def xcom_push(self, key: str, value: str) -> None:
            raise RuntimeError(f"{key} was not taken")

    class Log:
        def warning(self, *words: object) -> None:
            told.append(str(words[0]) % words[1:])

    told: list[str] = []
    context: Any = {"ti": Ti()}
    for address in ("http://127.0.0.1:4040", "http://localhost:4041", "http://[::1]:4042"):
        push_spark_ui_link(context, address, Log())  # a browser on another host could not open it
    push_spark_ui_link(context, "http://h.example:1", Log())
    assert told == [
        "there is no link to the Spark UI, http://h.example:1, because Airflow rejected it: spark_ui was not taken"
    ]
