"""GTIDs with tags (MySQL 8.3 and newer), through the snapshot and the stream."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.gtid import GtidSet
from tests.support.cli import Cli
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer

TAGGED = "SET gtid_next = 'AUTOMATIC:shop'"


def test_tagged_writers(tmp_path: Path) -> None:
    """They write while the snapshot is taken, then in the stream; the resume point names them as the server does."""
    with MySQLServer() as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT AUTO_INCREMENT PRIMARY KEY, v INT)")
        server.execute(f"INSERT INTO d.t (v) VALUES {', '.join(f'({n})' for n in range(500))}")
        cli = Cli(tmp_path, server, r"d\.t", snapshot={"chunk_rows": 20, "parallelism": 1})
        written, over = 0, threading.Event()

        def write() -> None:
            nonlocal written
            with contextlib.closing(server.connect(database="d")) as connection, connection.cursor() as cursor:
                cursor.execute(TAGGED)
                while not over.is_set():
                    cursor.execute("UPDATE t SET v = v + 1 ORDER BY RAND() LIMIT 20")
                    cursor.execute("INSERT INTO t (v) VALUES (1)")
                    cursor.execute("DELETE FROM t ORDER BY RAND() LIMIT 1")
                    written += 3

        def exact() -> GtidSet:
            cli.catch_up()
            assert compare_database(server, "d", cli.sink, ["t"]) == []
            standing = cli.context.sink.resume_point().read()
            assert standing is not None
            return GtidSet.parse(standing.gtid_set)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            cli.snapshot()
            while written < 20 and writer.is_alive():
                time.sleep(0.01)
        finally:
            over.set()
            writer.join()
        assert written >= 20
        reached = exact()
        ((executed,),) = server.execute("SELECT @@global.gtid_executed")
        assert reached == GtidSet.parse(executed) and ":shop:1-" in str(reached)

        # Other tags, numbers with a gap, XA; and the binlogs that hold them are removed, so the set counts.
        ((uuid,),) = server.execute("SELECT @@server_uuid")
        server.session(
            "d",
            f"SET gtid_next = '{uuid}:shop:100000'",
            "INSERT INTO t (v) VALUES (7)",
            f"SET gtid_next = 'AUTOMATIC:{'long_' * 6}xy'",
            "INSERT INTO t (v) VALUES (8)",
            "XA START 'x'",
            "INSERT INTO t (v) VALUES (9)",
            "XA END 'x'",
            "XA PREPARE 'x'",
            "SET gtid_next = 'AUTOMATIC:other'",
            "XA COMMIT 'x'",
            "SET gtid_next = 'AUTOMATIC'",
            "FLUSH BINARY LOGS",
        )
        reached = exact()
        ((executed,),) = server.execute("SELECT @@global.gtid_executed")
        assert reached == GtidSet.parse(executed) and f"{uuid}:shop:100000" in reached
        server.purge(flush=False)
        assert exact() == reached

        # What was never read is missed by its tag.
        missed = "SET gtid_next = 'AUTOMATIC:missed'", "INSERT INTO t (v) VALUES (10)"
        server.session("d", *missed, "SET gtid_next = 'AUTOMATIC'", "FLUSH BINARY LOGS")
        server.purge(flush=False)
        with pytest.raises(TerminalError, match=rf"{uuid}:missed:1"):
            exact()
