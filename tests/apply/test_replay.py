"""What has been applied may come again, cut otherwise, from a run that is older: nothing changes."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.apply.applier import Applier
from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables, read_coverage
from airflow_provider_cdc.model.errors import FencedError, TerminalError
from airflow_provider_cdc.model.gtid import GtidSet
from airflow_provider_cdc.mysql.client.identity import binlog_end
from airflow_provider_cdc.mysql.client.session import connect, query_value
from tests.support.cli import Cli
from tests.support.epochs import run_epoch_in_process
from tests.support.servers import MySQLServer


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]) -> Cli:
    mysql_server.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, v INT)")
    mysql_server.execute(f"CREATE TABLE `{database}`.other LIKE `{database}`.t")
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (1, 1), (2, 1)")
    return Cli(tmp_path, mysql_server, rf"{database}\..*", name=database, user=cdc_user)


def held(cli: Cli, database: str, table: str = "t") -> dict[int, int]:
    rows = cli.rows(database, table)
    found = dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
    assert len(found) == rows.num_rows
    return found


def version(cli: Cli, database: str) -> int:
    return DeltaTable(str(cli.sink / database / "t")).version()


def test_a_deleted_row_does_not_come_back(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """All was applied, then the resume point is lost: the same changes come again, one transaction a batch."""
    cli.snapshot()
    for sql in ("INSERT INTO t VALUES (7, 1)", "UPDATE t SET v = 5 WHERE id = 1", "DELETE FROM t WHERE id IN (2, 7)"):
        mysql_server.execute(sql.replace(" t ", f" `{database}`.t "))
    cli.catch_up()
    assert held(cli, database) == {1: 5}
    shutil.rmtree(cli.sink / "_cdc_progress")
    with cli.epoch(batch_bytes=1) as again:
        assert again.section_start == again.plan.p0
        before = version(cli, database)
        run_epoch_in_process(again)
        assert again.batches >= 3
    assert held(cli, database) == {1: 5}
    assert version(cli, database) == before, "a replay wrote something"


def test_a_batch_that_is_old_in_one_half(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """The marker stands in the middle of the batch: what lies before it is taken out before changes are merged.

    Row 7 was inserted and deleted before the marker. Had the insert come alone, it would be a new row to the sink.
    """
    cli.snapshot()
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (7, 1)")
    with cli.epoch() as first, contextlib.closing(first.job.make_planner()) as planner:
        inserted = planner.find_batch_end(first.section_start, 1 << 28)
        mysql_server.execute(f"DELETE FROM `{database}`.t WHERE id = 7")
        mysql_server.execute(f"UPDATE `{database}`.t SET v = 2 WHERE id = 1")
        deleted = planner.find_batch_end(inserted, 1 << 28)
        first.apply_batch(first.job.stage_range(first.section_start, deleted, "0"))
        assert held(cli, database) == {1: 2, 2: 1}
        shutil.rmtree(cli.sink / "_cdc_progress")
    mysql_server.execute(f"UPDATE `{database}`.t SET v = 3 WHERE id = 1")
    with cli.epoch() as second, contextlib.closing(second.job.make_planner()) as planner:
        # The manifest of a batch that ends later, but staged up to the insert: as if it had been cut there.
        end = planner.find_batch_end(deleted, 1 << 28)
        manifest = second.job.stage_range(second.section_start, inserted, "0")
        manifest["end"] = end.to_json()
        second.apply_batch(manifest)
        assert held(cli, database) == {1: 2, 2: 1}


def test_a_batch_beyond_the_resume_point_is_refused(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    cli.snapshot()
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (7, 1)")
    with cli.epoch() as run, contextlib.closing(run.job.make_planner()) as planner:
        first = planner.find_batch_end(run.section_start, 1)
        mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (8, 1)")
        second = planner.find_batch_end(first, 1 << 28)
        with pytest.raises(TerminalError, match="a batch begins at"):
            run.apply_batch(run.job.stage_range(first, second, "0"))
    assert 8 not in held(cli, database)


def test_a_run_that_was_taken_over_cannot_write(
    cli: Cli, mysql_server: MySQLServer, database: str, tmp_path: Path
) -> None:
    """It was only slow, not dead: it still holds a staged batch when the next epoch begins."""
    cli.snapshot()
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (7, 1)")
    with cli.epoch() as old, contextlib.closing(old.job.make_planner()) as planner:
        manifest = old.job.stage_range(old.section_start, planner.find_batch_end(old.section_start, 1 << 28), "0")
        table = cli.context.layout.table_folder(next(t for t in old.plan.tables if t.name == "t"))
        staged = Path(cli.context.storage.location(f"{table}/changes/epoch-{old.number}"))
        shutil.copytree(staged, tmp_path / "aside")
        old.store.end_epoch(database, old.number, "stopped")  # so that the next may begin
        with cli.epoch() as new:
            assert new.number == old.number + 1 and not staged.exists()
            shutil.copytree(tmp_path / "aside", staged, dirs_exist_ok=True)  # as if it had been read already
            with pytest.raises(FencedError, match="A newer run has taken over"):
                old.apply_batch(manifest)
            assert 7 not in held(cli, database)
            run_epoch_in_process(new)
    assert held(cli, database) == {1: 1, 2: 1, 7: 1}


def test_a_lost_checkpoint_decides_nothing(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    cli.snapshot()
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (7, 1)")
    cli.catch_up()
    for name in ("checkpoint", "staging"):
        shutil.rmtree(cli.sink / "_cdc" / database / name, ignore_errors=True)
    (cli.sink / "_cdc" / database / "bookkeeping.db").unlink()
    with cli.epoch() as run:
        assert run.number == 2, "an epoch was given out twice"
        assert run.section_start == run.context.sink.resume_point().read()
        run_epoch_in_process(run)
    assert held(cli, database) == {1: 1, 2: 1, 7: 1}


def test_the_tables_of_a_batch_are_applied_each_for_itself(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """One table has the batch already, the other has not: a crash between the two commits."""
    cli.snapshot()
    mysql_server.session(database, "BEGIN", "INSERT INTO t VALUES (7, 1)", "INSERT INTO other VALUES (7, 1)", "COMMIT")
    with cli.epoch() as run, contextlib.closing(run.job.make_planner()) as planner:
        end = planner.find_batch_end(run.section_start, 1 << 28)
        manifest = run.job.stage_range(run.section_start, end, "0")
        half = {**manifest, "tables": [e for e in manifest["tables"] if run.plan.tables[e["table"]].name == "t"]}
        tables = open_sink_tables(run.context, run.plan)
        progress = run.context.sink.resume_point()
        Applier(run.context, run.plan, tables, read_coverage(run.context, run.plan, tables) or [], progress, 1).apply(
            half
        )
        before = version(cli, database)
        shutil.rmtree(cli.sink / "_cdc_progress")
    cli.catch_up()
    assert held(cli, database, "other") == {7: 1} and held(cli, database)[7] == 1
    assert version(cli, database) == before + 1, "only the fence of the new epoch"


def test_transactions_on_other_tables_count(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """Their rows are none of the copy's; the place and the GTIDs behind them are."""
    cli.snapshot()
    cli.catch_up()
    mysql_server.execute(f"CREATE DATABASE `{database}_x`")
    try:
        mysql_server.execute(f"CREATE TABLE `{database}_x`.t (id INT PRIMARY KEY)")
        mysql_server.execute(f"INSERT INTO `{database}_x`.t VALUES (1)")
        cli.catch_up()
        reached = cli.context.sink.resume_point().read()
        with contextlib.closing(connect(mysql_server.connect_args())) as connection:
            assert reached is not None and reached.at == binlog_end(connection)
            executed = GtidSet.parse(query_value(connection, "SELECT @@global.gtid_executed") or "")
        assert GtidSet.parse(reached.gtid_set) == executed
    finally:
        mysql_server.execute(f"DROP DATABASE `{database}_x`")
