"""Merging batches of random changes into tables of several sizes: this project, delta-rs and Spark, in one run.

A batch of this project is what a running stream does with it: its rows are written as a file, as a task of Spark does,
then keys are looked up, vectors written and the version committed; compaction and upkeep go on in a thread beside it.
MERGE of delta-rs and of Spark gets the same rows as a table in memory or a file. No server takes part.

    make bench-merge    CDC_BENCH_SIZES=n,n,... rows (1000000,50000000), CDC_BENCH_BATCHES=n of this project (1000)
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, WriterProperties

from airflow_provider_cdc.core.schema import OP, SEQ, TS
from airflow_provider_cdc.jobs.compactions import run_in_threads
from airflow_provider_cdc.phases.upkeep import compact
from airflow_provider_cdc.sinks.delta.definition import Options
from airflow_provider_cdc.sinks.delta.merge import placed
from airflow_provider_cdc.sinks.delta.table import DeltaTarget
from airflow_provider_cdc.sinks.files import described, write_file
from airflow_provider_cdc.sinks.protocol import Fence, Published, Upserted
from airflow_provider_cdc.sinks.storage import LocalStorage
from bench.snapshot import machine

_TEXTS = 5
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        *((f"n{i}", pa.int32()) for i in range(8)),
        *((f"t{i}", pa.string()) for i in range(_TEXTS)),
        ("amount", pa.decimal128(12, 2)),
        (SEQ, pa.int64()),
        (OP, pa.string()),
        (TS, pa.timestamp("us", tz="UTC")),
    ]
)
_FENCE = Fence("cdc/bench/epoch", 1)
_SLICE = 130_000  # rows of a file of the snapshot
_PORTION = 1_000_000
_WORDS = np.array([f"word number {n}" for n in range(5000)])


def rows(keys: Any, seq: int, chance: np.random.Generator) -> pa.Table:
    """Rows with 18 columns for keys."""
    count = len(keys)
    words = pa.array(_WORDS)
    columns: list[Any] = [pa.array(keys, pa.int64())]
    columns += [pa.array(chance.integers(0, 1 << 20, count), pa.int32()) for _ in range(8)]
    columns += [words.take(pa.array(chance.integers(0, len(_WORDS), count))) for _ in range(_TEXTS)]
    columns += [pa.array(chance.integers(0, 10**9, count)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2))]
    columns[-1] = columns[-1].cast(pa.decimal128(12, 2))
    columns += [
        pa.array(np.full(count, seq)),
        pa.array(["u"] * count),
        pa.array(np.full(count, seq), SCHEMA.field(TS).type),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def opened(folder: Path, *, vectors: bool) -> DeltaTarget:
    return DeltaTarget(LocalStorage(folder), SCHEMA, ["id"], "id", Options(vectors))


def made(folder: Path, size: int, *, vectors: bool) -> DeltaTarget:
    """A table with so many rows, as a snapshot leaves it."""
    target, chance = opened(folder, vectors=vectors), np.random.default_rng(1)
    target.create("bench")
    files = []
    for start in range(0, size, _PORTION):
        portion = rows(np.arange(start, min(start + _PORTION, size)), 1, chance)
        for at in range(0, portion.num_rows, _SLICE):
            name = f"snapshot/1/0/1/slice-{start + at}.parquet"
            files.append(write_file(target.storage, name, SCHEMA, [portion.slice(at, _SLICE)], "id"))
    target.commit(lambda _: Published(files), {}, _FENCE)
    return target


def batches(size: int, changes: int, count: int) -> Iterator[tuple[int, pa.Table]]:
    """Batches of updates of random keys, each with its seq."""
    chance = np.random.default_rng(2)
    for seq in range(2, count + 2):
        yield seq, rows(chance.choice(size, changes, replace=False), seq, chance)


class Beside:
    """Compaction and upkeep of a table in a thread, as a stream has it."""

    def __init__(self, target: DeltaTarget) -> None:
        self._target, self._over, self.seconds, self.count = target, threading.Event(), 0.0, 0
        self._thread = threading.Thread(target=self._go)

    def _go(self) -> None:
        while not self._over.wait(0.5):
            began = time.monotonic()
            self.count += compact(self._target, run_in_threads, self._over.is_set)
            self._target.tidy()
            self.seconds += time.monotonic() - began

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def applied(target: DeltaTarget, change: Upserted, marker: int) -> bool:
    """Commit a batch."""
    return target.commit(lambda _: change, {"cdc/bench/stream": marker}, _FENCE)


def ours(folder: Path, size: int, changes: int, count: int, *, vectors: bool) -> tuple[list[float], float]:
    """Seconds of each batch, the first one (which makes the index) left out, and of what went on beside them."""
    target, took = opened(folder, vectors=vectors), []
    columns = ["id", SEQ, OP, TS]
    with Beside(opened(folder, vectors=vectors)) as beside:
        first = target.load().version * 10
        for seq, changed in batches(size, changes, count + 1):
            began = time.monotonic()
            name = f"changes/epoch-1/{first + seq}-{changes}.parquet"
            newer = changed.set_column(SCHEMA.get_field_index(SEQ), SEQ, pa.array(np.full(len(changed), first + seq)))
            write_file(target.storage, name, SCHEMA, [newer], "id")
            file, keys = described(target.storage, name, SCHEMA, columns, "id")
            assert applied(target, Upserted(placed(keys, [file])), first + seq)
            took.append(time.monotonic() - began)
    return took[1:], beside.seconds


def delta_rs(folder: Path, size: int, changes: int, count: int) -> list[float]:
    """MERGE of delta-rs."""
    took = []
    for _, changed in batches(size, changes, count):
        began = time.monotonic()
        merge = DeltaTable(folder).merge(
            changed, "t.id = s.id", source_alias="s", target_alias="t", writer_properties=WriterProperties()
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        took.append(time.monotonic() - began)
    return took


def spark(folder: Path, size: int, changes: int, count: int) -> list[float]:
    """MERGE of Spark into a table with deletion vectors; the first one is left out."""
    from tests.support.spark_delta import spark_delta

    took = []
    with spark_delta() as run:
        for seq, changed in batches(size, changes, count + 1):
            name = f"changes-{seq}.parquet"
            write_file(LocalStorage(folder.parent), name, SCHEMA, [changed], "id")
            began = time.monotonic()
            run(
                f"MERGE INTO delta.`{folder}` t USING parquet.`{folder.parent / name}` s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
            took.append(time.monotonic() - began)
    return took[1:]


def scan(folder: Path) -> float:
    """Seconds to read all columns of a table, the median of 3."""

    def once() -> float:
        began = time.monotonic()
        total = 0
        for batch in DeltaTable(folder).scan():
            total += batch.num_rows
        return time.monotonic() - began

    once()
    return statistics.median(once() for _ in range(3))


def line(name: str, size: int, changes: int, took: list[float]) -> float:
    middle = statistics.median(took)
    high = sorted(took)[max(0, round(0.95 * len(took)) - 1)]
    print(f"| {name} | {size:,} | {changes:,} | {len(took)} | {middle * 1000:,.0f} | {high * 1000:,.0f} |", flush=True)
    return middle


def main() -> None:
    sizes = [int(size) for size in os.environ.get("CDC_BENCH_SIZES", "1000000,50000000").split(",")]
    count = int(os.environ.get("CDC_BENCH_BATCHES", "1000"))
    print(f"Updates of random keys in tables of 18 columns; {count} batches of this project\n")
    print("| | rows of the table | changes of a batch | batches | median ms | p95 ms |\n|---|--:|--:|--:|--:|--:|")
    rivals: list[tuple[str, Callable[[Path, int, int, int], list[float]], bool, int]] = [
        ("this project, `copy_on_write`", lambda f, s, n, c: ours(f, s, n, c, vectors=False)[0], False, 5),
        ("delta-rs `MERGE`", delta_rs, False, 5),
        ("Spark `MERGE`, deletion vectors", spark, True, 3),
    ]
    scans: list[str] = []
    middles: dict[int, float] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="cdc-bench-") as work:
            folder = Path(work, "t")
            made(folder, size, vectors=True)
            fresh = scan(folder)
            took, beside = ours(folder, size, 5000, count, vectors=True)
            middles[size] = line("this project", size, 5000, took)
            compact(opened(folder, vectors=True), run_in_threads)
            scans.append(
                f"{size:,} rows, {count} batches: {(sum(took) + beside) / count * 1000:.0f} ms a batch with compaction "
                f"and upkeep; then reading all rows takes {scan(folder) / fresh:.2f} times as long as when it was fresh"
            )
            line("this project", size, 100_000, ours(folder, size, 100_000, 10, vectors=True)[0])
            shutil.rmtree(folder)
            if size <= 10_000_000:
                for name, arm, vectors, rounds in rivals:
                    made(folder, size, vectors=vectors)
                    line(name, size, 5000, arm(folder, size, 5000, rounds))
                    shutil.rmtree(folder)
    print("\n" + "\n".join(scans))
    if len(sizes) > 1:
        print(f"{sizes[-1]:,} to {sizes[0]:,} rows: {middles[sizes[-1]] / middles[sizes[0]]:.1f} times as long")
    machine()


if __name__ == "__main__":
    main()
