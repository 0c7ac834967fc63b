"""Reading the keys of data files into the index: those of a batch when it comes, others before one needs them.

What is read is a fact of a file that never changes. So it may be read at any time, by several threads, and in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from airflow_provider_cdc.model.schema import META_COLUMNS, SEQ
from airflow_provider_cdc.sinks.delta.log.live_file import LiveFile
from airflow_provider_cdc.sinks.delta.log.log import Log
from airflow_provider_cdc.sinks.delta.merge.edit import SLICES
from airflow_provider_cdc.sinks.delta.merge.key_hashes import Worder, Words
from airflow_provider_cdc.sinks.delta.merge.key_index import Facts, Found, KeyIndex
from airflow_provider_cdc.sinks.delta.merge.partitions import Partitioning
from airflow_provider_cdc.sinks.files.parquet import DataFile, row_groups
from airflow_provider_cdc.sinks.protocol import ReadAhead
from airflow_provider_cdc.sinks.storage.request_counts import carried
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Files that are read at the same time, and where reading is mostly waiting for a server.
_READERS, _REMOTE_READERS = 4, 16
#: Files after which the index is put in order.
_PORTION = 16


@dataclass(frozen=True)
class Keys:
    """What tells the rows of a table apart.

    :param partitioning: how it is partitioned.
    :param names: the key columns; none if rows are told by all their values.
    :param stat: the key column if it is a single integer, which file statistics are kept for.
    """

    partitioning: Partitioning
    names: Sequence[str] = ()
    stat: str | None = None

    @property
    def schema(self) -> pa.Schema:
        """Schema of its rows."""
        return self.partitioning.schema

    @property
    def told_by(self) -> list[str]:
        """Columns that tell rows apart."""
        return list(self.names) or [name for name in self.schema.names if name not in META_COLUMNS]


@dataclass(frozen=True)
class KeyFiles:
    """Keys of a table's files, on their way into its index.

    :param storage: that of the table's folder.
    :param keys: what tells its rows apart.
    :param worder: makes the words of the index.
    """

    storage: Storage
    keys: Keys
    worder: Worder
    index: KeyIndex

    def find(self, log: Log, words: Words) -> Found:
        """Where the rows of a version with such words are, after the files that may have them were indexed.

        :param words: of which no two are the same.
        """
        missing = self.candidates([f for f in log.files.values() if f.path not in self.index], words)
        if missing:
            with self.index.turn:
                for _ in self._read(missing):
                    pass
        self.index.follow(log.files, lambda path: log.dead(log.files[path]) if path in log.files else BitMap())
        return self.index.find(words)

    def of_slices(self, slices: Sequence[DataFile]) -> KeyIndex:
        """An index of the rows of slices alone. It takes no more memory than that of the table may."""
        found, keys = self.index.another(), self.keys
        for file in (file for part in slices for file in part.files if file.rows):
            parts = row_groups(self.storage, file.path, keys.schema, keys.names, file.partition)
            found.add(file.path, Facts.of([self.worder(rows) for rows in parts], 0))
            found.settle()
        return found

    def candidates(self, files: Sequence[LiveFile], words: Words) -> list[LiveFile]:
        """Files that may have rows with such words: without those of which statistics prove that they have none."""
        stat = self.keys.stat if self.worder.plain else None  # hashes, as of BIGINT UNSIGNED, are in no order
        bounds = [file.bounds(stat) for file in files] if stat else []
        known = [i for i, found in enumerate(bounds) if found is not None]
        if not known:
            return list(files)
        asked, spans = np.sort(words.first), [found for found in bounds if found is not None]
        low, high = (self.worder.of_integers([span[side] for span in spans]) for side in (0, 1))
        without = np.searchsorted(asked, low, "left") == np.searchsorted(asked, high, "right")
        apart = {known[i] for i in np.flatnonzero(without)}
        return [file for i, file in enumerate(files) if i not in apart]

    def ahead(self, log: Log) -> ReadAhead:
        """What reads ahead, in a thread of its own, where batches will likely look in a version.

        First the files that have dead rows: changes have hit them before. If the stream has not written to the table
        yet, nothing tells what changes hit: then all files, from the newest on, as far as memory goes.
        """
        files = [file for file in log.files.values() if file.path not in self.index]
        hit = [file for file in files if file.dead]
        new = bool(self.keys.names) and all(file.path.startswith(f"{SLICES}/") for file in log.files.values())
        rest = [file for file in reversed(files) if not file.dead] if new else []

        def read(room: int, over: Callable[[], bool]) -> int:
            for _ in self._read(hit, beside=True):
                if over():
                    return 0
            before = sum(self.index.size)
            for _ in self._read(rest if room > 0 else [], beside=True):
                if over() or sum(self.index.size) - before >= room:
                    break
            return sum(self.index.size) - before

        return read

    def _read(self, files: Sequence[LiveFile], *, beside: bool = False) -> Iterator[None]:
        """Index files, some at a time.

        :param beside: let those first that a batch waits for, and read no portion before the caller wants it.
        """

        def read(file: LiveFile) -> None:
            if beside:
                with self.index.turn:
                    pass
            if file.path not in self.index:
                self.index.add(file.path, self._facts(file))

        pool = ThreadPoolExecutor(_REMOTE_READERS if self.storage.remote else _READERS)
        at_once = _PORTION if beside else max(1, len(files))
        try:
            for start in range(0, len(files), at_once):
                for number, _ in enumerate(pool.map(carried(read), files[start : start + at_once]), 1):
                    if number % _PORTION == 0:
                        self.index.settle()
                        yield
        finally:
            pool.shutdown(cancel_futures=True)

    def _facts(self, file: LiveFile) -> Facts:
        names, schema = self.keys.told_by, self.keys.schema
        bounds = file.bounds(SEQ)
        columns = names if bounds else [*names, SEQ]
        older = not self.keys.names  # a key is never new
        # Portions: values of a table without a key may be many times what is kept of them.
        parts, newest = [], bounds[1] if bounds else 0
        for rows in row_groups(self.storage, file.path, schema, columns, file.partition, older):
            parts.append(self.worder(rows))
            if bounds is None and rows.num_rows:
                newest = max(newest, int(pc.max(rows[SEQ]).as_py()))
        return Facts.of(parts, newest)
