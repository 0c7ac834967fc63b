"""The change data feed of a table (``delta.enableChangeDataFeed``): which rows a commit inserts, updates and deletes.

The feed is derived from the rows that a commit removes and adds, whatever the reason. If a removed and an added row
have the same key, the row was updated.

Readers use the files of a commit's ``cdc`` actions. Only if there are none do they report the rows of added files as
inserted and those of removed files as deleted. A commit that only adds or only removes files therefore needs no feed
files. Commits that must not appear in the feed are marked as not changing data.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.files.parquet import DataFile, PartitionValues, read_row_groups, read_row_numbers
from airflow_provider_cdc.sinks.lake.merge.key_hashes import KeyHasher, KeyHashes
from airflow_provider_cdc.sinks.lake.merge.key_index import FileKeyHashes, KeyIndex
from airflow_provider_cdc.sinks.lake.merge.partitions import PartitionedWriter, TableFormat
from airflow_provider_cdc.sinks.lake.merge.table_edit import TableEdit, count_rows

#: Folder of its files in the table's folder, as defined by the Delta protocol.
FEED_FOLDER = "_change_data"
#: Column with the kind of change of a row.
CHANGE_TYPE_COLUMN = "_change_type"
INSERT, DELETE, UPDATE_PREIMAGE, UPDATE_POSTIMAGE = "insert", "delete", "update_preimage", "update_postimage"
_FEED_FILE_NAME = re.compile(rf"{FEED_FOLDER}/(?:[^/]+=[^/]*/)*cdc-(\d+)-[0-9a-f]{{32}}-\d+\.parquet")
#: Number of files that are read in parallel, and number of selected rows above which a file is read alone.
_READER_THREADS, _FEW_ROWS = 4, 100_000
#: A file, its selected rows, and its partition.
_SelectedRows = tuple[str, BitMap, PartitionValues]


def feed_file_time(name: str) -> float:
    """Return when a feed file was started, by its writer's clock, from its name; 0 for files of other writers."""
    match = _FEED_FILE_NAME.fullmatch(name)
    return float(match[1]) if match else 0.0


