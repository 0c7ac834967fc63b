"""How often a stream reads a table again: as often as that goes well, and not without end where it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.errors import NotReadyError, TableSuspendedError, TransientError
from airflow_provider_cdc.resnapshot import read as resnapshot
from airflow_provider_cdc.resnapshot import worker as rereading
from airflow_provider_cdc.runtime.resolved_pipeline import SilentReporter
from airflow_provider_cdc.state.models import EventRow
from airflow_provider_cdc.stream import epoch
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.epochs import run_epoch_in_process
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.three_tables import run, three_tables

ALTER = "ALTER TABLE keyed ORDER BY id"  # which is not followed


@pytest.fixture
def cli(mysql_server: MySQLServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.setattr(rereading, "_MAX_TRIES", 3)
    monkeypatch.setattr(rereading, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(rereading, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(epoch, "_PUBLISH_CHECK_SECONDS", 0.1)
    with three_tables(mysql_server):
        cli = Cli(tmp_path, mysql_server, r"d\..*", stream={"on_table_error": "suspend", "trigger_seconds": 0.1})
        cli.snapshot()
        run(mysql_server, "UPDATE quiet SET v = 'on' WHERE id = 1")
        cli.catch_up()
        yield cli


def events(cli: Cli, kind: str) -> list[EventRow]:
    with closing(cli.context.open_state_database()) as store:
        return store.last_events("p", 100, (kind,))


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[], Exception | None]) -> None:
    """Let the reading of a table fail while the function says so."""
    real = resnapshot.stage_table

    def read_table(*args: Any, **kwargs: Any) -> Any:
        if (error := fails()) is not None:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(rereading, "stage_table", read_table)


def test_what_goes_well_is_not_counted(cli: Cli, mysql_server: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run reads a table again as often as it has to; failures that are over do not count either."""
    left: list[Exception] = []
    failing(monkeypatch, lambda: left.pop() if left else None)
    with cli.streaming():
        for times in range(1, 6):
            left += [TransientError("the server is away")] * 2
            run(mysql_server, ALTER, f"UPDATE keyed SET v = '{times}' WHERE id = 3")
            wait_for("the table to rejoin", lambda times=times: len(events(cli, "table_rejoined")) == times)  # type: ignore[misc]
    cli.catch_up()
    assert all(found.is_equal for found in verify_tables(cli.context)) and not events(cli, "reread_given_up")


def test_what_fails_again_and_again_is_left_to_people(
    cli: Cli, mysql_server: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told, once; the other tables go on; and the table is read again when somebody wants that."""
    tried: list[str] = []

    def fails() -> Exception:
        tried.append("keyed")
        return TransientError("the server is away")

    failing(monkeypatch, fails)
    run(mysql_server, ALTER, "UPDATE plain SET v = 'behind' WHERE n = 5")
    lines: list[str] = []
    with cli.opened() as (context, store):
        context.reporter = SilentReporter()
        context.reporter.line = lambda text, level=0: lines.append(text)  # type: ignore[method-assign]
        with pytest.raises(TableSuspendedError, match=r"without table d\.keyed"):
            run_epoch_in_process(begin_epoch(context, store, catch_up=True))
    assert len(tried) == 3
    (told,) = events(cli, "reread_given_up")
    assert told.table == "d.keyed" and "failed 3 times in a row" in told.detail and "server is away" in told.detail
    assert told.remedy == "Re-snapshot it: airflow-cdc resume --table d.keyed"
    assert any(told.detail in line for line in lines)
    assert [found.table for found in verify_tables(cli.context) if not found.is_equal] == ["d.keyed"]
    monkeypatch.undo()
    cli.catch_up()
    assert all(found.is_equal for found in verify_tables(cli.context))


def test_what_cannot_be_read_is_told_once(cli: Cli, mysql_server: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, lambda: NotReadyError("it cannot be copied"))
    run(mysql_server, ALTER)
    with pytest.raises(TableSuspendedError), cli.opened() as (context, store):
        found = begin_epoch(context, store, catch_up=True)
        for _ in range(2):
            found.resnapshot_worker.enqueue_suspended(found.plan)
        run_epoch_in_process(found)
    (told,) = events(cli, "reread_given_up")
    assert "it cannot be copied" in told.detail and told.table == "d.keyed"
