"""A stream of the command line outlives the loss of its connections, as one that a task supervises does."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from pymysql.err import OperationalError

from tests.support.cli import Cli
from tests.support.harness import Nursery
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.three_tables import run, three_tables

_USER = {"user": "reconnecting", "password": "x"}


@pytest.mark.one_of("server")
def test_its_connections_are_killed(server: MySQLServer, tmp_path: Path) -> None:
    with three_tables(server), Nursery() as nursery:
        server.execute("CREATE USER reconnecting IDENTIFIED BY 'x'")
        server.execute("GRANT ALL ON *.* TO reconnecting")
        try:
            cli = Cli(tmp_path, server, r"d\..*", user=_USER)
            cli.snapshot()
            log = tmp_path / "stream.log"
            stream = nursery.start(cli.file, cli.env, command=["stream"], log=log)
            wait_for("a first batch", lambda: _copied(server, cli, "first"), 60)
            connections = "SELECT id FROM information_schema.processlist WHERE user = 'reconnecting'"
            for (number,) in server.execute(connections):
                with contextlib.suppress(OperationalError):  # it has just ended
                    server.execute(f"KILL {number}")
            wait_for("the change after the kill", lambda: _copied(server, cli, "second"), 60)
            os.kill(stream.pid, signal.SIGTERM)
            assert stream.wait() == 0, log.read_text()
            assert "The stream restarts in 1 s" in log.read_text()
        finally:
            server.execute("DROP USER reconnecting")


def _copied(server: MySQLServer, cli: Cli, value: str) -> bool:
    """Change a row, again and again, until the copy has the change."""
    run(server, f"UPDATE keyed SET v = '{value}' WHERE id = 5")
    return value in cli.rows("d", "keyed")["v"].to_pylist()
