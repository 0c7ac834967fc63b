"""Merging batches of random changes into Iceberg tables: this project beside its own Delta sink, pyiceberg and Spark.

The arms of this project are those of ``bench/merge.py``, one after the other in one run, with the same changes; the
Iceberg tables are in a catalog in SQLite. pyiceberg's ``upsert`` gets the changes as a table in memory, Spark's
``MERGE`` as a file, through a REST catalog. At the end, a table gets many small commits: its metadata must not grow.

    make bench-merge SINK=iceberg    CDC_BENCH_SIZES=n,n,... rows (1000000,50000000), CDC_BENCH_BATCHES=n (1000),
                                     CDC_BENCH_COMMITS=n of the long history (10000),
                                     CDC_BENCH_ARMS=own,pyiceberg,spark,history (all): the rivals merge a few batches
                                     into tables of up to 10,000,000 rows

Snapshots and old files are kept for seconds here, not for an hour: the disk takes three times the largest table.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from airflow_provider_cdc.maintenance.table_maintenance import compact_table
from airflow_provider_cdc.maintenance.task import run_compactions_in_threads
from airflow_provider_cdc.sinks.iceberg import upkeep
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.sinks.protocol import Upsert
from bench.merge import RIVALS_ROWS, line, ours, told
from bench.merge_tables import FENCE, SCHEMA, MergeTable, batches, fill_table, opened, opened_iceberg, rows
from bench.snapshot import machine

ARMS = ("own", "pyiceberg", "spark", "history")
#: How often Iceberg may take as long as Delta, and the largest table as long as the smallest one.
_GOAL, _GROWTH_GOAL = 2.0, 2.5
_MARKER = "cdc/bench/stream"
_RIVAL_BATCHES = 3


# ---------------------------------------------------------------- this project


@dataclass(frozen=True)
class CommitFiles:
    """The files that a commit writes: in an object store, each is one PUT.

    :param names: their number by kind.
    :param size: bytes of all of them.
    """

    names: dict[str, int]
    size: int

    def __str__(self) -> str:
        listed = ", ".join(f"{count} {name}" for name, count in sorted(self.names.items()))
        return f"{self.size:,} bytes in {listed}"


def files_of_commit(target: MergeTable, size: int, seq: int) -> CommitFiles:
    """Commit 5,000 updates, and look which files are new. The catalog is a row of a database."""
    chance = np.random.default_rng(seq)
    changes = rows(chance.choice(size, 5000, replace=False), seq, chance)
    before = {name for name, _ in target.storage.list("")}
    assert target.commit(lambda _: Upsert(changes), {_MARKER: seq}, FENCE)
    added = [(name, length) for name, length in target.storage.list("") if name not in before]
    names: dict[str, int] = {}
    for name, _ in added:
        kind = _kind_of(name)
        names[kind] = names.get(kind, 0) + 1
    return CommitFiles(names, sum(length for _, length in added))


def _kind_of(name: str) -> str:
    return ".".join(name.rsplit("/", 1)[-1].split(".")[1:]) or name


def compared(work: Path, size: int, count: int, remarks: list[str]) -> dict[str, tuple[float, float]]:
    """Merge the same batches into tables of both formats.

    :param remarks: gets what else there is to say.
    :returns: by format, median seconds of a batch, and mean ones with compaction.
    """
    openers: dict[str, Callable[[], MergeTable]] = {
        "Delta": partial(opened, work / "delta", vectors=True),
        "Iceberg": partial(opened_iceberg, work / "iceberg"),
    }
    costs = {}
    for name, open_table in openers.items():
        fill_table(open_table(), size)
        began = time.monotonic()
        compact_table(open_table(), run_compactions_in_threads)
        joined = time.monotonic() - began
        found = ours(open_table, size, 5000, count)
        costs[name] = line(f"this project, {name}", size, 5000, found.took), (sum(found.took) + found.beside) / count
        remarks.append(f"{name}: {told(size, count, found, joined, open_table())}")
        last = open_table().markers().get(_MARKER) or 0
        remarks.append(f"A commit of {name}, with its rows, writes {files_of_commit(open_table(), size, last + 1)}")
    return costs


# ---------------------------------------------------------------- others


def pyiceberg_upsert(work: Path, size: int) -> list[float]:
    """Upserts by pyiceberg into a table of its own."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("bench", uri=f"sqlite:///{work}/pyiceberg.db", warehouse=work.as_uri())
    catalog.create_namespace("bench")
    table = catalog.create_table("bench.t", SCHEMA)
    table.append(rows(np.arange(size), 1, np.random.default_rng(1)))
    took = []
    for _, changed in batches(size, 5000, _RIVAL_BATCHES):
        began = time.monotonic()
        table.upsert(changed, join_cols=["id"])
        took.append(time.monotonic() - began)
    return took


