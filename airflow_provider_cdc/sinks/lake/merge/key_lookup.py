"""Reads the keys of data files into the index: those that a batch needs when it arrives, others in advance.

Data files never change, so they may be read at any time, by several threads, and in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.model.schema import SEQ_COLUMN
from airflow_provider_cdc.sinks.files.layout import SLICES_FOLDER
from airflow_provider_cdc.sinks.files.parquet import DataFile, read_row_groups
from airflow_provider_cdc.sinks.lake.log.table_log import LiveFile, TableLog
from airflow_provider_cdc.sinks.lake.merge.key_hashes import KeyHasher, KeyHashes
from airflow_provider_cdc.sinks.lake.merge.key_index import FileKeyHashes, KeyIndex, KeyMatches
from airflow_provider_cdc.sinks.lake.merge.partitions import TableFormat
from airflow_provider_cdc.sinks.lake.merge.row_seqs import seqs_of
from airflow_provider_cdc.sinks.protocol import Prefetcher
from airflow_provider_cdc.sinks.storage.request_counts import with_current_counts
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Number of files that are read in parallel, and the same for remote storage, where reading is mostly waiting.
_READER_THREADS, _REMOTE_READER_THREADS = 4, 16
#: Number of files after which segments are merged.
_FILES_PER_PORTION = 16


@dataclass(frozen=True)
class KeyLookup:
    """Finds rows by key, and indexes the files that this requires.

    :param storage: storage of the table's folder.
    :param table_format: format of the table.
    :param key_hasher: computes the hashes of the index.
    :param index: the index.
    """

    storage: Storage
    table_format: TableFormat
    key_hasher: KeyHasher
    index: KeyIndex

    def find_rows(self, log: TableLog, hashes: KeyHashes) -> KeyMatches:
        """Return the rows of a version with these hashes, after indexing all files that may have them.

        :param hashes: hashes without duplicates.
        """
        missing = self.candidate_files([f for f in log.files.values() if f.path not in self.index], hashes)
        if missing:
            with self.index.batch_lock:
                for _ in self._index_files(log, missing):
                    pass
        self.index.sync_live_files(log.files, log.dead_rows)
        return self.index.find_keys(hashes)

    def index_slices(self, slices: Sequence[DataFile]) -> KeyIndex:
        """Return an index of the rows of slices alone, with the same memory limit as that of the table."""
        slice_index, identity = self.index.new_empty(), self.table_format
        for file in (file for part in slices for file in part.files if file.rows):
            parts = read_row_groups(self.storage, file.path, identity.schema, identity.key_columns, file.partition)
            slice_index.add_file(file.path, FileKeyHashes.from_parts([self.key_hasher(rows) for rows in parts], 0))
            slice_index.merge_and_spill()
        return slice_index

    def candidate_files(self, files: Sequence[LiveFile], hashes: KeyHashes) -> list[LiveFile]:
        """Return the files that may have rows with these hashes, according to their statistics."""
        # Hashes, as for BIGINT UNSIGNED, have no order.
        stats_column = self.table_format.stats_column if self.key_hasher.is_integer_key else None
        bounds = [file.bounds(stats_column) for file in files] if stats_column else []
        known_numbers = [i for i, file_bounds in enumerate(bounds) if file_bounds is not None]
        if not known_numbers:
            return list(files)
        sorted_hashes, spans = np.sort(hashes.first), [file_bounds for file_bounds in bounds if file_bounds is not None]
        low, high = (self.key_hasher.hash_integers([span[side] for span in spans]) for side in (0, 1))
        without = np.searchsorted(sorted_hashes, low, "left") == np.searchsorted(sorted_hashes, high, "right")
        excluded = {known_numbers[i] for i in np.flatnonzero(without)}
        return [file for i, file in enumerate(files) if i not in excluded]

    def prefetcher(self, log: TableLog) -> Prefetcher:
        """Return a prefetcher, to be run in its own thread, for the files of a version that batches will likely need.

        Files with dead rows come first, because changes have hit them before. If the stream has not written to the
        table yet, nothing shows which files changes will hit: then all files follow, newest first, as far as the memory
        budget allows.
        """
        files = [file for file in log.files.values() if file.path not in self.index]
        files_with_dead_rows = [file for file in files if file.dead_row_count]
        is_untouched = bool(self.table_format.key_columns) and all(
            file.path.startswith(f"{SLICES_FOLDER}/") for file in log.files.values()
        )
        other_files = [file for file in reversed(files) if not file.dead_row_count] if is_untouched else []

        def read(budget: int, should_stop: Callable[[], bool]) -> int:
            for _ in self._index_files(log, files_with_dead_rows, in_background=True):
                if should_stop():
                    return 0
            bytes_before = sum(self.index.bytes_used)
            for _ in self._index_files(log, other_files if budget > 0 else [], in_background=True):
                if should_stop() or sum(self.index.bytes_used) - bytes_before >= budget:
                    break
            return sum(self.index.bytes_used) - bytes_before

        return read

    def _index_files(self, log: TableLog, files: Sequence[LiveFile], *, in_background: bool = False) -> Iterator[None]:
        """Index files of a version, some at a time.

        :param in_background: let files that a batch waits for go first, and read no portion before the caller requests
            it.
        """

        def read(file: LiveFile) -> None:
            if in_background:
                with self.index.batch_lock:
                    pass
            if file.path not in self.index:
                self.index.add_file(file.path, self._read_key_hashes(file, schema))

        schema = log.identify_columns(self.table_format.schema)
        pool = ThreadPoolExecutor(_REMOTE_READER_THREADS if self.storage.is_remote else _READER_THREADS)
        at_once = _FILES_PER_PORTION if in_background else max(1, len(files))
        try:
            for start in range(0, len(files), at_once):
                for number, _ in enumerate(pool.map(with_current_counts(read), files[start : start + at_once]), 1):
                    if number % _FILES_PER_PORTION == 0:
                        self.index.merge_and_spill()
                        yield
        finally:
            pool.shutdown(cancel_futures=True)

    def _read_key_hashes(self, file: LiveFile, schema: pa.Schema) -> FileKeyHashes:
        identity_columns, bounds = self.table_format.identity_columns, file.bounds(SEQ_COLUMN)
        columns = identity_columns if bounds else [*identity_columns, SEQ_COLUMN]
        may_lack_columns = not self.table_format.key_columns  # key columns are never new
        # In portions: the values of a table without a key may be much larger than their hashes.
        parts, newest_seq = [], bounds[1] if bounds else 0
        for rows in read_row_groups(self.storage, file.path, schema, columns, file.partition, may_lack_columns):
            parts.append(self.key_hasher(rows))
            if bounds is None and rows.num_rows:
                newest_seq = max(newest_seq, int(seqs_of(rows).max()))
        return FileKeyHashes.from_parts(parts, newest_seq)
