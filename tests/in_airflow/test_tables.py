"""Tables of a stream that Airflow looks after: one is suspended and read again by a task, others come and go."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.in_airflow.site import Site
from tests.support.oracle import compare_database

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]

NAME = "tables"


@pytest.fixture
def file(site: Site) -> Iterator[Path]:
    """The pipeline's file; of the three tables it copies two."""
    site.server.execute(f"CREATE DATABASE {NAME}")
    for table in ("one", "two", "three"):
        site.server.session(
            NAME,
            f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20))",
            f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        )
    found = Path(f"{site.lake}-{NAME}.yaml")
    copies(site, found, "one", "two")
    yield found
    site.server.execute(f"DROP DATABASE {NAME}")


def copies(site: Site, file: Path, *tables: str, **stream: object) -> None:
    value = {
        "name": NAME,
        "source": {"conn_id": "cdc_source", "tables": [rf"{NAME}\.{table}" for table in tables]},
        "sink": {"path": f"{site.lake}-{NAME}"},
        "state": {"conn_id": "cdc_state"},
        "stream": {"reread": "ask", **stream},
    }
    file.write_text(json.dumps(value))  # JSON is YAML


def changed(site: Site, number: int, *tables: str) -> None:
    site.server.session(NAME, *(f"REPLACE INTO {table} VALUES (1, 'n{number}'), ({number}, 'new')" for table in tables))


def events(site: Site, kind: str) -> list[str]:
    with contextlib.closing(site.store(NAME)) as store:
        return [event.detail for event in store.last_events(NAME, 100) if event.kind == kind]


