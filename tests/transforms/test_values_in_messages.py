"""No message shows values that the copy does not have: of changed and excluded columns, and of rows left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from airflow_provider_cdc.explain.run import explain_row
from airflow_provider_cdc.model.column_policy import HASH, KEEP, MASK, NULL, TRUNCATE, ColumnPolicy
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.model.schema import Column, TableSchema
from airflow_provider_cdc.model.unsupported_values import (
    UnsupportedReason,
    UnsupportedValue,
    binlog_value_error,
    describe_key,
    select_value_error,
)
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.transforms import HASH_CONNECTION, HASH_ENV

SECRET = "2017-11-00"
COLUMN = Column("v", "date", "date", True)
TABLE = TableSchema("d", "t", (Column("id", "int", "int", False), COLUMN), ("id",))


def messages(table: TableSchema, reason: UnsupportedReason) -> list[str]:
    select_error = select_value_error(table, COLUMN, UnsupportedValue(1, reason, f"{SECRET} is not a date"))
    binlog_error = binlog_value_error(table, COLUMN, reason, f"impossible date {SECRET}", "binlog.1:4")
    key_text = describe_key(table, "v", ValueError(SECRET))
    return [str(select_error), repr(select_error.__dict__), str(binlog_error), repr(binlog_error.__dict__), key_text]


@pytest.mark.parametrize("reason", get_args(UnsupportedReason))
@pytest.mark.parametrize("action", [HASH, MASK, TRUNCATE, NULL, "exclude", KEEP, None])
def test_values_that_cannot_be_copied(action: str | None, reason: UnsupportedReason) -> None:
    table = TABLE.replace(excluded=("v",), condition="v IS NULL", condition_columns=("v",))
    if action != "exclude":
        table = TABLE if action is None else TABLE.replace(policies=(ColumnPolicy("v", action, "w"),))
    shown = [SECRET in message for message in messages(table, reason)]
    assert shown == [action in (KEEP, None)] * 5


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database() as name:
        yield name


#: Policy of the column ``v``, and the same condition in all of them.
POLICIES: dict[str, Any] = {"hashed": "hash", "nulled": "null", "excluded": "exclude"}


@pytest.mark.one_of("server")
@pytest.mark.parametrize("how", ["snapshot", "stream"])
@pytest.mark.parametrize("name", [*POLICIES])
def test_invalid_dates(server: MySQLServer, database: str, tmp_path: Path, name: str, how: str) -> None:
    insert = ("SET sql_mode = ''", f"INSERT INTO t VALUES (1, '{SECRET}')")
    server.session(database, "CREATE TABLE t (id INT PRIMARY KEY, v DATE)")
    cli = Cli(
        tmp_path,
        server,
        rf"{database}\.t",
        name=database,
        transforms={
            **({"hash_key_conn_id": HASH_CONNECTION} if name == "hashed" else {}),
            "columns": {rf"{database}\.t\.v": POLICIES[name]},
            "where": {rf"{database}\.t": "v IS NULL OR v > '2000-01-01'"},
        },
    )
    cli.env |= HASH_ENV
    if how == "snapshot":
        server.session(database, *insert)
    else:
        cli.snapshot()
        server.session(database, *insert)
    with pytest.raises(CdcError, match="invalid date") as caught:
        (cli.snapshot if how == "snapshot" else cli.catch_up)()
    said = f"{caught.value} {caught.value.__dict__}"
    assert "column v" in said and not any(part in said for part in (SECRET, "2017", "2017-11", SECRET.encode().hex()))


@pytest.mark.one_of("server")
def test_explanations_show_no_values_of_rows_that_are_left_out(
    server: MySQLServer, database: str, tmp_path: Path
) -> None:
    server.session(
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, tenant INT, v VARCHAR(20), w VARCHAR(20))",
        "INSERT INTO t VALUES (1, 1, 'clear', 'behind')",
    )
    where, columns = {rf"{database}\.t": "tenant = 1"}, {rf"{database}\.t\.w": "mask"}
    cli = Cli(tmp_path, server, rf"{database}\.t", name=database, transforms={"where": where, "columns": columns})
    cli.snapshot()

    def explained() -> tuple[str, Any]:
        found = explain_row(cli.context, f"{database}.t", ["1"])
        text = "\n".join(found.lines()) + json.dumps(found.to_json())
        assert "behind" not in text
        return text, found

    server.session(database, "UPDATE t SET v = 'second' WHERE id = 1")
    text, found = explained()  # before the stream has applied it
    assert "second" in text and "w='******'" in text and not found.last_change.is_left_out
    cli.catch_up()
    server.session(database, "UPDATE t SET tenant = 2, v = 'elsewhere' WHERE id = 1")
    for _ in range(2):
        text, found = explained()
        assert "elsewhere" not in text and "transforms.where leaves" in text
        assert found.last_change.operation == "update" and found.last_change.is_left_out and found.equal is True
        assert found.to_json()["last_change"]["left_out"] is True
        cli.catch_up()
    server.session(database, "DELETE FROM t WHERE id = 1")
    text, found = explained()
    assert "elsewhere" not in text and found.last_change.operation == "delete" and not found.last_change.is_left_out
