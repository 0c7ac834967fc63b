"""Several copies of one Spark task: a retry, a speculative copy, an executor that was given up and goes on working."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests import ROOT
from tests.support.copies import CASES
from tests.support.harness import Lake, Nursery, kill_session
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer
from tests.support.spark_cluster import SparkCluster

pytestmark = pytest.mark.spark

ROWS, CHUNK_ROWS = 640, 5
#: What every run tries; the others are long.
QUICK = {("speculative", "chunk.after_select"), ("zombie", "file.after_write")}
SLICES = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    # Spark puts a speculative copy on another host: these are two names of the same one.
    with SparkCluster(workers=2, hosts=("127.0.0.1", "localhost")) as found:
        yield found


@pytest.mark.parametrize(
    ("case", "point"),
    [
        pytest.param(case, point, marks=[] if (case, point) in QUICK else [pytest.mark.long])
        for case in CASES
        for point in ("chunk.after_select", "file.after_write")
    ],
)
def test_no_copy_publishes_twice_or_mixes_files(
    case: str,
    point: str,
    cluster: SparkCluster,
    nursery: Nursery,
    mysql_server: MySQLServer,
    cdc_user: dict[str, str],
    database: str,
    tmp_path: Path,
) -> None:
    with closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        cursor.execute(f"INSERT INTO t VALUES {', '.join(f'({i}, 1)' for i in range(ROWS))}")
        cursor.execute("ANALYZE TABLE t")
    lake, words = Lake(tmp_path / "lake", "copies"), tmp_path / "words"
    words.mkdir()
    file = lake.write_pipeline(database, chunk_rows=CHUNK_ROWS, group_rows=10_000, parallelism=2)
    env = {**os.environ, "AIRFLOW_CONN_CDC_SOURCE": mysql_server.uri(**cdc_user)}
    command = [sys.executable, "-m", "tests.support.copies", case, str(file), cluster.uri, str(words), point]
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )

    def said(name: str) -> None:
        while not (words / name).exists():
            assert run.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)

    try:
        said("odd")
        # What the first copy has read is of the past when another one reads it.
        with closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE t SET v = v + 1, id = IF(id % 50 = 0, id + 10000, id)")
            connection.commit()
        if case == "zombie":
            os.kill(json.loads((words / "odd").read_text())["executor"], signal.SIGKILL)
        said("published")
        files = lake.finished_files()
        out, _ = run.communicate(timeout=120)
    finally:
        kill_session(run.pid)
        run.wait()
    assert run.returncode == 0, (tmp_path / "log").read_text()
    assert json.loads(out.splitlines()[-1])["outcome"] == "published"
    assert (words / "copy-0-1").exists(), "Spark has not made a second copy"

    lake.check_files(files)
    lake.check_books(complete=True)
    assert len(files) == SLICES
    table = DeltaTable(str(lake.path / database / "t"))
    live = [uri.removeprefix("file://") for uri in table.file_uris()]
    assert sorted(live) == sorted(map(str, files))
    left = set(next(iter(files)).parent.glob("*.parquet"))
    # A process that is killed leaves the file that it was writing, and nobody names that.
    assert left == set(files) or (case == "fails" and len(left) == SLICES + 1)
    connections = {"AIRFLOW_CONN_CDC_SOURCE": mysql_server.uri(**cdc_user)}
    assert nursery.start(file, connections, only="stream").wait() == 0
    assert not compare_database(mysql_server, database, lake.path)