def airflow_cdc(site: Site, command: str, file: Path, *args: str) -> str:
    """A command on a host that has the file, beside Airflow."""
    connections = {"AIRFLOW_CONN_CDC_SOURCE": site.server.uri(), "AIRFLOW_CONN_CDC_STATE": site.books.uri()}
    ended = subprocess.run(
        [sys.executable, "-m", "airflow_provider_cdc", command, "-f", str(file), *args],
        cwd=ROOT,
        env={**os.environ, **connections},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def equal(site: Site, *tables: str) -> bool:
    return not compare_database(site.server, NAME, Path(f"{site.lake}-{NAME}"), tables)


def heard(file: Path) -> list[str]:
    """What the hooks of the stream's task have heard."""
    found = Path(f"{file}.told")
    return found.read_text().splitlines() if found.exists() else []


def test_tables_that_are_suspended_added_and_removed(site: Site, file: Path) -> None:
    dag, client = NAME, site.client
    run = client.trigger(dag)
    client.wait_state(dag, run, "tables.stream", "deferred")
    first = site.stream(NAME)
    changed(site, 10, "one", "two", "three")
    site.wait("the changes", lambda: equal(site, "one", "two"))

    # A DDL that is not followed: that table is suspended, the other one goes on, and so does the task.
    site.server.session(NAME, "ALTER TABLE one MODIFY v VARBINARY(40)")
    site.wait("the suspension", lambda: events(site, "table_suspended"))
    changed(site, 11, "one", "two", "three")
    site.wait("the changes", lambda: equal(site, "two"))
    assert not equal(site, "one")
    # The trigger sees it, the task calls the hook in a worker, and is deferred again.
    site.wait("the hook", lambda: heard(file))
    client.wait_state(dag, run, "tables.stream", "deferred")

    # A task reads it again; it waits for the stream, which has then exchanged the rows.
    again = client.trigger("again")
    client.wait_run("again", again)
    assert client.xcom("again", again, "again") == {"table": f"{NAME}.one", "outcome": "rejoined"}
    site.wait("all that came since", lambda: equal(site, "one", "two"))
    client.clear("again", again, "again")  # once more, though nothing is wrong
    client.wait_state("again", again, "again", min_try=2)
    assert client.xcom("again", again, "again")["outcome"] == "rejoined"
    assert len(events(site, "table_rejoined")) == 2

    site.wait("the other hook", lambda: len(heard(file)) > 1)
    client.wait_state(dag, run, "tables.stream", "deferred")

    # Another list of tables, while the stream runs.
    copies(site, file, "two", "three")
    assert airflow_cdc(site, "reload", file) == f"added: {NAME}.three; removed: {NAME}.one\n"
    site.wait("the table that was added", lambda: equal(site, "two", "three"))
    changed(site, 12, "one", "two", "three")
    site.wait("the changes", lambda: equal(site, "two", "three"))
    assert not equal(site, "one") and len(events(site, "table_removed")) == 1

    # What is not part of the pipeline any more is not read again, and the task says so at once.
    refused = client.trigger("again")
    client.wait_run("again", refused, "failed")
    assert client.task_instance("again", refused, "again").try_number == 1
    assert f"pipeline {NAME} copies no table {NAME}.one" in client.log("again", refused, "again")

    # Each hook has heard of it once, in one try of the task.
    assert heard(file) == [f"suspended {NAME}.one begun", f"suspended {NAME}.one over"]
    assert client.task_instance(dag, run, "tables.stream").try_number == 1

    # A person suspends a table and lets it go on, and pauses the stream by the parameter of a task.
    table = "--table", f"{NAME}.three"
    assert f"{NAME}.three is suspended at" in airflow_cdc(site, "suspend", file, *table, "--by", "ann")
    changed(site, 13, "two", "three")
    site.wait("the changes", lambda: equal(site, "two"))
    assert not equal(site, "three") and "ann asked for it" in airflow_cdc(site, "status", file)
    assert f"{NAME}.three was re-snapshotted" in airflow_cdc(site, "resume", file, *table)
    site.wait("the changes", lambda: equal(site, "two", "three"))
    others = [client.trigger("pausing", {"pause": True})]
    site.wait("the pause", lambda: site.stream(NAME).paused_by)
    assert "pausing.stream" in (site.stream(NAME).paused_by or "")
    client.wait_state("pausing", others[0], "stream", "deferred")
    for _ in range(2):  # it hears of that with a sign of life, and is in the middle of something then
        last = site.stream(NAME).heartbeat_at
        site.wait("a sign of life", lambda last=last: site.stream(NAME).heartbeat_at > last)  # type: ignore[misc]
    changed(site, 14, "two", "three")
    assert "airflow-cdc resume" in airflow_cdc(site, "status", file) and not equal(site, "two")
    others.append(client.trigger("pausing", {"pause": "false"}))
    site.wait("the changes", lambda: equal(site, "two", "three"))
    assert site.stream(NAME).paused_by is None

    # All of it was one epoch of one stream, which ends in good order: nothing is suspended.
    now = site.stream(NAME)
    assert (now.epoch, now.pid, now.state) == (first.epoch, first.pid, "running")
    # A task that comes with other settings: the next epoch has them, and the first task looks after that one.
    copies(site, file, "two", "three", trigger_seconds=0.3)
    newer = client.trigger("changed")
    now = site.wait_epoch(NAME, first.epoch)
    client.wait_state("changed", newer, "stream", "deferred")
    client.wait_state(dag, run, "tables.stream", "deferred")
    assert f"changed since epoch {first.epoch} began: stream.trigger_seconds. Asking the stream to stop" in client.log(
        "changed", newer, "stream"
    )
    changed(site, 13, "one", "two", "three")
    site.wait("the changes", lambda: equal(site, "two", "three"))
    now = site.stream(NAME)
    assert (now.epoch, now.state) == (first.epoch + 1, "running")

    # Tasks ask how it is, and stop it; its own task succeeds, as if a person had stopped it.
    asked = client.trigger("asked")
    client.wait_run("asked", asked, "failed")
    status, stopped = (client.xcom("asked", asked, task) for task in ("status", "stop"))
    assert (status["phase"], status["suspended"], status["stream"]["epoch"]) == ("streaming", [], now.epoch)
    assert {table["state"] for table in status["tables"]} == {"streaming", "removed"}
    assert (stopped["epoch"], stopped["state"]) == (now.epoch, "stopped") and stopped["end"]["file"]
    client.wait_run(dag, run)
    client.wait_run("changed", newer)
    for other in others:
        client.wait_run("pausing", other)
    assert client.xcom(dag, run, "tables.stream")["end"] == stopped["end"]
    # What a task worries about fails it, without a retry; it says so all the same.
    assert client.task_instance("asked", asked, "worried").try_number == 1
    assert "no stream is running (stopped)" in client.log("asked", asked, "worried")
    assert client.xcom("asked", asked, "worried")["phase"] == "stopped"
    assert "is suspended" not in airflow_cdc(site, "status", file)
