"""Catching up: how fast a stream applies what was changed while it was down, from the binlog to the committed table.

A table of 18 columns is copied, rows with random keys are updated while no stream runs, and then ``airflow-cdc stream``
runs as a user starts it until it has caught up. Each rival does a part of that on the same rows: Debezium's engine
reads the same binlog into nothing, and MERGE of delta-rs gets one batch of changes as a table in memory. Neither of
them brings a binlog into a Delta table by itself; a pipeline that is made of both takes the time of both.

    make bench-catchup    CDC_BENCH_ROWS=n of the table (10000000), CDC_BENCH_CHANGES=n (10000000),
                          CDC_BENCH_RIVALS=0: without the rivals, which need 8 GB of memory
                          SINK=iceberg: into Iceberg as well, and how both compare; without the rivals
"""

from __future__ import annotations

import argparse
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
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from bench import debezium
from bench.meter import Meter
from bench.snapshot import machine
from tests.support.cli import Cli
from tests.support.iceberg import duckdb_with_iceberg
from tests.support.servers import MySQLServer
from tests.support.workload_tables import CUSTOMER, make_shop

#: Rows of one transaction of the writers, and how many write at a time.
_TRANSACTION, _WRITERS = 1000, 2
#: What the sums of rows that are compared are grouped by: keys whose quotients by it are equal.
_BUCKET = 10_000
_SECONDS = 3600
_KEY = "c_customer_sk"
#: Changes a row each time.
_MARK = f"UPDATE shop.customer SET c_birth_day = 1 + IFNULL(c_birth_day, 0) % 28 WHERE {_KEY} = 1"
_NAMES = [name for name, _, _ in CUSTOMER.columns]
#: How fast it catches up into Iceberg, at least, where that into Delta is 1.
_ICEBERG_GOAL = 0.7


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
    :param rest: changes and seconds behind the first batch, for which the index of keys is made.
    :param batches: changes and seconds of applying of each batch.
    :param cpu: processor seconds meanwhile, by what used them.
    """

    start: float
    seconds: float
    rest: tuple[int, float]
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
        batches = [b for b in reversed(store.last_batches(cli.value["name"], 1 << 20)) if b.changes]
    first, end = (b.committed_at.replace(tzinfo=datetime.UTC).timestamp() for b in (batches[0], batches[-1]))
    rest = sum(b.changes for b in batches[1:]), end - first
    return Caught(begins - began, end - begins, rest, [(b.changes, b.seconds) for b in batches], meter.used())


# ---------------------------------------------------------------- the rivals


def rewritten(table: Path, copy: Path) -> None:
    """Write a Delta table once more as delta-rs does, without deletion vectors."""
    found = QueryBuilder().register("t", DeltaTable(table)).execute(f"SELECT {', '.join(_NAMES)} FROM t")
    write_deltalake(copy, pa.RecordBatchReader.from_stream(found))


def merged(table: Path, rows: int, count: int) -> float:
    """Changes a second of a MERGE of delta-rs, of one batch with random keys."""
    keys = sorted(random.Random(1).sample(range(1, rows + 1), count))
    places = pa.table({_KEY: pa.array(keys, pa.int32())})
    which = DeltaTable(table).to_pyarrow_dataset().to_table(filter=pc.field(_KEY).isin(places[_KEY].combine_chunks()))
    changed = which.set_column(_NAMES.index("c_birth_year"), "c_birth_year", pa.array([2000] * len(which), pa.int32()))
    began = time.monotonic()
    merge = DeltaTable(table).merge(changed, f"t.{_KEY} = s.{_KEY}", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    return count / (time.monotonic() - began)


# ---------------------------------------------------------------- the proof


def copied_rows(table: Path, kind: str) -> Iterator[pa.RecordBatch]:
    """Rows of the copy, read by others: a Delta table by delta-rs, an Iceberg table by DuckDB."""
    columns = ", ".join(_NAMES)
    if kind == "delta":
        for batch in QueryBuilder().register("t", DeltaTable(table)).execute(f"SELECT {columns} FROM t"):
            yield pa.RecordBatch.from_arrays([pa.array(batch.column(i)) for i in range(len(_NAMES))], names=_NAMES)
    else:
        newest = max((table / "metadata").glob("*.metadata.json"))
        with duckdb_with_iceberg() as connection:
            yield from connection.execute(f"SELECT {columns} FROM iceberg_scan('{newest}')").to_arrow_reader()


def differing(server: MySQLServer, table: Path, kind: str) -> tuple[int, int]:
    """Rows of the copy, and parts of the table that are not equal in source and copy.

    A part is a range of keys; compared are the number of its rows and the sum of their checksums. The server makes its
    own, of the text of all columns; those of the copy are made here, of what another program reads.
    """
    text = ", ".join(f"IFNULL({name}, '~')" for name in _NAMES)
    source = {
        int(part): (int(count), int(total))
        for part, count, total in server.execute(
            f"SELECT {_KEY} DIV {_BUCKET} AS part, COUNT(*), SUM(CRC32(CONCAT_WS('|', {text}))) "
            "FROM shop.customer GROUP BY part"
        )
    }
    counts, totals = dict[int, int](), dict[int, int]()
    for found in copied_rows(table, kind):
        values = [pc.fill_null(pc.cast(found[name], pa.string()), "~") for name in _NAMES]
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sink", choices=("delta", "iceberg"), default="delta", help="iceberg: beside Delta")
    kinds = ("delta", "iceberg") if parser.parse_args().sink == "iceberg" else ("delta",)
    rows = int(os.environ.get("CDC_BENCH_ROWS", "10000000"))
    changes = int(os.environ.get("CDC_BENCH_CHANGES", "10000000"))
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
        engine = None
        if kinds == ("delta",) and os.environ.get("CDC_BENCH_RIVALS") != "0":
            engine = debezium.Engine(server.connect_args(), Path(folder, "debezium"))
            engine.mark("shop", "customer", lambda: server.execute(_MARK))
        pipelines = {
            kind: Cli(Path(folder, kind), server, r"shop\.customer", name=f"catchup_{kind}", sink={"kind": kind})
            for kind in kinds
        }
        for kind, cli in pipelines.items():
            _say(f"copying them into {kind}")
            cli.snapshot()
        _say(f"updating {changes:,} of them")
        wrote = updated(server, rows, changes)
        _say(f"written at {changes / wrote:,.0f} changes/s")
        caught = {}
        for kind, cli in pipelines.items():
            _say(f"catching up into {kind}")
            caught[kind] = catch_up(cli, server)
            report(rows, kind, caught[kind])
        for kind, cli in pipelines.items():
            _say(f"comparing {kind}")
            copied, unlike = differing(server, cli.sink / "shop" / "customer", kind)
            print(f"\nThe copy in {kind} has {copied:,} of {rows:,} rows; ranges of keys that differ: {unlike}")
            if copied != rows or unlike:
                sys.exit(1)
        if "iceberg" in caught:
            ratio = caught["iceberg"].rate / caught["delta"].rate
            goal = f"{'reaches' if ratio >= _ICEBERG_GOAL else 'MISSES'} {_ICEBERG_GOAL}"
            print(f"\nInto Iceberg it catches up {ratio:.2f} times as fast as into Delta ({goal})")
        if engine is not None:
            compare_with_rivals(engine, pipelines["delta"].sink, rows, changes, caught["delta"])
        (mysql,) = server.execute("SELECT VERSION()")[0]
    machine(str(mysql), f"Debezium {debezium.VERSION}, " if engine else "")


def compare_with_rivals(engine: debezium.Engine, sink: Path, rows: int, changes: int, caught: Caught) -> None:
    """Let the rivals do their parts, and print how both compare."""
    _say("Debezium reads the same binlog")
    seconds, records = engine.stream("shop", "customer", changes)
    _say("delta-rs merges one batch")
    rival = sink.with_name("rival")
    rewritten(sink / "shop" / "customer", rival)
    merging = merged(rival, rows, min(caught.batches[0][0], rows // 2))
    reading = records / seconds
    both = 1 / (1 / reading + 1 / merging)
    print(f"\nDebezium's engine reads {reading:,.0f} changes/s, delta-rs merges {merging:,.0f} changes/s;")
    print(f"one after the other {both:,.0f} changes/s. This project: {caught.rate / both:.1f} times as many")


def report(rows: int, kind: str, caught: Caught) -> None:
    """Print what was measured."""
    print(
        f"\n{caught.changes:,} updates of random keys in a table of {rows:,} rows and 18 columns, "
        f"default settings, sink {kind}\n"
    )
    print("| | changes/s | changes | s | batches |\n|---|--:|--:|--:|--:|")
    for name, changes, seconds, count in (
        ("from the beginning of the stream", caught.changes, caught.seconds, len(caught.batches)),
        ("behind the first batch", *caught.rest, len(caught.batches) - 1),
    ):
        print(f"| {name} | {changes / (seconds or 1):,.0f} | {changes:,} | {seconds:.1f} | {count} |")
    applying = sum(seconds for _, seconds in caught.batches)
    print(f"\nIts start takes {caught.start:.1f} s before that. Batches were applied for {applying:.1f} s.\n")
    print("| processor time | s | us a change |\n|---|--:|--:|")
    for name, used in sorted(caught.cpu.items(), key=lambda found: -found[1]):
        print(f"| {name} | {used:.1f} | {used / caught.changes * 1e6:.2f} |")
    for number, (count, seconds) in enumerate(caught.batches, 1):
        print(f"batch {number}: {count:,} changes, applied in {seconds:.2f} s", file=sys.stderr)


def _say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
