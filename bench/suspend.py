"""What the others notice when a table breaks: lag of a stream of many tables, in turns of calm and of trouble.

In trouble a table breaks every so often: with a DDL that is not followed, so that it is suspended, read again beside
the stream, and rejoins; or with rows that are changed by statement, so that it stays suspended. The stream is
``airflow-cdc stream`` as a user starts it; a change's lag is from its commit in the source to that in the sink.

    make bench-suspend    CDC_BENCH_TABLES=n (100), CDC_BENCH_EVERY=n seconds from one to the next (60),
                          CDC_BENCH_SECONDS=n of each turn (300), CDC_BENCH_TURNS=n of both (2)
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_provider_cdc.state.models import BatchRow
from bench.snapshot import machine
from bench.stream import lags, taken
from tests.support.chance import Threads
from tests.support.cli import Cli
from tests.support.servers import MySQLServer

#: Rows of each table, and changes in a transaction.
ROWS, TOGETHER = 2_000, 25
_WARM_SECONDS = 30


def make(server: MySQLServer, tables: int) -> list[str]:
    """The tables, in database ``many``."""
    names = [f"t{n:03}" for n in range(tables)]
    server.execute("CREATE DATABASE many")
    with contextlib.closing(server.connect(database="many")) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION cte_max_recursion_depth = 1000000")
        for name in names:
            cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT, note VARCHAR(40), spare INT)")
            numbers = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
            cursor.execute(f"INSERT INTO {name} {numbers} SELECT i, i, CONCAT('row ', i), 0 FROM n")
    return names


def writers(server: MySQLServer, names: list[str]) -> Threads:
    """Changes of all tables, while this lasts: somewhat more than 20 transactions a second."""

    def write(draw: random.Random, number: int, cursor: Any) -> None:
        keys = ", ".join(str(draw.randint(1, ROWS)) for _ in range(TOGETHER))
        cursor.execute(f"UPDATE {draw.choice(names)} SET v = v + 1 WHERE id IN ({keys})")

    return Threads(server, 1, "many", [write], "autocommit = 1")


def trouble(server: MySQLServer, breaking: Iterator[str], seconds: float, every: float) -> None:
    """Break one table after the other for so many seconds."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        name = next(breaking)
        if number % 2:
            server.session("many", "SET SESSION binlog_format = STATEMENT", f"UPDATE {name} SET v = 0 WHERE id < 9")
        else:
            server.session("many", f"ALTER TABLE {name} DROP COLUMN spare, ORDER BY id")  # this is not followed
        number += 1
        time.sleep(max(0.0, min(every, end - time.monotonic())))


def turns(cli: Cli, server: MySQLServer, names: list[str], seconds: float, every: float, number: int) -> None:
    """Print what was measured in turns of calm and of trouble."""
    found: dict[str, list[BatchRow]] = {"calm": [], f"a table breaks every {every:g} s": []}
    ratios, breaking = [], iter(names)
    with cli.start("stream") as process:
        try:
            with writers(server, names):
                while not taken(cli):
                    assert process.poll() is None, process.stderr and process.stderr.read()
                    time.sleep(1)
                time.sleep(_WARM_SECONDS)
                for _ in range(number):
                    both = []
                    for name, batches in found.items():
                        before = len(taken(cli))
                        if name == "calm":
                            time.sleep(seconds)
                        else:
                            trouble(server, breaking, seconds, every)
                        listed = taken(cli)
                        both.append(listed[: len(listed) - before])
                        batches += both[-1]
                    calm, troubled = (lags(batches)["p95"] for batches in both)
                    ratios.append(troubled / calm)
        finally:
            process.terminate()
            process.communicate(timeout=120)
    print("| | p50 s | p95 s | max s | changes |\n|---|--:|--:|--:|--:|")
    for name, batches in found.items():
        numbers = " | ".join(f"{value:.2f}" for value in lags(batches).values())
        print(f"| {name} | {numbers} | {sum(b.changes for b in batches):,} |")
    with cli.opened() as (_, store):
        kinds = Counter(event.kind for event in store.last_events(cli.value["name"], 10_000))
    print(f"\np95 in trouble to p95 in calm, median of {number} turns: {statistics.median(ratios):.2f}")
    print(f"tables suspended: {kinds['table_suspended']}, rejoined: {kinds['table_rejoined']}")


def main() -> None:
    tables, number = int(os.environ.get("CDC_BENCH_TABLES", "100")), int(os.environ.get("CDC_BENCH_TURNS", "2"))
    every = float(os.environ.get("CDC_BENCH_EVERY", "60"))
    seconds = float(os.environ.get("CDC_BENCH_SECONDS", "300"))
    with MySQLServer({"innodb_buffer_pool_size": "1G", "tls_version": ""}) as server:
        names = make(server, tables)
        print(
            f"{tables} tables of {ROWS:,} rows, transactions of {TOGETHER} changes, turns of {seconds:g} s\n",
            flush=True,
        )
        with tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder:
            cli = Cli(Path(folder), server, r"many\..*", name="many", stream={"on_table_error": "suspend"})
            cli.snapshot()
            turns(cli, server, names, seconds, every, number)
        (mysql,) = server.execute("SELECT VERSION()")[0]
    machine(str(mysql))


if __name__ == "__main__":
    main()
