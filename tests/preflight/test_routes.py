"""Tables in folders that ``sink.routes`` names, by groups of the patterns: everything looks for them there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.oracle import compare
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, ICEBERG

pytestmark = pytest.mark.one_of("server")


@pytest.fixture(params=[DELTA, ICEBERG])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shops(server: MySQLServer) -> Iterator[str]:
    """Databases ``<name>_1`` and ``<name>_2`` with a table ``orders`` each; the first has another one."""
    with server.fresh_database() as name:
        server.execute(f"DROP DATABASE {name}")
        databases = [f"{name}_{number}" for number in (1, 2)]
        try:
            for number, database in enumerate(databases):
                server.execute(f"CREATE DATABASE {database}")
                server.session(
                    database,
                    "CREATE TABLE orders (id INT PRIMARY KEY, v INT)",
                    f"INSERT INTO orders VALUES (1, {number}), (2, {number})",
                )
            server.session(databases[0], "CREATE TABLE other (id INT PRIMARY KEY, v INT)")
            yield name
        finally:
            for database in databases:
                server.execute(f"DROP DATABASE IF EXISTS {database}")
            server.execute(f"CREATE DATABASE {name}")


def pipeline(folder: Path, server: MySQLServer, shops: str, kind: str, routes: dict[str, str]) -> Cli:
    listed = [{"match": pattern.format(shops), "table_path": path} for pattern, path in routes.items()]
    sink: dict[str, Any] = {"kind": kind, "routes": listed}
    return Cli(folder, server, rf"{shops}_\d\..*", name=shops, sink=sink)


def test_a_whole_pipeline(tmp_path: Path, server: MySQLServer, shops: str, kind: str) -> None:
    cli = pipeline(tmp_path, server, shops, kind, {r"{}_(?P<shop>\d+).orders": "by_shop/orders_${shop}"})
    folders = {(1, "orders"): "by_shop/orders_1", (2, "orders"): "by_shop/orders_2", (1, "other"): f"{shops}_1/other"}

    def check() -> None:
        for (number, table), folder in folders.items():
            with closing(server.connect()) as connection:
                assert compare(connection, f"{shops}_{number}", table, cli.sink / folder) is None

    assert not cli.call("check").found
    cli.snapshot()
    for number in (1, 2):
        server.session(f"{shops}_{number}", f"UPDATE orders SET v = {number}0 WHERE id = 1", "DELETE FROM orders "
                       "WHERE id = 2", f"INSERT INTO orders VALUES (7, {number})")  # fmt: skip
    cli.catch_up()
    check()
    server.session(f"{shops}_2", "CREATE TABLE later (id INT PRIMARY KEY)")
    with cli.streaming():
        assert cli.resnapshot(f"{shops}_2.orders") == "rejoined"
    cli.catch_up()
    check()
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))
    status = cli.reported_status()
    assert {row["table"] for row in status["sink"]} >= {f"{shops}_1.orders", f"{shops}_2.orders"}
    names = {path.name for path in cli.sink.iterdir() if not path.name.startswith("iceberg_catalog")}
    assert names == {"_cdc", "_cdc_progress", "by_shop", f"{shops}_1", f"{shops}_2"}
    assert {path.name for path in (cli.sink / "by_shop").iterdir()} == {"orders_1", "orders_2"}


def test_routes_stay(tmp_path: Path, server: MySQLServer, shops: str, kind: str) -> None:
    """Else tables would not be found. A plan from before there were routes has none."""
    routes = {r"{}_(\d+).orders": "orders/o_$1", "{}_1.other": "rest/other"}
    cli = pipeline(tmp_path, server, shops, kind, routes)
    cli.snapshot()
    plan = cli.context.plans.require()
    assert plan.routes == tuple((pattern.format(shops), path) for pattern, path in routes.items())
    value = plan.to_json()
    assert Plan.from_json(value) == plan
    del value["routes"]
    assert Plan.from_json(value).routes == () and "routes" not in Plan.from_json(value).to_json()
    given = cli.value["sink"].pop("routes")
    for changed in ([], given[::-1], [*given, {"match": "x.y", "table_path": "z"}]):
        cli.value["sink"]["routes"] = changed
        cli.write()
        assert any("sink.routes of" in line and "changed since" in line for line in cli.call("check").found)
        with pytest.raises(NotReadyError, match="changed since its snapshot"):
            cli.catch_up()


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        ({r"{}_\d.orders": "shared/orders"}, "would both be copied to shared/orders"),
        ({"{}_1.other": "x/all", r"{}_(\d).orders": "x/all/$1"}, "would be copied to x/all/1, inside the folder of"),
        ({r"{}_\d.o(x)?.*": "x/$1"}, "has a folder without a name"),
    ],
)
def test_conflicts(
    tmp_path: Path, server: MySQLServer, shops: str, kind: str, routes: dict[str, str], words: str
) -> None:
    """They are refused by ``check``, and where the tables are planned."""
    cli = pipeline(tmp_path, server, shops, kind, routes)
    assert any(words in line for line in cli.call("check").found)
    with pytest.raises(NotReadyError, match=words):
        cli.snapshot()
    assert not list(cli.folder.rglob("plan.json"))


def test_a_new_table_in_conflict_is_not_added(tmp_path: Path, server: MySQLServer, shops: str, kind: str) -> None:
    cli = pipeline(tmp_path, server, shops, kind, {r"{}_\d.orders(.*)": "x/orders$1", "{}_1.new": "x/orders_2/new"})
    cli.value["source"]["tables"] = [rf"{shops}_1\..*"]
    cli.write()
    cli.snapshot()
    server.session(f"{shops}_1", "CREATE TABLE orders_2 (id INT PRIMARY KEY)", "CREATE TABLE new (id INT PRIMARY KEY)")
    with cli.epoch() as epoch:
        assert [table.name for table in epoch.plan.tables] == ["orders", "other", "new"]


def test_one_name_in_a_catalog(tmp_path: Path, server: MySQLServer, shops: str) -> None:
    """A table without a namespace is in that of the default, where another may be."""
    routes = {"{}_1.orders": "orders", "{}_2.orders": "default/orders"}
    cli = pipeline(tmp_path, server, shops, ICEBERG, routes)
    assert any("would both be default.orders in the catalog" in line for line in cli.call("check").found)
    assert not pipeline(tmp_path / "d", server, shops, DELTA, routes).call("check").found
