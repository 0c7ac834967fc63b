"""``verify`` while others write, and in little memory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.sinks.files import parquet as files
from airflow_provider_cdc.verify.run import verify_tables
from tests import ROOT
from tests.support.cli import Cli
from tests.support.servers import MySQLServer

#: Seconds for which writers and ``verify`` go on in the long test.
SECONDS = float(os.environ.get("CDC_VERIFY_SECONDS", "300"))
PEAK = """
import sys
import pyarrow as pa
from pathlib import Path
from tests.support.cli import Cli
from airflow_provider_cdc.verify.run import verify_tables

class Existing(Cli):
    def write(self):
        pass

class Server:
    def uri(self, **_):
        return sys.argv[2]

(found,) = verify_tables(Existing(Path(sys.argv[1]), Server()).context)
assert found.is_equal == (sys.argv[3] == "equal"), found
print(found.rows, pa.default_memory_pool().max_memory())
"""


def peak(cli: Cli, server: MySQLServer, verdict: str) -> tuple[int, int]:
    """Rows of the table, and the most bytes that Arrow has held in a process that compared it."""
    command = [sys.executable, "-c", PEAK, str(cli.folder), server.uri(), verdict]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    rows, size = run.stdout.split()
    return int(rows), int(size)


def test_memory_does_not_grow_with_the_table(
    mysql_server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times as many rows, equal ones and then some that are not: the peak stays what it was."""
    table = f"{database}.t"
    mysql_server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v MEDIUMTEXT)")

    def fill(low: int, high: int) -> None:
        numbers = f"WITH RECURSIVE n (n) AS (SELECT {low} UNION ALL SELECT n + 1 FROM n WHERE n < {high - 1})"
        text = "REPEAT(SHA2(n, 512), 128)"  # 16 KB
        mysql_server.session(
            database,
            "SET SESSION cte_max_recursion_depth = 100000",
            f"INSERT INTO t {numbers} SELECT n, {text} FROM n",
        )

    monkeypatch.setattr(files, "_ROW_GROUP_BYTES", 2 << 20)
    peaks = []
    for number, (low, high) in enumerate(((0, 2_000), (2_000, 8_000))):
        fill(low, high)
        cli = Cli(tmp_path / str(number), mysql_server, table, snapshot={"chunk_rows": 100})
        cli.snapshot()
        cli.catch_up()
        peaks.append(peak(cli, mysql_server, "equal"))
    (few, small), (many, large) = peaks
    assert (few, many) == (2_000, 8_000)
    assert large < 1.3 * small and large < many * 16_000 // 4, "a fourth of the table; it was held twice once"
    mysql_server.session(database, "SET sql_log_bin = 0", "UPDATE t SET v = 'other' WHERE id % 1000 = 7")
    # Of the table as good as nothing; what is more is a portion of the binlog, which is searched for the last changes.
    assert peak(cli, mysql_server, "unequal")[1] < many * 16_000 // 2


@contextmanager
def writers(server: MySQLServer, database: str) -> Iterator[list[int]]:
    """Two that write all the time: rows of text, keys that change, rows that go and come back."""
    over, done = threading.Event(), [0, 0]

    def write(number: int) -> None:
        chance = random.Random(number)
        with closing(server.connect(database=database)) as connection, connection.cursor() as cursor:
            while not over.is_set():
                key = f"key {chance.randrange(400):03d}"
                other = f"{chance.choice(['key', 'KEY', 'zzz'])} {chance.randrange(400):03d}"
                cursor.execute(
                    chance.choice(
                        [
                            f"INSERT IGNORE INTO t VALUES ('{key}', REPEAT('x', {chance.randrange(300)}), 0.1)",
                            f"UPDATE t SET v = CONCAT('v', {chance.randrange(99)}), f = f + 1 WHERE k = '{key}'",
                            f"UPDATE IGNORE t SET k = '{other}' WHERE k = '{key}'",
                            f"DELETE FROM t WHERE k = '{key}'",
                            f"INSERT INTO bare VALUES ({chance.randrange(50)})",
                            f"UPDATE bare SET v = v + 1 WHERE v = {chance.randrange(50)} LIMIT 1",
                            f"DELETE FROM bare WHERE v = {chance.randrange(50)} LIMIT 1",
                        ]
                    )
                )
                done[number] += 1
                if number and done[1] % 400 == 0:
                    time.sleep(0.5)  # a table without a key is read in a moment in which nobody writes to it
                time.sleep(0.002)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("seconds", [10.0, pytest.param(SECONDS, marks=pytest.mark.long, id="CDC_VERIFY_SECONDS")])
def test_no_false_alarms(mysql_server: MySQLServer, database: str, tmp_path: Path, seconds: float) -> None:
    """Writers write and the stream runs; at the end a single row is changed behind both, and is found."""
    mysql_server.execute(f"CREATE TABLE {database}.t (k VARCHAR(20) PRIMARY KEY, v TEXT, f DOUBLE)")
    mysql_server.execute(f"CREATE TABLE {database}.bare (v INT)")
    for n in range(0, 400, 2):
        mysql_server.execute(f"INSERT INTO {database}.t VALUES ('key {n:03d}', 'v', {n})")
    cli = Cli(tmp_path, mysql_server, f"{database}..*", snapshot={"chunk_rows": 20})
    cli.snapshot()
    compared, began, waited = 0, time.monotonic(), 0
    with writers(mysql_server, database) as done, cli.streaming():
        while time.monotonic() - began < seconds or not compared:
            try:
                found = verify_tables(cli.context, show_values=True)
            except TransientError:  # the table without a key was written to in each moment
                waited += 1
                assert waited < 5 or compared
                continue
            assert [str(v) for v in found if not v.is_equal] == []
            compared += 1
        assert min(done) > 100
    mysql_server.session(database, "SET sql_log_bin = 0", "UPDATE t SET v = 'behind' LIMIT 1")
    cli.catch_up()
    assert [v.different for v in verify_tables(cli.context) if not v.is_equal] == [1]
