"""Edits of the files of a table, and their translation into commits with deletion vectors or copy-on-write."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from airflow_provider_cdc.sinks.files.layout import SLICES_FOLDER
from airflow_provider_cdc.sinks.files.parquet import (
    NO_PARTITION,
    DataFile,
    PartitionValues,
    open_parquet,
    split_by_size,
)
from airflow_provider_cdc.sinks.lake.log.file_commit import AddFile, FileCommit, MarkRowsDead, RemoveFile
from airflow_provider_cdc.sinks.lake.log.table_log import LiveFile, RowOrigin, TableLog
from airflow_provider_cdc.sinks.lake.merge.key_index import FileKeyHashes
from airflow_provider_cdc.sinks.lake.merge.partitions import PartitionedWriter, TableFormat
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Folder, in the table's folder, of the changes that tasks have written.
CHANGES_FOLDER = "changes"
_PART_NAME = re.compile(r"(?:[^/]+=[^/]*/)*part-")
#: Copy-on-write rewrites a live file below the first size together with new rows, so that small files do not pile up,
#: and writes no file above the second size, so that no file grows without limit.
SMALL_FILE_BYTES, LARGE_FILE_BYTES = 4 << 20, 64 << 20


@dataclass(frozen=True)
class RewriteSource:
    """A file whose living rows are written to another file.

    :param dead: its dead rows.
    :param origin: what its rows inherit from it.
    """

    path: str
    dead: BitMap
    origin: RowOrigin | None = None

    @classmethod
    def of(cls, file: LiveFile, dead: BitMap) -> RewriteSource:
        """Make the source of a live file."""
        return cls(file.path, dead, file.row_origin)


@dataclass
class TableEdit:
    """What one commit does to the rows of a table.

    :param dead_rows: rows of live files that die.
    :param removed_files: live files that are removed as a whole.
    :param added_files: files that are added, each with those of its rows that are dead already.
    :param key_hashes: key hashes of new files.
    """

    dead_rows: dict[str, BitMap] = field(default_factory=dict)
    removed_files: set[str] = field(default_factory=set)
    added_files: list[tuple[DataFile, BitMap]] = field(default_factory=list)
    key_hashes: dict[str, FileKeyHashes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether it changes rows."""
        return bool(self.dead_rows or self.removed_files or self.added_files)

    def split_off_copy_on_write(self, table_format: TableFormat) -> tuple[TableEdit | None, TableEdit]:
        """Return the part for files that must not have deletion vectors (``None`` for none), and the rest.

        See :meth:`~.partitions.TableFormat.supports_vectors`.
        """
        has_vectors = table_format.supports_vectors
        dead = {path: rows for path, rows in self.dead_rows.items() if not has_vectors(path)}
        rewritten_new = [(file, rows) for file, rows in self.added_files if rows and not has_vectors(file.path)]
        if not dead and not rewritten_new:
            return None, self
        other_dead = {path: rows for path, rows in self.dead_rows.items() if has_vectors(path)}
        other_new = [(file, rows) for file, rows in self.added_files if not rows or has_vectors(file.path)]
        return TableEdit(dead_rows=dead, added_files=rewritten_new), TableEdit(
            other_dead, self.removed_files, other_new, self.key_hashes
        )


def prepare_deletion_vectors(log: TableLog, edit: TableEdit, table_format: TableFormat) -> FileCommit:
    """Prepare a commit that marks dead rows in deletion vectors and rewrites no files that support them."""
    copy_edit, edit = edit.split_off_copy_on_write(table_format)
    commit = FileCommit() if copy_edit is None else prepare_copy_on_write(log, copy_edit, table_format)
    commit.operations += [RemoveFile(log.files[path]) for path in sorted(edit.removed_files)]
    for path, rows in edit.dead_rows.items():
        file = log.files[path]
        total, row_count = log.dead_rows(file.path) | rows, count_rows(log.storage, file)
        commit.operations.append(MarkRowsDead(file, total, row_count) if len(total) < row_count else RemoveFile(file))
    for added_file, rows in edit.added_files:
        if len(rows) == added_file.rows:
            commit.delete_on_success.append(added_file.path)
        else:
            commit.operations.append(AddFile(added_file, rows))
    return commit


def prepare_copy_on_write(log: TableLog, edit: TableEdit, table_format: TableFormat) -> FileCommit:
    """Prepare a commit that rewrites files without their dead rows, partition by partition."""
    commit = FileCommit([RemoveFile(log.files[path]) for path in sorted(edit.removed_files)])
    slices = [file for file, rows in edit.added_files if file.path.startswith(f"{SLICES_FOLDER}/") and not rows]
    commit.operations += [AddFile(file) for file in slices if file.rows]
    by_partition: dict[Any, tuple[list[tuple[LiveFile, BitMap]], list[tuple[DataFile, BitMap]]]] = {}
    for path, rows in edit.dead_rows.items():
        file = log.files[path]
        by_partition.setdefault(partition_key(file), ([], []))[0].append((file, log.dead_rows(file.path) | rows))
    for added_file, rows in edit.added_files:
        if not added_file.path.startswith(f"{SLICES_FOLDER}/"):
            by_partition.setdefault(partition_key(added_file), ([], []))[1].append((added_file, rows))
    touched = edit.dead_rows.keys() | edit.removed_files
    small = {partition_key(f): f for f in log.files.values() if f.size < SMALL_FILE_BYTES and f.path not in touched}
    for partition, (live_sources, added_sources) in by_partition.items():
        if any(len(rows) < file.rows for file, rows in added_sources) and not any(
            f.size < SMALL_FILE_BYTES for f, _ in live_sources
        ):
            live_sources += [(f, log.dead_rows(f.path)) for f in [small.get(partition)] if f is not None]
        _rewrite_partition(commit, log.storage, table_format, live_sources, added_sources)
    return commit


