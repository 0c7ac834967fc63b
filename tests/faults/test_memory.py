"""Memory runs out: in a Python worker of Spark, and in the driver. Both as the kernel ends it, and as an allocation
fails.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from airflow_provider_cdc.model.errors import OutOfMemoryError, TransientError
from airflow_provider_cdc.runtime.plan_store import PlanStore
from tests.support.cli import Cli, Result, session_processes
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    """A table of 60 rows of half a megabyte."""
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY AUTO_INCREMENT, v MEDIUMTEXT)")
    for _ in range(60):
        mysql_server.execute(f"INSERT INTO {database}.t (v) VALUES (REPEAT(SHA2(RAND(), 512), 4000))")
    return Cli(tmp_path / "p", mysql_server, rf"{database}\.t", name=database, snapshot={"chunk_rows": 2})


def workers(process: subprocess.Popen[str]) -> list[int]:
    """Spark's Python workers that are there now."""
    found: list[int] = []
    for pid in session_processes(process.pid):
        with suppress(OSError):
            if "-m\0airflow_provider_cdc.spark.worker_daemon" in Path(f"/proc/{pid}/cmdline").read_text():
                found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def disturbed(cli: Cli, how: str) -> Result:
    """A snapshot on Spark, of which a worker that reads a chunk runs out of memory."""
    with cli.start("snapshot") as process:
        end, done = time.monotonic() + 240, False
        while process.poll() is None and not done:
            assert time.monotonic() < end, "no worker has begun"
            for pid in workers(process) if any(cli.sink.rglob("slice-*")) or how == "killed" else ():
                with suppress(OSError):
                    if how == "killed":
                        os.kill(pid, signal.SIGKILL)
                    else:
                        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
                        resource.prlimit(pid, resource.RLIMIT_AS, (size, size))
                    done = True
            time.sleep(0.02)
        out, err = process.communicate(timeout=240)
    assert done, err
    return Result(process.returncode, out, err)


@pytest.mark.spark
@pytest.mark.one_of("how")
@pytest.mark.parametrize("how", ["allocation", "killed"])
def test_a_python_worker(mysql_server: MySQLServer, database: str, cli: Cli, how: str) -> None:
    """Worth another try, and it is said what helps; the next run goes on."""
    found = disturbed(cli, how)
    assert found.code == TransientError.exit_code, found
    said = "ran out of memory" if how == "allocation" else "a Python worker of Spark was killed, or crashed"
    assert said in found.err and "lower snapshot.parallelism and snapshot.chunk_rows" in found.err, found
    cli.snapshot()
    cli.catch_up()
    assert compare_database(mysql_server, database, cli.sink) == []


def test_a_driver_that_cannot_allocate(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_: object) -> None:
        np.zeros(1 << 60, np.uint8)

    monkeypatch.setattr(PlanStore, "make", allocate)
    found = cli.call("plan")
    assert found.code == OutOfMemoryError.exit_code and "more memory" in found.problem, found
