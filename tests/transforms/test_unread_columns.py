"""Columns of whose values the copy has nothing are not read: no value in them stops their table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import UnfitError
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, ICEBERG
from tests.support.transforms import make_view, null_sql

pytestmark = pytest.mark.one_of("server", "kind")

COLUMNS = "id INT {}, born DATE NOT NULL, seen DATETIME(3), left_at TIMESTAMP NULL, v INT"


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database() as name:
        yield name


def pipeline(folder: Path, server: MySQLServer, database: str, kind: str, where: str | None = None) -> Cli:
    policies = {"(born|seen)": "null", "left_at": "exclude"}
    columns = {rf"{database}\..*\.{name}": policy for name, policy in policies.items()}
    conditions = {} if where is None else {rf"{database}\..*": where}
    transforms = {"columns": columns, "where": conditions}
    tables = rf"{database}\.(keyed|loose|alone)"
    return Cli(folder, server, tables, name=database, sink={"kind": kind}, transforms=transforms)


@pytest.mark.parametrize("kind", [DELTA, ICEBERG])
def test_zero_dates(server: MySQLServer, database: str, tmp_path: Path, kind: str) -> None:
    zero = "'0000-00-00', '2020-00-00', '0000-00-00'"
    server.session(
        database,
        "SET sql_mode = ''",
        f"CREATE TABLE keyed ({COLUMNS.format('PRIMARY KEY')})",
        f"CREATE TABLE loose ({COLUMNS.format('')})",
        "CREATE TABLE alone (born DATE, seen DATETIME)",  # the copy has nothing of its values
        f"INSERT INTO keyed VALUES (1, {zero}, 1), (2, '2020-01-01', NULL, NULL, 2)",
        f"INSERT INTO loose VALUES (1, {zero}, 1), (1, '2020-01-01', NULL, NULL, 1), (2, {zero}, 2)",
        "INSERT INTO alone VALUES (NULL, NULL), ('2020-01-01', NULL)",
    )
    values = {"id": "id", "born": null_sql("born"), "seen": null_sql("seen"), "v": "v"}
    for name in ("keyed", "loose"):
        make_view(server, database, f"copy_of_{name}", name, "TRUE", **values)
    make_view(server, database, "copy_of_alone", "alone", "TRUE", born=null_sql("born"), seen=null_sql("seen"))
    cli = pipeline(tmp_path, server, database, kind)
    cli.snapshot()
    server.session(
        database,
        "SET sql_mode = ''",
        f"INSERT INTO keyed VALUES (3, {zero}, 3)",
        "UPDATE keyed SET born = '0000-00-00', v = 20 WHERE id = 2",
        "UPDATE keyed SET seen = '2020-00-00' WHERE id = 1",
        "DELETE FROM loose WHERE born = '2020-01-01'",
        "UPDATE loose SET seen = '0000-00-00', v = 5 WHERE id = 2",
        "INSERT INTO alone VALUES (NULL, '2021-01-01')",
        "DELETE FROM alone WHERE born IS NOT NULL",
    )
    cli.catch_up()
    keys = {"keyed": ["id"], "loose": [], "alone": []}
    views = {name: (f"copy_of_{name}", key) for name, key in keys.items()}
    assert compare_database(server, database, cli.sink, views=views) == []
    assert {verdict.verdict for verdict in verify_tables(cli.context)} == {"equal"}


@pytest.mark.parametrize("kind", [DELTA])
def test_a_column_of_the_condition_is_read(server: MySQLServer, database: str, tmp_path: Path, kind: str) -> None:
    server.session(
        database,
        "SET sql_mode = ''",
        f"CREATE TABLE keyed ({COLUMNS.format('PRIMARY KEY')})",
        "INSERT INTO keyed VALUES (1, '0000-00-00', NULL, NULL, 1)",
    )
    with pytest.raises(UnfitError, match="an invalid date"):
        pipeline(tmp_path, server, database, kind, "born > DATE '2020-01-01' OR v = 1").snapshot()
