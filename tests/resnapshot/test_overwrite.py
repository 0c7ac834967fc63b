"""Several readings of one table wait for the stream: the one that began last wins, and some may not get in at all.

What tells an older reading from a newer one is a change that no binlog has.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.chunk_groups.chunk_group import TaskRequest, generation_fence
from airflow_provider_cdc.chunk_groups.task import SnapshotJob, run_in_threads
from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import TableSuspendedError, TerminalError, TransientError
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Rejoin
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.resnapshot import publish
from airflow_provider_cdc.resnapshot import staged_files as staged
from airflow_provider_cdc.resnapshot import worker as rereading
from airflow_provider_cdc.resnapshot.read import run_resnapshot, stage_table
from airflow_provider_cdc.resnapshot.staged_files import list_pending_reads
from airflow_provider_cdc.sinks.storage.storage import read_json, write_json
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.stream import epoch as epochs
from airflow_provider_cdc.stream.run import begin_epoch
from tests.support.chance import killed_at
from tests.support.cli import Cli
from tests.support.epochs import run_epoch_in_process
from tests.support.oracle import Difference, compare_database
from tests.support.servers import MySQLServer
from tests.support.three_tables import TABLES, run, suspending_copy, three_tables_database

pytestmark = pytest.mark.one_of("server")
database = three_tables_database


@pytest.fixture
def cli(server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    return suspending_copy(server, tmp_path)


def differences(server: MySQLServer, cli: Cli, *tables: str) -> list[Difference]:
    return compare_database(server, "d", cli.sink, tables)


def in_no_binlog(server: MySQLServer, *statements: str) -> None:
    run(server, "SET SESSION sql_log_bin = 0", *statements)


def events(cli: Cli, kind: str) -> list[str]:
    with cli.opened() as (_, store):
        return [event.detail for event in store.last_events("p", 100, [kind])]


def whole(cli: Cli) -> None:
    assert cli.resnapshot("d.keyed") == "staged"


def part(cli: Cli) -> None:
    assert cli.resnapshot("d.keyed", "id >= 1 AND id < 9") == "staged"


def group(cli: Cli, outcome: str = "staged") -> None:
    """Clear the task that has read the first rows."""
    with cli.opened() as (context, store):
        task = TaskRequest("a task", time.monotonic_ns())
        for asked in (task, TaskRequest("a task", task.number + 1)):
            found = run_group(
                context, store, context.plans.require(), 0, run_in_threads, holder="a test", requested_by=asked
            )
        assert found.outcome == outcome


@pytest.mark.parametrize(
    "readings",
    [(whole, whole), (part, whole), (group, whole), (part, part), (group, part), (part, group), (group, group)],
    ids=lambda readings: "-".join(one.__name__ for one in readings),
)
def test_the_reading_that_began_last_wins(
    server: MySQLServer, cli: Cli, readings: tuple[Callable[[Cli], None], ...]
) -> None:
    """Whatever they have read, in whatever order they are listed, and without a transaction between the two."""
    first, second = readings
    first(cli)
    in_no_binlog(server, "UPDATE keyed SET v = 'lost' WHERE id = 3", "DELETE FROM keyed WHERE id = 4")
    second(cli)
    run(server, "UPDATE keyed SET v = 'late' WHERE id = 5")
    cli.catch_up()
    assert not differences(server, cli, *TABLES)
    with cli.opened() as (context, _):
        assert not list_pending_reads(context, context.plans.require())
    run(server, "UPDATE keyed SET v = 'later' WHERE id = 6")
    cli.catch_up()
    assert not differences(server, cli, *TABLES)


def test_an_older_one_gets_in_where_the_stream_is_not_at_the_newer_one_yet(
    server: MySQLServer, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one takes its place afterwards: readings that come faster than the stream do not keep it waiting."""
    whole(cli)
    in_no_binlog(server, "UPDATE keyed SET v = 'lost' WHERE id = 3")
    with cli.epoch() as epoch:
        run(server, "UPDATE keyed SET v = 'between' WHERE id = 7")
        with monkeypatch.context() as patch:  # it has listed the numbers before the first one was drawn
            patch.setattr(staged, "list_read_numbers", lambda *_: [])
            whole(cli)
        run(server, "UPDATE keyed SET v = 'late' WHERE id = 8")
        epoch.publish_pending()
        assert epoch.plan.revision_of(0) == 1 and differences(server, cli, "keyed")
    cli.catch_up()
    assert not differences(server, cli, *TABLES)
    assert cli.context.plans.require().revision_of(0) == 2


