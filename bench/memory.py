"""How much memory a snapshot takes: the peak of Spark's Python workers, and what the driver's Python grows by.

    python -m bench.memory --rows 10000000           a table of many rows
    python -m bench.memory --large 3000              a table with rows of 1 MB

Both in one process tree, at the default ``chunk_rows``. Peaks are what Linux says of each process (``VmHWM``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.harness import Lake  # noqa: E402
from tests.support.processes import members  # noqa: E402
from tests.support.servers import MySQLServer  # noqa: E402
from tests.support.workload_tables import make_shop  # noqa: E402

MB = 1 << 20


@dataclass
class Peaks:
    """Peaks of the processes of one run, in MB.

    :param workers: of each Python worker of Spark, by process id.
    :param driver: of the command itself.
    :param started: what the command took when the first worker came.
    """

    workers: dict[int, float] = field(default_factory=dict)
    driver: float = 0
    started: float = 0

    def look(self, session: int) -> None:
        """Look at all processes of a session."""
        for pid in members(session):
            with contextlib.suppress(OSError, StopIteration):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                peak = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
                if b"spark.worker_daemon" in command:
                    self.workers[pid] = max(peak, self.workers.get(pid, 0))
                elif pid == session:
                    self.driver = peak
        if not self.workers:
            self.started = self.driver


@contextlib.contextmanager
def watched(session: int) -> Iterator[Peaks]:
    """Look at a session all the time, until the end of the block."""
    peaks, over = Peaks(), threading.Event()

    def loop() -> None:
        while not over.wait(0.1):
            peaks.look(session)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()


def make_large(server: MySQLServer, database: str, rows: int, size: int = MB) -> None:
    """A table with rows of so many bytes, and as many small ones."""
    server.execute(f"CREATE DATABASE {database}")
    server.execute(f"CREATE TABLE {database}.large (id INT PRIMARY KEY, body LONGBLOB)")
    with closing(server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        for number in range(rows):
            cursor.execute("INSERT INTO large VALUES (%s, REPEAT(RANDOM_BYTES(1024), %s))", (2 * number, size // 1024))
            cursor.execute("INSERT INTO large VALUES (%s, 'small')", (2 * number + 1,))
    server.execute(f"ANALYZE TABLE {database}.large")


def take(server: MySQLServer, user: dict[str, str], database: str, folder: Path) -> tuple[Peaks, Lake, float]:
    """Take the snapshot of a database by the command line; what it took, what it made, and the seconds."""
    lake = Lake(folder / "lake", "memory")
    file = lake.write_pipeline(database)
    env = {**os.environ, "AIRFLOW_CONN_CDC_SOURCE": server.uri(**user)}
    command = [sys.executable, "-m", "airflow_provider_cdc", "snapshot", "-f", str(file)]
    with (folder / "log").open("wb") as log:
        began = time.monotonic()
        run = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        with watched(run.pid) as peaks:
            code = run.wait()
    assert code == 0, (folder / "log").read_text()
    return peaks, lake, time.monotonic() - began


def rows_of(lake: Lake) -> tuple[int, int]:
    """Rows of the snapshot, and the largest number of bytes that a chunk takes in its file."""
    import pyarrow.parquet as pq

    rows, largest = 0, 0
    for file in lake.finished_files():
        metadata = pq.ParquetFile(file).metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        rows += metadata.num_rows
        largest = max([largest, *(group.total_byte_size for group in groups)])
    return rows, largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--large", type=int, default=0)
    arguments = parser.parse_args()
    with MySQLServer({"innodb_buffer_pool_size": "2G"}) as server, tempfile.TemporaryDirectory() as folder:
        user = server.create_cdc_user()
        for name, count in (("rows", arguments.rows), ("large", arguments.large)):
            if not count:
                continue
            if name == "rows":
                with closing(server.connect()) as connection:
                    make_shop(connection, name, count, addresses=1, orders=1)
            else:
                make_large(server, name, count)
            (Path(folder) / name).mkdir()
            peaks, lake, seconds = take(server, user, name, Path(folder) / name)
            rows, largest = rows_of(lake)
            print(
                json.dumps(
                    {
                        "table": name,
                        "rows": rows,
                        "seconds": round(seconds, 1),
                        "worker_peak_mb": round(max(peaks.workers.values())),
                        "driver_peak_mb": round(peaks.driver),
                        "driver_before_mb": round(peaks.started),
                        "largest_chunk_mb": round(largest / MB, 1),
                    }
                )
            )


if __name__ == "__main__":
    main()
