"""Rows that stay where all rows of a table are exchanged: those that the source has deleted (``sink.deletes``).

What tells them is the new reading: its keys are put into an index, and the table's files are read against it, one after
the other. A file all of whose rows stay as they are is left alone. The others are written again, without the columns
that the table does not have any more: no file may have such a column, since another one of that name may come.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.config.deletes import SOFT
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.kept_rows import Loss, cannot_keep, holds_all
from airflow_provider_cdc.model.schema import DELETED, SEQ, TableSchema
from airflow_provider_cdc.sinks.delta.log.live_file import LiveFile
from airflow_provider_cdc.sinks.delta.log.log import Log
from airflow_provider_cdc.sinks.delta.merge.edit import LARGE_FILE, rows_of, write_parts
from airflow_provider_cdc.sinks.delta.merge.key_files import KeyFiles, Keys
from airflow_provider_cdc.sinks.delta.merge.key_hashes import Worder
from airflow_provider_cdc.sinks.delta.merge.key_index import KeyIndex
from airflow_provider_cdc.sinks.delta.merge.soft_deletes import buried, with_mark
from airflow_provider_cdc.sinks.files.parquet import DataFile, has_only, portions, row_groups


@dataclass
class Kept:
    """Rows that stay.

    :param files: paths of the files of the table that stay as they are.
    :param written: files with rows of others.
    """

    files: set[str] = field(default_factory=set)
    written: list[DataFile] = field(default_factory=list)


class KeptRows:
    """Finds the rows of a version that stay.

    :param log: the table as it stands.
    :param files: by which key its rows are looked up, and with which columns they are read.
    :param deletes: ``sink.deletes`` of the table.
    """

    def __init__(self, log: Log, files: KeyFiles, deletes: str) -> None:
        self._log, self._files, self._keys = log, files, files.keys
        self._marks = deletes == SOFT

    def beside(self, slices: Sequence[DataFile], seq: int) -> Kept:
        """Write the rows that stay where slices take the place of all others.

        :param slices: rows of the new reading.
        :param seq: its ``_cdc_seq``: rows of the table that are newer come again, and go.
        """
        found, index, at = Kept(), self._files.of_slices(slices), int(time.time() * 1_000_000)

        def rows() -> Iterator[pa.Table]:
            for file in self._log.files.values():
                left, unmarked = self._left(file, index, seq)
                all_stay = len(left) == self._rows(file) and not unmarked.any()
                if all_stay and has_only(self._log.storage, file.path, self._keys.partitioning.stored):
                    found.files.add(file.path)
                elif len(left):
                    yield from self._read(file, left, unmarked, at)

        try:
            for part in portions(rows(), LARGE_FILE):
                found.written += write_parts(self._log.storage, self._keys.partitioning, part, self._keys.stat)[0]
        except pa.ArrowInvalid as error:
            raise TerminalError(
                f"rows of the {self._log.name} that the source has deleted cannot have its new columns: {error}",
                "Move the folder of the table away, and read it again: airflow-cdc resnapshot",
            ) from error
        return found

    def count(self, slices: Sequence[DataFile]) -> int:
        """How many rows have keys that slices do not have."""
        index = self._files.of_slices(slices)
        return sum(len(self._left(file, index, None)[0]) for file in self._log.files.values())

    def marked(self) -> int:
        """How many rows are marked as deleted."""
        files = self._log.files.values()
        return sum(int(np.count_nonzero(~self._left(file, None, None)[1])) for file in files) if self._marks else 0

    def living(self) -> int:
        """How many rows there are."""
        return sum(self._rows(file) for file in self._log.files.values())

    def _rows(self, file: LiveFile) -> int:
        return rows_of(self._log.storage, file) - len(self._log.dead(file))

    def _left(self, file: LiveFile, index: KeyIndex | None, seq: int | None) -> tuple[Any, Any]:
        """The living rows of a file that stay, and for each whether it is still to be marked as deleted.

        :param index: of keys whose rows go.
        :param seq: rows with a higher ``_cdc_seq`` go as well.
        """
        names, start = list(dict.fromkeys([*self._keys.names, SEQ, *([DELETED] if self._marks else [])])), 0
        dead = np.asarray(self._log.dead(file).to_array(), np.int64)
        left, unmarked = [np.empty(0, np.int64)], [np.empty(0, bool)]
        for rows in row_groups(self._log.storage, file.path, self._keys.schema, names, file.partition, older=True):
            stays = np.ones(rows.num_rows, bool)
            low, high = np.searchsorted(dead, [start, start + rows.num_rows])
            stays[dead[low:high] - start] = False
            if seq is not None:
                stays &= rows[SEQ].to_numpy() <= seq
            if index is not None:
                asked = np.flatnonzero(stays)
                stays[asked[index.find(self._files.worder(rows.take(pa.array(asked)))).asked]] = False
            left.append(np.flatnonzero(stays) + start)
            unmarked.append(~rows[DELETED].to_numpy()[stays] if self._marks else np.zeros(len(left[-1]), bool))
            start += rows.num_rows
        return np.concatenate(left), np.concatenate(unmarked)

    def _read(self, file: LiveFile, left: Any, unmarked: Any, at: int) -> Iterator[pa.Table]:
        """Rows of a file, all of them marked as deleted if that is marked."""
        start = 0
        for group in row_groups(self._log.storage, file.path, self._keys.schema, None, file.partition, older=True):
            low, high = np.searchsorted(left, [start, start + group.num_rows])
            mine, new = left[low:high] - start, unmarked[low:high]
            yield group.take(pa.array(mine[~new]))
            if new.any():
                yield buried(group.take(pa.array(mine[new])), at)
            start += group.num_rows


def loss_of(
    log: Log, files: KeyFiles, deletes: str, before: TableSchema, slices: Sequence[DataFile] | None
) -> Loss | None:
    """What an exchange would lose of the rows that stay.

    See :meth:`~airflow_provider_cdc.sinks.protocol.SinkTable.loss`.

    :param log: the table as it stands.
    :param files: with the columns and the key that it is to have.
    :param deletes: ``sink.deletes`` of the table; not ``hard``.
    """
    new = files.keys.schema
    old = with_mark(before.sink_schema) if deletes == SOFT else before.sink_schema
    why = cannot_keep(old, before.key, new, files.keys.names)
    if why is None:
        return None
    comparable = all(n in new.names and holds_all(new.field(n).type, old.field(n).type) for n in before.key)
    # By the key that the rows have: no two have the same. Under the new definition it may be NULL.
    keys = Keys(files.keys.partitioning, before.key if comparable else ())
    kept = KeptRows(log, replace(files, keys=keys, worder=Worder(keys.told_by, new, key=False)), deletes)
    exact = comparable and (slices is not None or deletes == SOFT)
    if not exact:
        rows = kept.living()
    elif slices is None:
        rows = kept.marked()
    else:
        rows = kept.count(slices)
    return Loss(why, rows, exact) if rows else None
