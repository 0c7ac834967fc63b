"""The whole system through its command line: real server, Spark and writers; then row by row against the source."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.chunk_groups.task import SnapshotJob
from airflow_provider_cdc.snapshot.run import run_snapshot
from tests.support.cli import Cli, session_processes, tree
from tests.support.oracle import compare_database
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.workload import Writers, make_foreign

TABLES = ("big", "nothing", "one", "trio", "words")
pytestmark = pytest.mark.spark


@pytest.fixture
def foreign(mysql_server: MySQLServer, database: str) -> str:
    """The awkward tables, filled: about 19,000 rows."""
    with contextlib.closing(mysql_server.connect()) as connection:
        make_foreign(connection, database, scale=0.05)
    return database


@pytest.fixture
def cli(mysql_server: MySQLServer, foreign: str, tmp_path: Path, cdc_user: dict[str, str]) -> Cli:
    return Cli(
        tmp_path / "work",
        mysql_server,
        rf"{foreign}\..*",
        name=foreign,
        user=cdc_user,
        snapshot={"chunk_rows": 500, "group_rows": 5000},
    )


def writers(server: MySQLServer, database: str, rate: float = 60) -> Writers:
    return Writers(server.connect_args(), "foreign", database=database, rate=rate)


def differences(server: MySQLServer, database: str, sink: Path) -> list[str]:
    return [str(d) for d in compare_database(server, database, sink)]


def waited_for(what: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 120) -> Any:
    """What a condition gives as soon as it is true; fails when the process ends before."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.2)
    return found


def test_a_live_database_is_copied_exactly(cli: Cli, mysql_server: MySQLServer, foreign: str) -> None:
    before = tree(cli.folder)
    planned = json.loads(cli.call("plan", "--json").out)
    assert not planned["written"] and [t["table"] for t in planned["tables"]] == [f"{foreign}.{t}" for t in TABLES]
    assert tree(cli.folder) == before

    with writers(mysql_server, foreign) as load:
        ran = cli.run("run", "--catch-up")
        assert ran.code == 0, ran
        assert ran.out == "" and "Traceback" not in ran.err
        said = rf"{foreign}\.\w+: [\d,]+ rows in [\d,]+ chunks, [\d.]+ s, [\d,-]+ rows/s, [\d,]+ corrected, min LW \S+"
        assert len(re.findall(said, ran.err)) == 5, "a line a table"
        assert re.search(r"group 0: .*: (\d+)/\1 chunks, [\d,]+ rows, [\d,]+ rows/s", ran.err), "and one a group"
        done = load.stop()
    assert done.transactions > 100
    caught_up = cli.run("stream", "--catch-up")
    assert caught_up.code == 0, caught_up
    assert differences(mysql_server, foreign, cli.sink) == []

    # What the tools say about it.
    assert cli.call("verify").out.startswith("all 5 tables are equal as of ")
    found = cli.reported_status()
    assert found["phase"] == "stopped" and found["stream"]["state"] == "caught_up" and found["stream"]["epoch"] == 2
    assert found["snapshot"]["complete"]
    assert found["snapshot"]["chunks_done"] == found["snapshot"]["chunks_total"] > 30
    assert found["stream"]["changes"] > 0 and found["stream"]["lag_p95_seconds"] >= found["stream"]["lag_p50_seconds"]
    assert found["offset"]["file"].startswith("binlog.")
    assert {t["table"] for t in found["tables"]} <= {f"{foreign}.{t}" for t in TABLES}
    assert "stopped" in cli.call("status").out
    assert cli.call("stop").out == "no stream is running, and one that is starting will not begin\n"

    # A second snapshot reads nothing.
    def refuse(job: SnapshotJob) -> list[dict[str, Any]]:
        raise AssertionError(f"group {job.group} was read again")

    with cli.opened() as (context, store):
        run_snapshot(context, store, context.plans.ensure(store), refuse)
    assert differences(mysql_server, foreign, cli.sink) == []

    # A copy that has been tampered with is found out, and told in one line.
    key = mysql_server.execute(f"SELECT MIN(a) FROM `{foreign}`.trio")[0][0]
    DeltaTable(str(cli.sink / foreign / "trio")).delete(f"a = {key}")
    DeltaTable(str(cli.sink / foreign / "words")).update(updates={"varchar_": "'forged'"}, predicate="varchar_ = 'a'")
    verdict = cli.call("verify")
    assert verdict.code == 1
    last = verdict.err.splitlines()[-1]
    assert last.startswith("error: 2 of 5 tables differ") and "--repair re-snapshots the rows that differ" in last
    assert re.search(rf"{foreign}.trio: \d+ rows, [1-9]\d* missing, 0 extra, 0 different; ", last)
    assert re.search(rf"{foreign}.words: \d+ rows, 0 missing, 0 extra, [1-9]\d* different\)", last)
    told = {v["table"]: v for v in json.loads(cli.call("verify", "--json", "--show-values").out)}
    assert not told[f"{foreign}.trio"]["equal"] and told[f"{foreign}.big"]["equal"]
    assert told[f"{foreign}.trio"]["examples"][0].startswith(f"missing ({key}, ")


@contextlib.contextmanager
def streaming(cli: Cli) -> Iterator[subprocess.Popen[str]]:
    """A continuous stream that has applied changes in this epoch."""
    before = (cli.reported_status()["stream"] or {"epoch": 0})["epoch"]
    process = cli.start("stream")
    try:

        def going() -> bool:
            found = cli.reported_status()
            listed = {table["state"] for table in found["tables"]}
            assert found["phase"] != "streaming" or listed == {"streaming"}
            return bool(found["phase"] == "streaming" and found["stream"]["epoch"] > before)

        waited_for(going, process)
        at = cli.reported_status()["offset"]
        waited_for(lambda: cli.reported_status()["offset"] != at, process)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ended(process: subprocess.Popen[str]) -> None:
    """It ended by itself with exit 0, and nothing of its session is left."""
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert "Traceback" not in err and "error" not in err.lower() and out == ""
    wait_for("the end of processes that were left behind", lambda: not session_processes(process.pid), 10)


@pytest.mark.long
def test_a_stream_runs_until_it_is_told_to_stop(cli: Cli, mysql_server: MySQLServer, foreign: str) -> None:
    cli.snapshot()
    with writers(mysql_server, foreign, rate=30) as load:
        with streaming(cli) as process:
            for command in ("stream", "run", "snapshot"):  # at once a second one: refused by name
                second = cli.call(command)
                assert second.code == 2
                assert f"process {process.pid}" in second.problem and "airflow-cdc stop" in second.problem
            verified = cli.call("verify")  # while writers and stream go on
            assert verified.code == 0 and verified.out.startswith("all 5 tables are equal as of "), verified
            assert cli.call("stop").out == "epoch 1 was asked to stop\n"
            ended(process)
        assert cli.reported_status()["phase"] == "stopped"
        with streaming(cli) as process:
            process.send_signal(signal.SIGTERM)
            ended(process)
        found = cli.reported_status()
        assert (found["phase"], found["stream"]["epoch"], found["stream"]["error"]) == ("stopped", 2, None)
        load.stop()
    cli.catch_up()
    assert differences(mysql_server, foreign, cli.sink) == []
