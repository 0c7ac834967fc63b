"""Names that need quoting somewhere: in SQL, regular expressions, paths, URLs, Parquet. They simply work."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.config.table_paths import folder_name
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.binlog.reading import quoted
from tests.support.cli import Cli
from tests.support.servers import MySQLServer

ODD = [
    "quote'single",
    'quote"double',
    "back`tick",
    "50%",
    "%s %d %(x)s %%",
    "a.b.c",
    "semi;colon; DROP TABLE x; --",
    "two words",
    "ünï_日本",
    "sl/ash",
    "back\\slash\\n",
    "equals=2F",
    "{curly} $dollar #hash",
    "comma,(paren)[bracket]*+?",
    "select",
    "..",
    ".hidden",
    "@at:colon",
    "tab\there",
    "_delta_log",
    "_cdc",
    "snapshot",
    "名" * 40,
]


@pytest.fixture
def odd_database(mysql_server: MySQLServer, database: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of an odd name."""
    name = f"{database[:8]} {request.param}"[:60]
    mysql_server.execute(f"CREATE DATABASE {quoted(name)}")
    yield name
    mysql_server.execute(f"DROP DATABASE {quoted(name)}")


def equal(cli: Cli, server: MySQLServer, database: str, table: str, columns: list[str]) -> None:
    """The sink table holds what the server holds; also as any other Delta reader sees it."""
    names = ", ".join(quoted(c) for c in columns)
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {names} FROM {quoted(database)}.{quoted(table)}")
        expected = sorted(cursor.fetchall())
    assert expected
    found = cli.rows(database, table)
    assert sorted(zip(*(found[c].to_pylist() for c in columns), strict=True)) == expected
    path = cli.sink / folder_name(database) / folder_name(table)
    other = pa.RecordBatchReader.from_stream(DeltaTable(str(path)).scan()).read_all()
    assert sorted(zip(*(other[c].to_pylist() for c in columns), strict=True)) == expected


def test_names_of_tables_and_columns(
    mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]
) -> None:
    """Every odd name as a table, as a key column and as another column, all in one pipeline."""
    keys = ["INT", "VARCHAR(20)", "DECIMAL(9,2)"]
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        for i, name in enumerate(ODD):
            key, plain = quoted(name), quoted(f"v {name}"[:64])
            cursor.execute(
                f"CREATE TABLE {quoted(name)} ({key} {keys[i % 3]}, {plain} VARCHAR(20), PRIMARY KEY ({key}))"
            )
            cursor.execute(f"INSERT INTO {quoted(name)} VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e')")
        cli = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database, user=cdc_user, snapshot={"chunk_rows": 2})
        assert cli.call("check").code == 0
        assert cli.call("plan").code == 0
        cli.snapshot()
        for name in ODD:
            key, plain = quoted(name), quoted(f"v {name}"[:64])
            cursor.execute(f"UPDATE {quoted(name)} SET {plain} = 'new' WHERE {key} = 2")
            cursor.execute(f"UPDATE {quoted(name)} SET {key} = 9 WHERE {key} = 1")
            cursor.execute(f"DELETE FROM {quoted(name)} WHERE {key} = 3")
            cursor.execute(f"INSERT INTO {quoted(name)} VALUES (7, 'g')")
        cli.catch_up()
    for name in ODD:
        equal(cli, mysql_server, database, name, [name, f"v {name}"[:64]])
    assert all(v.is_equal for v in verify_tables(cli.context))
    folders = {p.name for p in (cli.sink / database).iterdir()}
    assert folders == {folder_name(name) for name in ODD}


@pytest.mark.parametrize(
    "odd_database", ["quote'\"`tick", "50% %s.dot;semi", "sl/ash back\\slash=", "ünï 日本"], indirect=True
)
def test_names_of_databases(
    mysql_server: MySQLServer, odd_database: str, tmp_path: Path, cdc_user: dict[str, str]
) -> None:
    """The user may read just this database; the pattern is its name, escaped."""
    db = quoted(odd_database)
    mysql_server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v VARCHAR(9))")
    mysql_server.execute(f"INSERT INTO {db}.t VALUES (1, 'a'), (2, 'b')")
    cli = Cli(tmp_path, mysql_server, re.escape(odd_database) + r"\.t", user=cdc_user)
    cli.snapshot()
    mysql_server.execute(f"UPDATE {db}.t SET v = 'c' WHERE id = 2")
    cli.catch_up()
    equal(cli, mysql_server, odd_database, "t", ["id", "v"])


@pytest.mark.parametrize("name", ["_cdc", "_cdc_progress"])
def test_a_database_called_like_the_projects_own_folders(
    mysql_server: MySQLServer, name: str, tmp_path: Path, cdc_user: dict[str, str]
) -> None:
    mysql_server.execute(f"CREATE DATABASE `{name}`")
    try:
        mysql_server.execute(f"CREATE TABLE `{name}`.p (id INT PRIMARY KEY)")
        mysql_server.execute(f"INSERT INTO `{name}`.p VALUES (1)")
        cli = Cli(tmp_path, mysql_server, rf"{name}\.p", name="p", user=cdc_user)
        cli.snapshot()
        mysql_server.execute(f"INSERT INTO `{name}`.p VALUES (2)")
        cli.catch_up()
        equal(cli, mysql_server, name, "p", ["id"])
    finally:
        mysql_server.execute(f"DROP DATABASE `{name}`")


@pytest.mark.spark
@pytest.mark.parametrize("odd_database", ["q'\"` %s 50%. sl/ash; =\\"], indirect=True)
def test_through_the_command_line(
    mysql_server: MySQLServer, odd_database: str, tmp_path: Path, cdc_user: dict[str, str]
) -> None:
    db = quoted(odd_database)
    name = "t'\"`%.;/\\= ü"
    mysql_server.execute(f"CREATE TABLE {db}.{quoted(name)} ({quoted(name)} VARCHAR(20) PRIMARY KEY, `v.w` INT)")
    mysql_server.execute(f"INSERT INTO {db}.{quoted(name)} VALUES ('a', 1), ('b', 2), ('c', 3)")
    cli = Cli(tmp_path / "p ü", mysql_server, re.escape(odd_database) + r"\..*", user=cdc_user)
    result = cli.run("run", "--catch-up")
    assert result.code == 0, result.err
    mysql_server.execute(f"UPDATE {db}.{quoted(name)} SET `v.w` = 9, {quoted(name)} = 'B' WHERE `v.w` = 2")
    cli.catch_up()
    equal(cli, mysql_server, odd_database, name, [name, "v.w"])
    assert cli.call("verify").code == 0
