"""Merging batches of random changes into tables of several sizes: this project, delta-rs and Spark, in one run; and
what it costs to read the table after that.

A batch of this project is what a running stream does with it: its rows are written as a file, as a task of Spark does,
then keys are looked up, vectors written and the version committed; compaction goes on in a thread beside it. MERGE of
delta-rs and of Spark gets the same rows as a table in memory or a file. No server takes part.

    make bench-merge    CDC_BENCH_SIZES=n,n,... rows (1000000,50000000), CDC_BENCH_BATCHES=n of this project (1000),
                        CDC_BENCH_ARMS=own,rivals (both): rivals merge a few batches into tables of up to 10,000,000
                        rows; CDC_BENCH_READERS=delta-rs,polars,duckdb,spark (the first three)

Old files are kept for seconds here, not for an hour: the disk takes about three times the size of the largest table.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, WriterProperties
from pyroaring import BitMap

from airflow_provider_cdc.maintenance.table_maintenance import compact_table
from airflow_provider_cdc.maintenance.task import run_compactions_in_threads
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN
from airflow_provider_cdc.sinks.delta.maintenance import vacuum_files
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.files.parquet import DataFile, describe_file, write_file
from airflow_provider_cdc.sinks.iceberg import upkeep
from airflow_provider_cdc.sinks.lake.merge.change_merger import with_row_places
from airflow_provider_cdc.sinks.lake.merge.table_edit import TableEdit
from airflow_provider_cdc.sinks.protocol import Compaction, Upsert
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from bench.merge_scan import READERS, readings
from bench.merge_tables import FENCE, SCHEMA, MergeTable, batches, file_schema, made, opened
from bench.snapshot import machine

RIVALS_ROWS = 10_000_000
_ROUNDS = 3
_MARKER = "cdc/bench/stream"
#: Seconds between two looks of the compaction and two times that old files are deleted, and hours for which they stay.
_LOOK, _SWEEP, _KEPT = 0.5, 10.0, 15.0


class Beside:
    """Compaction of a table in a thread, as a stream has it."""

    def __init__(self, target: MergeTable) -> None:
        self._target, self._over = target, threading.Event()
        self.seconds, self.count, self.bytes = 0.0, 0, 0
        self._thread = threading.Thread(target=self._go)

    def _go(self) -> None:
        swept = time.monotonic()
        while not self._over.wait(_LOOK):
            began = time.monotonic()
            self.count += compact_table(self._target, self._run, self._over.is_set)
            self.seconds += time.monotonic() - began
            if time.monotonic() - swept > _SWEEP:
                _delete_old_files(self._target)
                swept = time.monotonic()

    def _run(self, work: Sequence[Compaction]) -> Sequence[Sequence[DataFile]]:
        done = run_compactions_in_threads(work)
        self.bytes += sum(file.size for files in done for file in files)
        return done

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _delete_old_files(target: MergeTable) -> None:
    if isinstance(target, DeltaSinkTable):
        vacuum_files(target.load_log(), _KEPT)
    else:
        upkeep.RETENTION_SECONDS = round(_KEPT)
        target.clean_up()


@dataclass
class Ours:
    """What batches of this project took.

    :param took: seconds of each batch but the first one.
    :param first: seconds of the first one, which makes the index, and ``grown`` bytes by which it made the peak of the
        process's memory grow.
    :param index: bytes of the index of keys at the end, in memory and on disk.
    :param beside: seconds of compaction.
    :param cpu: processor time of all batches but the first, and of compaction.
    :param compacted: bytes that compaction wrote, ``changed`` those of the changes.
    """

    took: list[float] = field(default_factory=list)
    first: float = 0.0
    grown: int = 0
    index: tuple[int, int] = (0, 0)
    beside: float = 0.0
    cpu: float = 0.0
    compacted: int = 0
    changed: int = 0


def ours(open_table: Callable[[], MergeTable], size: int, changes: int, count: int) -> Ours:
    """Batches of this project, the first one (which makes the index) apart."""
    target, found = open_table(), Ours()
    schema, first = file_schema(target), target.markers().get(_MARKER) or 0
    columns = ["id", SEQ_COLUMN, OP_COLUMN, TS_COLUMN]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Beside(open_table()) as beside:
        used, made_in = time.process_time(), time.thread_time()
        for seq, changed in batches(size, changes, count + 1):
            used += time.thread_time() - made_in  # that of making the batch
            began = time.monotonic()
            name = f"changes/epoch-1/{first + seq}-{changes}.parquet"
            newer = changed.set_column(
                SCHEMA.get_field_index(SEQ_COLUMN), SEQ_COLUMN, pa.array(np.full(len(changed), first + seq))
            )
            write_file(target.storage, name, schema, [newer], "id")
            file, keys = describe_file(target.storage, name, schema, columns, "id")
            change = Upsert(with_row_places(keys, [file]))
            assert target.commit(lambda _, change=change: change, {_MARKER: first + seq}, FENCE)  # type: ignore[misc]
            found.took.append(time.monotonic() - began)
            found.changed += file.size
            if len(found.took) == 1:
                found.grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) << 10
                used = time.process_time()
            made_in = time.thread_time()
    found.cpu = time.process_time() - used
    found.first, found.index = found.took.pop(0), target.index_bytes_used
    found.beside, found.compacted = beside.seconds, beside.bytes
    return found


def copies(folder: Path, size: int, changes: int, count: int) -> list[float]:
    """This project, merging by copies."""
    return ours(partial(opened, folder, vectors=False), size, changes, count).took


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


#: Name, arm, whether into a table with vectors, and how many batches.
RIVALS: list[tuple[str, Callable[[Path, int, int, int], list[float]], bool, int]] = [
    ("this project, `copy_on_write`", copies, False, 5),
    ("delta-rs `MERGE`", delta_rs, False, 5),
    ("Spark `MERGE`, deletion vectors", spark, True, 3),
]


def linked(folder: Path, name: str) -> Path:
    """The table as it stands, in another folder: no file of it ever changes."""
    return Path(shutil.copytree(folder, folder.with_name(name), copy_function=os.link))


def scanned(folder: Path, fresh: Path, size: int, readers: Sequence[str]) -> list[str]:
    """What it takes to read a table after the batches, and after a purge, as lines: one for each reader.

    And the fresh one with one dead row in each file: that is the price of a reader's own way to apply vectors.
    """
    steady, one = linked(folder, "steady"), linked(fresh, "one")
    compact_table(opened(folder, vectors=True), run_compactions_in_threads, purge=True)
    target = opened(one, vectors=True)
    dead = {path: BitMap([0]) for path in target.load_log().files}
    target.commit_edit(lambda _: TableEdit(dead_rows=dead), {}, FENCE)
    tables = {fresh: size, one: size - len(dead), steady: size, folder: size}
    lines = []
    for reader in readers:
        base, *others = readings(reader, tables, _ROUNDS)
        # Spark reads in another process, whose processor time is not known here.
        cpu = [f" ({other.cpu / base.cpu:.2f})" if reader != "spark" else "" for other in others]
        shares = " | ".join(f"{other.wall / base.wall:.2f}{more}" for other, more in zip(others, cpu, strict=True))
        lines.append(f"| {reader} | {size:,} | {base.wall:.2f} | {shares} |")
    return lines


def line(name: str, size: int, changes: int, took: list[float]) -> float:
    """Print what batches took, and return the median."""
    middle = statistics.median(took)
    high = sorted(took)[max(0, round(0.95 * len(took)) - 1)]
    print(f"| {name} | {size:,} | {changes:,} | {len(took)} | {middle * 1000:,.0f} | {high * 1000:,.0f} |", flush=True)
    return middle


def told(size: int, count: int, found: Ours, joined: float, target: MergeTable) -> str:
    """What else there is to say of batches of this project.

    :param joined: seconds that it took to put the files of the snapshot together, before the first batch.
    """
    log = target.load_log()
    dead, written = sum(f.dead_row_count for f in log.files.values()), found.compacted / found.changed
    return (
        f"{size:,} rows, {count} batches: {(sum(found.took) + found.beside) / count * 1000:.0f} ms a batch with "
        f"compaction, {found.cpu / count * 1000:.0f} ms of processor time. The first batch took {found.first:.1f} s, "
        f"as it made the index; memory grew by {found.grown >> 20} MiB at its peak. The index ends with "
        f"{found.index[0] >> 20} MiB in memory and {found.index[1] >> 20} MiB on disk. Compaction wrote {written:.1f} "
        f"times the bytes of the changes; {len(log.files)} files, {dead / (size + dead):.0%} of the rows dead. "
        f"To put the files of the snapshot together had taken {joined:.0f} s before"
    )


def main() -> None:
    sizes = [int(size) for size in os.environ.get("CDC_BENCH_SIZES", "1000000,50000000").split(",")]
    count = int(os.environ.get("CDC_BENCH_BATCHES", "1000"))
    arms = os.environ.get("CDC_BENCH_ARMS", "own,rivals").split(",")
    readers = os.environ.get("CDC_BENCH_READERS", "delta-rs,polars,duckdb").split(",")
    if wrong := ({*arms} - {"own", "rivals"}) | ({*readers} - {*READERS}):
        raise SystemExit(f"there is no {', '.join(sorted(wrong))}: see the head of bench/merge.py")
    print(f"Updates of random keys in tables of 18 columns; {count} batches of this project\n")
    print("| | rows of the table | changes of a batch | batches | median ms | p95 ms |\n|---|--:|--:|--:|--:|--:|")
    more: list[str] = []
    scans: list[str] = []
    costs: dict[int, tuple[float, float, float]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="cdc-bench-") as work:
            folder = Path(work, "t")
            if "own" in arms:
                made(folder, size, vectors=True)
                fresh = linked(folder, "fresh")
                began = time.monotonic()
                compact_table(opened(folder, vectors=True), run_compactions_in_threads)
                joined = time.monotonic() - began
                found = ours(partial(opened, folder, vectors=True), size, 5000, count)
                middle = line("this project", size, 5000, found.took)
                costs[size] = middle, (sum(found.took) + found.beside) / count, found.cpu / count
                more.append(told(size, count, found, joined, opened(folder, vectors=True)))
                scans += scanned(folder, fresh, size, readers)
                large = ours(partial(opened, folder, vectors=True), size, 100_000, 10)
                line("this project", size, 100_000, large.took)
                for path in Path(work).iterdir():
                    shutil.rmtree(path)
            if "rivals" in arms and size <= RIVALS_ROWS:
                for name, arm, vectors, rounds in RIVALS:
                    made(folder, size, vectors=vectors)
                    line(name, size, 5000, arm(folder, size, 5000, rounds))
                    shutil.rmtree(folder)
    if scans:
        print("\nReading all rows by the clock (by processor time), times what the fresh table takes\n")
        print("| | rows of the table | fresh s | one dead row in each file | after the batches | after a purge |")
        print("|---|--:|--:|--:|--:|--:|\n" + "\n".join(scans))
    print("\n" + "\n".join(more))
    if len(costs) > 1:
        shares = [many / few for many, few in zip(costs[sizes[-1]], costs[sizes[0]], strict=True)]
        print(
            f"{sizes[-1]:,} to {sizes[0]:,} rows: a batch takes {shares[0]:.1f} times as long, {shares[1]:.1f} with "
            f"compaction, {shares[2]:.1f} in processor time"
        )
    machine()


if __name__ == "__main__":
    main()
