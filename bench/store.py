"""A batch of random changes into one table, on local disk and in an S3-compatible store, side by side.

A batch is what the stream does with it: its rows are written as a file, as a task of Spark does, its keys are read back
and looked up, vectors are written and the version is committed. The resume point is not part of it. Requests and bytes
are counted as `airflow-cdc status` shows them; how many were made one after the other, a proxy before the store says.
Times are those without it.

    make bench-store    CDC_BENCH_ROWS=n rows (1000000), CDC_BENCH_BATCHES=n (200)
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.delta.table_metadata import DeltaTableOptions
from airflow_provider_cdc.sinks.files.parquet import describe_file, write_file
from airflow_provider_cdc.sinks.lake.merge.change_merger import with_row_places
from airflow_provider_cdc.sinks.protocol import Fence, PublishSlices, Upsert
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.sinks.storage.request_counts import RequestCounts, count_requests_in, format_counts
from airflow_provider_cdc.sinks.storage.storage import Storage
from bench.merge_tables import SCHEMA, batches, rows
from bench.snapshot import machine
from tests.support.object_store import object_storage
from tests.support.s3 import VERSITYGW, Kind, s3_server, versitygw_at_hand
from tests.support.store_proxy import Request, StoreProxy, in_a_row

CHANGES = (100, 5_000)
#: Batches after which a new writer has read all files that lie there, and asks for nothing but what is new.
_UNTIL_KNOWN = 50
_FENCE, _SLICE = Fence("cdc/bench/epoch", 1), 130_000


def opened(storage: Storage) -> DeltaSinkTable:
    return DeltaSinkTable(storage, SCHEMA, ["id"], "id", DeltaTableOptions(True))


def make(storage: Storage, size: int) -> None:
    """A table with so many rows, as a snapshot leaves it."""
    target, chance, files = opened(storage), np.random.default_rng(1), []
    target.create("bench")
    for start in range(0, size, _SLICE):
        portion = rows(np.arange(start, min(start + _SLICE, size)), 1, chance)
        files.append(write_file(storage, f"snapshot/1/0/1/slice-{start}.parquet", SCHEMA, [portion], "id"))
    target.commit(lambda _: PublishSlices(files), {}, _FENCE)


def apply(
    storage: Storage, size: int, changes: int, count: int, after: Callable[[], None] = lambda: None
) -> list[float]:
    """Seconds of each batch; the first one, which makes the index, is left out.

    :param after: called after each batch that counts.
    """
    target, took = opened(storage), []
    first = target.load_log().version * 10
    for seq, changed in batches(size, changes, count + 1):
        newer = changed.set_column(
            SCHEMA.get_field_index(SEQ_COLUMN), SEQ_COLUMN, pa.array(np.full(len(changed), first + seq))
        )
        began = time.monotonic()
        name = f"changes/epoch-1/{first + seq}-{changes}.parquet"
        write_file(storage, name, SCHEMA, [newer], "id")
        file, keys = describe_file(storage, name, SCHEMA, ["id", SEQ_COLUMN, OP_COLUMN, TS_COLUMN], "id")
        assert commit(target, Upsert(with_row_places(keys, [file])), first + seq)
        took.append(time.monotonic() - began)
        if len(took) > 1:
            after()
    return took[1:]


def commit(target: DeltaSinkTable, change: Upsert, seq: int) -> bool:
    return target.commit(lambda _: change, {"cdc/bench/stream": seq}, _FENCE)


def written(storage: Storage) -> int:
    """Bytes of all files that are there."""
    return sum(size for _, size in storage.list(""))


def asked(proxy: StoreProxy, storage: Storage, size: int, changes: int) -> tuple[dict[str, int], list[Request]]:
    """What the last of some batches has asked: as the project counts it, and as the proxy has seen it."""
    before, seen = Counter[str](), len(proxy.requests)
    found: list[tuple[dict[str, int], list[Request]]] = []

    def take() -> None:
        nonlocal before, seen
        now = Counter(counts.to_json())
        found.append(
            ({name: now[name] - before[name] for name in now if now[name] > before[name]}, proxy.requests[seen:])
        )
        before, seen = now, len(proxy.requests)

    with count_requests_in(RequestCounts()) as counts:
        apply(storage, size, changes, _UNTIL_KNOWN, take)
    return found[-1]


def main() -> None:
    size, count = int(os.environ.get("CDC_BENCH_ROWS", "1000000")), int(os.environ.get("CDC_BENCH_BATCHES", "200"))
    kind: Kind = "versitygw" if versitygw_at_hand() else "moto"
    server = f"versitygw {VERSITYGW.rpartition('@')[2]}" if kind == "versitygw" else "moto, which keeps all in memory"
    console = Console(highlight=False, width=130)
    machine()
    console.print(f"{size:,} rows of {len(SCHEMA)} columns, {count} batches each; S3 is {server} on this machine\n")
    table = Table()
    for name in ("changes", "where", "median ms", "p95 ms", "requests of a batch", "in a row"):
        table.add_column(name, justify="left" if name in ("where", "requests of a batch") else "right")
    with (
        tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder,
        s3_server(kind) as place,
        StoreProxy(place) as proxy,
    ):
        local, remote = LocalStorage(Path(folder) / "table"), object_storage(place, "table")
        for storage in (local, remote):
            make(storage, size)
        for changes in CHANGES:
            for where, storage in (("local disk", local), ("S3", remote)):
                before = written(storage)
                took = [seconds * 1000 for seconds in apply(storage, size, changes, count)]
                numbers = f"{statistics.median(took):.0f}", f"{np.quantile(took, 0.95):.0f}"
                if storage is local:
                    more = f"{(written(storage) - before) // (count + 1):,} bytes written", ""
                else:
                    counts, seen = asked(proxy, object_storage(proxy.place, "table"), size, changes)
                    more = format_counts(counts), str(in_a_row(seen))
                table.add_row(f"{changes:,}", where, *numbers, *more)
    console.print(table)


if __name__ == "__main__":
    main()
