"""Scan one side of a comparison: sum its rows, or keep those of some buckets. For a sink, tasks do this."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.model.bucket_sums import BUCKET_COUNT, BucketSums
from airflow_provider_cdc.sinks.scan_tasks import ScanTask
from airflow_provider_cdc.sinks.storage.request_counts import with_current_counts

#: Threads of this process that read at the same time; each holds a row group in memory.
_THREADS = 8


@dataclass(frozen=True)
class RowHasher:
    """Hashes rows, and assigns them to buckets.

    :param columns: the columns that are compared.
    :param key: the columns that identify a row; empty if all of them do.
    :param secret: the key of the hash function: two 64-bit words.
    """

    columns: tuple[str, ...]
    key: tuple[str, ...]
    secret: tuple[int, int]

    def hashes(self, rows: pa.Table) -> tuple[Any, Any]:
        """Return the hashes of rows, as two arrays of uint64."""
        return self._hash_columns(rows, self.columns)

    def key_hashes(self, rows: pa.Table) -> Any:
        """Return the hashes of the rows' keys, as an array of uint64."""
        return self._hash_columns(rows, self.key or self.columns)[0]

    def buckets(self, rows: pa.Table) -> Any:
        """Return the buckets of rows, as an array of uint16."""
        return _hash_buckets(self.key_hashes(rows))

    def add_to_sums(self, rows: pa.Table, sums: BucketSums, weights: Any = None) -> None:
        """Add rows to sums.

        :param weights: as for :meth:`BucketSums.add`.
        """
        first, second = self.hashes(rows)
        sums.add(self.buckets(rows) if self.key else _hash_buckets(first), first, second, weights)

    def _hash_columns(self, rows: pa.Table, columns: Sequence[str]) -> tuple[Any, Any]:
        from airflow_provider_cdc.sinks.row_hashes import hash_rows  # compiled: loaded only when needed

        return hash_rows(rows, columns, np.array(self.secret, np.uint64))


def _hash_buckets(hashes: Any) -> Any:
    return (hashes & np.uint64(BUCKET_COUNT - 1)).astype(np.uint16)


@dataclass
class RowCollector:
    """Collects rows: sums all of them, or keeps those of some buckets.

    :param row_hasher: hashes the rows.
    :param bucket_mask: a bit for each bucket whose rows are kept; ``None`` to sum all of them.
    """

    row_hasher: RowHasher
    bucket_mask: bytes | None = None
    sums: BucketSums = field(default_factory=BucketSums)
    rows: list[pa.Table] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        """Add rows, which must have at least the columns that are compared."""
        if not rows.num_rows:
            return
        if self.bucket_mask is not None:
            if (matching := self.filter_rows(rows)).num_rows:
                self.rows.append(matching)
            return
        self.sums.row_bytes += rows.nbytes
        self.row_hasher.add_to_sums(rows, self.sums)

    def filter_rows(self, rows: pa.Table, copy_rows: pa.Table | None = None) -> pa.Table:
        """Return the rows of the selected buckets; all rows if every bucket is summed.

        :param copy_rows: what the rows are in the copy, if that differs; it determines their buckets.
        """
        if self.bucket_mask is None or not rows.num_rows:
            return rows
        selected = np.unpackbits(np.frombuffer(self.bucket_mask, np.uint8), bitorder="little")
        buckets = self.row_hasher.buckets(rows if copy_rows is None else copy_rows)
        return rows.filter(pa.array(selected[buckets].astype(bool)))

    def merge(self, other: RowCollector) -> None:
        """Add what another collector has collected."""
        self.sums.merge(other.sums)
        self.rows += other.rows


def make_bucket_mask(buckets: Iterable[int]) -> bytes:
    """Return a mask with the bits of these buckets set."""
    mask = np.zeros(BUCKET_COUNT, np.uint8)
    mask[np.fromiter(buckets, np.int64)] = 1
    return np.packbits(mask, bitorder="little").tobytes()


@dataclass(frozen=True)
class SinkScan:
    """A task's share of a table.

    :param portions: the portions that it reads.
    :param row_hasher: hashes the rows.
    :param bucket_mask: as for :class:`RowCollector`.
    """

    portions: tuple[ScanTask, ...]
    row_hasher: RowHasher
    bucket_mask: bytes | None = None

    def run(self, check: Callable[[], None] = lambda: None) -> RowCollector:
        """Read the share and return what was collected.

        :param check: called before each portion; an exception from it ends the scan.
        """
        collector = RowCollector(self.row_hasher, self.bucket_mask)
        for portion in self.portions:
            check()
            for rows in portion.read_rows(self.row_hasher.columns):
                collector.add(rows)
        return collector


#: Runs scans in threads or Spark tasks; returns the results in the order of the scans.
ScanRunner = Callable[[Sequence[SinkScan]], Sequence[RowCollector]]


def split_evenly(portions: Iterable[ScanTask], count: int) -> list[tuple[ScanTask, ...]]:
    """Split portions into non-empty shares of about the same size.

    :param count: maximum number of shares.
    """
    bins: list[tuple[int, list[ScanTask]]] = [(0, []) for _ in range(count)]
    for portion in sorted(portions, key=lambda p: p.size_bytes, reverse=True):
        number = min(range(count), key=lambda n: bins[n][0])
        size, bin_portions = bins[number]
        bins[number] = size + portion.size_bytes + 1, [*bin_portions, portion]
    return [tuple(held) for _, held in bins if held]


def run_scans_in_threads(scans: Sequence[SinkScan], check: Callable[[], None] = lambda: None) -> Sequence[RowCollector]:
    """Run scans in threads of this process; reading and hashing is machine code that releases the GIL.

    :param check: see :meth:`SinkScan.run`.
    """
    with ThreadPoolExecutor(max(1, min(len(scans), os.cpu_count() or 1, _THREADS))) as pool:
        return list(pool.map(with_current_counts(methodcaller("run", check)), scans))
