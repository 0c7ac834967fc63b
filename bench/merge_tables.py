"""The tables that are merged into: 18 columns, as a snapshot leaves them, and batches of random updates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.config.catalog_settings import DEFAULT_CATALOG_FILE, SQL, CatalogSettings
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.delta.table_metadata import DeltaTableOptions
from airflow_provider_cdc.sinks.files.parquet import DataFile, write_file
from airflow_provider_cdc.sinks.iceberg.catalogs.open_catalog import open_catalog
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import Catalog, TableIdentifier
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.sinks.iceberg.table_format import IcebergTableFormat
from airflow_provider_cdc.sinks.lake.table_options import TableOptions
from airflow_provider_cdc.sinks.protocol import Fence, PublishSlices
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage

_TEXTS = 5
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        *((f"n{i}", pa.int32()) for i in range(8)),
        *((f"t{i}", pa.string()) for i in range(_TEXTS)),
        ("amount", pa.decimal128(12, 2)),
        (SEQ_COLUMN, pa.int64()),
        (OP_COLUMN, pa.string()),
        (TS_COLUMN, pa.timestamp("us", tz="UTC")),
    ]
)
MergeTable = DeltaSinkTable | IcebergSinkTable
FENCE = Fence("cdc/bench/epoch", 1)
_SLICE = 130_000  # rows of a file of the snapshot
_PORTION = 1_000_000
_opened = threading.local()
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
        pa.array(np.full(count, seq), SCHEMA.field(TS_COLUMN).type),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def opened(folder: Path, *, vectors: bool) -> DeltaSinkTable:
    """The table in a folder."""
    return DeltaSinkTable(LocalStorage(folder), SCHEMA, ["id"], "id", DeltaTableOptions(vectors))


def opened_iceberg(folder: Path, *, snapshot_seconds: float = 15) -> IcebergSinkTable:
    """The Iceberg table in a folder, with deletion vectors; its catalog is a SQLite file beside the folder.

    :param snapshot_seconds: how long snapshots stay; an hour by default elsewhere.
    """
    settings = CatalogSettings(SQL, f"sqlite:///{folder.parent}/{DEFAULT_CATALOG_FILE}")
    identifier = TableIdentifier(("bench",), folder.name)
    table_format = IcebergTableFormat(SCHEMA, key_columns=("id",), stats_column="id")
    properties = {"history.expire.max-snapshot-age-ms": str(round(snapshot_seconds * 1000))}
    options = TableOptions(properties=properties)
    return IcebergSinkTable(LocalStorage(folder), lambda: _catalog(settings), identifier, table_format, options)


def _catalog(settings: CatalogSettings) -> Catalog:
    """One for each thread."""
    known: dict[str, Catalog] = _opened.__dict__
    if settings.uri not in known:
        known[settings.uri] = open_catalog(settings)
    return known[settings.uri]


def file_schema(target: MergeTable) -> pa.Schema:
    """The schema of new files: those of an Iceberg table have field ids."""
    return target.find_file_schema() if isinstance(target, IcebergSinkTable) else SCHEMA


def made(folder: Path, size: int, *, vectors: bool) -> DeltaSinkTable:
    """A Delta table with so many rows."""
    target = opened(folder, vectors=vectors)
    fill_table(target, size)
    return target


def fill_table(target: MergeTable, size: int) -> None:
    """Create a table with so many rows, as a snapshot leaves it. Beside their keys, the rows repeat after a million."""
    target.create("bench")
    schema = file_schema(target)
    portion = rows(np.arange(min(size, _PORTION)), 1, np.random.default_rng(1))
    begins = [(start, at) for start in range(0, size, _PORTION) for at in range(0, min(_PORTION, size - start), _SLICE)]

    def write(begin: tuple[int, int]) -> DataFile:
        start, at = begin
        part = portion.slice(at, min(_SLICE, size - start - at))
        part = part.set_column(0, "id", pa.array(np.arange(start + at, start + at + part.num_rows)))
        name = f"snapshot/1/0/1/slice-{start + at}.parquet"
        return write_file(target.storage, name, schema, [part], "id")

    with ThreadPoolExecutor(2) as pool:
        files = list(pool.map(write, begins))
    target.commit(lambda _: PublishSlices(files), {}, FENCE)


def batches(size: int, changes: int, count: int) -> Iterator[tuple[int, pa.Table]]:
    """Batches of updates of random keys, each with its seq."""
    chance = np.random.default_rng(2)
    for seq in range(2, count + 2):
        yield seq, rows(chance.choice(size, changes, replace=False), seq, chance)
