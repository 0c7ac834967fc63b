"""The real command line on Spark, killed as a machine dies: all processes at once, at any moment; started again."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_cdc.failpoints import VARIABLE
from tests.harness import KILLED, ROOT, Lake, Nursery, kill_session
from tests.oracle import check_ledger, compare_all
from tests.processes import members
from tests.servers import MySQLServer
from tests.workload import Writers, make_foreign, make_shop

pytestmark = pytest.mark.spark

#: Where to die: failpoints in Spark's Python workers (chunk, file, batch) and in the driver (group, table, progress),
#: three seconds after the start (Spark is starting then), and at any moment.
DEATHS = (
    "chunk.after_select:5",
    "file.after_write:1",
    "group.after_commit:2",
    "batch.before_read:1",
    "batch.after_read:1",
    "table.after_commit:2",
    "progress.before_commit:1",
    "start",
    "moment",
    "moment",
)


def _run(arguments: list[str], connection: str, failpoint: str, log: Path, seconds: float | None = None) -> int:
    """One run of the command line in a session of its own; nothing of it is left afterwards.

    :param seconds: kill it after so many seconds, if it has not ended by then.
    """
    environment = {**os.environ, "AIRFLOW_CONN_CDC_SOURCE": connection, VARIABLE: failpoint}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow_provider_cdc", *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    code: int | None = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(seconds or 300)
    finally:
        if code is None:  # its time is over, or the test was interrupted
            kill_session(process.pid)
    assert code is not None or seconds, f"the run has not ended by itself:\n{log.read_text()}"
    _assert_none_left(process.pid)
    return process.wait()


def _assert_none_left(session: int) -> None:
    """A JVM or a worker that was starting as the others died ends by itself when it finds nobody to talk to."""
    end = time.monotonic() + 15
    while left := members(session):
        if time.monotonic() > end:
            kill_session(session)
            raise AssertionError(f"processes {left} of session {session} lived on")
        time.sleep(0.1)


@pytest.mark.parametrize("seed", range(len(DEATHS)), ids=lambda seed: f"seed-{seed}-{DEATHS[seed]}")
def test_killed_and_started_again(
    seed: int, nursery: Nursery, mysql_server: MySQLServer, cdc_user: dict[str, str], database: str, tmp_path: Path
) -> None:
    draw, death = random.Random(seed), DEATHS[seed]
    lake, log = Lake(tmp_path / "lake", f"spark-{seed}"), tmp_path / "log"
    file = lake.write_pipeline(database, chunk_rows=400, group_rows=draw.choice((8000, 1_000_000)), parallelism=2)
    connection = mysql_server.uri(**cdc_user)
    run = ["run", "--catch-up", "-f", str(file)]
    shop = draw.random() < 0.5
    with mysql_server.connect() as admin:
        if shop:
            make_shop(admin, database, 8000, addresses=2000, orders=3000)
        else:
            make_foreign(admin, database, 0.04)

    with Writers(
        mysql_server.connect_args(), "shop" if shop else "foreign", database=database, rate=25, seed=seed
    ) as w:
        if ":" in death:
            assert _run(run, connection, death, log) == KILLED, log.read_text()
        else:
            seconds = 3.0 if death == "start" else draw.uniform(5, 14)
            print(f"killed after {seconds:.1f} s")
            assert _run(run, connection, "", log, seconds) in (KILLED, 0), log.read_text()
        finished = lake.finished_files()
        for what in ("bookkeeping", "checkpoint"):
            if draw.random() < 0.4:
                lake.lose(what)
        assert _run(run, connection, "", log) == 0, log.read_text()
        w.stop()
    # The last steps once through Spark, else through the same code without it, which takes a tenth of the time.
    if seed == 0:
        assert _run(["stream", "--catch-up", "-f", str(file)], connection, "", log) == 0, log.read_text()
    else:
        assert nursery.start(file, {"AIRFLOW_CONN_CDC_SOURCE": connection}, log=log).wait() == 0, log.read_text()

    with mysql_server.connect() as admin:
        differences = compare_all(admin, database, lake.path)
    assert not differences, "\n".join(map(str, differences))
    if shop:
        assert not check_ledger(lake.path, database)
    lake.check_files(finished)
