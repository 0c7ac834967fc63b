"""Compaction merges small files into larger ones and removes dead rows, without blocking other writers.

Its output depends only on files that never change, so a compaction may run anywhere, at any time, and twice. Each run
uses another file name, because a task that was given up may continue after the commit of its replacement. Only the
commit uses the current state of the table: rows that have died since are dead in the new file, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyroaring import BitMap

from airflow_provider_cdc.sinks.files.parquet import DataFile, PartitionValues
from airflow_provider_cdc.sinks.lake.log.file_commit import AddFile, CommitKind, FileCommit, RemoveFile
from airflow_provider_cdc.sinks.lake.log.table_log import LiveFile, RowOrigin, TableLog
from airflow_provider_cdc.sinks.lake.merge.partitions import TableFormat
from airflow_provider_cdc.sinks.lake.merge.table_edit import (
    RewriteSource,
    count_rows,
    new_file_path,
    partition_key,
    read_living_row_groups,
)
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Number of files of one tier that are merged: the sizes within a tier differ by at most a factor of eight.
FANOUT = 8
#: Lower limit of this number for tables with many partitions.
MIN_FANOUT = 4
#: Share of dead rows above which a file is rewritten, and size below which it waits to be merged instead.
MAX_DEAD_SHARE, MIN_REWRITE_BYTES = 0.15, 2 << 20
#: The size of merged files is limited to a share of the table's size, within these bounds.
_MERGED_BYTES_LIMITS, _MERGED_SIZE_DIVISOR = (16 << 20, 1 << 30), 64
#: Some readers hang if a table has more files with vectors than this.
_MAX_FILES = 400


@dataclass(frozen=True)
class FileCompaction:
    """Files to be merged into one.

    :param storage: storage of the table's folder.
    :param table_format: format of the table.
    :param sources: paths, each with its dead rows (serialized bitmap).
    :param partition: the partition of all of these files.
    :param origins: what the rows of each source inherit from it.
    """

    storage: Storage
    table_format: TableFormat
    sources: tuple[tuple[str, bytes], ...]
    partition: PartitionValues = field(default_factory=dict, hash=False)
    origins: tuple[RowOrigin | None, ...] = ()

    def run(self) -> list[DataFile]:
        """Write the living rows of the files to one file.

        :returns: the new file; empty if no row is alive.
        """
        origins = self.origins or (None,) * len(self.sources)
        sources = (
            RewriteSource(path, BitMap.deserialize(dead), origin)
            for (path, dead), origin in zip(self.sources, origins, strict=True)
        )
        path = new_file_path(self.table_format, self.partition)
        rows = read_living_row_groups(self.storage, self.table_format, sources)
        file = self.table_format.write_rewritten_file(self.storage, path, rows, self.partition)
        if not file.rows:
            self.storage.delete(path)
        return [file] if file.rows else []


def plan_compactions(
    log: TableLog, table_format: TableFormat, *, deletion_vectors: bool, purge: bool
) -> list[FileCompaction]:
    """Return the compactions that are due.

    :param deletion_vectors: whether rows may be deleted by deletion vectors; if not, files with one are rewritten.
    :param purge: whether to remove all dead rows and merge all small files.
    """
    return [
        FileCompaction(
            log.storage,
            table_format,
            tuple((f.path, bytes(log.dead_rows(f.path).serialize())) for f in files),
            files[0].partition,
            tuple(f.row_origin for f in files),
        )
        for files in choose_file_groups(
            list(log.files.values()),
            lambda f: count_rows(log.storage, f),
            deletion_vectors=deletion_vectors,
            purge=purge,
        )
    ]


def choose_file_groups(
    files: Sequence[LiveFile], count_rows_of: Any, *, deletion_vectors: bool = True, purge: bool = False
) -> list[list[LiveFile]]:
    """Return groups of files, each of which is to be merged into one file.

    A row is rewritten once for each tier that its file rises. After that it is rewritten only to remove dead rows, once
    per period in which that share of the file's rows dies.

    :param count_rows_of: returns the number of rows of a file.
    :param deletion_vectors, purge: as for :func:`plan_compactions`.
    """
    parts: dict[Any, list[LiveFile]] = {}
    for file in files:
        parts.setdefault(partition_key(file), []).append(file)
    max_bytes = _max_merged_bytes(sum(f.size for f in files))
    groups: list[list[LiveFile]] = []
    for partition_files in parts.values():
        to_merge = _files_of_full_tiers(partition_files, max_bytes, 1 if purge else _tier_fanout(len(parts)))
        bin_bytes = max_bytes
        if not to_merge and len(files) > _MAX_FILES and len(partition_files) > max(1, _MAX_FILES // len(parts)):
            to_merge, bin_bytes = _smaller_half(partition_files), 4 * max_bytes
        if purge or not deletion_vectors:
            mostly_dead = [f for f in partition_files if f.dead_row_count]
        else:
            mostly_dead = [
                f
                for f in partition_files
                if f.size >= MIN_REWRITE_BYTES and f.dead_row_count > MAX_DEAD_SHARE * count_rows_of(f)
            ]
        bins = list(_pack_bins(to_merge, bin_bytes))
        merged_paths = {f.path for group in bins for f in group}
        groups += [*bins, *([f] for f in mostly_dead if f.path not in merged_paths)]
    return groups


def _max_merged_bytes(total: int) -> int:
    """Return the maximum size of a merged file."""
    return max(
        _MERGED_BYTES_LIMITS[0], min(total // _MERGED_SIZE_DIVISOR, _MERGED_BYTES_LIMITS[1]), 2 * total // _MAX_FILES
    )


def _tier_fanout(parts: int) -> int:
    """Return how many files of a tier trigger a merge: fewer if there are many partitions."""
    return FANOUT if parts == 1 else max(MIN_FANOUT, min(FANOUT, _MAX_FILES // 2 // parts))


def _files_of_full_tiers(files: Sequence[LiveFile], max_bytes: int, fanout: int) -> list[LiveFile]:
    """Return the files of a partition's highest full tier and of all tiers below it, smallest first.

    Files above half of the maximum size do not grow any further and belong to no tier.
    """
    mergeable = sorted((f for f in files if 2 * f.size <= max_bytes), key=lambda f: f.size)
    tiers = Counter(map(_size_tier, mergeable))
    highest_full_tier = max((tier for tier, count in tiers.items() if count >= fanout), default=None)
    return [] if highest_full_tier is None else [f for f in mergeable if _size_tier(f) <= highest_full_tier]


def _size_tier(file: LiveFile) -> int:
    return file.size.bit_length() // 3


def _smaller_half(files: Sequence[LiveFile]) -> list[LiveFile]:
    """Return the smaller half of a partition's files, without files that dwarf the rest."""
    smallest = sorted(files, key=lambda f: f.size)[: max(2, len(files) // 2)]
    while smallest and smallest[-1].size > 4 * sum(f.size for f in smallest[:-1]):
        smallest.pop()
    return smallest


def _pack_bins(files: Sequence[LiveFile], max_bytes: int) -> Iterator[list[LiveFile]]:
    """Yield groups of at least two files with at most ``max_bytes`` in total; a file left alone is not rewritten."""
    bin_files: list[LiveFile] = []
    size = 0
    for file in files:
        if bin_files and size + file.size > max_bytes:
            if len(bin_files) > 1:
                yield bin_files
            bin_files, size = [], 0
        bin_files.append(file)
        size += file.size
    if len(bin_files) > 1:
        yield bin_files


def prepare_compaction_commit(
    log: TableLog, results: Sequence[tuple[FileCompaction, Sequence[DataFile]]], table_format: TableFormat
) -> tuple[FileCommit, int]:
    """Prepare the commit of compactions that have run, on the current version of the table.

    Each compaction succeeds or fails on its own: it is dropped if a file that it read is gone, or its output must not
    replace these files.

    :returns: the commit, and the number of compactions that it contains.
    """
    commit, added_files, committed_count = FileCommit(kind=CommitKind.OPTIMIZE), list[AddFile](), 0
    replaced_paths = set[str]()
    for compaction, files in results:
        dead = None if replaced_paths & {path for path, _ in compaction.sources} else _rows_dead_since(log, compaction)
        if dead is None or any(dead and not table_format.supports_vectors(file.path) for file in files):
            # It may already be committed.
            commit.delete_on_success += [file.path for file in files if file.path not in log.files]
            continue
        committed_count += 1
        replaced_paths |= {path for path, _ in compaction.sources}
        commit.operations += [RemoveFile(log.files[path]) for path, _ in compaction.sources]
        for file in files:
            if len(dead) == file.rows:
                commit.delete_on_success.append(file.path)
            else:
                added_files.append(AddFile(file, dead))
    commit.operations += added_files
    return commit, committed_count


def _rows_dead_since(log: TableLog, compaction: FileCompaction) -> BitMap | None:
    """Return the rows of a compaction's output that have died since; ``None`` if the compaction is void."""
    start, dead = 0, BitMap()
    for path, serialized_dead in compaction.sources:
        if path not in log.files:
            return None
        live_file = log.files[path]
        dead_before, dead_now = BitMap.deserialize(serialized_dead), log.dead_rows(live_file.path)
        if not dead_before.issubset(dead_now):
            return None  # rows came back: an older version was restored
        newly_dead = np.asarray((dead_now - dead_before).to_array(), np.int64)
        dead |= BitMap(
            (start + newly_dead - np.searchsorted(np.asarray(dead_before.to_array(), np.int64), newly_dead)).astype(
                "u4"
            )
        )
        start += count_rows(log.storage, live_file) - len(dead_before)
    return dead
