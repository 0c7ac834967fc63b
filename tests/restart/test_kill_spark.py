"""The real command line on Spark, killed as a machine dies: all processes at once, at any moment; started again."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_cdc.system.failpoints import ENV_VARIABLE
from tests import ROOT
from tests.support.harness import KILLED, Lake, Nursery, kill_session
from tests.support.oracle import check_ledger, compare_all, compare_database
from tests.support.processes import members
from tests.support.servers import MySQLServer
from tests.support.workload import Writers, make_foreign, make_shop

pytestmark = pytest.mark.spark

#: Where to die: failpoints in Spark's Python workers (chunk, file, manifest, batch) and in the driver (all others), in
#: the order in which a run comes to them.
SNAPSHOT = (
    "claim.after_write:1",
    "chunk.before_lw:3",
    "chunk.after_lw:9",
    "chunk.after_select:5",
    "chunk.after_hw:2",
    "file.before_write:2",
    "file.after_write:1",
    "manifest.after_write:1",
    "group.before_commit:1",
    "group.after_commit:1",
    "books.after_chunks:1",
    "books.after_group:1",
)
STREAM = (
    "batch.before_read:1",
    "batch.after_read:1",
    "table.after_commit:2",
    "progress.before_commit:1",
    "progress.after_commit:1",
)
#: One copy is killed so often. The first dies once in a worker and once in the driver. All of them are long: where code
#: is killed does not depend on Spark, and the schedules without it meet every failpoint.
KILLS = 5
FEW = ("chunk.after_select:5", "table.after_commit:2")
SEEDS = range(40)


def _deaths(draw: random.Random) -> list[str | float]:
    """Two or three in the snapshot, then as many in the stream; one at either end is a time in seconds."""
    early = draw.choice((2, 3))
    deaths: list[str | float] = sorted(draw.sample(SNAPSHOT, early), key=SNAPSHOT.index)
    deaths += draw.sample(STREAM, KILLS - early)
    if draw.random() < 0.5:
        deaths[0] = draw.uniform(2, 6)  # Spark is starting; tables are planned
    else:
        deaths[-1] = draw.uniform(3, 14)
    return deaths


def _run(arguments: list[str], connection: str, failpoint: str, log: Path, seconds: float | None = None) -> int:
    """One run of the command line in a session of its own; nothing of it is left afterwards.

    :param seconds: kill it after so many seconds, if it has not ended by then.
    """
    environment = {**os.environ, "AIRFLOW_CONN_CDC_SOURCE": connection, ENV_VARIABLE: failpoint}
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


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_killed_and_started_again(
    seed: int,
    nursery: Nursery,
    mysql_server: MySQLServer,
    cdc_user: dict[str, str],
    database: str,
    tmp_path: Path,
) -> None:
    draw = random.Random(seed)
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
        codes, finished = [], dict[Path, tuple[int, int]]()
        for death in _deaths(draw) if seed else FEW:
            at, seconds = (death, None) if isinstance(death, str) else ("", death)
            codes.append(_run(run, connection, at, log, seconds))
            print(death, codes[-1])
            finished = {**lake.finished_files(), **finished}
            if draw.random() < 0.2:
                lake.lose(draw.choice(("bookkeeping", "checkpoint")))
        # What was left to do may have ended before the moment, or a place that other workers have been at, came.
        assert set(codes) <= {KILLED, 0}, f"{codes}\n{log.read_text()}"
        assert codes[:-1].count(KILLED) >= max(len(codes) - 2, 1), f"{codes}\n{log.read_text()}"
        assert _run(run, connection, "", log) == 0, log.read_text()
        w.stop()
    # The last steps once through Spark, else through the same code without it, which takes a tenth of the time.
    if seed == 0:
        assert _run(["stream", "--catch-up", "-f", str(file)], connection, "", log) == 0, log.read_text()
    else:
        assert nursery.start(file, {"AIRFLOW_CONN_CDC_SOURCE": connection}, log=log).wait() == 0, log.read_text()

    differences = compare_database(mysql_server, database, lake.path)
    assert not differences, "\n".join(map(str, differences))
    if shop:
        assert not check_ledger(lake.path, database)
    lake.check_files(finished)


@pytest.mark.long
def test_a_table_that_is_suspended(
    mysql_server: MySQLServer, cdc_user: dict[str, str], database: str, tmp_path: Path
) -> None:
    """Why a table cannot go on comes from Spark as a batch: the epoch goes on, and takes the table in again."""
    lake, log = Lake(tmp_path / "lake", "spark-tables"), tmp_path / "log"
    file = lake.write_pipeline(database, chunk_rows=400)
    connection = mysql_server.uri(**cdc_user)
    with mysql_server.connect(database=database, autocommit=True) as admin, admin.cursor() as cursor:

        def write(begin: int) -> None:
            for name in ("altered", "other"):
                rows = [(key, f"text {key}") for key in range(begin, begin + 1000)]
                cursor.executemany(f"INSERT INTO {name} VALUES (%s, %s)", rows)
                cursor.execute(f"UPDATE {name} SET v = CONCAT('x', v) WHERE id % 7 = 0")

        for name in ("altered", "other"):
            cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, v VARCHAR(40))")
        write(0)
        assert _run(["run", "--catch-up", "-f", str(file)], connection, "", log) == 0, log.read_text()
        stream = ["stream", "--catch-up", "-f", str(file)]
        for number, (kind, death) in enumerate(
            [("VARBINARY(80)", "suspend.after_write:1"), ("VARCHAR(50)", "rejoin.before_exchange:1"), ("BLOB", "")], 1
        ):
            write(2000 * number)
            cursor.execute(f"ALTER TABLE altered MODIFY v {kind}")
            write(2000 * number + 1000)
            assert _run(stream, connection, death, log) == (KILLED if death else 0), log.read_text()
        assert not compare_all(admin, database, lake.path)
    with contextlib.closing(sqlite3.connect(lake.private / "bookkeeping.db")) as books:
        epochs = books.execute("SELECT state FROM streams ORDER BY epoch").fetchall()
        events = books.execute("SELECT kind, \"table\" FROM events WHERE kind LIKE 'table_%'").fetchall()
    assert len(epochs) == 4 and {epochs[0], epochs[-1]} == {("caught_up",)}, epochs
    assert {("table_suspended", f"{database}.altered"), ("table_rejoined", f"{database}.altered")} == set(events)