#: The conditions of the two readings, and what whoever asked for the first one is told.
OVERTAKEN: dict[str, tuple[str | None, str | None, str]] = {
    "whole by whole": (None, None, "rejoined"),
    "whole by part": (None, "id = 3", ""),
    "whole by group": (None, "a group", ""),
    "part by part": ("id < 9", "id = 3", ""),
    "part by whole": ("id < 9", None, "replaced"),
}


@pytest.mark.parametrize("kind", OVERTAKEN)
def test_a_reading_that_is_staged_when_a_later_one_is_in(server: MySQLServer, cli: Cli, kind: str) -> None:
    """It was begun before, and took longer. Who asked for it has what they wanted only if all of it was read later."""
    first, second, said = OVERTAKEN[kind]

    def slowly(job: SnapshotJob) -> list[dict[str, Any]]:
        manifests = run_in_threads(job)
        in_no_binlog(server, "UPDATE keyed SET v = 'lost' WHERE id = 3")
        if second == "a group":
            group(cli, "replaced")
        else:
            assert cli.resnapshot("d.keyed", second) in ("rejoined", "replaced")
        return list(manifests)

    def read() -> str:
        with cli.opened() as (context, store):
            return run_resnapshot(context, store, "d.keyed", first, slowly)

    with cli.streaming():
        if said:
            assert read() == said
        else:
            with pytest.raises(TransientError, match="cannot be published: .*by a read that began later"):
                read()
    assert not differences(server, cli, *TABLES)


@pytest.mark.parametrize("waits", [False, True], ids=["staged", "waited-for"])
def test_a_group_that_an_older_reading_of_the_whole_table_overwrites(
    server: MySQLServer, cli: Cli, waits: bool
) -> None:
    """It belongs to the plan, and has no place any more: what it had read is lost, and nobody is told otherwise."""
    whole(cli)
    in_no_binlog(server, "UPDATE keyed SET v = 'lost' WHERE id = 3")
    if waits:
        with pytest.raises(TerminalError, match="re-snapshot that began earlier has overwritten d.keyed") as caught:
            in_the_meantime(cli)
        assert "airflow-cdc resnapshot --table d.keyed" in str(caught.value)
    else:
        group(cli)
        cli.catch_up()
    (event,) = [e for e in events(cli, "reread_dropped") if "began earlier" in e]
    assert "d.keyed" in event and differences(server, cli, "keyed")
    group(cli, "taken_over")
    assert len([e for e in events(cli, "reread_dropped") if "began earlier" in e]) == 1, "a later try has read nothing"
    whole(cli)
    cli.catch_up()
    assert not differences(server, cli, *TABLES)


def in_the_meantime(cli: Cli) -> None:
    """Clear the task that has read the first rows; a stream takes the whole table in before they are staged."""
    with contextlib.ExitStack() as stream, cli.opened() as (context, store):

        def slowly(job: SnapshotJob) -> list[dict[str, Any]]:
            manifests = list(run_in_threads(job))
            stream.enter_context(cli.streaming())
            end = time.monotonic() + 60
            while context.plans.require().revision_of(0) == 0 and time.monotonic() < end:
                time.sleep(0.1)
            return manifests

        task = TaskRequest("a task", time.monotonic_ns())
        run_group(context, store, context.plans.require(), 0, slowly, holder="a test", requested_by=task)
        again = TaskRequest("a task", task.number + 1)
        run_group(context, store, context.plans.require(), 0, slowly, holder="a test", requested_by=again)


