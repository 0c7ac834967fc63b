"""Bookkeeping databases on servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, make_url

from tests.support.postgres import Postgres
from tests.support.servers import MySQLServer


@pytest.fixture(scope="package")
def postgres() -> Iterator[Postgres]:
    with Postgres(["bookkeeping"]) as server:
        yield server


def server_url(request: pytest.FixtureRequest, kind: str) -> URL:
    """A bookkeeping without tables on a server: ``postgres`` or ``mysql``."""
    if kind == "postgres":
        postgres: Postgres = request.getfixturevalue("postgres")
        postgres.execute("DROP OWNED BY CURRENT_USER", database="bookkeeping")
        return make_url(postgres.sqlalchemy_url("bookkeeping"))
    server: MySQLServer = request.getfixturevalue("mysql_server")
    name, args = request.getfixturevalue("database"), server.connect_args()
    return URL.create("mysql+pymysql", args["user"], args["password"], "127.0.0.1", args["port"], name)


@pytest.fixture(params=["postgres", "mysql"])
def url(request: pytest.FixtureRequest) -> URL:
    """A bookkeeping without tables, on each."""
    return server_url(request, request.param)
