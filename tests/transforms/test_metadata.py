"""Columns of the copy about the last change of each row: as the server itself tells it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.column_policy import METADATA_COLUMNS
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.oracle import open_copy
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, ICEBERG

pytestmark = pytest.mark.one_of("server")

KEYS = ("database", "table", "server", "file", "position", "gtid")


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database() as name:
        for table, key in (("keyed", "PRIMARY KEY"), ("keyless", "")):
            server.session(
                name, f"CREATE TABLE {table} (id INT {key}, v INT)", f"INSERT INTO {table} VALUES (1, 1), (2, 2)"
            )
        yield name


@pytest.fixture(params=[DELTA, ICEBERG])
def cli(request: pytest.FixtureRequest, server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    return Cli(
        tmp_path,
        server,
        rf"{database}\.key.*",
        name=database,
        sink={"kind": request.param},
        transforms={"metadata": [*reversed(KEYS)]},
    )


def rows(cli: Cli, database: str, table: str) -> dict[int, dict[str, Any]]:
    copy = open_copy(cli.sink / database / table)
    assert copy is not None
    return {row["id"]: row for row in copy.read(copy.columns).to_pylist()}


@pytest.mark.parametrize("table", ["keyed", "keyless"])
def test_the_place_of_the_last_change(cli: Cli, server: MySQLServer, database: str, table: str) -> None:
    cli.snapshot()
    plan = cli.context.plans.require()
    identity = plan.p0.server
    for row in rows(cli, database, table).values():
        names = [name for name in row if name.startswith("_cdc_")]
        assert names == [*(METADATA_COLUMNS[key] for key in KEYS), "_cdc_seq", "_cdc_op", "_cdc_ts"]
        assert (row["_cdc_database"], row["_cdc_table"], row["_cdc_server"]) == (database, table, identity)
        at = plan.timeline.position(row["_cdc_seq"])
        assert (row["_cdc_file"], row["_cdc_pos"], row["_cdc_gtid"]) == (at.file, at.position, None)
    # A file of its own: the statements of other tests are not always UTF-8, and SHOW BINLOG EVENTS prints them.
    server.session(database, "FLUSH BINARY LOGS", f"UPDATE {table} SET v = 3 WHERE id = 1")
    server.session(
        database, "FLUSH BINARY LOGS", f"INSERT INTO {table} VALUES (3, 3)", f"DELETE FROM {table} WHERE id = 2"
    )
    cli.catch_up()
    changed = rows(cli, database, table)
    assert sorted(changed) == [1, 3]
    for row in changed.values():
        at = plan.timeline.position(row["_cdc_seq"])
        assert (row["_cdc_file"], row["_cdc_pos"]) == (at.file, at.position)
        events = server.execute(f"SHOW BINLOG EVENTS IN '{at.file}'")
        ends = [event[4] for event in events]
        before = events[: ends.index(at.position) + 1]
        gtid = next(event[5] for event in reversed(before) if "gtid" in event[2].lower())
        assert row["_cdc_gtid"] and row["_cdc_gtid"] in gtid, (row["_cdc_gtid"], gtid)
    assert changed[1]["_cdc_file"] != changed[3]["_cdc_file"]
    assert {verdict.verdict for verdict in verify_tables(cli.context)} == {"equal"}


def test_a_changed_choice_is_read_again(cli: Cli, server: MySQLServer, database: str) -> None:
    cli.value["stream"]["on_table_error"] = "suspend"
    cli.write()
    cli.snapshot()
    server.session(database, "INSERT INTO keyed VALUES (5, 5)", "INSERT INTO keyless VALUES (5, 5)")
    cli.catch_up()
    cli.value["transforms"] = {"metadata": ["gtid"]}
    cli.write()
    cli.catch_up()
    for table in ("keyed", "keyless"):
        names = [name for name in rows(cli, database, table)[5] if name.startswith("_cdc_")]
        assert names == ["_cdc_gtid", "_cdc_seq", "_cdc_op", "_cdc_ts"]
    assert {verdict.verdict for verdict in verify_tables(cli.context)} == {"equal"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("gtid", "transforms.metadata is 'gtid'"),
        (["offset"], "transforms.metadata is 'offset'"),
        (["operation"], "transforms.metadata has operation, which each copy has as _cdc_op"),
    ],
)
def test_what_is_refused(cli: Cli, value: Any, reason: str) -> None:
    cli.value["transforms"] = {"metadata": value}
    cli.write()
    with pytest.raises(NotReadyError) as caught:
        _ = cli.context
    assert reason in caught.value.message


def test_a_row_without_a_key_that_is_deleted_while_it_is_read_again(
    cli: Cli, server: MySQLServer, database: str
) -> None:
    """The deletion has another place than the reading, and is of the same row."""
    cli.snapshot()
    server.session(database, "INSERT INTO keyless VALUES (5, 5)")
    cli.catch_up()
    server.session(database, "INSERT INTO keyed VALUES (9, 9)")  # the stream is behind the reading
    assert cli.resnapshot(f"{database}.keyless") == "staged"
    server.session(database, "DELETE FROM keyless WHERE id = 1")
    cli.catch_up()
    assert sorted(rows(cli, database, "keyless")) == [2, 5]
    with cli.opened() as (_, store):
        assert store.last_events(database, 10, ["table_rejoined"]) != []
    assert {verdict.verdict for verdict in verify_tables(cli.context)} == {"equal"}
