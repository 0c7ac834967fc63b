"""What is wrong with a catalog, its tables or the place of the files: one line with the remedy, and nothing written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog as PyicebergCatalog

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.stream.run import begin_epoch
from tests.support.cli import Cli, tree
from tests.support.epochs import run_epoch_in_process
from tests.support.iceberg_place import CatalogPlace
from tests.support.iceberg_rest import IcebergRest, RestFault, RestProxy
from tests.support.oracle import compare_database
from tests.support.processes import free_port
from tests.support.servers import MySQLServer

COMMANDS = ("check", "plan", "snapshot")


@pytest.fixture
def table(mysql_server: MySQLServer, database: str) -> str:
    mysql_server.session(
        database, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO t VALUES (1, 'a'), (2, 'b')"
    )
    return database


@pytest.fixture
def proxy(iceberg_rest: IcebergRest) -> Iterator[RestProxy]:
    iceberg_rest.forget_all()
    with RestProxy(iceberg_rest) as opened:
        yield opened


def pipeline(
    folder: Path, server: MySQLServer, table: str, connection: dict[str, Any] | None = None, **sink: Any
) -> Cli:
    cli = Cli(folder, server, rf"{table}\..*", name=table, sink={"kind": "iceberg", **sink})
    if connection is not None:
        cli.value["sink"]["conn_id"] = "lake"
        cli.env["AIRFLOW_CONN_LAKE"] = json.dumps({"conn_type": "iceberg", **connection})
        cli.write()
    return cli


def refused(cli: Cli, *words: str, code: int = 2, commands: tuple[str, ...] = COMMANDS) -> None:
    """Each command ends with this code, and says it in one line. Nothing is written, and no secret is said."""
    before = tree(cli.folder)
    for command in commands:
        result = cli.call(command)
        assert result.code == code, (command, result)
        lines = result.found if command == "check" and not result.err else [result.problem]
        assert len(lines) == 1, lines
        (line,) = lines
        for word in words:
            assert word in line, (command, word, line)
        assert "sesame" not in result.out + result.err
    assert tree(cli.folder) == before


def test_no_catalog(mysql_server: MySQLServer, table: str, tmp_path: Path) -> None:
    cli = pipeline(tmp_path / "a", mysql_server, table, path="s3://lake/shop")
    refused(cli, "there is no catalog for its tables", "Name a connection of type iceberg in sink.conn_id, or set")


def test_a_catalog_that_does_not_run(mysql_server: MySQLServer, table: str, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    cli = pipeline(tmp_path / "a", mysql_server, table, {"host": address})
    refused(cli, f"the REST catalog {address}", "Check that it runs, and the network path to it", code=3)


def test_the_folder_of_a_catalog_that_does_not_exist(mysql_server: MySQLServer, table: str, tmp_path: Path) -> None:
    """Known at once, and before the snapshot is planned."""
    uri = f"sqlite:///{tmp_path}/nowhere/c.db"
    cli = pipeline(tmp_path / "a", mysql_server, table, catalog={"type": "sql", "uri": uri})
    refused(cli, f"the SQL catalog {uri} is not usable: {tmp_path}/nowhere is not a folder")


def test_a_file_that_is_no_catalog(mysql_server: MySQLServer, table: str, tmp_path: Path) -> None:
    (tmp_path / "c.db").write_text("no database" * 1000)
    uri = f"sqlite:///{tmp_path}/c.db"
    cli = pipeline(tmp_path / "a", mysql_server, table, catalog={"type": "sql", "uri": uri})
    refused(cli, f"the SQL catalog {uri} is not usable", "Correct the uri of the catalog")


def test_https_at_a_server_that_speaks_http(
    mysql_server: MySQLServer, table: str, tmp_path: Path, proxy: RestProxy
) -> None:
    uri = proxy.uri.replace("http://", "https://")
    cli = pipeline(tmp_path / "a", mysql_server, table, {"host": uri})
    refused(cli, f"the REST catalog {uri}: the server speaks http, not https", "Correct the catalog's uri")


def test_a_port_that_is_no_catalog(mysql_server: MySQLServer, table: str, tmp_path: Path) -> None:
    uri = f"http://127.0.0.1:{mysql_server.port}"
    cli = pipeline(tmp_path / "a", mysql_server, table, catalog={"type": "rest", "uri": uri})
    refused(cli, f"the REST catalog {uri}: the server does not speak http", "Correct the catalog's uri")


def test_check_names_the_catalog(mysql_server: MySQLServer, table: str, tmp_path: Path, proxy: RestProxy) -> None:
    def named(cli: Cli) -> str:
        (line,) = (line for line in cli.call("check").out.splitlines() if "catalog of the tables" in line)
        assert line.startswith("ok") and "sesame" not in line, line
        return line

    cli = pipeline(tmp_path / "a", mysql_server, table)
    uri = f"SQL catalog sqlite:///{cli.sink}/iceberg_catalog.db"
    assert named(cli).endswith(f"{uri}, which is made with the first table")
    assert not cli.sink.exists()
    cli.snapshot()
    assert named(cli).endswith(f"{uri}, name iceberg")
    cli = pipeline(
        tmp_path / "b", mysql_server, table, catalog={"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "name": "x"}
    )
    assert named(cli).endswith(f"SQL catalog sqlite:///{tmp_path}/c.db, name x")
    assert not (tmp_path / "c.db").exists()
    proxy.credential = ("us", "sesame")
    cli = pipeline(
        tmp_path / "c",
        mysql_server,
        table,
        {"host": proxy.uri, "login": "us", "password": "sesame", "extra": {"warehouse": "main"}},
    )
    assert named(cli).endswith(f"REST catalog {proxy.uri}, warehouse main")


@pytest.mark.parametrize("login", [{"login": "us", "password": "sesame1"}, {"extra": {"token": "sesame2"}}])
def test_a_wrong_secret(
    mysql_server: MySQLServer, table: str, tmp_path: Path, proxy: RestProxy, login: dict[str, Any]
) -> None:
    proxy.credential = ("us", "right")
    cli = pipeline(tmp_path / "a", mysql_server, table, {"host": proxy.uri, **login})
    refused(cli, f"the REST catalog {proxy.uri}", "Correct login and password (client id and secret), or the token")


@pytest.mark.parametrize(
    ("fault", "path", "word"),
    [("forbidden", "/namespaces", "create namespace"), ("forbidden", "/tables", "create table")],
)
def test_a_right_that_lacks(
    mysql_server: MySQLServer,
    table: str,
    tmp_path: Path,
    proxy: RestProxy,
    iceberg_rest: IcebergRest,
    fault: RestFault,
    path: str,
    word: str,
) -> None:
    """It is known when the first table is created."""
    proxy.meet(fault, times=100, path=path)
    cli = pipeline(tmp_path / "a", mysql_server, table, {"host": proxy.uri})
    result = cli.call("snapshot")
    error = result.err.splitlines()[-1]
    assert result.code == 2 and error.startswith("error: ") and word in error, result
    assert "Grant this client the right to do that" in error
    assert not [name for name in tree(cli.sink) if str(name).endswith((".parquet", ".avro"))]


def test_a_right_that_is_taken_from_a_stream(
    mysql_server: MySQLServer, table: str, tmp_path: Path, proxy: RestProxy
) -> None:
    """It ends at its next commit, and nothing is lost when the right is back."""
    cli = pipeline(tmp_path / "a", mysql_server, table, {"host": proxy.uri})
    cli.snapshot()
    cli.catch_up()
    mysql_server.session(table, "UPDATE t SET v = 'c' WHERE id = 1")
    with cli.opened() as (context, store):
        epoch = begin_epoch(context, store, catch_up=True)
        proxy.meet("forbidden")
        with pytest.raises(NotReadyError, match="403 ") as error:
            run_epoch_in_process(epoch)
    assert error.value.remedy.startswith("Grant this client the right")
    cli.catch_up()
    assert compare_database(mysql_server, table, CatalogPlace(proxy.uri)) == []


def test_a_name_that_a_foreign_table_has(mysql_server: MySQLServer, table: str, tmp_path: Path) -> None:
    cli = pipeline(tmp_path / "a", mysql_server, table)
    cli.sink.mkdir()
    catalog = PyicebergCatalog(
        "iceberg", uri=f"sqlite:///{cli.sink}/iceberg_catalog.db", warehouse=f"file://{cli.sink}"
    )
    catalog.create_namespace(table)
    made = catalog.create_table(f"{table}.t", pa.schema([("id", pa.int32())]), location=f"file://{cli.sink}/{table}/t")
    made.append(pa.table({"id": pa.array([7], pa.int32())}))
    refused(cli, f"the Iceberg table {table}.t was not created by this project, and has format", "another sink.path")
    cli.value["sink"]["merge"] = "copy_on_write"
    cli.write()
    refused(cli, f"the Iceberg table {table}.t was not created by pipeline {table}", "set sink.adopt: true")
    assert catalog.load_table(f"{table}.t").scan().to_arrow().to_pylist() == [{"id": 7}]


def test_two_pipelines_with_one_table(mysql_server: MySQLServer, table: str, tmp_path: Path) -> None:
    first = pipeline(tmp_path / "a", mysql_server, table)
    first.snapshot()
    second = pipeline(tmp_path / "b", mysql_server, table, path=str(first.sink))
    second.value["name"] = "second"
    second.write()
    before = tree(first.sink)
    refused(second, f"the Iceberg table {table}.t was not created by pipeline second, but by {table}")
    assert tree(first.sink) == before


def test_a_place_that_cannot_be_written(mysql_server: MySQLServer, table: str, tmp_path: Path) -> None:
    cli = pipeline(tmp_path / "a", mysql_server, table, path="/proc/lake")
    refused(cli, "/proc/lake", "cannot be written", "write access")
