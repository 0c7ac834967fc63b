"""Upkeep beside a stream, and by itself: tables are compacted, nothing of them changes, and a stream never waits."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables
from airflow_provider_cdc.maintenance.table_maintenance import MaintenanceWorker, compact_table, maintain_tables
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.protocol import Upsert
from airflow_provider_cdc.verify.run import verify_tables
from tests.sinks.conformance import FENCE, KEYED, rows, widened
from tests.support.cli import Cli
from tests.support.delta import as_delta
from tests.support.epochs import run_epoch_in_process
from tests.support.servers import MySQLServer


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path) -> Iterator[Cli]:
    mysql_server.session(
        database,
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE b (v INT, w INT)",
        "INSERT INTO a VALUES " + ",".join(f"({n}, 0)" for n in range(60)),
        "INSERT INTO b VALUES (1, 1), (1, 1), (2, 2)",
    )
    found = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database, snapshot={"chunk_rows": 10})
    found.snapshot()
    yield found


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FANOUT", 3)


def change(cli: Cli, server: MySQLServer, database: str, times: int, first: int = 0) -> None:
    """So many batches, each with files of its own."""
    for n in range(first, first + times):
        server.session(
            database,
            f"UPDATE a SET v = v + 1 WHERE id < 60 AND id % 7 = {n % 7}",
            f"INSERT INTO a VALUES ({1000 + n}, 0)",
            f"DELETE FROM a WHERE id = {n}",
            f"INSERT INTO b VALUES ({n}, 3), ({n}, 3)",
            f"DELETE FROM b WHERE v = {n} LIMIT 1",
        )
        cli.catch_up()


def tables(cli: Cli) -> list[DeltaSinkTable]:
    return [as_delta(table) for table in open_sink_tables(cli.context, cli.context.plans.require())]


def equal(cli: Cli) -> bool:
    return all(found.is_equal for found in verify_tables(cli.context))


def test_a_stream_compacts_beside_its_work(
    soon: None, cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches go on while it works: in one epoch, with writers."""
    monkeypatch.setattr("airflow_provider_cdc.maintenance.table_maintenance._POLL_SECONDS", 0.05)
    stood: list[int] = []
    done = DeltaSinkTable.commit_compactions

    def compacted(table: DeltaSinkTable, work: Sequence[Any]) -> int:
        found = done(table, work)
        stood.append(found)
        return found

    monkeypatch.setattr(DeltaSinkTable, "commit_compactions", compacted)
    with cli.epoch() as epoch:
        epoch.target = None
        running = threading.Thread(target=run_epoch_in_process, args=[epoch])
        running.start()
        for n in range(60):
            mysql_server.session(
                database,
                f"UPDATE a SET v = v + 1 WHERE id % 7 = {n % 7}",
                f"REPLACE INTO a VALUES ({n}, {n}), ({1000 + n}, 0)",
                f"INSERT INTO b VALUES ({n}, 3), ({n}, 3)",
                "DELETE FROM b WHERE w = 3 LIMIT 1",
            )
            time.sleep(0.05)
        until = time.monotonic() + 60
        while sum(stood) < 3 and time.monotonic() < until:
            time.sleep(0.1)
        epoch.stop.set()
        running.join(60)
    assert not running.is_alive() and sum(stood) >= 3
    cli.catch_up()
    assert equal(cli)
    assert all(len(table.load_log().files) < 40 for table in tables(cli))
    with cli.opened() as (_, store):
        rows = store.table_states(database)
    assert sum(row.compactions or 0 for row in rows) >= 3
    assert all((row.compacted_at is not None) == (row.compaction_seconds is not None) for row in rows)
    assert any(row.compaction_seconds for row in rows)


