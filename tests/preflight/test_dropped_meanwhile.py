"""A table that goes away while the preflight is at it is no error: the stream reads that in the binlog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.preflight import tables
from airflow_provider_cdc.preflight.run import require_preflight, run_preflight
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.three_tables import run, three_tables

pytestmark = pytest.mark.one_of("server")


@pytest.mark.parametrize("statement", ["DROP TABLE keyed", "RENAME TABLE keyed TO elsewhere"])
@pytest.mark.parametrize("is_read_first", [True, False])
def test_a_table_goes_away_while_it_is_checked(
    server: MySQLServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, is_read_first: bool
) -> None:
    """After the list of tables was read, or also after the table's columns were."""

    def read_meanwhile(connection: Any, database: str, table: str, *more: Any) -> TableSchema:
        if table == "keyed" and not is_read_first:
            run(server, statement)
        schema = read_schema(connection, database, table, *more)
        if table == "keyed":
            run(server, statement)
        return schema

    with three_tables(server):
        cli = Cli(tmp_path, server, r"d\..*")
        monkeypatch.setattr(tables, "read_schema", read_meanwhile)
        warned = [result.message for result in require_preflight(cli.context, spark=False)]
    assert [text for text in warned if "keyed" in text] == ["table d.keyed was dropped or renamed while it was checked"]


def test_a_table_that_cannot_be_read_is_an_error(server: MySQLServer, tmp_path: Path) -> None:
    """It is there, so that it cannot be read is not because it went away."""
    with three_tables(server):
        run(server, "CREATE TABLE odd (id INT PRIMARY KEY, g GEOMETRY) ENGINE=MyISAM")
        cli = Cli(tmp_path, server, r"d\..*")
        errors = [result.message for result in run_preflight(cli.context, spark=False) if result.level == "error"]
    assert errors == ["table d.odd uses engine MyISAM"]
