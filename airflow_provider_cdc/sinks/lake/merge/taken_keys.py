"""Keys of other source tables, in a table that several are copied into and whose keys are declared to be unique."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from airflow_provider_cdc.config.delete_policy import SOFT
from airflow_provider_cdc.model.column_policy import SOURCE_COLUMN
from airflow_provider_cdc.model.errors import DuplicateKeyError
from airflow_provider_cdc.model.schema import DELETED_COLUMN, OP_COLUMN
from airflow_provider_cdc.sinks.files.parquet import DataFile, read_row_groups
from airflow_provider_cdc.sinks.lake.log.table_log import LiveFile, TableLog
from airflow_provider_cdc.sinks.lake.merge.change_merger import ChangeMerger
from airflow_provider_cdc.sinks.lake.merge.key_index import KeyIndex
from airflow_provider_cdc.sinks.lake.merge.key_lookup import KeyLookup
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import deleted_mask
from airflow_provider_cdc.sinks.lake.merge.table_edit import without_dead_rows
from airflow_provider_cdc.sinks.protocol import Change, OverwriteRange, PublishSlices, Upsert

#: Marker of a source table whose keys were compared with those of the others. From then on, each change is compared:
#: until the stream has passed the snapshot, a row that moves from one source table to another may be in both.
UNIQUE_KEYS_MARKER = "cdc/unique-keys"


class _OtherFiles:
    """The files of other source tables in a version: what a lookup needs of a log."""

    def __init__(self, log: TableLog, sources: Collection[str] | None, ignored: Collection[str]) -> None:
        self._log, self.storage = log, log.storage
        self.files: Mapping[str, LiveFile] = log.other_files
        if sources is not None or ignored:
            self.files = {
                path: file
                for path, file in self.files.items()
                if (sources is None or _source_of(file) in sources) and _source_of(file) not in ignored
            }

    @property
    def dead_rows(self) -> Callable[[str], BitMap]:
        return self._log.dead_rows

    @property
    def identify_columns(self) -> Callable[[pa.Schema], pa.Schema]:
        return self._log.identify_columns


class TakenKeys:
    """Refuses keys that a row of another source table has.

    :param lookup: defines the key, and how files of the table are read.
    :param deletes: how rows that the source deletes are handled.
    """

    def __init__(self, lookup: KeyLookup, deletes: str) -> None:
        index: KeyIndex = lookup.index.new_empty()
        self._lookup = KeyLookup(lookup.storage, lookup.table_format, lookup.key_hasher, index)
        self._deletes = deletes
        #: Source tables whose rows are outdated, so that their keys are not taken.
        self.ignored_sources: frozenset[str] = frozenset()

    def forget_files(self, paths: Iterable[str]) -> None:
        """Forget what is known of some files."""
        self._lookup.index.forget_files(paths)

    def refuse(self, log: TableLog, change: Change) -> None:
        """Refuse a change that writes a key which a row of another source table has.

        :param log: the current state of the table.
        :raises DuplicateKeyError: naming the first such key, and the other table.
        """
        match change:
            case Upsert(changes):
                is_written = pc.not_equal(changes[OP_COLUMN], "d")
                self._refuse_keys(log, changes.select(self._key_columns).filter(is_written))
            case PublishSlices() | OverwriteRange():
                self.refuse_slices(log, change.slices)

    def refuse_slices(self, log: TableLog, slices: Sequence[DataFile]) -> None:
        """Refuse slices with such a key; the parameter and the error are those of :meth:`refuse`."""
        schema = self._lookup.table_format.schema
        for file in (file for part in slices for file in part.files if file.rows):
            for keys in read_row_groups(self._lookup.storage, file.path, schema, self._key_columns, file.partition):
                self._refuse_keys(log, keys)

    def refuse_living_rows(self, log: TableLog, sources: Collection[str]) -> None:
        """Refuse a version in which a living row has the key of a row of some other source tables.

        :param sources: the others.
        :raises DuplicateKeyError: as :meth:`refuse`.
        """
        schema = log.identify_columns(self._lookup.table_format.schema)
        is_soft = self._deletes == SOFT
        columns = [*self._key_columns, *([DELETED_COLUMN] if is_soft else [])]
        for file in log.files.values():
            groups = read_row_groups(self._lookup.storage, file.path, schema, columns, file.partition)
            for rows in without_dead_rows(groups, log.dead_rows(file.path)):
                living = rows.filter(pa.array(~deleted_mask(rows))) if is_soft else rows
                self._refuse_keys(log, living.select(self._key_columns), sources)

    @property
    def _key_columns(self) -> list[str]:
        return list(self._lookup.table_format.key_columns)

    def _refuse_keys(self, log: TableLog, keys: pa.Table, sources: Collection[str] | None = None) -> None:
        others = cast(TableLog, _OtherFiles(log, sources, self.ignored_sources))
        if not keys.num_rows or not others.files:
            return
        merger = ChangeMerger(others, self._lookup, self._deletes)
        matches = self._lookup.find_rows(others, self._lookup.key_hasher(keys))
        for file, queries, rows in merger.living_matches(matches):
            if self._deletes == SOFT:  # a row that the source has deleted has its key no longer
                remaining = merger.unmarked_rows(file, BitMap(rows.astype(np.uint32)))
                queries = queries[np.isin(rows, np.asarray(remaining.to_array(), np.int64))]
            if len(queries):
                key = keys.slice(int(queries.min()), 1).to_pylist()[0]
                other = _source_of(file)
                raise DuplicateKeyError(
                    f"key ({', '.join(f'{name}={value}' for name, value in key.items())}) is already in the "
                    f"{log.name} as a row of table {other}, and sink.routes says that keys are unique",
                    "Give one of the two rows another key in the source, or delete it, and re-snapshot the suspended "
                    "table. If both rows are right, use a fresh sink.path and a route without `unique`",
                    other=other,
                )


def _source_of(file: LiveFile) -> str | None:
    """Return the source table whose rows a file has."""
    return next(value for name, value in file.partition.items() if name.strip() == SOURCE_COLUMN)
