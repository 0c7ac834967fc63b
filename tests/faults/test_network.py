"""The network between any two parts fails, in each phase: it is cut, falls silent, is slow, or loses packets.

A phase goes on, or it ends with an error that is worth a retry and says what to do, in a time that is bounded. Then it
is run again, and in the end the copies equal their source.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import make_url

from tests.support.iceberg_place import CatalogPlace
from tests.support.iceberg_rest import IcebergRest
from tests.support.phases import Fault, World, failed
from tests.support.postgres import Postgres
from tests.support.proxy import Proxy
from tests.support.s3 import S3
from tests.support.servers import MySQLServer

BREAKS, TROUBLES = ("cut", "half-open"), ("slow", "stalls")
NETWORKS = (*BREAKS, *TROUBLES)

pytestmark = [pytest.mark.one_of("network"), pytest.mark.parametrize("network", NETWORKS)]


def fault(proxy: Proxy, network: str) -> Fault:
    """A network that fails in one of the four ways. What is slow or stalls stays within all time limits."""
    if network == "cut":
        return Fault(proxy.down, proxy.up)
    begin = {
        "half-open": proxy.swallow,
        "slow": lambda: proxy.slow_down(100_000, 0.005),
        "stalls": lambda: proxy.stall(random.Random(1), 1.0),
    }[network]
    return Fault(begin, proxy.heal)


@contextmanager
def proxied(uri: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the server of a URI, and the URI by way of it."""
    port = urlsplit(uri).port
    assert port is not None
    with Proxy(port) as proxy:
        yield proxy, uri.replace(f":{port}/", f":{proxy.port}/")


def test_to_the_source(mysql_server: MySQLServer, database: str, tmp_path: Path, network: str) -> None:
    """From the driver, from tasks, and of the binlog."""
    with proxied(mysql_server.uri()) as (proxy, uri):
        world = World(mysql_server, database, tmp_path, {"AIRFLOW_CONN_CDC_SOURCE": uri})
        said = world.carry(fault(proxy, network))
    if network in TROUBLES:
        assert failed(said) == set(), said
    else:
        assert {place for place in said if place.endswith("the start")} <= failed(said), said
        assert "snapshot at chunk.after_select:2" in failed(said), said


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_to_the_state_database(
    mysql_server: MySQLServer, database: str, postgres: Postgres, tmp_path: Path, network: str, kind: str
) -> None:
    """A stream that has begun goes on; everything else waits for it."""
    if kind == "postgres":
        postgres.execute("DROP OWNED BY CURRENT_USER", database="bookkeeping")
        uri = postgres.uri("bookkeeping")
    else:
        mysql_server.execute(f"CREATE DATABASE {database}_books")
        uri = f"{mysql_server.uri().partition('?')[0]}{database}_books"
    with proxied(uri) as (proxy, way):
        world = World(mysql_server, database, tmp_path, {"AIRFLOW_CONN_BOOKS": way}, state={"conn_id": "books"})
        said = world.carry(fault(proxy, network))
    mysql_server.execute(f"DROP DATABASE IF EXISTS {database}_books")
    if network in TROUBLES:
        assert failed(said) == set(), said
    else:
        assert failed(said).isdisjoint({"handover at table.after_commit", "stream at table.before_commit:2"}), said
        assert {place for place in said if place.endswith("the start")} - failed(said) == {"verify at the start"}, said


def test_to_the_object_store(mysql_server: MySQLServer, database: str, s3: S3, tmp_path: Path, network: str) -> None:
    lake = s3.under("lake")
    with proxied(f"{s3.endpoint}/") as (proxy, way):
        connection = lake.at(way.rstrip("/")).connection()
        env = {"AIRFLOW_CONN_LAKE": connection, "AIRFLOW_CDC_STATE_DIR": str(tmp_path / "state")}
        sink = {"path": lake.uri(), "conn_id": "lake"}
        world = World(mysql_server, database, tmp_path / "p", env, lake, sink=sink)
        said = world.carry(fault(proxy, network))
        if network in TROUBLES:
            assert failed(said) == set(), said
        else:
            assert {place for place in said if place.endswith("the start")} <= failed(said), said


@pytest.mark.parametrize("kind", ["rest", "sql"])
def test_to_the_catalog(
    request: pytest.FixtureRequest,
    mysql_server: MySQLServer,
    database: str,
    tmp_path: Path,
    network: str,
    kind: str,
) -> None:
    """Of Iceberg tables, which decides whether a commit stands."""
    if kind == "rest":
        rest: IcebergRest = request.getfixturevalue("iceberg_rest")
        rest.forget_all()
        address = uri = f"{rest.uri}/"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        server.execute("DROP OWNED BY CURRENT_USER", database="iceberg")
        address = server.sqlalchemy_url("iceberg")
        uri = make_url(address)._replace(username=None, password=None).render_as_string()
    with proxied(uri) as (proxy, way):
        login = {"login": "iceberg", "password": server.passwords["iceberg"]} if kind == "sql" else {}
        connection = {"conn_type": "iceberg", "extra": {"type": kind, "uri": way.rstrip("/")}, **login}
        place = CatalogPlace(address.rstrip("/"), kind=kind)
        world = World(
            mysql_server,
            database,
            tmp_path,
            {"AIRFLOW_CONN_LAKE": json.dumps(connection)},
            place,
            sink={"kind": "iceberg", "conn_id": "lake"},
        )
        said = world.carry(fault(proxy, network))
        if network in TROUBLES:
            assert failed(said) == set(), said
        else:
            assert {place for place in said if place.endswith("the start")} <= failed(said), said
