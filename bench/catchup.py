"""Catching up: how fast a stream applies what was changed while it was down, from the binlog to the committed table.

A table of 18 columns is copied, rows with random keys are updated while no stream runs, and then ``airflow-cdc stream``
runs as a user starts it until it has caught up. Rivals do parts of the work on the same rows: Debezium's engine reads
the same binlog into nothing, and MERGE of delta-rs gets changes that somebody has decoded already. Neither of them
commits a table from a binlog by itself, so the time of both together is what a pipeline made of them takes at least.

    make bench-catchup    CDC_BENCH_ROWS=n of the table (10000000), CDC_BENCH_CHANGES=n (3000000),
                          CDC_BENCH_RIVALS=0: without the rivals
"""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import re
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from bench.meter import Meter
from bench.snapshot import machine
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.workload_tables import CUSTOMER, make_shop

#: Rows of one transaction of the writers, and how many write at a time.
_TRANSACTION, _WRITERS = 1000, 2
#: What the sums of rows that are compared are grouped by: keys whose quotients by it are equal.
_BUCKET = 10_000
_SECONDS = 3600
_KEY = "c_customer_sk"


# ---------------------------------------------------------------- the table


def filled(server: MySQLServer, rows: int) -> None:
    """Make the table, without anything in the binlog."""
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        make_shop(connection, "shop", rows, addresses=1, orders=1)


def updated(server: MySQLServer, rows: int, changes: int) -> float:
    """Update rows with random keys, and return the seconds that took."""

    def write(number: int) -> None:
        chance = random.Random(number)
        with contextlib.closing(server.connect(database="shop")) as connection, connection.cursor() as cursor:
            for _ in range(number, changes // _TRANSACTION, _WRITERS):
                keys = ", ".join(map(str, chance.sample(range(1, rows + 1), _TRANSACTION)))
                # Each row gets other values than it has; none is NULL afterwards.
                cursor.execute(
                    "UPDATE customer SET c_birth_year = 1900 + (IFNULL(c_birth_year, 0) + 1) % 100, "
                    f"c_current_addr_sk = {chance.randrange(50_000)} WHERE {_KEY} IN ({keys})"
                )

    began = time.monotonic()
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(write, range(_WRITERS)))
    return time.monotonic() - began


# ---------------------------------------------------------------- the stream


@dataclass
class Caught:
    """How a stream has caught up.

    :param start: seconds until it begins: Python, Java, Spark.
    :param seconds: from there to its last commit.
    :param batches: changes and seconds of applying of each batch.
    :param cpu: processor seconds meanwhile, by what used them.
    """

    start: float
    seconds: float
    batches: list[tuple[int, float]]
    cpu: dict[str, float] = field(default_factory=dict)

    @property
    def changes(self) -> int:
        return sum(count for count, _ in self.batches)

    @property
    def rate(self) -> float:
        return self.changes / self.seconds


def catch_up(cli: Cli, server: MySQLServer) -> Caught:
    """Run the stream until it has caught up."""
    began, begins, said = time.time(), 0.0, list[str]()
    with cli.start("stream", "--catch-up") as process, Meter(process.pid, server.pid) as meter:
        assert process.stdout and process.stderr
        threading.Thread(target=process.stdout.read, daemon=True).start()
        for line in process.stderr:
            said.append(line)
            if re.search(r"stream epoch \d+ begins", line):
                begins = time.time()
                meter.mark()
        process.wait(_SECONDS)
    if process.returncode:
        raise SystemExit("the stream failed:\n" + "".join(said[-20:]))
    with cli.opened() as (_, store):
        batches = [b for b in reversed(store.recent_batches(cli.value["name"], 1 << 20)) if b.changes]
    end = batches[-1].committed_at.replace(tzinfo=datetime.UTC).timestamp()
    return Caught(begins - began, end - begins, [(b.changes, b.seconds) for b in batches], meter.used())


# ---------------------------------------------------------------- the proof


