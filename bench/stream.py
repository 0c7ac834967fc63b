"""The stream: how long a change takes to be readable in the sink, and what a batch costs in tables of several sizes.

Latency is from the commit in the source to the commit in the sink, of every change: the source's time is in the GTID
event, the sink's is taken after the commit of the batch. The stream is ``airflow-cdc stream`` as a user starts it.

    make bench-stream     CDC_BENCH_ROWS=n of the table whose changes are timed (200000), CDC_BENCH_SECONDS=n (90),
                          CDC_BENCH_SIZES=n,n,... rows of the tables of single batches (200000,2000000,10000000)
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_cdc.state.models import BatchRow
from bench.meter import SERVER, Meter
from bench.snapshot import CHANGES_PER_SECOND, changes, machine
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.workload_tables import make_shop

#: Seconds at the beginning of which nothing counts: Spark compiles its own code. And seconds without changes.
_WARM_SECONDS, _IDLE_SECONDS = 30, 20
#: Settings of the stream, and what they are called.
LATENCY: dict[str, dict[str, Any]] = {
    "default settings": {},
    "trigger_seconds: 0": {"trigger_seconds": 0},
    "trigger_seconds: 2": {"trigger_seconds": 2},
}
CHANGED = 10_000


def taken(cli: Cli) -> list[BatchRow]:
    """All batches that a stream has applied, the newest first."""
    with cli.opened() as (_, store):
        return store.last_batches(cli.value["name"], 1 << 20)


def lags(batches: Sequence[BatchRow]) -> dict[str, float]:
    """Percentiles of the lags of all changes, in seconds: ``p50``, ``p95``, ``max``."""

    def weighted(values: list[tuple[float, int]], share: float) -> float:
        """The value below which this share of all changes is, if each batch's value stood for all of its changes."""
        left = share * sum(count for _, count in values)
        for value, count in sorted(values):
            left -= count
            if left <= 0:
                return value
        return max(value for value, _ in values)

    found = {
        name: weighted([(getattr(b, column), b.changes) for b in batches if b.changes], share) / 1000
        for name, column, share in (("p50", "lag_p50_ms", 0.5), ("p95", "lag_p95_ms", 0.95))
    }
    return {**found, "max": max(b.lag_max_ms or 0 for b in batches) / 1000}


def latency(cli: Cli, server: MySQLServer, keys: Sequence[int], seconds: float) -> dict[str, float]:
    """Percentiles (seconds) of the lags of all changes in so many seconds, and changes a second; processor time."""
    with cli.start("stream") as process, Meter(process.pid, server.pid) as meter:
        try:
            with changes(server, keys) as written:
                while not taken(cli):
                    assert process.poll() is None, process.stderr and process.stderr.read()
                    time.sleep(1)
                time.sleep(_WARM_SECONDS)
                before = len(taken(cli))
                meter.mark()
                time.sleep(seconds)
                busy, listed = meter.used(), taken(cli)
            time.sleep(5)
            meter.mark()
            time.sleep(_IDLE_SECONDS)
            idle = meter.used()
        finally:
            process.terminate()
            process.communicate(timeout=120)
    batches = listed[: len(listed) - before]
    assert batches, "the stream has applied nothing"

    return {
        **lags(batches),
        "commits": len(batches) / seconds,
        "rate": written[0] / written[1],
        "busy": 100 * sum(used for name, used in busy.items() if name != SERVER) / seconds,
        "idle": 100 * sum(used for name, used in idle.items() if name != SERVER) / _IDLE_SECONDS,
    }


def upsert(cli: Cli, server: MySQLServer, keys: Sequence[int], rounds: int) -> Iterator[float]:
    """Seconds that the commit of a batch of changes all over the table takes, without reading the binlog."""
    from airflow_provider_cdc.apply.task import merge_manifests
    from airflow_provider_cdc.stream.run import begin_epoch

    for _ in range(rounds):
        some = random.sample(keys, CHANGED)
        with contextlib.closing(server.connect(database="shop")) as connection, connection.cursor() as cursor:
            for first in range(0, CHANGED, 1000):
                listed = ", ".join(map(str, some[first : first + 1000]))
                year = f"1900 + {random.randrange(100)}"
                cursor.execute(f"UPDATE customer SET c_birth_year = {year} WHERE c_customer_sk IN ({listed})")
        with cli.opened() as (context, store):
            epoch = begin_epoch(context, store, catch_up=True)
            with contextlib.closing(epoch.job.make_planner()) as planner:
                (end,) = epoch.job.find_range_ends(planner, epoch.section_start)
            manifest = merge_manifests([epoch.job.stage_range(epoch.section_start, end, "0")])
            began = time.monotonic()
            assert epoch.applier.apply(manifest).changes > 0.9 * CHANGED  # some had that year already
            yield time.monotonic() - began
            store.end_epoch(cli.value["name"], epoch.number, "stopped")


@contextlib.contextmanager
def shop(server: MySQLServer, rows: int, name: str, **settings: dict[str, Any]) -> Iterator[tuple[Cli, list[int]]]:
    """A shop with so many customers, and a copy of it."""
    with contextlib.closing(server.connect()) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET sql_log_bin = 0")  # nobody reads it
        make_shop(connection, "shop", rows, addresses=1, orders=1)
    (keys,) = zip(*server.execute("SELECT c_customer_sk FROM shop.customer"), strict=True)
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder:
        cli = Cli(Path(folder), server, r"shop\.customer", name=name, **settings)
        cli.snapshot()
        try:
            yield cli, [*keys]
        finally:
            server.execute("DROP DATABASE shop")


def main() -> None:
    seconds = float(os.environ.get("CDC_BENCH_SECONDS", "90"))
    sizes = [int(size) for size in os.environ.get("CDC_BENCH_SIZES", "200000,2000000,10000000").split(",")]
    rows = int(os.environ.get("CDC_BENCH_ROWS", "200000"))
    with MySQLServer({"innodb_buffer_pool_size": "2G", "tls_version": ""}) as server:
        print(f"{CHANGES_PER_SECOND:,} changes/s into a table of {rows:,} rows, {seconds:g} s each\n")
        print("| | p50 s | p95 s | max s | commits/s | changes/s | % of a core | without changes |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
        for number, (name, settings) in enumerate(LATENCY.items()):
            with shop(server, rows, f"latency{number}", stream=settings) as (cli, keys):
                found = latency(cli, server, keys, seconds)
            numbers = " | ".join(f"{found[k]:.2f}" for k in ("p50", "p95", "max", "commits"))
            used = " | ".join(f"{found[k]:.0f}" for k in ("busy", "idle"))
            print(f"| {name} | {numbers} | {found['rate']:,.0f} | {used} |", flush=True)
        print(f"\n{CHANGED:,} changes all over the table in one batch: commit to Delta, medians of 3\n")
        print("| rows in the table | s | changes/s |\n|--:|--:|--:|")
        for size in sizes:
            with shop(server, size, f"upsert{size}") as (cli, keys):
                took = statistics.median(upsert(cli, server, keys, 3))
            print(f"| {size:,} | {took:.2f} | {CHANGED / took:,.0f} |", flush=True)
        (mysql,) = server.execute("SELECT VERSION()")[0]
    machine(str(mysql))


if __name__ == "__main__":
    main()
