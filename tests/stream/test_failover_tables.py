"""Failovers while tables are altered, suspended, read again, added and removed.

Two servers of each kind, which run the same transactions under positions of their own. What the one was told last may
never have reached the other.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from airflow_provider_cdc.apply import applier as apply
from airflow_provider_cdc.apply import follow_ddl as schema_changes
from airflow_provider_cdc.model.errors import TableSuspendedError, TransientError
from airflow_provider_cdc.resnapshot import dropped_tables as dropping
from airflow_provider_cdc.resnapshot import membership, publish, suspension
from airflow_provider_cdc.resnapshot import worker as rereading
from airflow_provider_cdc.resnapshot.staged_files import list_pending_reads
from airflow_provider_cdc.verify.run import verify_tables
from tests.stream.test_failover import Pair
from tests.stream.test_failover_reread import change, events, fresh, pair, servers
from tests.support.chance import Killed, killed
from tests.support.failpoints import ADDED_TABLE, SCHEMA_CHANGES, SUSPENSION
from tests.support.servers import MySQLServer

__all__ = ["fresh", "pair", "servers"]
pytestmark = pytest.mark.one_of("servers")

#: What no stream follows, so that the table is read again.
RETYPED = "ALTER TABLE d.keyed MODIFY v VARCHAR(20)"
ADDS, DROPS = "ALTER TABLE d.keyed ADD w INT", "DROP TABLE d.keyed"
_MODULES = (apply, dropping, membership, publish, schema_changes, suspension)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is waited for. A process that died is no more: neither is the thread that reads for it."""
    monkeypatch.setattr("airflow_provider_cdc.mysql.client.gtids.WAIT_SECONDS", 0.5)
    monkeypatch.setattr(rereading, "_RETRY_SECONDS", 0.2)
    monkeypatch.setattr(rereading, "_MISSING_SECONDS", 0.1)
    go = rereading.ResnapshotWorker._run

    def ends(self: rereading.ResnapshotWorker) -> None:
        with contextlib.suppress(Killed):
            go(self)

    monkeypatch.setattr(rereading.ResnapshotWorker, "_run", ends)
    yield


def mostly_long(values: Sequence[str], *quick: str) -> list[Any]:
    """Values of a parameter; those that are not quick are left to the long tests."""
    return [pytest.param(value, marks=[] if value in quick else pytest.mark.long) for value in values]


def sets(pair: Pair, **stream: str) -> None:
    """Settings of the stream; a table's trouble is its own."""
    pair.cli.value["stream"] = {"on_table_error": "suspend", **stream}
    pair.cli.write()


def captures(pair: Pair, *tables: str) -> None:
    pair.cli.value["source"]["tables"] = [rf"d\.{table}" for table in tables]
    pair.cli.write()


def stream(pair: Pair, server: MySQLServer, dies: str | None = None) -> bool:
    """Catch up from a server.

    :param dies: the failpoint at which the run is killed.
    :returns: whether it goes on without a table.
    """
    if dies is None:
        try:
            pair.copy(server)
            return False
        except TableSuspendedError:
            return True
    done = Counter[str]()
    with killed(_MODULES, dies, 1, done):
        pair.copy(server)
    assert done, f"it did not come by {dies}"
    with pair.cli.opened() as (context, store):
        run = store.newest_epoch(context.pipeline.name)
        if run is not None and run.state == "running":  # it was killed before it had begun
            store.end_epoch(context.pipeline.name, run.epoch, "failed", "killed")
    return True


def suspended(pair: Pair) -> list[str]:
    plan = pair.cli.context.plans.require()
    return [plan.tables[step.table].name for step in plan.suspensions]


def exact(pair: Pair, server: MySQLServer, *tables: str) -> None:
    """The copy is right, goes on being so under changes, and ``verify`` says the same."""
    tables = tables or ("keyed", "other", "plain")
    pair.copy(server)
    change(pair)
    assert {v.table for v in verify_tables(pair.cli.context) if v.is_equal} == {f"d.{name}" for name in tables}
    pair.copy(server)
    assert [text for text in pair.differences(server) if any(f"d.{name}" in text for name in tables)] == []


def test_a_table_that_is_suspended(pair: Pair) -> None:
    """It stays so at the next server, is read again there, and goes on; and back again."""
    sets(pair, reread="ask")
    pair.run(RETYPED)
    change(pair)
    assert stream(pair, pair.old) and suspended(pair) == ["keyed"]
    change(pair)
    assert stream(pair, pair.new) and suspended(pair) == ["keyed"]
    left = pair.differences(pair.new)
    assert len(left) == 1 and "keyed" in left[0]
    assert pair.cli.resnapshot("d.keyed") == "staged"
    exact(pair, pair.new)
    exact(pair, pair.old)