def test_the_thousandth_reading_of_a_table(server: MySQLServer, cli: Cli) -> None:
    """Nothing about a reading is computed from its number: it says itself which table it is of."""
    context = cli.context
    last = len(context.plans.require().tables) - 1
    for index in (0, last):  # the stream dies when it has written down that the table rejoins, and not exchanged it yet
        assert cli.resnapshot(context.plans.require().tables[index].label) == "staged"
        with killed_at("rejoin.after_write", publish):
            cli.catch_up()
        first = context.layout.amendment(1, index, 1)
        value = read_json(context.storage, first)
        context.storage.delete(first)
        write_json(context.storage, context.layout.amendment(1, index, 999), value | {"revision": 999})
        cli.catch_up()
    for revision in (1000, 1001):
        in_no_binlog(server, *(f"UPDATE {name} SET v = '{revision}' WHERE id = 3" for name in ("keyed", "quiet")))
        for index in (0, last):
            assert cli.resnapshot(context.plans.require().tables[index].label) == "staged"
        cli.catch_up()
        assert not differences(server, cli, *TABLES)
        assert [context.plans.require().revision_of(index) for index in (0, last)] == [revision] * 2
    in_no_binlog(server, "UPDATE keyed SET v = 'again' WHERE id = 3")
    assert cli.resnapshot("d.keyed", "id = 3") == "staged"
    cli.catch_up()
    assert not differences(server, cli, *TABLES)


def test_the_last_revision_of_a_table() -> None:
    """Its fence would be that of the next snapshot, whose jobs would take the table for begun."""
    at, schema = Offset("server", "binlog.000001", 4, ""), TableSchema("d", "t", (), ())
    plan = Plan("p", 1, at, Timeline("server", "binlog.000001"), (), (DefinitionHistory.from_single(schema),), ())
    last = plan.replace(amendments=(Rejoin(0, 999_999, 7, schema),))
    following = plan.replace(generation=2)
    assert generation_fence(plan, 0).value < generation_fence(last, 0).value < generation_fence(following, 0).value
    with pytest.raises(TerminalError, match=r"d\.t was re-snapshotted 1,000,000 times.*fresh sink\.path") as stopped:
        generation_fence(last, 0, 1_000_000)
    assert stopped.value.table == "d.t"


def frozen(server: MySQLServer, cli: Cli, by: Callable[[], None]) -> None:
    """Rows of ``keyed`` are staged, ahead of the stream; then the table is to stand still."""
    run(server, "UPDATE quiet SET v = 'ahead' WHERE id = 2")
    whole(cli)
    by()
    run(server, "UPDATE keyed SET v = 'secret'", "INSERT INTO keyed (id) VALUES (99)")
    for _ in range(2):
        with contextlib.suppress(TableSuspendedError):
            cli.catch_up()
    copy = {row["id"]: row for row in cli.rows("d", "keyed").to_pylist()}
    assert len(copy) == 30 and not [row for row in copy.values() if row.get("v") == "secret"]
    assert not differences(server, cli, "plain", "quiet")
    with cli.opened() as (context, _):
        assert not list_pending_reads(context, context.plans.require())
    assert len(events(cli, "reread_dropped")) == 1


def exclude(cli: Cli) -> None:
    cli.value["source"]["exclude"] = [r"d\.keyed"]
    cli.write()


def test_a_table_that_was_removed_stays_out(server: MySQLServer, cli: Cli) -> None:
    frozen(server, cli, lambda: exclude(cli))
    assert "no longer copies it" in events(cli, "reread_dropped")[0]
    cli.value["source"]["exclude"] = []
    cli.write()
    cli.catch_up()
    assert not differences(server, cli, *TABLES)


def test_a_suspended_table_that_was_removed_stays_out(server: MySQLServer, cli: Cli) -> None:
    """That it was removed is written down nowhere: it had no place in the stream."""
    run(server, "ALTER TABLE keyed MODIFY v VARBINARY(40)")
    with contextlib.suppress(TableSuspendedError):
        cli.catch_up()
    frozen(server, cli, lambda: exclude(cli))


