"""What the binlog has of one table and cannot be followed suspends that table alone, and reading it again helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.errors import TableSuspendedError
from tests.resnapshot.test_suspension import equal
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer
from tests.support.three_tables import TABLES, run, suspending_copy, three_tables_database

database = three_tables_database


def suspended(server: MySQLServer, cli: Cli, says: str, table: str = "keyed") -> TableSuspendedError:
    """The next run suspends a table, and the others go on."""
    with pytest.raises(TableSuspendedError, match=says) as stopped:
        cli.catch_up()
    assert (stopped.value.table, stopped.value.suspended) == (f"d.{table}", 1)
    assert "fresh sink" not in str(stopped.value) and f"--table d.{table}" in stopped.value.remedy
    equal(server, cli, *(one for one in TABLES if one != table))
    return stopped.value


def read_again(server: MySQLServer, cli: Cli, table: str = "keyed") -> None:
    """Reading it again gets past the event, and the table goes on."""
    assert cli.resnapshot(f"d.{table}") == "staged"
    run(server, f"INSERT INTO {table} (id, v) VALUES (777, 'behind')")
    cli.catch_up()
    equal(server, cli, *TABLES)


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_another_character_set(server: MySQLServer, database: str, metadata: str, tmp_path: Path) -> None:
    server.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        run(server, "ALTER TABLE keyed MODIFY v VARCHAR(40) CHARACTER SET latin1")
        cli = suspending_copy(server, tmp_path)
        run(
            server,
            "SET SESSION sql_log_bin = 0",
            "ALTER TABLE keyed MODIFY v VARCHAR(10) CHARACTER SET utf8mb4",
            "SET SESSION sql_log_bin = 1",
            "INSERT INTO keyed VALUES (900, 'größer')",
            "UPDATE quiet SET v = 'behind' WHERE id = 2",
        )
        suspended(server, cli, "column v in character set utf8mb4 in the binlog and latin1 in the catalog")
        read_again(server, cli)
    finally:
        server.execute("SET GLOBAL binlog_row_metadata = FULL")


@dataclass(frozen=True)
class Stop:
    """What the binlog has of table ``keyed`` that cannot be followed.

    :param statements: what writers do, in one session.
    :param says: what the error says.
    :param before: what is done before the snapshot.
    :param first: what is done before the table is read again.
    :param only: the only server on which that is possible.
    :param sink: settings of the sink.
    """

    statements: tuple[str, ...]
    says: str
    before: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    only: str = ""
    sink: Mapping[str, Any] = field(default_factory=dict)


BY_STATEMENT = "SET SESSION binlog_format = STATEMENT"
STOPS = {
    "row images that are not full": Stop(
        ("SET SESSION binlog_row_image = MINIMAL", "UPDATE keyed SET id = 903 WHERE id = 3"),
        r"row images of d\.keyed are not full: they lack v",
    ),
    "partial JSON": Stop(
        ("SET SESSION binlog_row_value_options = PARTIAL_JSON", "UPDATE keyed SET j = JSON_SET(j, '$.a', 2)"),
        r"a partial JSON update of d\.keyed",
        before=("ALTER TABLE keyed ADD j JSON", """UPDATE keyed SET j = '{"a": 1, "b": "a long text that stays"}'"""),
        only="MySQL",
    ),
    "a savepoint": Stop(
        (
            "BEGIN",
            "INSERT INTO keyed VALUES (900, 'x')",
            "SAVEPOINT s",
            "INSERT INTO beyond.m VALUES (1)",
            "UPDATE keyed SET v = 'undone' WHERE id = 4",
            "ROLLBACK TO s",
            "COMMIT",
        ),
        r"ROLLBACK TO a savepoint in a transaction that changed d\.keyed",
        only="MariaDB",
    ),
    "a change by statement": Stop(
        (BY_STATEMENT, "UPDATE keyed SET v = 'x' WHERE id = 3"),
        r"UPDATE logged by statement may change captured table d\.keyed",
    ),
    "a change by statement through a view": Stop(
        (BY_STATEMENT, "UPDATE beyond.v SET v = 'x' WHERE id = 3"),
        r"UPDATE logged by statement may change captured tables through beyond\.v",
    ),
    "an empty text that makes a partition": Stop(
        ("UPDATE keyed SET v = '' WHERE id = 3",),
        "a row has an empty text in partition column v",
        before=("UPDATE keyed SET v = id % 3",),
        first=("UPDATE keyed SET v = 'corrected' WHERE id = 3",),
        sink={"partition_by": {"d.keyed": ["v"]}},
    ),
}


@pytest.fixture
def beyond(server: MySQLServer, database: str) -> Iterator[None]:
    """What is not captured: a table without transactions, and a view."""
    server.execute("CREATE DATABASE beyond")
    server.execute("CREATE TABLE beyond.m (a INT) ENGINE=MyISAM")
    server.execute("CREATE VIEW beyond.v AS SELECT * FROM d.keyed")
    yield
    server.execute("DROP DATABASE beyond")


@pytest.mark.one_of("server")
@pytest.mark.parametrize("kind", STOPS)
def test_what_one_table_cannot_follow(
    server: MySQLServer, database: str, beyond: None, kind: str, tmp_path: Path
) -> None:
    stop = STOPS[kind]
    if stop.only and (stop.only == "MariaDB") != isinstance(server, MariaDBServer):
        pytest.skip(f"only on {stop.only}")
    run(server, *stop.before)
    cli = suspending_copy(server, tmp_path, sink=dict(stop.sink))
    run(server, *stop.statements)
    run(server, "UPDATE quiet SET v = 'behind' WHERE id = 2", "DELETE FROM plain WHERE n = 7")
    suspended(server, cli, stop.says)
    run(server, *stop.first)
    read_again(server, cli)