@pytest.mark.parametrize(
    "more",
    [pytest.param(True, id="changes behind it"), pytest.param(False, id="nothing behind it", marks=pytest.mark.long)],
)
def test_a_table_that_has_rejoined(pair: Pair, more: bool) -> None:
    """Where it begins anew is a position of the old server. That of its definition is one, too."""
    sets(pair)
    pair.run(RETYPED)
    change(pair)
    pair.copy(pair.old)
    assert suspended(pair) == []
    if more:
        change(pair)
    exact(pair, pair.new)
    pair.run("ALTER TABLE d.keyed ADD w INT")
    pair.run("UPDATE d.keyed SET w = id")
    pair.run("ALTER TABLE d.keyed DROP COLUMN w")
    exact(pair, pair.old)


@pytest.mark.parametrize("point", mostly_long(SUSPENSION, "rejoin.before_write", "rejoin.after_write"))
def test_a_run_that_died_at_the_old_server(pair: Pair, point: str) -> None:
    """In the middle of suspending a table, or of taking it in again. The next run begins at the new server."""
    sets(pair)
    pair.run(RETYPED)
    change(pair)
    assert stream(pair, pair.old, point)
    change(pair)
    exact(pair, pair.new)
    exact(pair, pair.old)


def test_rows_that_were_read_at_the_old_server(pair: Pair) -> None:
    """They wait for the stream, which goes on at another one: they are of no use there, and it is said."""
    sets(pair, reread="ask")
    pair.run(RETYPED)
    assert stream(pair, pair.old)
    change(pair)
    assert pair.cli.resnapshot("d.keyed") == "staged"  # what is suspended
    assert pair.cli.resnapshot("d.other") == "staged"  # what is not
    change(pair)
    assert stream(pair, pair.new) and suspended(pair) == ["keyed"]
    assert len([text for text in events(pair, "reread_dropped") if "before the stream moved to another" in text]) == 2
    context = pair.cli.context
    assert list_pending_reads(context, context.plans.require()) == []
    assert pair.cli.resnapshot("d.keyed") == "staged"
    exact(pair, pair.new)


def test_a_table_that_was_added(pair: Pair) -> None:
    """At the old server, and read there; and removed, and added once more, at the new one."""
    sets(pair)
    pair.run("CREATE TABLE d.created (id INT PRIMARY KEY, v INT)")
    pair.run("INSERT INTO d.created VALUES (1, 1), (2, 1)")
    tables = ("keyed", "other", "plain", "created")
    exact(pair, pair.old, *tables)
    pair.run("UPDATE d.created SET v = 2 WHERE id = 1")
    exact(pair, pair.new, *tables)
    captures(pair, "keyed", "other", "plain")
    pair.run("UPDATE d.created SET v = 3 WHERE id = 1")
    exact(pair, pair.new)
    captures(pair, ".*")
    exact(pair, pair.old, *tables)


@pytest.mark.parametrize("point", mostly_long([*ADDED_TABLE, *SUSPENSION[2:4]], "add.after_write"))
def test_a_table_that_was_being_added(pair: Pair, point: str) -> None:
    """The run died before the table was part of the stream."""
    sets(pair)
    pair.run("CREATE TABLE d.created (id INT PRIMARY KEY, v INT)")
    pair.run("INSERT INTO d.created VALUES (1, 1), (2, 1)")
    assert stream(pair, pair.old, point)
    pair.run("UPDATE d.created SET v = 2 WHERE id = 1")
    exact(pair, pair.new, "keyed", "other", "plain", "created")


# ---------------------------------------------------------------- DDL in the second of the failover


@pytest.mark.parametrize("sql", mostly_long([RETYPED, ADDS, DROPS, "TRUNCATE d.keyed"], RETYPED, DROPS))
def test_ddl_that_the_stream_meets_at_the_new_server(pair: Pair, sql: str) -> None:
    """The old server ran it, and died before the stream had come there."""
    sets(pair)
    pair.run(sql)
    pair.run("UPDATE d.other SET v = v + 1 WHERE id = 'b'", "INSERT INTO d.plain VALUES (7), (7)")
    pair.copy(pair.new)
    if sql.startswith("DROP"):
        assert suspended(pair) == ["keyed"]
        pair.run("CREATE TABLE d.keyed (id INT PRIMARY KEY, w INT, v INT)")
        pair.run("INSERT INTO d.keyed VALUES (1, 1, 1)")
        pair.copy(pair.new)
    assert pair.differences(pair.new) == [] and suspended(pair) == []
    if "ADD" in sql:
        pair.run("ALTER TABLE d.keyed DROP COLUMN w")
    exact(pair, pair.new) if "DROP" not in sql else pair.copy(pair.old)


