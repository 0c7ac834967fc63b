"""An index of keys: the rows of each data file, ordered by key hash. Data files never change.

Only the log determines which rows are alive, so an index that is lost, outdated or too large does no harm. Small
segments are merged, as in a log-structured merge tree, so that a search visits few of them. Segments that do not fit
into memory are kept in unnamed files, which disappear with the process.

Segments never change: a search continues with those that it started with, whatever other threads do meanwhile.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyroaring import BitMap

from airflow_provider_cdc.sinks.lake.merge.key_hashes import KeyHashes, concat_hashes

#: Number of segments of similar size that are merged; number of rows above which a segment is not merged; and maximum
#: number of rows of one merge, as a multiple of the latter, which bounds its time and memory.
_SEGMENTS_TO_MERGE, _MAX_SEGMENT_ROWS, _MAX_MERGE_FACTOR = 8, 500_000, 4


@dataclass(frozen=True)
class FileKeyHashes:
    """The key hashes of one data file.

    :param hashes: hashes of its rows.
    :param newest_seq: its highest ``_cdc_seq``.
    :param row_numbers: row numbers of these rows; ``None`` for all rows in order.
    """

    hashes: KeyHashes
    newest_seq: int
    row_numbers: Any = None

    @classmethod
    def from_parts(cls, parts: Sequence[KeyHashes], newest_seq: int) -> FileKeyHashes:
        """Return the key hashes of a file that was read in parts."""
        return cls(concat_hashes(parts) if parts else KeyHashes(np.empty(0, np.uint64)), newest_seq)


@dataclass(frozen=True)
class KeyMatches:
    """Locations of rows that were looked up; arrays of the same length.

    :param query_index: index of the hash that was looked up.
    :param file_number: number of the data file.
    :param row_number: row in it.
    """

    query_index: Any
    file_number: Any
    row_number: Any


@dataclass(frozen=True)
class _Segment:
    """Rows ordered by key hash.

    :param file_numbers: file number of each row, or a scalar for all rows.
    :param row_numbers: row number in the file; ``None`` if it is the position.
    """

    hashes: KeyHashes
    file_numbers: Any
    row_numbers: Any

    @property
    def nbytes(self) -> int:
        arrays = (self.hashes.first, self.hashes.second, self.file_numbers, self.row_numbers)
        return sum(array.nbytes for array in arrays if array is not None)

    @property
    def in_memory(self) -> bool:
        return not isinstance(self.hashes.first, np.memmap)

    def row_array(self) -> Any:
        return np.arange(len(self.hashes), dtype=np.uint32) if self.row_numbers is None else self.row_numbers

    def file_array(self) -> Any:
        if np.isscalar(self.file_numbers):
            return np.full(len(self.hashes), self.file_numbers, np.uint32)
        return self.file_numbers

    def locate_rows(self, positions: Any) -> tuple[Any, Any]:
        """Return the file numbers and the row numbers of some rows."""
        one_file = np.isscalar(self.file_numbers)
        files = np.full(len(positions), self.file_numbers) if one_file else self.file_numbers[positions]
        return files, positions if self.row_numbers is None else self.row_numbers[positions]


class KeyIndex:
    """Index of the data files of a table. Thread-safe.

    :param memory_limit: maximum number of bytes in memory.
    """

    def __init__(self, memory_limit: int) -> None:
        self._memory_limit = memory_limit
        self._lock = threading.RLock()
        #: Held while files are read that a batch waits for; prefetching yields to its holder.
        self.batch_lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._file_numbers: dict[str, int] = {}
        self._file_paths: dict[int, str] = {}
        self._newest_seqs: dict[int, int] = {}
        self._next_number = 0

    def __contains__(self, path: str) -> bool:
        return path in self._file_numbers

    @property
    def bytes_used(self) -> tuple[int, int]:
        """Bytes in memory, and on disk."""
        segments = self._segments
        memory = sum(s.nbytes for s in segments if s.in_memory)
        return memory, sum(s.nbytes for s in segments) - memory

    def new_empty(self) -> KeyIndex:
        """Return an empty index with the same memory limit."""
        return KeyIndex(self._memory_limit)

    def file_number(self, path: str) -> int:
        """Return the number of an indexed file."""
        return self._file_numbers[path]

    def file_path(self, number: int) -> str:
        """Return the path of a file by its number."""
        return self._file_paths[number]

    def newest_seq(self, number: int) -> int:
        """Return the highest ``_cdc_seq`` in a file, given by its number."""
        return self._newest_seqs[number]

    def add_file(self, path: str, file_hashes: FileKeyHashes) -> None:
        """Add a file, unless it is already indexed."""
        hashes, row_numbers = file_hashes.hashes, file_hashes.row_numbers
        if not _is_sorted(hashes):
            order = np.argsort(hashes.first, kind="stable")
            hashes = hashes.select(order)
            row_numbers = order.astype(np.uint32) if row_numbers is None else row_numbers[order]
        with self._lock:
            if path in self._file_numbers:  # another thread was faster
                return
            number, self._next_number = self._next_number, self._next_number + 1
            self._file_paths[number], self._file_numbers[path] = path, number
            self._newest_seqs[number] = file_hashes.newest_seq
            if len(hashes):
                self._segments = [*self._segments, _Segment(hashes, np.uint32(number), row_numbers)]

    def forget_files(self, paths: Iterable[str]) -> None:
        """Remove files from the index."""
        with self._lock:
            removed = {path: self._file_numbers.pop(path) for path in set(paths) if path in self._file_numbers}
            if removed:
                numbers = np.fromiter(removed.values(), np.uint32)
                self._segments = [
                    remaining for s in self._segments if (remaining := _drop_files(s, numbers)) is not None
                ]
                for number in removed.values():
                    del self._file_paths[number], self._newest_seqs[number]

    def sync_live_files(self, live: Mapping[str, Any], dead: Callable[[str], BitMap]) -> None:
        """Remove files that are no longer live, and merge small segments without the rows that are dead by now.

        :param live: paths of the files of the table.
        :param dead: returns the dead rows of a file.
        """
        self.forget_files(path for path in list(self._file_numbers) if path not in live)
        self.merge_and_spill(dead)

    def merge_and_spill(self, dead: Callable[[str], BitMap] | None = None) -> None:
        """Merge small segments, and move to disk what does not fit into memory.

        :param dead: as for :meth:`sync_live_files`; if ``None``, dead rows stay in the index.
        """
        while (to_merge := self._mergeable_segments()) is not None:
            merged = self._merge_segments(to_merge, dead)
            with self._lock:
                other_segments = [s for s in self._segments if not any(s is m for m in to_merge)]
                # Otherwise another thread has changed some of them.
                if len(other_segments) + len(to_merge) == len(self._segments):
                    self._segments = [*other_segments, merged] if len(merged.hashes) else other_segments
        self._spill_to_disk()

    def find_keys(self, hashes: KeyHashes) -> KeyMatches:
        """Return all rows with these hashes, including dead ones.

        :param hashes: hashes without duplicates.
        """
        order = np.argsort(hashes.first, kind="stable")
        sorted_queries = hashes.select(order)
        parts: list[tuple[Any, Any, Any]] = []
        for segment in self._segments:
            segment_hashes = segment.hashes.first
            low, high = np.searchsorted(
                sorted_queries.first, [segment_hashes[0], segment_hashes[-1] + (segment_hashes[-1] < _MAX_UINT64)]
            )
            high = len(order) if segment_hashes[-1] == _MAX_UINT64 else high
            if low == high:
                continue
            begin = np.searchsorted(segment_hashes, sorted_queries.first[low:high])
            positions, query_numbers = begin, np.arange(low, high)
            is_match = np.flatnonzero(
                segment_hashes[np.minimum(positions, len(segment_hashes) - 1)] == sorted_queries.first[low:high]
            )
            positions, query_numbers = positions[is_match], query_numbers[is_match]
            while len(positions):  # rows with the same first word are adjacent
                is_full_match = slice(None)
                if sorted_queries.second is not None:
                    is_full_match = segment.hashes.second[positions] == sorted_queries.second[query_numbers]
                parts.append((order[query_numbers[is_full_match]], *segment.locate_rows(positions[is_full_match])))
                next_positions = positions + 1
                inside = next_positions < len(segment_hashes)
                next_positions, next_queries = next_positions[inside], query_numbers[inside]
                is_same_hash = segment_hashes[next_positions] == sorted_queries.first[next_queries]
                positions, query_numbers = next_positions[is_same_hash], next_queries[is_same_hash]
        if not parts:
            return KeyMatches(*(np.empty(0, np.int64) for _ in range(3)))
        return KeyMatches(*(np.concatenate(p).astype(np.int64) for p in zip(*parts, strict=True)))

    def _mergeable_segments(self) -> list[_Segment] | None:
        classes: dict[int, list[_Segment]] = {}
        for segment in self._segments:
            if len(segment.hashes) <= _MAX_SEGMENT_ROWS:
                classes.setdefault(len(segment.hashes).bit_length() // 3, []).append(segment)
        candidates = next((found for found in classes.values() if len(found) >= _SEGMENTS_TO_MERGE), None)
        if candidates is None:
            return None
        candidates.sort(key=lambda s: int(s.hashes.first[0]))  # so that segments of a snapshot are consecutive
        rows = np.cumsum([len(s.hashes) for s in candidates])
        return candidates[: max(2, int(np.searchsorted(rows, _MAX_MERGE_FACTOR * _MAX_SEGMENT_ROWS, "right")))]

    def _merge_segments(self, segments: list[_Segment], dead: Callable[[str], BitMap] | None) -> _Segment:
        """Merge several segments into one without dead rows, which never become alive again."""
        parts = segments if dead is None else [self._drop_dead_rows(s, dead) for s in segments]
        hashes, files = concat_hashes([s.hashes for s in parts]), np.concatenate([s.file_array() for s in parts])
        rows = np.concatenate([s.row_array() for s in parts])
        if _is_sorted(hashes):
            return _Segment(hashes, files, rows)
        order = np.argsort(hashes.first, kind="stable")
        return _Segment(hashes.select(order), files[order], rows[order])

    def _drop_dead_rows(self, segment: _Segment, dead: Callable[[str], BitMap]) -> _Segment:
        """Return a segment without dead rows."""
        files, rows, is_living = segment.file_array(), segment.row_array(), np.ones(len(segment.hashes), bool)
        order = np.argsort(files, kind="stable")
        numbers, starts = np.unique(files[order], return_index=True)
        for number, positions in zip(numbers, np.split(order, starts[1:]), strict=True):
            dead_rows = dead(self._file_paths[int(number)])
            if dead_rows:
                is_living[positions] = ~np.isin(rows[positions], np.asarray(dead_rows.to_array(), np.uint32))
        if is_living.all():
            return segment
        return _Segment(segment.hashes.select(is_living), files[is_living], rows[is_living])

    def _spill_to_disk(self) -> None:
        """Move the largest segments to disk until the rest fits into memory."""
        with self._lock:
            excess_bytes = self.bytes_used[0] - self._memory_limit
            for segment in sorted((s for s in self._segments if s.in_memory), key=lambda s: -s.nbytes):
                if excess_bytes <= 0:
                    return
                excess_bytes -= segment.nbytes
                arrays = (segment.hashes.first, segment.hashes.second, segment.file_numbers, segment.row_numbers)
                first, second, file, row = (_map_to_disk(a) if isinstance(a, np.ndarray) else a for a in arrays)
                stored = _Segment(KeyHashes(first, second), file, row)
                self._segments = [stored if s is segment else s for s in self._segments]


def _is_sorted(words: KeyHashes) -> bool:
    return bool(np.all(words.first[1:] >= words.first[:-1]))


_MAX_UINT64 = np.uint64(2**64 - 1)


def _drop_files(segment: _Segment, removed_numbers: Any) -> _Segment | None:
    """Return a segment without the rows of some files; ``None`` if nothing is left."""
    if np.isscalar(segment.file_numbers):
        return None if np.isin(segment.file_numbers, removed_numbers) else segment
    remaining = np.flatnonzero(~np.isin(segment.file_numbers, removed_numbers))
    if len(remaining) == len(segment.hashes):
        return segment
    if not len(remaining):
        return None
    return _Segment(segment.hashes.select(remaining), segment.file_numbers[remaining], segment.row_numbers[remaining])


def _map_to_disk(array: Any) -> Any:
    with tempfile.TemporaryFile() as file:
        array.tofile(file)
        file.flush()
        return np.memmap(file, array.dtype, "r", shape=array.shape)
