"""A database ``d`` of three small tables: one with a key, one without, and one to which nothing happens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.support.servers import MySQLServer

TABLES = ("keyed", "plain", "quiet")


@contextlib.contextmanager
def three_tables(server: MySQLServer) -> Iterator[str]:
    """The tables, with 30 rows each, and the name of their database; it goes at the end."""
    server.execute("DROP DATABASE IF EXISTS d")
    server.execute("CREATE DATABASE d")
    run(
        server,
        "CREATE TABLE keyed (id INT PRIMARY KEY, v VARCHAR(40))",
        "CREATE TABLE plain (n INT, v VARCHAR(40))",
        "CREATE TABLE quiet LIKE keyed",
        *(f"INSERT INTO {t} VALUES " + ", ".join(f"({n}, '{t} {n}')" for n in range(1, 31)) for t in TABLES),
    )
    yield "d"
    server.execute("DROP DATABASE d")


def run(server: MySQLServer, *statements: str) -> None:
    """Execute statements in one session."""
    with contextlib.closing(server.connect(database="d")) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