def differing(server: MySQLServer, table: Path) -> tuple[int, int]:
    """Rows of the copy, and parts of the table that are not equal in source and copy.

    A part is a range of keys; compared are the number of its rows and the sum of their checksums. The server makes its
    own, of the text of all columns; those of the copy are made here, of what delta-rs reads.
    """
    names = [name for name, _, _ in CUSTOMER.columns]
    text = ", ".join(f"IFNULL({name}, '~')" for name in names)
    source = {
        int(part): (int(count), int(total))
        for part, count, total in server.execute(
            f"SELECT {_KEY} DIV {_BUCKET} AS part, COUNT(*), SUM(CRC32(CONCAT_WS('|', {text}))) "
            "FROM shop.customer GROUP BY part"
        )
    }
    counts, totals = dict[int, int](), dict[int, int]()
    columns = ", ".join(names)
    for batch in QueryBuilder().register("t", DeltaTable(table)).execute(f"SELECT {columns} FROM t"):
        found = pa.RecordBatch.from_arrays([pa.array(batch.column(i)) for i in range(len(names))], names=names)
        values = [pc.fill_null(pc.cast(found[name], pa.string()), "~") for name in names]
        sums = pa.array([zlib.crc32(line) for line in _lines(values)], pa.int64())
        part = pc.divide(found[_KEY], _BUCKET)
        grouped = pa.table({"part": part, "sum": sums}).group_by("part").aggregate([("sum", "count"), ("sum", "sum")])
        for row in grouped.to_pylist():
            counts[row["part"]] = counts.get(row["part"], 0) + row["sum_count"]
            totals[row["part"]] = totals.get(row["part"], 0) + row["sum_sum"]
    copy = {part: (counts[part], totals[part]) for part in counts}
    return sum(counts.values()), sum(source.get(part) != copy.get(part) for part in {*source, *copy})


def _lines(values: list[Any]) -> Iterator[bytes]:
    for line in pc.binary_join_element_wise(*values, "|"):
        yield line.as_py().encode()


# ---------------------------------------------------------------- the whole


def main() -> None:
    rows = int(os.environ.get("CDC_BENCH_ROWS", "10000000"))
    changes = int(os.environ.get("CDC_BENCH_CHANGES", "3000000"))
    variables = {
        "innodb_buffer_pool_size": "3G",
        "sync_binlog": 0,
        "innodb_flush_log_at_trx_commit": 0,
        "tls_version": "",
        "max_binlog_size": 1 << 30,
    }
    with MySQLServer(variables) as server, tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder:
        _say(f"making {rows:,} rows")
        filled(server, rows)
        cli = Cli(Path(folder), server, r"shop\.customer", name="catchup")
        _say("copying them")
        cli.snapshot()
        _say(f"updating {changes:,} of them")
        wrote = updated(server, rows, changes)
        _say(f"written at {changes / wrote:,.0f} changes/s; catching up")
        caught = catch_up(cli, server)
        report(rows, caught)
        _say("comparing")
        copied, unlike = differing(server, cli.sink / "shop" / "customer")
        print(f"\nThe copy has {copied:,} of {rows:,} rows; ranges of keys that differ from the source: {unlike}")
        (mysql,) = server.execute("SELECT VERSION()")[0]
        if copied != rows or unlike:
            sys.exit(1)
    machine(str(mysql))


def report(rows: int, caught: Caught) -> None:
    """Print what was measured."""
    print(f"{caught.changes:,} updates of random keys in a table of {rows:,} rows and 18 columns, default settings\n")
    print("| changes/s | s | of these applying | batches | start of Python and Spark s |\n|--:|--:|--:|--:|--:|")
    applying = sum(seconds for _, seconds in caught.batches)
    print(
        f"| {caught.rate:,.0f} | {caught.seconds:.1f} | {applying:.1f} | {len(caught.batches)} | {caught.start:.1f} |\n"
    )
    print("| processor time | s | us a change |\n|---|--:|--:|")
    for name, used in sorted(caught.cpu.items(), key=lambda found: -found[1]):
        print(f"| {name} | {used:.1f} | {used / caught.changes * 1e6:.2f} |")
    for number, (count, seconds) in enumerate(caught.batches, 1):
        print(f"batch {number}: {count:,} changes, applied in {seconds:.2f} s", file=sys.stderr)


def _say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