def test_a_table_that_somebody_has_suspended_stays_suspended(server: MySQLServer, cli: Cli) -> None:
    """Until somebody wants it again; that the reading began at a later place of the binlog does not matter."""

    def suspend() -> None:
        with cli.opened() as (_, store):
            store.add_request("p", "suspend", "d.keyed", "ann")

    frozen(server, cli, suspend)
    assert "suspended" in events(cli, "reread_dropped")[0]
    whole(cli)
    cli.catch_up()
    assert not differences(server, cli, *TABLES)


def test_what_a_run_that_died_has_read_for_a_request_is_not_read_again(
    server: MySQLServer, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run takes it in just when its own reading is to begin."""
    with cli.opened() as (context, store):
        number = store.add_request("p", "reread", "d.keyed", "ann")
        assert store.take_request(number)
        stage_table(context, 0, run_in_threads, requested_by_user=True, by_request=store.request("p", number))
    looks, size, begun = list_pending_reads, rereading.ResnapshotWorker._table_bytes, list[int]()
    serve = rereading.ResnapshotWorker.enqueue_request

    def note_reading(self: rereading.ResnapshotWorker, *args: Any) -> int:
        """Note that the thread begins to read the table."""
        begun.append(args[-1])
        return size(self, *args)

    def blind(*args: Any) -> Any:
        """That thread looks when the driver has just taken in what waited."""
        return [] if threading.current_thread().name == "resnapshot-worker" else looks(*args)

    def enqueue_slowly(self: rereading.ResnapshotWorker, *args: Any) -> None:
        """Give the thread time to begin before the driver continues."""
        serve(self, *args)
        time.sleep(0.5)

    monkeypatch.setattr(rereading, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(rereading.ResnapshotWorker, "_table_bytes", note_reading)
    monkeypatch.setattr(rereading.ResnapshotWorker, "enqueue_request", enqueue_slowly)
    monkeypatch.setattr(rereading, "list_pending_reads", blind)
    cli.catch_up()
    with cli.opened() as (context, store):
        row = store.request("p", number)
        assert row is not None and row.state == "done", row
        assert list_pending_reads(context, context.plans.require()) == []
        assert len(store.last_events("p", 100, ["table_rejoined"])) == 1
    assert begun == []


def test_a_request_ends_although_the_run_that_had_read_for_it_died(
    server: MySQLServer, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are of no use any more when the next run meets them, which is about to read the table by itself."""
    cli.value["stream"]["reread_max_bytes"] = 0
    cli.write()
    run(server, "ALTER TABLE keyed MODIFY v VARBINARY(40)")
    with contextlib.suppress(TableSuspendedError):
        cli.catch_up()
    with cli.opened() as (context, store):
        number = store.add_request("p", "reread", "d.keyed", "ann")
        assert store.take_request(number)
        stage_table(context, 0, run_in_threads, requested_by_user=True, by_request=store.request("p", number))
    run(server, "ALTER TABLE keyed MODIFY v VARCHAR(40)")
    cli.value["stream"] |= {"reread": "auto", "reread_max_bytes": 1 << 30}
    cli.write()
    looks, begun = list_pending_reads, time.monotonic()

    def late(*args: Any) -> Any:
        return looks(*args) if time.monotonic() > begun + 3 else []

    monkeypatch.setattr(epochs, "list_pending_reads", late)
    with cli.opened() as (context, store):
        epoch = begin_epoch(context, store, catch_up=True)
        thread = threading.Thread(target=run_epoch_in_process, args=(epoch,))
        thread.start()
        thread.join(60)
        is_stuck = thread.is_alive()
        epoch.stop.set()
        thread.join(60)
        row = store.request("p", number)
    assert not is_stuck, "the catch-up waits for ever"
    assert row is not None and row.state == "done", row
    assert not differences(server, cli, *TABLES)
