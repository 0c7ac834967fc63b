"""Rows that ``sink.deletes`` keeps stay when their table is read again as a whole."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.apply import follow_ddl as schema_changes
from airflow_provider_cdc.model.errors import NotReadyError, TableSuspendedError
from airflow_provider_cdc.model.schema import DELETED_COLUMN, SEQ_COLUMN, TS_COLUMN
from airflow_provider_cdc.resnapshot import publish
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.chance import killed_at
from tests.support.cli import Cli
from tests.support.servers import MySQLServer

pytestmark = pytest.mark.one_of("server")

KEPT = ("soft", "ignore")


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    name = f"t_{secrets.token_hex(6)}"
    server.execute(f"CREATE DATABASE {name}")
    for table in (*KEPT, "hard"):
        server.session(
            name,
            f"CREATE TABLE `{table}` (id INT PRIMARY KEY, v VARCHAR(20))",
            f"INSERT INTO `{table}` VALUES " + ",".join(f"({n}, 'v')" for n in range(20)),
        )
    yield name
    server.execute(f"DROP DATABASE {name}")


@pytest.fixture
def cli(server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    """Rows 10 to 19 were deleted in the source, and the stream has seen that."""
    made = Cli(
        tmp_path,
        server,
        rf"{database}\..*",
        name=database,
        snapshot={"chunk_rows": 6},
        sink={"deletes": {how: [rf"{database}.{how}"] for how in KEPT}},
        stream={"on_table_error": "suspend", "reread": "ask"},
    )
    made.snapshot()
    change(server, database, "DELETE FROM {t} WHERE id >= 10")
    made.catch_up()
    return made


def change(server: MySQLServer, database: str, *statements: str) -> None:
    for table in (*KEPT, "hard"):
        server.session(database, *(text.format(t=f"`{table}`") for text in statements))


def held(cli: Cli, database: str, table: str) -> dict[int, dict[str, Any]]:
    found = cli.rows(database, table).to_pylist()
    values = {row["id"]: row for row in found}
    assert len(values) == len(found), "a key is there twice"
    return values


def check(cli: Cli, database: str, kept: int = 10) -> None:
    found = {c.table.rpartition(".")[2]: c for c in verify_tables(cli.context)}
    assert all(c.is_equal for c in found.values())
    assert {table: c.kept for table, c in found.items()} == {"soft": 0, "ignore": kept, "hard": 0}


@pytest.mark.parametrize("reread", ["auto", "ask"])
def test_a_table_that_is_read_again(cli: Cli, server: MySQLServer, database: str, reread: str) -> None:
    """By the stream, after a DDL that it does not follow; and for somebody. Rows from before lack the new column."""
    cli.value["stream"]["reread"] = reread
    cli.write()
    before = {table: held(cli, database, table) for table in KEPT}
    change(
        server,
        database,
        "ALTER TABLE {t} ADD COLUMN w INT NOT NULL DEFAULT 5",
        "UPDATE {t} SET v = 'new' WHERE id = 0",
        "INSERT INTO {t} VALUES (10, 'back', 6)",
    )
    if reread == "ask":
        with pytest.raises(TableSuspendedError):
            cli.catch_up()
        for table in (*KEPT, "hard"):
            assert cli.resnapshot(f"{database}.{table}") == "staged"
    cli.catch_up()
    after = {table: held(cli, database, table) for table in KEPT}
    for table in KEPT:
        assert after[table].keys() == {*range(20)}
        assert {row["w"] for n, row in after[table].items() if n > 10} == {None}
        # Marked as they were, and by what deleted them.
        for n in range(11, 20):
            assert {**after[table][n], "w": 0} == {**before[table][n], "w": 0}
        assert (after[table][0]["v"], after[table][0]["w"], after[table][10]["v"]) == ("new", 5, "back")
    assert {n for n, row in after["soft"].items() if row[DELETED_COLUMN]} == {*range(11, 20)}
    assert held(cli, database, "hard").keys() == {*range(11)}
    check(cli, database, 9)
    # It goes on: rows that were kept come back, and are deleted once more.
    change(server, database, "INSERT INTO {t} VALUES (15, 'again', 7)", "DELETE FROM {t} WHERE id IN (10, 3)")
    cli.catch_up()
    check(cli, database, 10)
    after = {table: held(cli, database, table) for table in KEPT}
    assert {n for n, row in after["soft"].items() if row[DELETED_COLUMN]} == {3, 10, *range(11, 20)} - {15}
    # Once more, with nothing but rows that were kept in some files: nothing happens to those.
    for table in (*KEPT, "hard"):
        assert cli.resnapshot(f"{database}.{table}") == "staged"
    cli.catch_up()
    for table in KEPT:
        same = {
            n: {k: v for k, v in row.items() if k not in (SEQ_COLUMN, TS_COLUMN, "_cdc_op")}
            for n, row in after[table].items()
        }
        found = held(cli, database, table)
        assert {n: {k: row[k] for k in same[n]} for n, row in found.items()} == same
    check(cli, database, 10)


def test_rows_that_were_deleted_unseen(cli: Cli, server: MySQLServer, database: str) -> None:
    """While their table was suspended: they are marked, with the ``_cdc_seq`` that they had; or they stay."""
    change(server, database, "ALTER TABLE {t} ADD COLUMN w INT NOT NULL DEFAULT 5", "DELETE FROM {t} WHERE id = 3")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    before = {table: held(cli, database, table) for table in KEPT}
    for table in (*KEPT, "hard"):
        assert cli.resnapshot(f"{database}.{table}") == "staged"
    change(server, database, "DELETE FROM {t} WHERE id = 4")  # the stream brings the slices behind this
    cli.catch_up()
    after = {table: held(cli, database, table) for table in KEPT}
    for n in (3, 4):
        old, new = before["soft"][n], after["soft"][n]
        assert (old[DELETED_COLUMN], new[DELETED_COLUMN], new["_cdc_op"]) == (False, True, "d")
        assert new[SEQ_COLUMN] == old[SEQ_COLUMN] and new[TS_COLUMN] > old[TS_COLUMN]
        assert after["ignore"][n]["v"] == before["ignore"][n]["v"]
    check(cli, database, 12)


@pytest.mark.parametrize("at", ["rejoin.after_write", "rejoin.before_exchange", "rejoin.after_exchange"])
def test_a_run_that_is_killed(cli: Cli, server: MySQLServer, database: str, at: str) -> None:
    for table in KEPT:
        assert cli.resnapshot(f"{database}.{table}") == "staged"
    before = {table: held(cli, database, table).keys() for table in KEPT}
    with killed_at(at, publish, schema_changes):
        cli.catch_up()
    change(server, database, "INSERT INTO {t} VALUES (10, 'back')")
    cli.catch_up()
    assert {table: held(cli, database, table).keys() for table in KEPT} == before
    check(cli, database, 9)


@pytest.mark.parametrize("ddl", ["MODIFY v INT", "RENAME COLUMN v TO w", "DROP PRIMARY KEY, ADD PRIMARY KEY (v, id)"])
def test_rows_that_could_not_stay(cli: Cli, server: MySQLServer, database: str, ddl: str) -> None:
    """The table stays suspended, and it is said how many rows would go. What is said to do about it works."""
    for table in ("ignore", "hard"):
        server.session(database, f"DROP TABLE `{table}`")
    server.session(database, "UPDATE soft SET v = id")
    server.session(database, f"ALTER TABLE soft {ddl}")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    before = held(cli, database, "soft")
    with pytest.raises(NotReadyError, match="10 rows that the source has deleted") as refused:
        cli.resnapshot(f"{database}.soft")
    assert "move its folder away" in refused.value.remedy
    cli.value["stream"]["reread"] = "auto"
    cli.write()
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    assert held(cli, database, "soft") == before
    shutil.move(cli.sink / database / "soft", cli.sink / "aside")
    assert cli.resnapshot(f"{database}.soft") == "staged"
    with suppress(TableSuspendedError):  # the others are gone
        cli.catch_up()
    assert held(cli, database, "soft").keys() == {*range(10)}
    assert [c.is_equal for c in verify_tables(cli.context) if c.table.endswith(".soft")] == [True]


def test_rows_that_could_not_stay_and_were_deleted_unseen(cli: Cli, server: MySQLServer, database: str) -> None:
    """None was known to be deleted before the table was read: it is read once, and not by each try."""
    for table in ("ignore", "hard"):
        server.session(database, f"DROP TABLE `{table}`")
    server.session(database, "INSERT INTO soft VALUES " + ",".join(f"({n}, 'back')" for n in range(10, 20)))
    with suppress(TableSuspendedError):
        cli.catch_up()
    server.session(database, "ALTER TABLE soft RENAME COLUMN v TO w", "DELETE FROM soft WHERE id = 3")
    cli.value["stream"]["reread"] = "auto"
    cli.write()
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    assert held(cli, database, "soft").keys() == {*range(20)} and held(cli, database, "soft")[3]["v"] == "v"
    with cli.opened() as (context, store):
        found = [event.detail for event in store.last_events(context.pipeline.name, 100, ["reread_dropped"])]
    assert len(found) == 1 and "1 row that the source has deleted" in found[0]


def test_a_table_that_was_dropped_and_made_again(cli: Cli, server: MySQLServer, database: str) -> None:
    """Its rows stay, unless ``sink.on_dropped`` says that they go."""
    cli.value["sink"]["on_dropped"] = {"drop": [rf"{database}.ignore"]}
    cli.value["stream"]["reread"] = "auto"
    cli.write()
    change(
        server,
        database,
        "DROP TABLE {t}",
        "CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(20))",
        "INSERT INTO {t} VALUES (30, 'x')",
    )
    cli.catch_up()
    assert {n for n, row in held(cli, database, "soft").items() if row[DELETED_COLUMN]} == {*range(20)}
    assert held(cli, database, "ignore").keys() == {30}
    check(cli, database, 0)