def test_ddl_that_was_followed_and_that_only_the_old_server_ran(pair: Pair) -> None:
    """The copy holds what the new server lacks: the stream waits until it has it, and then goes on."""
    sets(pair)
    pair.run("UPDATE d.other SET v = 9 WHERE id = 'b'")
    lost = pair.run(ADDS, on=[pair.old])
    pair.copy(pair.old)
    pair.refused(TransientError, "has not executed|whose binlog ends at")
    pair.run(ADDS, gtid=lost, on=[pair.new])
    pair.run("UPDATE d.keyed SET w = 7 WHERE id = 1")
    pair.copy(pair.new)
    assert pair.differences(pair.new) == [] and all(v.is_equal for v in verify_tables(pair.cli.context))


@pytest.mark.parametrize("there", [True, False], ids=["both ran it", "the old server ran it"])
@pytest.mark.parametrize("point", mostly_long(SCHEMA_CHANGES, "definition.after_write"))
def test_a_run_that_died_at_a_ddl(pair: Pair, point: str, there: bool) -> None:
    """Its place is one of the old server. So the table is suspended at the new one, and is read again there."""
    sets(pair)
    change(pair)
    pair.copy(pair.old)
    pair.run(ADDS, on=[] if there else [pair.old])
    assert stream(pair, pair.old, point)
    pair.run("UPDATE d.keyed SET v = 7 WHERE id = 1", on=[] if there else [pair.new])
    pair.copy(pair.new)
    assert pair.differences(pair.new) == [] and suspended(pair) == []
    again = [text for text in events(pair, "table_suspended") if "had begun to follow an ALTER of d.keyed" in text]
    assert len(again) == (point != "definition.before_write")
    pair.run("UPDATE d.keyed SET v = 8 WHERE id = 2", on=[] if there else [pair.new])
    pair.copy(pair.new)
    assert pair.differences(pair.new) == [] and all(v.is_equal for v in verify_tables(pair.cli.context))


def test_a_table_without_a_key_that_is_further_than_the_resume_point(pair: Pair) -> None:
    """Its rows must not be counted twice: it is suspended by name, and comes back when it is read again."""
    sets(pair)
    change(pair)
    pair.copy(pair.old)
    change(pair)
    assert stream(pair, pair.old, "progress.before_commit")
    assert stream(pair, pair.new) and suspended(pair) == ["plain"]
    assert pair.cli.resnapshot("d.plain") == "staged"
    exact(pair, pair.new)


def test_a_table_that_the_new_server_does_not_have(pair: Pair) -> None:
    """And of which its binlog says nothing. Its trouble is its own."""
    sets(pair)
    change(pair)
    pair.copy(pair.old)
    pair.new.session("d", "SET sql_log_bin = 0", "DROP TABLE keyed")
    pair.run("UPDATE d.other SET v = 9 WHERE id = 'b'")
    pair.copy(pair.new)
    assert suspended(pair) == ["keyed"]
    pair.new.session("d", "SET sql_log_bin = 0", "CREATE TABLE keyed (id INT PRIMARY KEY, v INT)")
    exact(pair, pair.new)


@pytest.mark.parametrize("reread", mostly_long(["auto", "ask"], "ask"))
def test_a_table_that_was_suspended_for_ddl_that_only_the_old_server_ran(pair: Pair, reread: str) -> None:
    """The resume point stands before it. So the stream goes on at the other one, where the table is as it was."""
    sets(pair, reread=reread)
    change(pair)
    pair.copy(pair.old)
    pair.run(RETYPED, on=[pair.old])
    assert stream(pair, pair.old, "suspend.after_write")
    left = stream(pair, pair.new)
    assert left == (reread == "ask")
    if left:
        assert suspended(pair) == ["keyed"] and pair.cli.resnapshot("d.keyed") == "staged"
    pair.copy(pair.new)
    assert pair.differences(pair.new) == [] and suspended(pair) == []
    column = next(c for c in pair.cli.context.plans.require().tables[0].columns if c.name == "v")
    assert column.column_type.startswith("int")


def test_a_table_that_was_dropped_at_the_old_server_only(pair: Pair) -> None:
    """Its copy was emptied behind that: the stream waits for a server that has dropped it. There it is made anew."""
    sets(pair)
    pair.cli.value["sink"]["on_dropped"] = "drop"
    pair.cli.write()
    change(pair)
    pair.copy(pair.old)
    lost = pair.run(DROPS, on=[pair.old])
    assert stream(pair, pair.old, "drop.after_commit")
    assert pair.cli.rows("d", "keyed").num_rows == 0
    pair.refused(TransientError, "has not executed|whose binlog ends at")
    pair.run(DROPS, gtid=lost, on=[pair.new])
    pair.run("CREATE TABLE d.keyed (id INT PRIMARY KEY, v INT)", on=[pair.new])
    pair.run("INSERT INTO d.keyed VALUES (1, 1)", on=[pair.new])
    pair.copy(pair.new)
    assert pair.differences(pair.new) == [] and suspended(pair) == []
