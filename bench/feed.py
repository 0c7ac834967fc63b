"""What a change data feed costs: batches of random updates into tables with and without one, one after the other.

Each batch goes into a table without a feed, one with it, and one with it whose rows the snapshot has written in row
groups as large as without, as where the feed was asked for later. What Delta readers are told is not read here.

    make bench-feed    CDC_BENCH_SIZES=n,n,... rows (1000000,10000000), CDC_BENCH_BATCHES=n (20)
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.config.table_properties import CHANGE_DATA_FEED
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.delta.table_metadata import DeltaTableOptions
from airflow_provider_cdc.sinks.files.parquet import describe_file, write_file
from airflow_provider_cdc.sinks.lake.merge.change_merger import with_row_places
from airflow_provider_cdc.sinks.protocol import Fence, PublishSlices, Upsert
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from bench.merge_tables import SCHEMA, batches, rows
from bench.snapshot import machine

_FENCE = Fence("cdc/bench/epoch", 1)
_SLICE, _PORTION = 130_000, 1_300_000
_CHANGES = (50, 500, 5_000)
_ON = {CHANGE_DATA_FEED: "true"}
#: What is compared: the properties of the table, and whether its snapshot knew of them.
_ARMS = {"no feed": ({}, True), "feed": (_ON, True), "feed, asked for later": (_ON, False)}


def made(folder: Path, size: int, properties: dict[str, str], *, known: bool) -> DeltaSinkTable:
    """A table with so many rows, as a snapshot leaves it."""
    options = DeltaTableOptions(properties=properties)
    target, chance = DeltaSinkTable(LocalStorage(folder), SCHEMA, ["id"], "id", options), np.random.default_rng(1)
    target.create("bench")
    files, group_rows = [], options.row_group_size if known else None
    for start in range(0, size, _PORTION):
        portion = rows(np.arange(start, min(start + _PORTION, size)), 1, chance)
        for at in range(0, portion.num_rows, _SLICE):
            name, part = f"snapshot/1/0/1/slice-{start + at}.parquet", portion.slice(at, _SLICE)
            files.append(write_file(target.storage, name, SCHEMA, [part], "id", row_group_size=group_rows))
    target.commit(lambda _: PublishSlices(files), {}, _FENCE)
    return target


def apply(target: DeltaSinkTable, name: str, changed: pa.Table, seq: int) -> None:
    """A batch, as a stream has it."""
    newer = changed.set_column(SCHEMA.get_field_index(SEQ_COLUMN), SEQ_COLUMN, pa.array(np.full(len(changed), seq)))
    write_file(target.storage, name, SCHEMA, [newer], "id")
    file, keys = describe_file(target.storage, name, SCHEMA, ["id", SEQ_COLUMN, OP_COLUMN, TS_COLUMN], "id")
    assert target.commit(lambda _: Upsert(with_row_places(keys, [file])), {"cdc/bench/stream": seq}, _FENCE)


def compare(folder: Path, size: int, count: int) -> None:
    """Print a line for each kind of table and size of batch."""
    targets = {
        name: made(folder / str(at), size, properties, known=known)
        for at, (name, (properties, known)) in enumerate(_ARMS.items())
    }
    seq = 1
    for changes in _CHANGES:
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in targets}
        for _, changed in batches(size, changes, count + 1):
            seq += 1
            for name, target in targets.items():
                began = time.monotonic(), time.process_time()
                apply(target, f"changes/epoch-1/{seq}.parquet", changed, seq)
                took[name].append((time.monotonic() - began[0], time.process_time() - began[1]))
        for name, found in took.items():  # the first one makes the index
            wall, work = (1000 * statistics.median(times) for times in zip(*found[1:], strict=True))
            print(f"| {size:,} | {changes:,} | {name} | {wall:,.0f} | {work:,.0f} |", flush=True)
    for name, target in targets.items():
        held = sum(file.size for file in target.load_log().files.values())
        fed = sum(size for path, size in target.storage.list("_change_data"))
        print(f"{size:,} rows, {name}: {held >> 20} MiB of data files, {fed >> 20} MiB of the feed")


def main() -> None:
    sizes = [int(size) for size in os.environ.get("CDC_BENCH_SIZES", "1000000,10000000").split(",")]
    count = int(os.environ.get("CDC_BENCH_BATCHES", "20"))
    print(f"Updates of random keys in tables of 18 columns, medians of {count} batches")
    machine()
    print("\n| rows of the table | changes of a batch | | ms | processor ms |\n|--:|--:|---|--:|--:|")
    for size in sizes:
        folder = Path(tempfile.mkdtemp(prefix="cdc-bench-feed-"))
        try:
            compare(folder, size, count)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
