"""Translates changes into edits of a table: which rows of its files die, and which files are added.

The index finds keys, and the log determines which rows are alive. Decision 0001 explains why.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from airflow_provider_cdc.config.delete_policy import HARD, SOFT
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.model.multiset import MissingRowsError, take_first_of_each
from airflow_provider_cdc.model.plan import AD_HOC_GROUP_BASE
from airflow_provider_cdc.model.schema import DELETED_COLUMN, OP_COLUMN, SEQ_COLUMN
from airflow_provider_cdc.sinks.files.layout import SLICES_FOLDER
from airflow_provider_cdc.sinks.files.parquet import DataFile, empty_table, read_file, read_row_numbers, split_by_size
from airflow_provider_cdc.sinks.lake.log.table_log import LiveFile, TableLog, excludes_span
from airflow_provider_cdc.sinks.lake.merge.key_hashes import KeyHashes
from airflow_provider_cdc.sinks.lake.merge.key_index import FileKeyHashes, KeyMatches
from airflow_provider_cdc.sinks.lake.merge.key_lookup import KeyLookup
from airflow_provider_cdc.sinks.lake.merge.row_seqs import seqs_of, with_lowest_seqs
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import add_deleted_column, deleted_mask, mark_deleted
from airflow_provider_cdc.sinks.lake.merge.table_edit import (
    LARGE_FILE_BYTES,
    TableEdit,
    count_rows,
    without_dead_rows,
    write_data_files,
)
from airflow_provider_cdc.sinks.protocol import Change, MultisetChange, OverwriteRange, PublishSlices, Truncate, Upsert

#: Additional columns of changes: the number of the file that contains the change, and the row in it. Column names of a
#: server never end with a space.
FILE_COLUMN, ROW_COLUMN = "__file ", "__row "
_FILES_METADATA_KEY = b"files"
#: Slices of a source that shares the table are in a folder ``database.table``.
_SLICE_PATH = re.compile(rf"{SLICES_FOLDER}/(?:[^/]*\.[^/]*/)?(\d+)/(\d+)/")


def with_row_places(changes: pa.Table, files: Sequence[DataFile]) -> pa.Table:
    """Return changes that are already in files, with the file and row of each.

    :param changes: rows of the files, one file after the other.
    """
    number = np.repeat(np.arange(len(files)), [file.rows for file in files])
    row = np.concatenate([np.arange(file.rows) for file in files]) if files else np.empty(0, np.int64)
    located = changes.append_column(FILE_COLUMN, pa.array(number, pa.int64())).append_column(
        ROW_COLUMN, pa.array(row, pa.int64())
    )
    return with_files_metadata(located, files)


def with_files_metadata(changes: pa.Table, files: Sequence[DataFile]) -> pa.Table:
    """Return changes with the list of files that their file numbers refer to.

    :param files: the files, in the order of their numbers.
    """
    return changes.replace_schema_metadata({_FILES_METADATA_KEY: json.dumps([file.to_json() for file in files])})


def _chunk_group_of(path: str) -> tuple[int, int] | None:
    """Return generation and number of the chunk group of all rows of a file; ``None`` if it may have any rows."""
    match = _SLICE_PATH.match(path)
    if match is None or int(match[2]) >= AD_HOC_GROUP_BASE:
        return None
    return int(match[1]), int(match[2])


class ChangeMerger:
    """Merges changes into one version of a table.

    :param log: the current state of the table.
    :param key_lookup: finds rows by key.
    :param deletes: how rows that the source deletes are handled.
    """

    def __init__(self, log: TableLog, key_lookup: KeyLookup, deletes: str = HARD) -> None:
        self._log, self._key_lookup, self._deletes = log, key_lookup, deletes
        self._format, self._key_hasher = key_lookup.table_format, key_lookup.key_hasher
        self._storage = log.storage

    def plan_edit(self, change: Change) -> TableEdit | None:
        """Return the edit that a change leads to; ``None`` for none."""
        match change:
            case Upsert(changes):
                return self._upsert_rows(changes)
            case MultisetChange():
                return self._apply_counts(change)
            case Truncate(seq, truncated_at):
                hard = self._deletes == HARD
                edit = self._remove_older_rows(seq) if hard else self._mark_older_rows(seq, truncated_at)
                return edit if edit.removed_files or edit.dead_rows else None
            case PublishSlices(slices):
                return TableEdit(added_files=self._slice_files(slices))
            case OverwriteRange() if self._deletes == HARD:
                return self._overwrite_range(change)
            case OverwriteRange():
                return self._overwrite_keeping_deleted(change)

    def _upsert_rows(self, changes: pa.Table) -> TableEdit:
        hashes, seqs = self._key_hasher(changes), changes[SEQ_COLUMN].to_numpy()
        edit, is_current = TableEdit(), np.ones(changes.num_rows, bool)
        if changes.num_rows:
            matches = self._key_lookup.find_rows(self._log, hashes)
            index, lowest = self._key_lookup.index, int(seqs.min())
            for file, queries, rows in self.living_matches(matches):
                newer = np.ones(len(rows), bool)
                if index.newest_seq(index.file_number(file.path)) >= lowest:
                    newer = seqs[queries] > self._read_seqs(file)[rows]
                is_current[queries[~newer]] = False
                if newer.any():
                    edit.dead_rows[file.path] = BitMap(rows[newer].astype(np.uint32))
        if self._deletes != SOFT:
            is_current &= pc.not_equal(changes[OP_COLUMN], "d").to_numpy()
        self._add_rows(edit, changes, hashes, is_current)
        return edit

    def _add_rows(self, edit: TableEdit, changes: pa.Table, hashes: KeyHashes, is_current: Any) -> None:
        """Add the rows of changes, either in the staged files that contain them or in new files."""
        if FILE_COLUMN not in changes.column_names:
            rows = add_deleted_column(changes.filter(pa.array(is_current)), self._format.schema)
            if rows.num_rows:
                self._write_new_rows(edit, rows, hashes.select(np.flatnonzero(is_current)))
            return
        files = [DataFile.from_json(value) for value in json.loads(changes.schema.metadata[_FILES_METADATA_KEY])]
        number, row = changes[FILE_COLUMN].to_numpy(), changes[ROW_COLUMN].to_numpy()
        newest = int(pc.max(changes[SEQ_COLUMN]).as_py() or 0)
        living = np.flatnonzero(is_current)
        for file, part in zip(files, group_by_number(number[living], len(files)), strict=True):
            kept_changes = living[part]
            dead = BitMap(range(file.rows)) - BitMap(row[kept_changes].astype(np.uint32))
            edit.added_files.append((file, dead))
            edit.key_hashes[file.path] = FileKeyHashes(
                hashes.select(kept_changes), newest, row[kept_changes].astype(np.uint32)
            )

    def _write_new_rows(self, edit: TableEdit, rows: pa.Table, hashes: KeyHashes) -> None:
        files, number = self._write_data_files([rows.select(self._format.schema.names)])
        for file, row_indices in zip(files, group_by_number(number, len(files)), strict=True):
            edit.added_files.append((file, BitMap()))
            edit.key_hashes[file.path] = FileKeyHashes(hashes.select(row_indices), file.newest or 0)

    def _write_data_files(self, tables: Iterable[pa.Table]) -> tuple[list[DataFile], Any]:
        return write_data_files(self._storage, self._format, tables)

    def _apply_counts(self, change: MultisetChange) -> TableEdit:
        net = change.net
        edit = self._remove_older_rows(change.truncate_seq) if change.truncate_seq else TableEdit()
        if net.removed.num_rows:
            matches = self._key_lookup.find_rows(self._log, self._key_hasher(net.removed))
            remaining = net.removed_counts.copy()
            for file, queries, rows in self.living_matches(matches):
                if file.path in edit.removed_files:
                    continue
                is_free = np.ones(len(rows), bool)
                if file.path in edit.dead_rows:
                    is_free = ~np.isin(rows, np.asarray(edit.dead_rows[file.path].to_array(), np.int64))
                candidates = np.flatnonzero(is_free)
                chosen = take_first_of_each(candidates, queries, remaining)
                remaining -= np.bincount(queries[chosen], minlength=len(remaining))
                if len(chosen):
                    edit.dead_rows[file.path] = edit.dead_rows.get(file.path, BitMap()) | BitMap(
                        rows[chosen].astype(np.uint32)
                    )
            if remaining.any():
                missing = int(np.flatnonzero(remaining)[0])
                raise MissingRowsError(net.removed.slice(missing, 1), int(remaining[missing]))
        if net.added.num_rows:
            self._write_new_rows(edit, net.added, self._key_hasher(net.added))
        return edit

    def _remove_older_rows(self, seq: int) -> TableEdit:
        """Return an edit that deletes all rows with a lower ``_cdc_seq``."""
        edit = TableEdit()
        for file, rows in self._find_older_rows(seq):
            if rows is None:
                edit.removed_files.add(file.path)
            else:
                edit.dead_rows[file.path] = rows
        return edit

    def _find_older_rows(self, seq: int) -> Iterator[tuple[LiveFile, BitMap | None]]:
        """Yield the living rows with a lower ``_cdc_seq`` by file; ``None`` for all rows of a file."""
        for file in self._log.files.values():
            bounds = file.bounds(SEQ_COLUMN)
            if bounds is not None and bounds[0] >= seq:
                continue
            if bounds is not None and bounds[1] < seq:
                yield file, None
            elif rows := BitMap(np.flatnonzero(self._read_seqs(file) < seq).astype(np.uint32)) - self._log.dead_rows(
                file.path
            ):
                yield file, rows

    def _overwrite_range(self, change: OverwriteRange) -> TableEdit:
        """Return an edit that replaces all rows of a chunk group, or of key ranges, by slices.

        A snapshot file has rows of only one chunk group, so that it is removed or kept as a whole. All other files may
        have any rows, and only those in the range are deleted.
        """
        edit = TableEdit(added_files=self._slice_files(change.slices))
        for file, only_in_range in self._files_in_range(change):
            if only_in_range:
                edit.removed_files.add(file.path)
                continue
            keys = self._read_columns(file, self._format.key_columns or [SEQ_COLUMN])
            leaves = np.flatnonzero(change.owns_rows(with_lowest_seqs(keys)).to_numpy(zero_copy_only=False))
            rows = BitMap(leaves.astype(np.uint32)) - self._log.dead_rows(file.path)
            if rows:
                edit.dead_rows[file.path] = rows
        return edit

    def _files_in_range(self, change: OverwriteRange) -> Iterator[tuple[LiveFile, bool]]:
        """Yield the files that may have rows in the range, and whether they have no others."""
        for file in self._log.files.values():
            file_group = _chunk_group_of(file.path)
            if file_group is not None and file_group == change.chunk_group:
                yield file, True
                continue
            is_other_group = (
                file_group is not None and change.chunk_group is not None and file_group[0] == change.chunk_group[0]
            )
            if not is_other_group and not excludes_span(file, self._format.stats_column, change.key_span):
                yield file, False

    # ------------------------------------------------------------ retained deleted rows

    def _mark_older_rows(self, seq: int, truncated_at: int) -> TableEdit:
        """Return an edit that marks all rows with a lower ``_cdc_seq`` as deleted in the source."""
        edit = TableEdit()
        if self._deletes == SOFT:
            unmarked = ((file, self.unmarked_rows(file, rows)) for file, rows in self._find_older_rows(seq))
            self._rewrite_marked(edit, {file.path: rows for file, rows in unmarked if rows}, truncated_at, seq)
        return edit

    def _overwrite_keeping_deleted(self, change: OverwriteRange) -> TableEdit:
        """Return an edit that replaces rows in the range by slices with the same keys, and keeps the others.

        The others are, or may be, deleted in the source. If the table marks deleted rows, they are marked now.
        """
        edit, rows_to_mark = TableEdit(added_files=self._slice_files(change.slices)), dict[str, BitMap]()
        names, index = self._format.key_columns, self._key_lookup.index_slices(change.slices)
        for file, only_in_range in self._files_in_range(change):
            keys = self._read_columns(file, names)
            is_owned = (
                np.ones(keys.num_rows, bool)
                if only_in_range
                else change.owns_rows(keys).to_numpy(zero_copy_only=False).copy()
            )
            is_owned[self._log.dead_rows(file.path).to_array()] = False
            rows = np.flatnonzero(is_owned)
            replaced_rows = rows[np.unique(index.find_keys(self._key_hasher(keys.take(pa.array(rows)))).query_index)]
            if len(replaced_rows):
                edit.dead_rows[file.path] = BitMap(replaced_rows.astype(np.uint32))
            if self._deletes == SOFT and (
                unmarked_rows := self.unmarked_rows(file, BitMap(np.setdiff1d(rows, replaced_rows).astype("u4")))
            ):
                rows_to_mark[file.path] = unmarked_rows
        self._rewrite_marked(edit, rows_to_mark, int(time.time() * 1_000_000))
        return edit

    def unmarked_rows(self, file: LiveFile, rows: BitMap | None) -> BitMap:
        """Return those of some rows (``None`` for all living rows) that are not marked as deleted."""
        if rows is None:
            rows = BitMap(range(count_rows(self._storage, file))) - self._log.dead_rows(file.path)
        if not rows:
            return rows
        return rows - BitMap(np.flatnonzero(deleted_mask(self._read_columns(file, [DELETED_COLUMN]))).astype(np.uint32))

    def _rewrite_marked(
        self, edit: TableEdit, rows: Mapping[str, BitMap], marked_at: int, seq: int | None = None
    ) -> None:
        """Replace rows by copies that are marked as deleted."""

        def marked() -> Iterator[pa.Table]:
            for path, which in rows.items():
                numbers, partition = np.asarray(which.to_array(), np.int64), self._log.files[path].partition
                schema = self._row_schema
                for part in read_row_numbers(self._storage, path, schema, numbers, partition, may_lack_columns=True):
                    yield mark_deleted(part, marked_at, seq)

        for part in split_by_size(marked(), LARGE_FILE_BYTES):
            edit.added_files += [(file, BitMap()) for file in self._write_data_files(part)[0]]
        for path, row_bitmap in rows.items():
            edit.dead_rows[path] = edit.dead_rows.get(path, BitMap()) | row_bitmap

    def _slice_files(self, slices: Sequence[DataFile]) -> list[tuple[DataFile, BitMap]]:
        """Return slices as files of the table.

        No version refers to them yet, so that other programs may have deleted them.
        """
        files = [file for part in slices for file in part.files]
        for file in files:
            if self._storage.size(file.path) != file.size:
                raise TransientError(
                    f"the file {self._storage.location(file.path)} is missing or incomplete",
                    "Run again to read it again. Do not run VACUUM during a snapshot",
                )
        return [(file, BitMap()) for file in files if file.rows]

    # ------------------------------------------------------------ lookups

    def living_matches(self, matches: KeyMatches) -> Iterator[tuple[LiveFile, Any, Any]]:
        """Yield the living rows found, file by file: the file, the query indices, and the row numbers."""
        order = np.argsort(matches.file_number, kind="stable")
        numbers, starts = np.unique(matches.file_number[order], return_index=True)
        for number, match_indices in zip(numbers, np.split(order, starts[1:]), strict=False):
            file = self._log.files.get(self._key_lookup.index.file_path(int(number)))
            if file is None:  # removed from the table before another thread had indexed it
                continue
            queries, rows = matches.query_index[match_indices], matches.row_number[match_indices]
            if dead := self._log.dead_rows(file.path):
                living = BitMap(rows.astype(np.uint32)) - dead
                is_living = np.isin(rows, np.asarray(living.to_array(), np.int64))
                queries, rows = queries[is_living], rows[is_living]
            if len(rows):
                yield file, queries, rows

    def _read_seqs(self, file: LiveFile) -> Any:
        return seqs_of(self._read_columns(file, [SEQ_COLUMN]))

    def _read_columns(self, file: LiveFile, columns: Sequence[str]) -> pa.Table:
        return read_file(self._storage, file.path, self._row_schema, columns, file.partition)

    @cached_property
    def _row_schema(self) -> pa.Schema:
        return self._log.identify_columns(self._format.schema)


def group_by_number(number: Any, count: int) -> list[Any]:
    """Return, for each number, the indices of the rows that have it, in order.

    :param number: array of numbers below ``count``.
    """
    order = np.argsort(number, kind="stable")
    groups: list[Any] = np.split(order, np.searchsorted(number[order], np.arange(1, count))) if count else []
    return groups


def read_living_rows(log: TableLog, schema: pa.Schema) -> pa.Table:
    """Return all rows of a version."""
    schema = log.identify_columns(schema)
    parts = [empty_table(schema)]
    for file in log.files.values():
        rows = read_file(log.storage, file.path, schema, partition=file.partition, may_lack_columns=True)
        parts += without_dead_rows([rows], log.dead_rows(file.path))
    return pa.concat_tables(parts)