def spark_merge(work: Path, size: int) -> list[float]:
    """MERGE of Spark into a table with deletion vectors; the first one is left out."""
    from tests.support.iceberg_rest import running_rest_catalog
    from tests.support.spark_iceberg import spark_iceberg

    pq.write_table(rows(np.arange(size), 1, np.random.default_rng(1)), work / "rows.parquet")
    took = []
    with running_rest_catalog() as catalog:
        settings = {"type": "rest", "uri": catalog.uri, "warehouse": work.as_uri()}
        with spark_iceberg({"lake": settings}, quick=False) as run:
            run("CREATE NAMESPACE lake.bench")
            run(
                f"CREATE TABLE lake.bench.t USING iceberg LOCATION '{(work / 'spark').as_uri()}' "
                "TBLPROPERTIES ('format-version' = '3', 'write.merge.mode' = 'merge-on-read') "
                f"AS SELECT * FROM parquet.`{work}/rows.parquet`"
            )
            for seq, changed in batches(size, 5000, _RIVAL_BATCHES + 1):
                pq.write_table(changed, work / f"{seq}.parquet")
                began = time.monotonic()
                run(
                    f"MERGE INTO lake.bench.t t USING parquet.`{work}/{seq}.parquet` s ON t.id = s.id "
                    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                )
                took.append(time.monotonic() - began)
    return took[1:]


RIVALS: dict[str, tuple[str, Callable[[Path, int], list[float]]]] = {
    "pyiceberg": ("pyiceberg `upsert`", pyiceberg_upsert),
    "spark": ("Spark `MERGE`, deletion vectors", spark_merge),
}


# ---------------------------------------------------------------- a long history


def long_history(work: Path, commits: int) -> None:
    """Print what the metadata of a table is after some commits, and after many.

    Every tenth commit is followed by a compaction, every hundredth by the deletion of old files.
    """
    size = 10_000
    target = opened_iceberg(work / "history", snapshot_seconds=1)
    fill_table(target, size)
    upkeep.RETENTION_SECONDS = 1
    took = list[float]()
    print("\n| commits | median ms of the last 100 | metadata file | manifest list | manifests | snapshots | files |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for seq, changed in batches(size, 20, commits):
        change, began = Upsert(changed), time.monotonic()
        assert target.commit(lambda _, change=change: change, {_MARKER: seq}, FENCE)  # type: ignore[misc]
        took.append(time.monotonic() - began)
        if seq % 10 == 0:
            compact_table(target, run_compactions_in_threads)
        if len(took) % 100 == 0:
            target.clean_up()
        if len(took) in {100, 1000, commits // 2, commits}:
            middle = statistics.median(took[-100:]) * 1000
            print(f"| {len(took):,} | {middle:.1f} | {' | '.join(_metadata_of(target))} |", flush=True)


def _metadata_of(target: IcebergSinkTable) -> list[str]:
    """Sizes of the newest metadata, and how many files there are."""
    metadata, listed = target.load_log().metadata, dict(target.storage.list(""))
    snapshot = metadata.current_snapshot
    assert snapshot is not None
    manifest_list = listed[snapshot.manifest_list.removeprefix(metadata.location).lstrip("/")]
    manifests = len(target.load_log().manifests)
    numbers = len(metadata.to_bytes()), manifest_list, manifests, len(metadata.snapshots), len(listed)
    return [f"{number:,}" for number in numbers]


# ---------------------------------------------------------------- the whole


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as work:
        yield Path(work)


def main() -> None:
    sizes = [int(size) for size in os.environ.get("CDC_BENCH_SIZES", "1000000,50000000").split(",")]
    count = int(os.environ.get("CDC_BENCH_BATCHES", "1000"))
    commits = int(os.environ.get("CDC_BENCH_COMMITS", "10000"))
    arms = os.environ.get("CDC_BENCH_ARMS", ",".join(ARMS)).split(",")
    if wrong := {*arms} - {*ARMS}:
        raise SystemExit(f"there is no {', '.join(sorted(wrong))}: see the head of bench/merge_iceberg.py")
    print(f"Updates of random keys in tables of 18 columns; {count} batches of this project\n")
    print("| | rows of the table | changes of a batch | batches | median ms | p95 ms |\n|---|--:|--:|--:|--:|--:|")
    costs, remarks = dict[int, dict[str, tuple[float, float]]](), list[str]()
    for size in sizes:
        if "own" in arms:
            with _folder() as work:
                costs[size] = compared(work, size, count, remarks)
        for arm in [arm for arm in RIVALS if arm in arms and size <= RIVALS_ROWS]:
            with _folder() as work:
                name, merge = RIVALS[arm]
                line(name, size, 5000, merge(work, size))
    print("\n" + "\n".join(remarks))
    for size, found in costs.items():
        shares = [slow / fast for slow, fast in zip(found["Iceberg"], found["Delta"], strict=True)]
        verdict = "reaches" if shares[0] <= _GOAL else "MISSES"
        print(
            f"- {size:,} rows: Iceberg takes {shares[0]:.2f} times as long as Delta ({verdict} {_GOAL}), "
            f"{shares[1]:.2f} times with compaction"
        )
    if len(costs) > 1:
        growth = costs[sizes[-1]]["Iceberg"][0] / costs[sizes[0]]["Iceberg"][0]
        verdict = "reaches" if growth <= _GROWTH_GOAL else "MISSES"
        print(f"- {sizes[-1]:,} to {sizes[0]:,} rows: {growth:.2f} times as long ({verdict} {_GROWTH_GOAL})")
    if "history" in arms:
        with _folder() as work:
            long_history(work, commits)
    machine()


if __name__ == "__main__":
    main()
