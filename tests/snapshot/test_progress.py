"""What people see of a snapshot: bars, lines, status, and a line a table at the end; all with the same numbers."""

from __future__ import annotations

import io
import re
import time
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.progress import ChunkProgress
from airflow_provider_cdc.observe.reporters import BarReporter, LineReporter
from airflow_provider_cdc.sinks.files.attempt_signals import AttemptSignals
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.snapshot.progress import group_progress, snapshot_progress, table_totals
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.state.models import ChunkGroupRow
from tests.mysql.client.test_throttle import busy
from tests.snapshot.test_retention_guard import fill, reading
from tests.support.cli import Cli
from tests.support.servers import MySQLServer


def test_why_a_group_waits(tmp_path: Path) -> None:
    with MySQLServer() as server:
        fill(server, 2000)
        settings = {"chunk_rows": 50, "parallelism": 2, "max_threads_running": 12}
        cli = Cli(tmp_path, server, "d.t", user=server.create_cdc_user(), snapshot=settings)
        with busy(server, 20) as end, reading(cli) as (heard, failed):
            deadline = time.monotonic() + 60
            while not any("paused" in line for line in heard.lines):
                assert time.monotonic() < deadline and not failed, heard.lines
                time.sleep(0.05)
            said = next(line for line in heard.lines if "paused" in line)
            assert re.fullmatch(r"group 0: d\.t: paused: Threads_running is \d+, the limit is 12", said)
            found = cli.reported_status()
            assert found["snapshot"]["paused"] == found["groups"][0]["paused"] == said.partition("paused: ")[2]
            assert found["snapshot"]["chunks_done"] == 0, "nothing is read"
            assert "paused: Threads_running is" in cli.call("status").out
            end()
        assert failed == [] and "group 0: d.t: continues" in heard.lines
        assert cli.rows("d", "t").num_rows == 2000
        assert cli.reported_status()["snapshot"]["paused"] is None
        assert not list(cli.sink.glob("_cdc/**/notes-*")), "nothing is left of what was only said"


def test_the_same_numbers_everywhere(mysql_server: MySQLServer, database: str, tmp_path: Path) -> None:
    for name, rows in (("a", 900), ("b", 300), ("c", 0)):
        mysql_server.execute(f"CREATE TABLE {database}.{name} (id INT PRIMARY KEY)")
        if rows:
            mysql_server.execute(f"INSERT INTO {database}.{name} VALUES {','.join(f'({n})' for n in range(rows))}")
        mysql_server.execute(f"ANALYZE TABLE {database}.{name}")
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*", snapshot={"chunk_rows": 30, "group_rows": 600})
    with reading(cli) as (heard, failed):
        pass
    assert failed == []
    found, last = cli.reported_status(), {p.label: p for p in heard.progressed}
    assert list(last) == [f"group 0: {database}.a", f"group 1: {database}.a and 1 more"]
    assert all(p.chunks_done == p.chunks_total == 20 and p.eta_seconds == 0 for p in last.values())
    for shown, p in zip(found["groups"], last.values(), strict=True):
        assert (shown["chunks_done"], shown["chunks_total"], shown["rows"]) == (20, 20, p.rows)
        assert shown["state"] == "done" and shown["rows_per_second"] > 0 and shown["eta_seconds"] == 0
    assert found["snapshot"]["rows"] == sum(p.rows for p in last.values()) == 1200
    assert found["snapshot"]["chunks_done"] == 40 and found["snapshot"]["eta_seconds"] == 0
    assert found["snapshot"]["rows_per_second"] > 0
    context = cli.context
    totals = table_totals(context, context.plans.require())
    assert [(t.table, t.rows, t.chunks) for t in totals] == [
        (f"{database}.a", 900, 30),
        (f"{database}.b", 300, 10),
        (f"{database}.c", 0, 0),
    ]
    assert [t.rows for t in table_totals(context, context.plans.require(), [1])] == [300, 300]
    text = (
        rf"{database}\.a: 900 rows in 30 chunks, [\d.]+ s, [\d,]+ rows/s, 0 corrected, min LW \S+:\d+, max HW \S+:\d+"
    )
    assert re.fullmatch(text, str(totals[0]))
    p0 = context.plans.require().p0.at
    assert all(p0 <= t.min_lw <= t.max_hw for t in totals) and totals[2].max_hw == p0


def test_time_in_which_nobody_read_is_not_counted(mysql_server: MySQLServer, database: str, tmp_path: Path) -> None:
    """A snapshot that stood still is not slow: its rate is that of the time in which a group was being read."""
    mysql_server.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY)")
    mysql_server.execute(f"INSERT INTO {database}.a VALUES {','.join(f'({n})' for n in range(600))}")
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*", snapshot={"chunk_rows": 30, "group_rows": 300})
    cli.snapshot()
    with cli.opened() as (context, store):
        groups = group_progress(context, store, context.plans.require())
        before = snapshot_progress(groups)
        _shift(store, hours=-5)  # the first group was read five hours earlier
        after = snapshot_progress(group_progress(context, store, context.plans.require()))
        assert after.seconds == pytest.approx(before.seconds, abs=0.05)
        assert after.fresh_chunks == before.fresh_chunks == 20


def _shift(store: StateDatabase, hours: int) -> None:
    with store._write_session() as session:
        row = session.get(ChunkGroupRow, ("p", 1, 0))
        assert row is not None and row.started_at is not None and row.finished_at is not None
        row.started_at += timedelta(hours=hours)
        row.finished_at += timedelta(hours=hours)


def test_bars_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    half = ChunkProgress("group 0: d.t", 50, 100, 5000, 3, 50, 5000, 10)
    done = ChunkProgress("group 0: d.t", 100, 100, 10_000, 4, 100, 10_000, 20)
    screen = io.StringIO()
    with BarReporter(Console(file=screen, force_terminal=True, width=160)) as bars:
        bars.progress(half)
        bars._bars.refresh()
        assert "50/100 chunks, 5,000 rows, 500 rows/s, 3 corrected, 10 s left" in screen.getvalue()
        bars.progress(done)
        bars.progress(done)
        assert not bars._bars.tasks, "a bar that is full makes room for others"
    assert screen.getvalue().count("100/100 chunks, 10,000 rows, 500 rows/s, 4 corrected") == 1
    with LineReporter() as lines:
        for progress in (half, half, done, done):
            lines.progress(progress)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and "50/100" in told[0] and "100/100" in told[1]


def test_notes_between_driver_and_readers(tmp_path: Path) -> None:
    driver, reader = AttemptSignals(LocalStorage(tmp_path), "n"), AttemptSignals(LocalStorage(tmp_path), "n")
    assert driver.pause_reason() is None
    reader.raise_if_stopped()
    reader.set_pause_reason(3, "busy")
    reader.set_pause_reason(4, "late")
    assert driver.pause_reason() == "busy"
    reader.set_pause_reason(3, None)
    reader.set_pause_reason(3, None)
    assert driver.pause_reason() == "late"
    driver.stop_readers(TerminalError("enough", "more time"))
    with pytest.raises(TerminalError, match="enough") as error:
        reader.raise_if_stopped()
    assert error.value.remedy == "more time"
    driver.remove_all()
    reader.raise_if_stopped()
    assert driver.pause_reason() is None
