"""Rows that are kept when all rows of a table are overwritten: those that the source has deleted (``sink.deletes``).

The re-snapshot determines which rows these are: its keys are indexed, and the table's files are compared with the index
one by one. A file of which all rows are kept unchanged is kept as it is. The other files are rewritten without the
columns that the table no longer has: no file may keep such a column, because a new column with the same name may be
added.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.config.delete_policy import SOFT
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.row_retention import RetainedRowsLoss, can_hold_all_values, why_not_retainable
from airflow_provider_cdc.model.schema import DELETED_COLUMN, SEQ_COLUMN, TableSchema
from airflow_provider_cdc.sinks.files.parquet import (
    DataFile,
    has_only_columns,
    read_row_groups,
    read_row_numbers,
    split_by_size,
)
from airflow_provider_cdc.sinks.lake.log.table_log import LiveFile, TableLog
from airflow_provider_cdc.sinks.lake.merge.key_hashes import KeyHasher
from airflow_provider_cdc.sinks.lake.merge.key_index import KeyIndex
from airflow_provider_cdc.sinks.lake.merge.key_lookup import KeyLookup
from airflow_provider_cdc.sinks.lake.merge.row_seqs import seqs_of
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import deleted_mask, mark_deleted, with_deleted_column
from airflow_provider_cdc.sinks.lake.merge.table_edit import LARGE_FILE_BYTES, count_rows, write_data_files


@dataclass
class RetainedFiles:
    """Files with rows that are kept.

    :param unchanged: paths of files of the table that are kept as they are.
    :param written: new files with kept rows of other files.
    """

    unchanged: set[str] = field(default_factory=set)
    written: list[DataFile] = field(default_factory=list)


class RetainedRowFinder:
    """Finds the rows of a version that are kept.

    :param log: the current state of the table.
    :param key_lookup: defines the key by which rows are looked up, and the columns to read.
    :param deletes: ``sink.deletes`` of the table.
    """

    def __init__(self, log: TableLog, key_lookup: KeyLookup, deletes: str) -> None:
        self._log, self._key_lookup, self._format = log, key_lookup, key_lookup.table_format
        self._soft_deletes = deletes == SOFT
        self._row_schema = log.identify_columns(self._format.schema)

    def write_retained_rows(self, slices: Sequence[DataFile], seq: int) -> RetainedFiles:
        """Write the rows that are kept when slices replace all others.

        :param slices: rows of the re-snapshot.
        :param seq: its ``_cdc_seq``: newer rows of the table are removed, because the stream applies their changes
            again.
        """
        retained_files, marked_at = RetainedFiles(), int(time.time() * 1_000_000)
        index = self._key_lookup.index_slices(slices)

        def rows() -> Iterator[pa.Table]:
            for file in self._log.files.values():
                row_numbers, unmarked = self._find_retained_rows(file, index, seq)
                all_stay = len(row_numbers) == self._living_row_count(file) and not unmarked.any()
                if all_stay and has_only_columns(self._log.storage, file.path, self._format.rewritten_schema):
                    retained_files.unchanged.add(file.path)
                elif len(row_numbers):
                    yield from self._read_retained_rows(file, row_numbers, unmarked, marked_at)

        try:
            for part in split_by_size(rows(), LARGE_FILE_BYTES):
                files, _ = write_data_files(self._log.storage, self._format, part)
                retained_files.written += files
        except pa.ArrowInvalid as error:
            raise TerminalError(
                f"rows of the {self._log.name} that the source has deleted do not fit its new columns: {error}",
                "Move the folder of the table away, and re-snapshot it: airflow-cdc resnapshot",
            ) from error
        return retained_files

    def count_unmatched(self, slices: Sequence[DataFile]) -> int:
        """Return the number of rows whose keys are not in the slices."""
        index = self._key_lookup.index_slices(slices)
        return sum(len(self._find_retained_rows(file, index, None)[0]) for file in self._log.files.values())

    def count_marked(self) -> int:
        """Return the number of rows marked as deleted."""
        if not self._soft_deletes:
            return 0
        files = self._log.files.values()
        return sum(int(np.count_nonzero(~self._find_retained_rows(file, None, None)[1])) for file in files)

    def count_living(self) -> int:
        """Return the number of living rows."""
        return sum(self._living_row_count(file) for file in self._log.files.values())

    def _living_row_count(self, file: LiveFile) -> int:
        return count_rows(self._log.storage, file) - len(self._log.dead_rows(file.path))

    def _find_retained_rows(self, file: LiveFile, index: KeyIndex | None, seq: int | None) -> tuple[Any, Any]:
        """Return the living rows of a file that are kept, and for each whether it still has to be marked as deleted.

        :param index: keys whose rows are removed.
        :param seq: rows with a higher ``_cdc_seq`` are removed as well.
        """
        marker_columns = [SEQ_COLUMN, DELETED_COLUMN] if self._soft_deletes else [SEQ_COLUMN]
        columns, start = list(dict.fromkeys([*self._format.key_columns, *marker_columns])), 0
        dead = np.asarray(self._log.dead_rows(file.path).to_array(), np.int64)
        retained_numbers, unmarked = [np.empty(0, np.int64)], [np.empty(0, bool)]
        for rows in read_row_groups(
            self._log.storage, file.path, self._row_schema, columns, file.partition, may_lack_columns=True
        ):
            stays = np.ones(rows.num_rows, bool)
            low, high = np.searchsorted(dead, [start, start + rows.num_rows])
            stays[dead[low:high] - start] = False
            if seq is not None:
                stays &= seqs_of(rows) <= seq
            if index is not None:
                candidates = np.flatnonzero(stays)
                hashes = self._key_lookup.key_hasher(rows.take(pa.array(candidates)))
                stays[candidates[index.find_keys(hashes).query_index]] = False
            retained_numbers.append(np.flatnonzero(stays) + start)
            is_marked = deleted_mask(rows) if self._soft_deletes else np.ones(rows.num_rows, bool)
            unmarked.append(~is_marked[stays])
            start += rows.num_rows
        return np.concatenate(retained_numbers), np.concatenate(unmarked)

    def _read_retained_rows(self, file: LiveFile, row_numbers: Any, to_mark: Any, marked_at: int) -> Iterator[pa.Table]:
        """Yield rows of a file, all of them marked as deleted if the table marks deleted rows."""
        start = 0
        for rows in read_row_numbers(
            self._log.storage, file.path, self._row_schema, row_numbers, file.partition, may_lack_columns=True
        ):
            newly_marked = to_mark[start : start + rows.num_rows]
            yield rows.filter(pa.array(~newly_marked))
            if newly_marked.any():
                yield mark_deleted(rows.filter(pa.array(newly_marked)), marked_at)
            start += rows.num_rows


def find_overwrite_loss(
    log: TableLog,
    key_lookup: KeyLookup,
    deletes: str,
    old_table: TableSchema,
    slices: Sequence[DataFile] | None,
    reason: str | None = None,
) -> RetainedRowsLoss | None:
    """Return which of the kept rows an overwrite would lose.

    See :meth:`~airflow_provider_cdc.sinks.protocol.SinkTable.overwrite_loss`.

    :param log: the current state of the table.
    :param key_lookup: lookup with the new columns and the new key.
    :param deletes: ``sink.deletes`` of the table; not ``hard``.
    """
    new_schema = key_lookup.table_format.schema
    old_schema = with_deleted_column(old_table.sink_schema) if deletes == SOFT else old_table.sink_schema
    new_key = key_lookup.table_format.key_columns
    reason = reason or why_not_retainable(old_schema, old_table.key, new_schema, new_key)
    if reason is None:
        return None
    comparable = all(
        n in new_schema.names and can_hold_all_values(new_schema.field(n).type, old_schema.field(n).type)
        for n in old_table.key
    )
    # By the current key of the rows, which is unique. Under the new definition, its columns may be NULL.
    old_format = replace(key_lookup.table_format, key_columns=old_table.key if comparable else ())
    old_hasher = KeyHasher(old_format.identity_columns, new_schema, is_key=False)
    finder = RetainedRowFinder(log, replace(key_lookup, table_format=old_format, key_hasher=old_hasher), deletes)
    exact = comparable and (slices is not None or deletes == SOFT)
    if not exact:
        rows = finder.count_living()
    elif slices is None:
        rows = finder.count_marked()
    else:
        rows = finder.count_unmatched(slices)
    return RetainedRowsLoss(reason, rows, exact) if rows else None
