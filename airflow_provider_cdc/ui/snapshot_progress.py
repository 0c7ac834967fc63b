"""The progress of a snapshot in memory, so that a request does not read all chunks.

The first request reads all chunks. Later ones read those of the groups that have changed or are being read, and never
spend more than a small share of the time with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from airflow_provider_cdc.state.chunk_reader import CHUNK_STATES, STATE_CODES, ChunkTotals, GroupVersion
from airflow_provider_cdc.state.reader import StateDatabaseReader

#: Minimum seconds between two refreshes, and how many times as long as the last refresh lasted.
_FRESH_SECONDS, _FRESH_FACTOR = 1.5, 20.0
_WAITING, _READING, _FAILED = STATE_CODES["waiting"], STATE_CODES["reading"], STATE_CODES["failed"]
#: States of chunks by importance. A cell of the map that stands for several chunks has the most important state.
_BY_IMPORTANCE = [
    STATE_CODES[name] for name in ("published", "corrected", "retried", "waiting", "read", "reading", "failed")
]
#: Translates a state to its importance.
_RANKS = bytes(_BY_IMPORTANCE.index(code) for code in range(len(CHUNK_STATES)))
#: States of groups that a process reads or has begun to read.
_BEGUN_STATES = ("running", "rereading")


class ChunkRange(NamedTuple):
    """Chunks with consecutive numbers."""

    first: int
    chunks: int


class ReadTotals(NamedTuple):
    """How much of some chunks was read."""

    chunks: int = 0
    done: int = 0
    rows: int = 0
    bytes: int = 0
    corrected: int = 0


@dataclass
class SnapshotProgress:
    """Progress of one generation of a pipeline's snapshot. Threads may share it."""

    pipeline: str
    generation: int
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _groups: dict[int, GroupVersion] = field(default_factory=dict, repr=False)
    _totals: dict[int, list[ChunkTotals]] = field(default_factory=dict, repr=False)
    _groups_by_table: dict[tuple[str, str], set[int]] = field(default_factory=dict, repr=False)
    _states: bytearray = field(default_factory=bytearray, repr=False)
    _sum: ReadTotals = field(default_factory=ReadTotals, repr=False)
    _due_at: float = float("-inf")

    def refresh(self, reader: StateDatabaseReader) -> None:
        """Read what has changed, unless that was done a moment ago or another thread does it now.

        :raises CdcError: if the state database cannot be read.
        """
        if not self._lock.acquire(blocking=not self._groups):
            return
        try:
            begun_at = time.monotonic()
            if begun_at < self._due_at:
                return
            versions = {one.group_no: one for one in reader.group_versions(self.pipeline, self.generation)}
            changed = {
                number
                for number, version in versions.items()
                if version != self._groups.get(number) or version.state in _BEGUN_STATES
            }
            if changed:
                self._read_groups(reader, None if len(changed) == len(versions) else changed)
            self._groups = versions
            ended_at = time.monotonic()
            self._due_at = ended_at + max(_FRESH_SECONDS, _FRESH_FACTOR * (ended_at - begun_at))
        finally:
            self._lock.release()

    def _read_groups(self, reader: StateDatabaseReader, groups: Collection[int] | None) -> None:
        totals: dict[int, list[ChunkTotals]] = {}
        for one in reader.chunk_totals(self.pipeline, self.generation, groups):
            totals.setdefault(one.group_no, []).append(one)
            self._groups_by_table.setdefault((one.database, one.table), set()).add(one.group_no)
        states = bytearray(self._states)
        last = max((one.last for parts in totals.values() for one in parts), default=-1)
        states.extend(bytes(max(0, last + 1 - len(states))))
        for first, count, code in reader.chunk_state_runs(self.pipeline, self.generation, groups):
            states[first : first + count] = bytes([code]) * count
        self._totals = {**self._totals, **totals}
        self._states = states
        self._sum = _sum_totals(one for parts in self._totals.values() for one in parts)

    @property
    def totals(self) -> ReadTotals:
        """Totals over the whole snapshot."""
        return self._sum

    def group_totals(self, group: int) -> ReadTotals:
        """Return the totals of a group."""
        return _sum_totals(self._totals.get(group, ()))

    def table_totals(self, table: tuple[str, str]) -> ReadTotals:
        """Return the totals of a table."""
        return _sum_totals(self._parts_of_table(table))

    def table_groups(self, table: tuple[str, str]) -> list[int]:
        """Return the groups that have chunks of a table."""
        return sorted(self._groups_by_table.get(table, ()))

    def table_range(self, table: tuple[str, str]) -> ChunkRange | None:
        """Return the chunks of a table, which have consecutive numbers; ``None`` if it has none."""
        parts = list(self._parts_of_table(table))
        if not parts:
            return None
        first = min(one.first for one in parts)
        return ChunkRange(first, max(one.last for one in parts) + 1 - first)

    def _parts_of_table(self, table: tuple[str, str]) -> Iterator[ChunkTotals]:
        for group in self._groups_by_table.get(table, ()):
            yield from (one for one in self._totals[group] if (one.database, one.table) == table)

    def count_reading(self, lost: Collection[int]) -> int:
        """Return the number of chunks that readers read now.

        :param lost: groups that were begun and that no process reads any more.
        """
        return sum(count for _, count in self._chunks_being_read(lost))

    def _chunks_being_read(self, lost: Collection[int]) -> Iterator[tuple[int, int]]:
        """Yield each group that is being read for the first time, and how many of its chunks are being read."""
        for number, version in self._groups.items():
            if version.state == "running" and number not in lost:
                totals = self.group_totals(number)
                yield number, min(version.readers or 1, totals.chunks - totals.done)

    def draw_map(self, lost: Collection[int], chunks: ChunkRange | None, max_cells: int) -> dict[str, Any]:
        """Return the states of chunks as one digit for each cell of a map, and the number of chunks by state.

        Which of a group's unread chunks its readers have taken is not recorded: the first ones stand for them.

        :param lost: groups that were begun and that no process reads any more.
        :param chunks: only these chunks; ``None`` for all.
        :param max_cells: maximum number of cells.
        """
        states = bytearray(self._states)
        for number in lost:
            self._mark_waiting(states, number, _FAILED, len(states))
        for number, count in self._chunks_being_read(lost):
            self._mark_waiting(states, number, _READING, count)
        shown = chunks or ChunkRange(0, len(states))
        states = states[shown.first : shown.first + shown.chunks]
        per_cell = max(1, -(-len(states) // max_cells))
        ranks = states.translate(_RANKS.ljust(256, b"\0"))
        cells = (max(ranks[at : at + per_cell]) for at in range(0, len(ranks), per_cell))
        return {
            "first": shown.first,
            "chunks": len(states),
            "per_cell": per_cell,
            "cells": "".join(str(_BY_IMPORTANCE[rank]) for rank in cells),
            "counts": {name: states.count(code) for name, code in STATE_CODES.items()},
        }

    def _mark_waiting(self, states: bytearray, group: int, code: int, count: int) -> None:
        """Give another state to the first chunks of a group that nobody has read."""
        for part in self._totals.get(group, ()):
            at = part.first - 1
            while count > 0 and (at := states.find(_WAITING, at + 1, part.last + 1)) >= 0:
                states[at] = code
                count -= 1


def _sum_totals(parts: Collection[ChunkTotals] | Iterator[ChunkTotals]) -> ReadTotals:
    sums = [0] * len(ReadTotals._fields)
    for one in parts:
        for at, name in enumerate(ReadTotals._fields):
            sums[at] += getattr(one, name)
    return ReadTotals(*sums)
