"""A stream of the command line outlives the loss of its connections, as one that a task supervises does."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymysql.err import OperationalError

from airflow_provider_cdc.model.errors import NotReadyError
from tests.support.cli import Cli
from tests.support.harness import Child, Nursery
from tests.support.oracle import compare_database
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.three_tables import run, three_tables

pytestmark = pytest.mark.one_of("server")

_USER = {"user": "reconnecting", "password": "x"}


@pytest.fixture
def cli(server: MySQLServer, tmp_path: Path) -> Iterator[Cli]:
    """A pipeline with a user of its own, whose snapshot is complete."""
    with three_tables(server):
        server.execute("CREATE USER reconnecting IDENTIFIED BY 'x'")
        server.execute("GRANT ALL ON *.* TO reconnecting")
        try:
            cli = Cli(tmp_path, server, r"d\..*", user=_USER)
            cli.snapshot()
            yield cli
        finally:
            server.execute("DROP USER reconnecting")


@pytest.fixture
def stream(server: MySQLServer, cli: Cli) -> Iterator[Child]:
    """A stream that has applied a batch."""
    with Nursery() as nursery:
        stream = nursery.start(cli.file, cli.env, command=["stream"], log=_log(cli))
        wait_for("a first batch", lambda: _copied(server, cli, "first"), 60)
        yield stream


def test_its_connections_are_killed(server: MySQLServer, cli: Cli, stream: Child) -> None:
    _kill_connections(server)
    wait_for("the change after the kill", lambda: _copied(server, cli, "second"), 60)
    os.kill(stream.pid, signal.SIGTERM)
    assert stream.wait() == 0, _log(cli).read_text()
    assert "The stream restarts in 1 s" in _log(cli).read_text()


@pytest.mark.parametrize(
    ("locked", "unlocked"),
    [("ACCOUNT LOCK", "ACCOUNT UNLOCK"), ("IDENTIFIED BY 'another'", "IDENTIFIED BY 'x'")],
    ids=["account", "password"],
)
def test_its_user_may_not_connect_any_more(
    server: MySQLServer, cli: Cli, stream: Child, locked: str, unlocked: str
) -> None:
    """Connections that are open outlive the change; the next one is refused, which ends the stream."""
    server.execute(f"ALTER USER reconnecting {locked}")
    _kill_connections(server)
    assert stream.wait() == NotReadyError.exit_code, _log(cli).read_text()
    run(server, "UPDATE keyed SET v = 'meanwhile' WHERE id = 5")
    with pytest.raises(NotReadyError):
        cli.catch_up()
    server.execute(f"ALTER USER reconnecting {unlocked}")
    cli.catch_up()
    assert compare_database(server, "d", cli.sink) == []


def _log(cli: Cli) -> Path:
    return cli.folder / "stream.log"


def _kill_connections(server: MySQLServer) -> None:
    for (number,) in server.execute("SELECT id FROM information_schema.processlist WHERE user = 'reconnecting'"):
        with contextlib.suppress(OperationalError):  # it has just ended
            server.execute(f"KILL {number}")


def _copied(server: MySQLServer, cli: Cli, value: str) -> bool:
    """Change a row, again and again, until the copy has the change."""
    run(server, f"UPDATE keyed SET v = '{value}' WHERE id = 5")
    return value in cli.rows("d", "keyed")["v"].to_pylist()
