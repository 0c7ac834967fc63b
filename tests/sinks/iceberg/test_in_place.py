"""A whole pipeline whose source renames columns, widens types and adds constants: no data file is written again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.definition_history import ColumnChanges
from airflow_provider_cdc.model.errors import TerminalError, TransientError
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.sinks.protocol import InPlaceAlterable
from airflow_provider_cdc.verify.run import verify_tables
from tests.sinks.iceberg.test_pipeline import sink_table
from tests.support.cli import Cli
from tests.support.iceberg import read_with_duckdb, read_with_pyiceberg
from tests.support.iceberg_sink import loaded_table, metadata_file
from tests.support.servers import MySQLServer

ROWS = 60


@pytest.fixture(params=["deletion_vectors", "copy_on_write"], ids=["v3", "v2"])
def merge(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cli(server: MySQLServer, tmp_path: Path, merge: str) -> Iterator[Cli]:
    with server.fresh_database("d") as database:
        server.session(
            database,
            "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(20), w VARCHAR(20), n SMALLINT, f FLOAT, d DECIMAL(5,2))",
            "INSERT INTO a VALUES " + ",".join(f"({n}, 'v{n}', 'w{n}', {n}, {n}/10, {n}.25)" for n in range(ROWS)),
            "CREATE TABLE log (v INT, w VARCHAR(9))",
            "INSERT INTO log VALUES (1, 'x'), (1, 'x'), (NULL, NULL)",
        )
        made = Cli(
            tmp_path,
            server,
            r"d\..*",
            snapshot={"chunk_rows": 10, "group_rows": 40},
            sink={"kind": "iceberg", "merge": merge},
            stream={"on_table_error": "suspend", "reread": "ask"},
        )
        made.snapshot()
        server.session(database, "UPDATE a SET n = -n WHERE id < 3")
        made.catch_up()
        yield made


def equal(cli: Cli) -> None:
    found = verify_tables(cli.context, show_values=True)
    assert [str(table) for table in found if not table.is_equal] == [] and len(found) == 2


def data_files(cli: Cli, table: str = "a") -> set[str]:
    return {*sink_table(cli, table).load_log().files}


def source_rows(cli: Cli, server: MySQLServer, columns: list[str], table: str = "a") -> Counter[tuple[Any, ...]]:
    quoted = ", ".join(f"`{name}`" for name in columns)
    with server.connect(database="d") as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {quoted} FROM {table}")
        return Counter(cursor.fetchall())


def same_to_all_readers(cli: Cli, server: MySQLServer, columns: list[str], table: str = "a") -> None:
    """Other readers see the rows of the source."""
    target, expected = sink_table(cli, table), source_rows(cli, server, columns, table)
    for read in (read_with_pyiceberg, read_with_duckdb):
        rows = read(metadata_file(target))
        assert Counter(zip(*(rows[name].to_pylist() for name in columns), strict=True)) == expected, read.__name__


def followed(cli: Cli, server: MySQLServer, *ddl: str, table: str = "a") -> None:
    """Statements are followed, and all files of before stay; then rows of them change."""
    before = data_files(cli, table)
    assert before
    server.session("d", *ddl)
    cli.catch_up()
    assert data_files(cli, table) == before
    equal(cli)


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE a RENAME COLUMN v TO x",
        "ALTER TABLE a CHANGE v x VARCHAR(40) COMMENT 'it'",
        "ALTER TABLE a RENAME COLUMN v TO w, RENAME COLUMN w TO v",
    ],
)
def test_a_column_is_renamed(cli: Cli, server: MySQLServer, ddl: str) -> None:
    followed(cli, server, ddl)
    names = ["id", "w", "v" if "w TO v" in ddl else "x"]
    same_to_all_readers(cli, server, names)
    server.session(
        "d",
        f"UPDATE a SET `{names[2]}` = 'new' WHERE id < 5",
        f"INSERT INTO a (id, `{names[2]}`) VALUES (1000, 'x')",
        "DELETE FROM a WHERE id = 30",
    )
    cli.catch_up()
    equal(cli)
    target = sink_table(cli, "a")
    assert target.commit_compactions([(c, c.run()) for c in target.plan_compactions(purge=True)]) in (0, 1)
    equal(cli)
    same_to_all_readers(cli, server, names)
    cli.resnapshot("d.a")
    cli.catch_up()
    equal(cli)


def test_a_name_comes_back(cli: Cli, server: MySQLServer) -> None:
    """A column is dropped and one of its name is added: by field ids, no old value comes back."""
    followed(cli, server, "ALTER TABLE a DROP COLUMN v", "ALTER TABLE a RENAME COLUMN w TO v")
    followed(cli, server, "ALTER TABLE a DROP COLUMN v", "ALTER TABLE a ADD COLUMN v INT, ADD COLUMN w VARCHAR(9)")
    same_to_all_readers(cli, server, ["id", "v", "w", "n"])
    server.session("d", "UPDATE a SET v = 7, w = 'seven' WHERE id = 7")
    cli.catch_up()
    equal(cli)


def test_the_same_column_comes_back_at_once(cli: Cli, server: MySQLServer) -> None:
    """The definitions before and after are equal; tasks have known the field ids of the first one for a moment."""
    server.session("d", "UPDATE a SET d = 1 WHERE id = 1")
    cli.catch_up()
    followed(
        cli,
        server,
        "ALTER TABLE a DROP COLUMN d",
        "ALTER TABLE a ADD COLUMN d DECIMAL(5,2)",
    )
    server.session("d", "UPDATE a SET d = 2 WHERE id = 2")
    cli.catch_up()
    equal(cli)
    same_to_all_readers(cli, server, ["id", "d"])


def test_a_column_of_a_table_without_a_key_is_renamed(cli: Cli, server: MySQLServer) -> None:
    followed(cli, server, "ALTER TABLE log RENAME COLUMN w TO x", table="log")
    server.session("d", "DELETE FROM log WHERE v = 1 LIMIT 1", "INSERT INTO log VALUES (2, 'y')")
    cli.catch_up()
    equal(cli)
    same_to_all_readers(cli, server, ["v", "x"], "log")


def test_types_become_wider(cli: Cli, server: MySQLServer) -> None:
    followed(
        cli,
        server,
        "ALTER TABLE a MODIFY id BIGINT NOT NULL, MODIFY n BIGINT, MODIFY f DOUBLE, MODIFY d DECIMAL(20,2)",
    )
    same_to_all_readers(cli, server, ["id", "n", "f", "d"])
    server.session("d", f"INSERT INTO a (id, n, f, d) VALUES ({2**40}, {-(2**40)}, 0.1, 123456789012.34)")
    server.session("d", "UPDATE a SET f = f WHERE id = 3", "UPDATE a SET n = 1 WHERE id = 4")
    cli.catch_up()
    equal(cli)
    same_to_all_readers(cli, server, ["id", "n", "f", "d"])


DEFAULTS = {
    "i": "INT NOT NULL DEFAULT -5",
    "q": "BIGINT UNSIGNED NOT NULL DEFAULT '18446744073709551615'",
    "t": "TINYINT(1) NOT NULL DEFAULT TRUE",
    "z": "INT NOT NULL",
    "e": "VARCHAR(5) NOT NULL",
    "s": "VARCHAR(9) DEFAULT 'it''s'",
    "c": "CHAR(4) NOT NULL DEFAULT 'ab'",
    "m": "ENUM('x','y') NOT NULL DEFAULT 'y'",
    "p": "DECIMAL(9,3) NOT NULL DEFAULT -1.50",
    "y": "DATE NOT NULL DEFAULT '2020-02-29'",
    "k": "DATETIME(3) NOT NULL DEFAULT '1999-12-31 23:59:59.25'",
}


def test_new_columns_have_constants(cli: Cli, server: MySQLServer, merge: str) -> None:
    """With version 2 of the format, which has no defaults, the table is suspended, as with any other sink."""
    added = ", ".join(f"ADD COLUMN `{name}` {kind}" for name, kind in DEFAULTS.items())
    before = data_files(cli)
    server.session("d", f"ALTER TABLE a {added}")
    if merge == "copy_on_write":
        with pytest.raises(TerminalError, match="format version 2 has no defaults"):
            cli.catch_up()
        cli.resnapshot("d.a")
        cli.catch_up()
        equal(cli)
        same_to_all_readers(cli, server, ["id", *DEFAULTS])
        return
    cli.catch_up()
    assert data_files(cli) == before
    equal(cli)
    same_to_all_readers(cli, server, ["id", *DEFAULTS])
    server.session("d", "UPDATE a SET v = 'changed' WHERE id = 3", "UPDATE a SET i = 1, s = NULL WHERE id = 4")
    server.session("d", "INSERT INTO a (id, z, e) VALUES (1000, 1, 'e')", "ALTER TABLE a ALTER i SET DEFAULT 9")
    server.session("d", "INSERT INTO a (id, z, e) VALUES (1001, 1, 'e')", "ALTER TABLE a MODIFY i BIGINT NOT NULL")
    cli.catch_up()
    equal(cli)
    target = sink_table(cli, "a")
    assert target.commit_compactions([(c, c.run()) for c in target.plan_compactions(purge=True)]) in (0, 1)
    equal(cli)
    same_to_all_readers(cli, server, ["id", *DEFAULTS])


def test_a_constant_in_a_table_without_a_key(cli: Cli, server: MySQLServer, merge: str) -> None:
    """Rows are found by all of their values, and the new one is one of them."""
    if merge == "copy_on_write":
        return
    followed(cli, server, "ALTER TABLE log ADD COLUMN c INT NOT NULL DEFAULT 4", table="log")
    server.session("d", "DELETE FROM log WHERE v = 1 LIMIT 1", "UPDATE log SET c = 5 WHERE v IS NULL")
    cli.catch_up()
    equal(cli)
    same_to_all_readers(cli, server, ["v", "w", "c"], "log")


def test_a_partition_column_is_not_renamed(server: MySQLServer, tmp_path: Path) -> None:
    """The setting says its old name."""
    with server.fresh_database("d") as database:
        server.session(database, "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO a VALUES (1, 'x')")
        sink = {"kind": "iceberg", "partition_by": {r"d\.a": ["v"]}}
        cli = Cli(tmp_path, server, r"d\..*", sink=sink, stream={"on_table_error": "suspend", "reread": "ask"})
        cli.snapshot()
        cli.catch_up()
        server.session(database, "ALTER TABLE a RENAME COLUMN v TO w")
        with pytest.raises(TerminalError, match="it has no column v"):
            cli.catch_up()


def test_what_the_table_is_asked_before(cli: Cli, merge: str) -> None:
    """Once a definition is stored, it must be possible to follow it."""
    context = cli.context
    (schema,) = [table for table in context.plans.require().tables if table.name == "a"]

    def why_not(column: str, data_type: str) -> str | None:
        columns = [
            c.replace(data_type=data_type, column_type=data_type) if c.name == column else c for c in schema.columns
        ]
        target = context.sink.table(schema.replace(columns=tuple(columns)))
        assert isinstance(target, InPlaceAlterable)
        return target.why_not_in_place(ColumnChanges())

    assert why_not("id", "int") is None and why_not("id", "bigint") is None
    assert why_not("id", "tinyint") is None, "both are stored as int"
    assert "its type cannot become double" in str(why_not("n", "double"))
    assert loaded_table(sink_table(cli, "a")).metadata.format_version == (2 if merge == "copy_on_write" else 3)


def test_a_run_that_dies_before_the_table_is_altered(
    cli: Cli, server: MySQLServer, monkeypatch: pytest.MonkeyPatch, merge: str
) -> None:
    """The next one knows what was renamed: it is stored with the definition."""
    real = IcebergSinkTable.alter

    def alter(*_: Any) -> bool:
        raise TransientError("the catalog is down", "Run again")

    monkeypatch.setattr(IcebergSinkTable, "alter", alter)
    before = data_files(cli)
    constant = "" if merge == "copy_on_write" else ", ADD COLUMN c INT NOT NULL DEFAULT 3"
    server.session("d", f"ALTER TABLE a RENAME COLUMN v TO x{constant}", "UPDATE log SET w = 'on'")
    with pytest.raises(TransientError):
        cli.catch_up()
    monkeypatch.setattr(IcebergSinkTable, "alter", real)
    cli.catch_up()
    assert data_files(cli) == before
    equal(cli)
    same_to_all_readers(cli, server, ["id", "x", *(["c"] if constant else [])])


def test_what_is_excluded_is_not_followed_by_names(server: MySQLServer, tmp_path: Path) -> None:
    """A column that becomes one that is not copied, or was none: its values are nowhere in the copy."""
    for number, ddl in enumerate(["RENAME COLUMN v TO secret", "RENAME COLUMN secret TO v2"]):
        with server.fresh_database("d") as database:
            columns = "id INT PRIMARY KEY, v INT" if not number else "id INT PRIMARY KEY, secret INT"
            server.session(database, f"CREATE TABLE a ({columns})", "INSERT INTO a VALUES (1, 1)")
            cli = Cli(
                tmp_path / str(number),
                server,
                r"d\..*",
                source={"exclude_columns": [r"d\.a\.secret"]},
                sink={"kind": "iceberg"},
                stream={"on_table_error": "suspend", "reread": "ask"},
            )
            cli.snapshot()
            cli.catch_up()
            server.session(database, f"ALTER TABLE a {ddl}")
            with pytest.raises(TerminalError, match="one of them is not copied"):
                cli.catch_up()


def test_with_another_policy_a_renamed_column_is_two(server: MySQLServer, tmp_path: Path) -> None:
    with server.fresh_database("d") as database:
        server.session(database, "CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 1)")
        stream = {"schema_changes": "lenient", "on_table_error": "suspend", "reread": "ask"}
        cli = Cli(tmp_path, server, r"d\..*", sink={"kind": "iceberg"}, stream=stream)
        cli.snapshot()
        cli.catch_up()
        server.session(database, "ALTER TABLE a RENAME COLUMN v TO w")
        with pytest.raises(TerminalError, match="RENAME COLUMN is not followed"):
            cli.catch_up()