def test_not_if_the_pipeline_says_so(soon: None, cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    cli.value["sink"]["compaction"] = False
    cli.write()
    with cli.epoch() as epoch:
        mysql_server.execute(f"INSERT INTO `{database}`.a VALUES (999, 0)")
        run_epoch_in_process(epoch)
        assert epoch.maintenance.runner is None
    change(cli, mysql_server, database, 4)
    assert all(len(table.load_log().files) > 3 for table in tables(cli))


def test_what_fails_is_told_and_the_stream_goes_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("airflow_provider_cdc.maintenance.table_maintenance._POLL_SECONDS", 0.05)
    monkeypatch.setattr(DeltaSinkTable, "plan_compactions", lambda _, **__: 1 / 0)
    upkeep = MaintenanceWorker(tables(cli), lambda work: [], told.append)
    with upkeep:
        for _ in range(2):
            upkeep.mark_changed(0)
            until = time.monotonic() + 30
            while not told and time.monotonic() < until:
                time.sleep(0.01)
            [line] = told
            assert line.startswith("maintenance of the Delta table ") and line.endswith(
                "ZeroDivisionError: division by zero"
            )
            told.clear()


def test_others_who_are_always_faster(soon: None, cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """It gives up for now, and does not go on in a circle."""
    change(cli, mysql_server, database, 4)
    table = tables(cli)[0]
    assert table.plan_compactions()
    assert compact_table(table, lambda work: [[] for _ in work], should_stop=lambda: True) == 0

    def late(work: Sequence[Any]) -> Any:
        other = tables(cli)[0]
        assert other.commit_compactions([(c, c.run()) for c in other.plan_compactions()])
        return [c.run() for c in work]

    assert compact_table(table, late) == 0
    assert not table.plan_compactions()


def test_a_purge_beside_a_stream_has_an_end(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """All that was dead when it began goes; rows die for as long as the stream goes on."""
    change(cli, mysql_server, database, 3)
    table = tables(cli)[0]
    assert compact_table(table, lambda work: [c.run() for c in work]) == 0, "there are few files, and they are small"
    rounds = []

    def beside(work: Sequence[Any]) -> Any:
        rounds.append(len(work))
        assert len(rounds) < 5
        done = [c.run() for c in work]
        change(cli, mysql_server, database, 1, 100)
        return done

    assert compact_table(table, beside, purge=True) == 1 and rounds == [1]
    assert table.load_log().files and equal(cli)
    assert compact_table(table, lambda work: [c.run() for c in work], purge=True) == 1
    assert [file.dead_row_count for file in table.load_log().files.values()] == [0] and equal(cli)


@pytest.fixture
def renewed(tmp_path: Path) -> tuple[DeltaSinkTable, DeltaSinkTable, DeltaSinkTable]:
    """A table with small files: objects of two definitions that look after it, and one that writes under the newer."""
    old, more = DeltaSink(str(tmp_path), "p").table(KEYED), widened(KEYED)
    old.create("p")
    for n in range(4):
        old.commit(lambda _: Upsert(rows(KEYED, (n, "a", n + 1, "c"))), {}, FENCE)  # noqa: B023
    return old, DeltaSink(str(tmp_path), "p").table(more), DeltaSink(str(tmp_path), "p").table(more)


def test_a_table_that_has_got_columns(
    soon: None, renewed: tuple[DeltaSinkTable, DeltaSinkTable, DeltaSinkTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is compacted: that is void, nobody waits for it, and the new object does it again."""
    monkeypatch.setattr("airflow_provider_cdc.maintenance.table_maintenance._POLL_SECONDS", 0.05)
    old, new, writer = renewed
    told, begun, go_on = list[str](), threading.Event(), threading.Event()

    def run(work: Sequence[Any]) -> Any:
        begun.set()
        assert go_on.wait(30)
        return [c.run() for c in work]

    upkeep = MaintenanceWorker([old], run, told.append)
    with upkeep:
        upkeep.mark_changed(0)
        assert begun.wait(30)
        assert writer.alter(KEYED, {"ddl": 1}, FENCE)
        upkeep.replace_table(0, new)  # and returns, though the old one is at work
        files = {*writer.load_log().files}
        go_on.set()
        until = time.monotonic() + 30
        while len(writer.load_log().files) > 1 and time.monotonic() < until:
            time.sleep(0.01)
    assert told == [] and len(writer.load_log().files) == 1 and not files & {*writer.load_log().files}
    assert sorted(writer.read()[0]["id"].to_pylist()) == [0, 1, 2, 3]
    assert {name for name, _ in writer.storage.list("") if name.startswith("part-")} >= {*writer.load_log().files}


def test_what_fails_at_an_object_that_was_renewed_is_not_told(
    soon: None,
    renewed: tuple[DeltaSinkTable, DeltaSinkTable, DeltaSinkTable],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its compactions are not planned any more, once the table has other columns."""
    monkeypatch.setattr("airflow_provider_cdc.maintenance.table_maintenance._POLL_SECONDS", 0.05)
    old, new, writer = renewed  # the other thread writes with it, and an object belongs to one thread
    reader = DeltaSink(str(tmp_path), "p").table(widened(KEYED))
    told, real, asked = list[str](), DeltaSinkTable.plan_compactions, list[DeltaSinkTable]()

    def compactions(table: DeltaSinkTable, *, purge: bool = False) -> Any:
        asked.append(table)
        if table is old:
            assert writer.alter(KEYED, {"ddl": 1}, FENCE)
            upkeep.replace_table(0, new)
        return real(table, purge=purge)

    monkeypatch.setattr(DeltaSinkTable, "plan_compactions", compactions)
    upkeep = MaintenanceWorker([old], lambda work: [c.run() for c in work], told.append)
    with upkeep:
        upkeep.mark_changed(0)
        until = time.monotonic() + 30
        while len(reader.load_log().files) > 1 and time.monotonic() < until:
            time.sleep(0.01)
    assert told == [] and asked[:2] == [old, new] and len(reader.load_log().files) == 1


@pytest.mark.spark
def test_maintain(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """The command, whose compactions are Spark tasks; a table with nothing to do needs no Spark."""
    cli.value["sink"]["compaction"] = False
    cli.write()
    assert json.loads(cli.call("maintain", "--json").out) == {
        "tables": [{"table": f"{database}.a", "compactions": 0}, {"table": f"{database}.b", "compactions": 0}]
    }
    change(cli, mysql_server, database, compaction.FANOUT)
    before = [len(table.load_log().files) for table in tables(cli)]
    assert min(before) >= compaction.FANOUT
    found = cli.run("maintain")
    assert found.code == 0, found.err
    assert f"{database}.a: 1 compaction\n" in found.err and f"{database}.b: 1 compaction\n" in found.err
    assert [len(table.load_log().files) for table in tables(cli)] == [1, 1]
    assert equal(cli)
    change(cli, mysql_server, database, 1, 100)
    assert cli.run("maintain", "--purge").code == 0
    assert [[file.dead_row_count for file in table.load_log().files.values()] for table in tables(cli)] == [[0], [0]]
    assert equal(cli)


def test_a_copy_that_is_refused_keeps_no_other_from_being_compacted(
    cli: Cli, mysql_server: MySQLServer, database: str
) -> None:
    change(cli, mysql_server, database, compaction.FANOUT)
    features = {"readerFeatures": ["ofTomorrow"], "writerFeatures": ["ofTomorrow"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    version = tables(cli)[0].load_log().version + 1
    (cli.sink / database / "a" / "_delta_log" / f"{version:020}.json").write_text(json.dumps(protocol) + "\n")
    with pytest.raises(CdcError, match="ofTomorrow"):
        maintain_tables(cli.context, lambda work: [one.run() for one in work])
    assert len(tables(cli)[1].load_log().files) == 1


def test_maintain_without_a_plan(mysql_server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path / "other", mysql_server, f"{database}.a", name=f"{database}x")
    found = cli.call("maintain")
    assert found.code == 2 and "has no snapshot in" in found.problem