class ChangeFeedWriter:
    """Writes which rows one commit changes.

    :param log: the current state of the table.
    :param table_format: format of the table. Without a key, rows are inserted and deleted, but never updated.
    :param key_hasher: computes the hashes by which rows are identified.
    """

    def __init__(self, log: DeltaLog, table_format: TableFormat, key_hasher: KeyHasher) -> None:
        self._log, self._storage, self._key_hasher = log, log.storage, key_hasher
        self._schema = table_format.schema
        typed = self._schema.append(pa.field(CHANGE_TYPE_COLUMN, pa.string()))
        self._format = replace(table_format, schema=typed, row_group_size=None, stats_column=None)

    def write_feed(self, edit: TableEdit, actions: Iterable[Mapping[str, Any]]) -> list[DataFile]:
        """Write the feed of a commit, unless readers can derive it from the commit's actions.

        :param edit: what the commit does to rows.
        :param actions: actions of the log that do so.
        :returns: the files that were written.
        """
        if len({kind for action in actions for kind in ("add", "remove") if kind in action}) < 2:
            return []
        name = f"cdc-{int(time.time())}-{uuid.uuid4().hex}"
        files = PartitionedWriter(self._storage, FEED_FOLDER, name, self._format)
        try:
            for rows, kind, update_kind, matched in self._changed_rows(edit):
                kinds = np.where(matched, update_kind, kind)
                files.add(rows.append_column(CHANGE_TYPE_COLUMN, pa.array(kinds, pa.string())))
            return files.close()
        except BaseException:
            files.discard()
            raise

    def _changed_rows(self, edit: TableEdit) -> Iterator[tuple[pa.Table, str, str, Any]]:
        """Yield changed rows, their kind, their kind if they are part of an update, and a mask of the latter."""
        removed = [*self._removed_rows(edit)]
        added = [(file, BitMap(range(file.rows)) - dead) for file, dead in edit.added_files]
        new_keys = self._index_new_keys(edit, added) if removed else None
        matched_hashes = list[KeyHashes]()
        for rows in self._read_all(removed):
            matched, hashes = self._match_keys(rows, new_keys)
            if hashes is not None:
                matched_hashes.append(hashes.select(matched))
            yield rows, DELETE, UPDATE_PREIMAGE, matched
        removed_keys = _index_hashes(FileKeyHashes.from_parts(matched_hashes, 0)) if matched_hashes else None
        for rows in self._read_all(
            (file.path, row_numbers, file.partition) for file, row_numbers in added if row_numbers
        ):
            yield rows, INSERT, UPDATE_POSTIMAGE, self._match_keys(rows, removed_keys)[0]

    def _removed_rows(self, edit: TableEdit) -> Iterator[_SelectedRows]:
        for path in sorted({*edit.dead_rows, *edit.removed_files}):
            file = self._log.files[path]
            rows = (
                BitMap(range(count_rows(self._storage, file))) if path in edit.removed_files else edit.dead_rows[path]
            )
            if living := rows - self._log.dead_rows(file.path):
                yield path, living, file.partition

    def _index_new_keys(self, edit: TableEdit, added: Sequence[tuple[DataFile, BitMap]]) -> KeyIndex | None:
        """Return an index of the keys of new rows, or ``None`` if it is not needed."""
        if not self._format.key_columns:
            return None
        key_hashes = list[KeyHashes]()
        for file, living in added:
            if (facts := edit.key_hashes.get(file.path)) is not None:
                key_hashes.append(facts.hashes)
            elif living:
                parts = read_row_groups(
                    self._storage, file.path, self._schema, self._key_hasher.columns, file.partition
                )
                hashes = FileKeyHashes.from_parts([self._key_hasher(rows) for rows in parts], 0).hashes
                key_hashes.append(hashes.select(np.asarray(living.to_array(), np.int64)))
        return _index_hashes(FileKeyHashes.from_parts(key_hashes, 0)) if key_hashes else None

    def _match_keys(self, rows: pa.Table, key_index: KeyIndex | None) -> tuple[Any, KeyHashes | None]:
        """Return a mask of the rows whose key is in an index, and the key hashes of all rows."""
        matched = np.zeros(rows.num_rows, bool)
        if key_index is None:
            return matched, None
        hashes = self._key_hasher(rows)
        matched[key_index.find_keys(hashes).query_index] = True
        return matched, hashes

    def _read_all(self, sources: Iterable[_SelectedRows]) -> Iterator[pa.Table]:
        """Yield rows of files. Files with few selected rows are read in parallel."""
        small_sources = list[_SelectedRows]()
        for source in sources:
            if len(source[1]) <= _FEW_ROWS:
                small_sources.append(source)
            else:
                yield from self._read_selected(source)
        with ThreadPoolExecutor(_READER_THREADS) as pool:
            for start in range(0, len(small_sources), 2 * _READER_THREADS):
                batch = small_sources[start : start + 2 * _READER_THREADS]
                yield from chain.from_iterable(pool.map(lambda source: [*self._read_selected(source)], batch))

    def _read_selected(self, source: _SelectedRows) -> Iterator[pa.Table]:
        path, row_numbers, partition = source
        return read_row_numbers(
            self._storage,
            path,
            self._schema,
            np.asarray(row_numbers.to_array(), np.int64),
            partition,
            may_lack_columns=True,
        )


def feed_actions(files: Iterable[DataFile]) -> list[dict[str, Any]]:
    """Return the actions that add the files of a feed."""
    return [
        {
            "cdc": {
                "path": quote(file.path, safe="/="),
                "partitionValues": dict(file.partition),
                "size": file.size,
                "dataChange": False,
            }
        }
        for file in files
    ]


def _index_hashes(facts: FileKeyHashes) -> KeyIndex:
    index = KeyIndex(1 << 62)
    index.add_file("", facts)
    return index
