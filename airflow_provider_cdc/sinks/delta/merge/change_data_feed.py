"""The change data feed of a table (``delta.enableChangeDataFeed``): which rows a commit inserts, updates and deletes.

It follows from what a commit does to rows, whatever that was done for: those that die, and those that are new. Where
one of either has the same key, the row was updated.

Readers take the files of a commit's ``cdc`` actions, and only if there are none, the rows of files that it adds for
inserted and those of files that it removes for deleted. So a commit that does only the one or only the other says it
itself, and nothing is written for it. What must not be in the feed at all is not said to change data.
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

from airflow_provider_cdc.sinks.delta.log.log import Log
from airflow_provider_cdc.sinks.delta.merge.edit import Edit, rows_of
from airflow_provider_cdc.sinks.delta.merge.key_hashes import Worder, Words
from airflow_provider_cdc.sinks.delta.merge.key_index import Facts, KeyIndex
from airflow_provider_cdc.sinks.delta.merge.partitions import PartitionedFiles, Partitioning
from airflow_provider_cdc.sinks.files.parquet import DataFile, Partition, picked, row_groups

#: Folder of its files in that of the table, as the Delta protocol has it.
FOLDER = "_change_data"
#: Column that says what became of a row.
TYPE = "_change_type"
INSERT, DELETE, BEFORE, AFTER = "insert", "delete", "update_preimage", "update_postimage"
_NAME = re.compile(rf"{FOLDER}/(?:[^/]+=[^/]*/)*cdc-(\d+)-[0-9a-f]{{32}}-\d+\.parquet")
#: Files that are read at the same time, and the rows of one above which it is read alone.
_READERS, _FEW = 4, 100_000
#: A file, its rows that are meant, and its partition.
_Source = tuple[str, BitMap, Partition]


def written_at(name: str) -> float:
    """When a file of a feed was begun, by the clock of its writer, as its name says it; 0 for those of others."""
    found = _NAME.fullmatch(name)
    return float(found[1]) if found else 0.0


class Feed:
    """Says of one commit which rows it changes.

    :param log: the table as it stands.
    :param partitioning: how it is partitioned.
    :param worder: makes the words by which rows are told apart.
    :param keyed: whether that is a key; if not, rows are inserted and deleted, and never updated.
    """

    def __init__(self, log: Log, partitioning: Partitioning, worder: Worder, *, keyed: bool) -> None:
        self._log, self._storage, self._worder, self._keyed = log, log.storage, worder, keyed
        self._schema = partitioning.schema
        typed = self._schema.append(pa.field(TYPE, pa.string()))
        self._partitioning = replace(partitioning, schema=typed, group_rows=None)

    def of(self, edit: Edit, actions: Iterable[Mapping[str, Any]]) -> list[DataFile]:
        """Write what a commit says; nothing if its actions say it.

        :param edit: what it does to rows.
        :param actions: of the log, by which it does so.
        :returns: the files that were written.
        """
        if len({kind for action in actions for kind in ("add", "remove") if kind in action}) < 2:
            return []
        name = f"cdc-{int(time.time())}-{uuid.uuid4().hex}"
        files = PartitionedFiles(self._storage, FOLDER, name, self._partitioning, None)
        try:
            for rows, kind, other, matched in self._changes(edit):
                kinds = np.where(matched, other, kind)
                files.add(rows.append_column(TYPE, pa.array(kinds, pa.string())))
            return files.close()
        except BaseException:
            files.discard()
            raise

    def _changes(self, edit: Edit) -> Iterator[tuple[pa.Table, str, str, Any]]:
        """Changed rows; what they are, what they are instead where they are one side of an update, and where."""
        dying = [*self._dying(edit)]
        new = [(file, BitMap(range(file.rows)) - dead) for file, dead in edit.new]
        born = self._words_of(edit, new) if dying else None
        gone = list[Words]()
        for rows in self._read(dying):
            matched, words = self._met(rows, born)
            if words is not None:
                gone.append(words.take(matched))
            yield rows, DELETE, BEFORE, matched
        died = _index(Facts.of(gone, 0)) if gone else None
        for rows in self._read((file.path, which, file.partition) for file, which in new if which):
            yield rows, INSERT, AFTER, self._met(rows, died)[0]

    def _dying(self, edit: Edit) -> Iterator[_Source]:
        for path in sorted({*edit.dead, *edit.gone}):
            file = self._log.files[path]
            rows = BitMap(range(rows_of(self._storage, file))) if path in edit.gone else edit.dead[path]
            if living := rows - self._log.dead(file):
                yield path, living, file.partition

    def _words_of(self, edit: Edit, new: Sequence[tuple[DataFile, BitMap]]) -> KeyIndex | None:
        """Where the keys of new rows are, as far as that is of use."""
        if not self._keyed:
            return None
        found = list[Words]()
        for file, living in new:
            if (facts := edit.facts.get(file.path)) is not None:
                found.append(facts.words)
            elif living:
                parts = row_groups(self._storage, file.path, self._schema, self._worder.columns, file.partition)
                words = Facts.of([self._worder(rows) for rows in parts], 0).words
                found.append(words.take(np.asarray(living.to_array(), np.int64)))
        return _index(Facts.of(found, 0)) if found else None

    def _met(self, rows: pa.Table, others: KeyIndex | None) -> tuple[Any, Words | None]:
        """Which rows have the key of one of the others."""
        matched = np.zeros(rows.num_rows, bool)
        if others is None:
            return matched, None
        words = self._worder(rows)
        matched[others.find(words).asked] = True
        return matched, words

    def _read(self, sources: Iterable[_Source]) -> Iterator[pa.Table]:
        """Rows of files. Of those with few of them, several are read at the same time."""
        few = list[_Source]()
        for source in sources:
            if len(source[1]) <= _FEW:
                few.append(source)
            else:
                yield from self._rows(source)
        with ThreadPoolExecutor(_READERS) as pool:
            for at in range(0, len(few), 2 * _READERS):
                some = few[at : at + 2 * _READERS]
                yield from chain.from_iterable(pool.map(lambda source: [*self._rows(source)], some))

    def _rows(self, source: _Source) -> Iterator[pa.Table]:
        path, which, partition = source
        return picked(self._storage, path, self._schema, np.asarray(which.to_array(), np.int64), partition, older=True)


def said(files: Iterable[DataFile]) -> list[dict[str, Any]]:
    """Actions that say so."""
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


def _index(facts: Facts) -> KeyIndex:
    found = KeyIndex(1 << 62)
    found.add("", facts)
    return found