def _rewrite_partition(
    commit: FileCommit,
    storage: Storage,
    table_format: TableFormat,
    live_sources: Sequence[tuple[LiveFile, BitMap]],
    added_sources: Sequence[tuple[DataFile, BitMap]],
) -> None:
    """Rewrite files of one partition without their dead rows.

    :param commit: the commit to which the result is added.
    :param live_sources: files of the table, with their dead rows.
    :param added_sources: files that are added, with their dead rows.
    """
    small_sources = [RewriteSource.of(f, rows) for f, rows in live_sources if f.size < SMALL_FILE_BYTES] + [
        RewriteSource(f.path, rows) for f, rows in added_sources
    ]
    large_sources = [[RewriteSource.of(f, rows)] for f, rows in live_sources if f.size >= SMALL_FILE_BYTES]
    commit.operations += [RemoveFile(file) for file, _ in live_sources]
    unchanged: list[DataFile] = []
    if len(small_sources) == 1 and added_sources and not added_sources[0][1]:  # keep the staged file unchanged
        small_sources, unchanged = [], [added_sources[0][0]]
    else:
        commit.delete_on_success += [file.path for file, _ in added_sources]
    partition = (live_sources[0][0] if live_sources else added_sources[0][0]).partition
    written = [
        file
        for sources in (*large_sources, small_sources)
        for file in _rewrite_files(storage, table_format, partition, sources)
    ]
    commit.delete_on_conflict += [file.path for file in written]
    commit.operations += [AddFile(file) for file in (*unchanged, *written) if file.rows]


def count_rows(storage: Storage, file: LiveFile) -> int:
    """Return the number of rows of a file, including dead ones."""
    if file.row_count is not None:
        return file.row_count
    with open_parquet(storage, file.path) as opened:
        return int(opened.metadata.num_rows)


def without_dead_rows(groups: Iterable[pa.Table], dead: BitMap) -> Iterator[pa.Table]:
    """Yield row groups of a file without its dead rows."""
    start = 0
    dead_numbers = np.asarray(dead.to_array(), np.int64) if dead else None
    for rows in groups:
        end = start + rows.num_rows
        if dead_numbers is not None:
            low, high = np.searchsorted(dead_numbers, [start, end])
            if low < high:
                mask = np.ones(rows.num_rows, bool)
                mask[dead_numbers[low:high] - start] = False
                rows = rows.filter(pa.array(mask))
        start = end
        yield rows


def read_living_row_groups(
    storage: Storage, table_format: TableFormat, sources: Iterable[RewriteSource]
) -> Iterator[pa.Table]:
    """Yield the living rows of files of one partition, as they are stored."""
    for source in sources:
        groups = table_format.read_for_rewrite(storage, source.path, source.origin)
        yield from without_dead_rows(groups, source.dead)


def _rewrite_files(
    storage: Storage, table_format: TableFormat, partition: PartitionValues, sources: Iterable[RewriteSource]
) -> list[DataFile]:
    """Write the living rows of files of one partition to new files of limited size."""
    return [
        table_format.write_rewritten_file(storage, new_file_path(table_format, partition), part, partition)
        for part in split_by_size(read_living_row_groups(storage, table_format, sources), LARGE_FILE_BYTES)
    ]


def write_data_files(
    storage: Storage, table_format: TableFormat, tables: Iterable[pa.Table]
) -> tuple[list[DataFile], Any]:
    """Write rows to new files of their partitions.

    :returns: the files, and for each row the number of its file.
    """
    if not table_format.is_partitioned:
        file = table_format.write_file(storage, new_file_path(table_format), tables)
        return [file], np.zeros(file.rows, np.int64)
    files = PartitionedWriter(storage, "", _new_file_stem(), table_format)
    number = [files.add(rows)[0] for rows in tables]
    return files.close(), np.concatenate(number)


def new_file_path(table_format: TableFormat, partition: PartitionValues = NO_PARTITION) -> str:
    """Return the path of a new file of a partition."""
    return table_format.file_path("", partition, f"{_new_file_stem()}.parquet")


def _new_file_stem() -> str:
    return f"part-{uuid.uuid4().hex}"


def is_part_file(path: str) -> bool:
    """Return whether a file has such a name, in the table's folder or in that of a partition."""
    return _PART_NAME.match(path) is not None


def partition_key(file: DataFile | LiveFile) -> frozenset[tuple[str, str | None]]:
    """Return the partition of a file as a hashable value."""
    return frozenset(file.partition.items())
