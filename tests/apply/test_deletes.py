"""Deleted rows that stay (``sink.deletes``), from the real binlog: however it is cut into batches, and read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.apply.task import merge_manifests
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.model.schema import DELETED_COLUMN, OP_COLUMN, SEQ_COLUMN, TS_COLUMN
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli, asked_by
from tests.support.servers import MySQLServer

pytestmark = pytest.mark.one_of("server")

#: What is done to each of the tables, one transaction an item, after rows 1 to 9 were copied.
CHANGES: tuple[tuple[str, ...], ...] = (
    ("DELETE FROM {t} WHERE id = 1",),
    ("UPDATE {t} SET v = 'last' WHERE id = 2", "DELETE FROM {t} WHERE id = 2"),
    ("INSERT INTO {t} VALUES (10, 'short')",),
    ("DELETE FROM {t} WHERE id = 10",),
    ("DELETE FROM {t} WHERE id = 3", "INSERT INTO {t} VALUES (3, 'back')"),
    ("UPDATE {t} SET id = 40 WHERE id = 4",),
    ("UPDATE {t} SET v = 'seen' WHERE id = 5", "INSERT INTO {t} VALUES (11, 'seen')"),
    ("TRUNCATE TABLE {t}",),
    ("INSERT INTO {t} VALUES (5, 'new'), (12, 'between')",),
    ("TRUNCATE TABLE {t}",),
    ("INSERT INTO {t} VALUES (5, 'newest'), (13, 'end'), (14, 'gone')",),
    ("DELETE FROM {t} WHERE id = 14",),
)
#: What the source holds then.
SOURCE = {5: "newest", 13: "end"}
SOFT = {1: "v", 2: "last", 3: "back", 4: "v", 6: "v", 7: "v", 8: "v", 9: "v", 40: "v", 11: "seen", 12: "between"}
SOFT |= {10: "short", 14: "gone"}


def pipeline(folder: Path, server: MySQLServer, database: str, name: str = "p") -> Cli:
    deletes = {"soft": [rf"{database}.soft"], "ignore": [rf"{database}.kept"]}
    return Cli(
        folder / name,
        server,
        rf"{database}\..*",
        name=f"{database}-{name}",
        snapshot={"chunk_rows": 3},
        sink={"deletes": deletes},
    )


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database() as name:
        yield name


@pytest.fixture
def tables(server: MySQLServer, database: str) -> None:
    for table in ("soft", "kept", "gone"):
        server.session(
            database,
            f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20))",
            f"INSERT INTO {table} VALUES " + ",".join(f"({n}, 'v')" for n in range(1, 10)),
        )


@pytest.fixture
def cli(server: MySQLServer, database: str, tmp_path: Path, tables: None) -> Iterator[Cli]:
    yield pipeline(tmp_path, server, database)


def change(server: MySQLServer, database: str) -> None:
    for table in ("soft", "kept", "gone"):
        for transaction in CHANGES:
            server.session(database, "BEGIN", *(sql.format(t=table) for sql in transaction), "COMMIT")


def held(cli: Cli, database: str, table: str) -> dict[int, dict[str, Any]]:
    found = cli.rows(database, table).to_pylist()
    values = {row["id"]: row for row in found}
    assert len(values) == len(found), "a key is there twice"
    return values


def values(cli: Cli, database: str, table: str, *, deleted: bool | None = None) -> dict[int, str]:
    return {n: row["v"] for n, row in held(cli, database, table).items() if row.get(DELETED_COLUMN) is deleted}


def check(cli: Cli, database: str) -> None:
    """What the tables hold after the changes."""
    assert values(cli, database, "soft", deleted=False) == SOURCE
    assert values(cli, database, "soft", deleted=True) == SOFT
    assert values(cli, database, "kept") == SOFT | SOURCE
    assert values(cli, database, "gone") == SOURCE
    found = {c.table.rpartition(".")[2]: c for c in verify_tables(cli.context)}
    assert all(c.is_equal for c in found.values())
    assert {table: c.kept for table, c in found.items()} == {"soft": 0, "kept": len(SOFT), "gone": 0}
    assert f"2 rows, equal, {len(SOFT)} more that the source has deleted" in str(found["kept"])


def test_however_batches_are_cut(server: MySQLServer, database: str, tmp_path: Path, tables: None) -> None:
    """One batch, one for each transaction, and one of many pieces come to the same, row by row."""
    whole, single, pieces = (pipeline(tmp_path, server, database, name) for name in "abc")
    for cli in (whole, single, pieces):
        cli.snapshot()
    change(server, database)
    whole.catch_up()
    for cli in (single, pieces):
        with cli.epoch() as run, closing(run.job.make_planner()) as planner:
            ends = [run.section_start]
            while (end := planner.find_batch_end(ends[-1], 1)) != ends[-1]:
                ends.append(end)
            staged = [run.job.stage_range(*piece, "0") for piece in pairwise(ends)]
            assert len(staged) > 20
            if cli is single:
                for manifest in staged:
                    run.apply_batch(manifest)
            else:
                run.apply_batch(merge_manifests(staged))
    check(whole, database)
    for table in ("soft", "kept", "gone"):
        first = held(whole, database, table)
        for cli in (single, pieces):
            found = held(cli, database, table)
            assert found.keys() == first.keys()
            for key, row in found.items():
                # Each snapshot has read at a moment of its own.
                same = (
                    row
                    if row[OP_COLUMN] != "r"
                    else {**row, SEQ_COLUMN: first[key][SEQ_COLUMN], TS_COLUMN: first[key][TS_COLUMN]}
                )
                assert same == first[key]


def test_a_change_tells_when_it_deleted(cli: Cli, server: MySQLServer, database: str) -> None:
    cli.snapshot()
    change(server, database)
    cli.catch_up()
    found = held(cli, database, "soft")
    assert {row[OP_COLUMN] for row in found.values() if row[DELETED_COLUMN]} == {"d"}
    order = sorted((row[SEQ_COLUMN], n) for n, row in found.items() if row[DELETED_COLUMN])
    assert [n for _, n in order][:4] == [1, 2, 10, 4]
    # Rows that one TRUNCATE has deleted have its time and place.
    first = {(found[n][SEQ_COLUMN], found[n][TS_COLUMN]) for n in (3, 6, 7, 8, 9, 40, 11)}
    assert len(first) == 1 and first != {(found[12][SEQ_COLUMN], found[12][TS_COLUMN])}
    assert found[10][TS_COLUMN] <= found[3][TS_COLUMN] <= found[12][TS_COLUMN] <= found[14][TS_COLUMN]


def test_a_group_that_is_read_again(cli: Cli, server: MySQLServer, database: str) -> None:
    """Beside a stream that has gone on: what was deleted before stays what it is."""
    cli.snapshot()
    change(server, database)
    cli.catch_up()
    before = {table: held(cli, database, table) for table in ("soft", "kept")}
    server.session(database, "SET sql_log_bin = 0", "DELETE FROM soft WHERE id = 5", "DELETE FROM gone WHERE id = 5")
    for _ in range(2):
        with cli.opened() as (context, store):
            plan = context.plans.require()
            for group in plan.groups():
                run_group(context, store, plan, group, run_in_threads, holder="x", requested_by=asked_by(f"t{group}"))
        cli.catch_up()
    after = {table: held(cli, database, table) for table in ("soft", "kept")}
    assert after["soft"].keys() == before["soft"].keys() and after["kept"].keys() == before["kept"].keys()
    assert {n for n, row in after["soft"].items() if row != before["soft"][n]} == {5}
    # Its delete is in no binlog. That it is gone was seen.
    assert after["soft"][5][DELETED_COLUMN] and after["soft"][5]["v"] == "newest"
    assert (
        after["soft"][5][SEQ_COLUMN] == before["soft"][5][SEQ_COLUMN]
        and after["soft"][5][TS_COLUMN] > before["soft"][5][TS_COLUMN]
    )
    assert {n: row["v"] for n, row in after["kept"].items()} == {n: row["v"] for n, row in before["kept"].items()}
    assert all(c.is_equal for c in verify_tables(cli.context))


def test_a_delete_without_the_whole_row(cli: Cli, server: MySQLServer, database: str) -> None:
    """Its values would be lost: only where rows go is the key enough."""
    cli.snapshot()
    server.session(database, "SET binlog_row_image = 'MINIMAL'", "DELETE FROM gone WHERE id = 1")
    server.session(database, "SET binlog_row_image = 'MINIMAL'", "DELETE FROM kept WHERE id = 1")
    cli.catch_up()
    assert 1 not in held(cli, database, "gone") and 1 in held(cli, database, "kept")
    server.session(database, "SET binlog_row_image = 'MINIMAL'", "DELETE FROM soft WHERE id = 1")
    with pytest.raises(TerminalError, match=r"row images of .*\.soft are not full: they lack v"):
        cli.catch_up()


def test_tables_without_a_key_are_refused(cli: Cli, server: MySQLServer, database: str) -> None:
    server.session(database, "CREATE TABLE soft_log (v INT)")
    cli.value["sink"]["deletes"] = "soft"
    cli.write()
    assert any("soft_log has no usable key, and sink.deletes is soft" in line for line in cli.call("check").found)
    with pytest.raises(NotReadyError, match="soft_log has no usable key, and sink.deletes is soft for it"):
        cli.snapshot()
    assert not (cli.sink / "_cdc").exists() or not list((cli.sink / "_cdc").rglob("plan.json"))


def test_it_is_not_changed_between_two_runs(cli: Cli, server: MySQLServer, database: str) -> None:
    cli.snapshot()
    cli.value["sink"]["deletes"] = "hard"
    cli.write()
    for line in (cli.call("check").found, cli.call("run").err.splitlines()):
        assert "sink.deletes soft, and it is hard now" in "".join(line) or "sink.deletes ignore" in "".join(line)
    with pytest.raises(NotReadyError, match="set it back to (soft|ignore) for this table"):
        cli.catch_up()
