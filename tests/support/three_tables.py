"""A database ``d`` of three small tables: one with a key, one without, and one to which nothing happens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.servers import MySQLServer

TABLES = ("keyed", "plain", "quiet")
#: How a stream suspends what it cannot follow, until somebody asks for it.
SUSPENDS = {"on_table_error": "suspend", "reread": "ask"}


@contextlib.contextmanager
def three_tables(server: MySQLServer) -> Iterator[str]:
    """The tables, with 30 rows each, and the name of their database; it goes at the end."""
    with server.fresh_database("d") as name:
        run(
            server,
            "CREATE TABLE keyed (id INT PRIMARY KEY, v VARCHAR(40))",
            "CREATE TABLE plain (n INT, v VARCHAR(40))",
            "CREATE TABLE quiet LIKE keyed",
            *(f"INSERT INTO {t} VALUES " + ", ".join(f"({n}, '{t} {n}')" for n in range(1, 31)) for t in TABLES),
        )
        yield name


@pytest.fixture
def three_tables_database(server: MySQLServer) -> Iterator[str]:
    """The tables on each of the servers; a module that has them calls this fixture ``database``."""
    with three_tables(server) as name:
        yield name


def streamed_copy(
    server: MySQLServer, folder: Path, *changes: str, tables: Sequence[str] = (r"d\..*",), **settings: Any
) -> Cli:
    """A pipeline in small steps, whose stream has passed its snapshot and some changes after that."""
    cli = Cli(folder, server, *tables, snapshot={"chunk_rows": 5, "group_rows": 10}, **settings)
    cli.snapshot()
    run(server, *changes)
    cli.catch_up()
    return cli


def suspending_copy(server: MySQLServer, folder: Path, **settings: Any) -> Cli:
    """The same, which suspends tables. The first chunk group is the first ten rows of ``keyed``."""
    changes = "UPDATE quiet SET v = 'on' WHERE id = 1", "UPDATE keyed SET v = 'before' WHERE id = 2"
    settings["stream"] = {**SUSPENDS, **settings.get("stream", {})}
    return streamed_copy(server, folder, *changes, **settings)


def run(server: MySQLServer, *statements: str) -> None:
    """Execute statements in one session."""
    server.session("d", *statements)
