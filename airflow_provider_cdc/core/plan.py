"""The chunk plan of a snapshot: which key ranges are read, in which groups. Written once, never changed.

Key values in bounds are canonical: ``int`` for integers and YEAR, text for decimals and temporal types as the server
prints them, lower-case hex of the raw bytes for text and binary types. What compares them is the server alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_cdc.core.offset import Lineage, Offset
from airflow_provider_cdc.core.schema import TableSchema

KeyValue = int | str
Key = tuple[KeyValue, ...]

#: Airflow maps at most 1024 tasks; the plan stays below.
MAX_GROUPS = 1000
#: Bounds of (max - min + 1) / rows within which integer keys are split evenly (Flink CDC's defaults).
FACTOR_LOW, FACTOR_HIGH = 0.05, 1000.0
#: Chunks that one file holds: large files, and not much to read again when a task dies.
CHUNKS_PER_FILE = 16


@dataclass(frozen=True)
class Chunk:
    """A key range of one table: ``lower <= key < upper``, or ``<= upper`` in the last one.

    :param no: number of the chunk in the plan.
    :param table: index of the table in the plan.
    :param group: number of its group.
    :param lower: first key that belongs to it.
    :param upper: first key that does not (or, if ``last``, the last one that does).
    :param last: whether ``upper`` is included.
    """

    no: int
    table: int
    group: int
    lower: Key
    upper: Key
    last: bool

    def to_json(self) -> list[Any]:
        """Plain JSON value; :meth:`from_json` turns it back."""
        return [self.no, self.table, self.group, list(self.lower), list(self.upper), self.last]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Chunk:
        """Inverse of :meth:`to_json`."""
        return cls(value[0], value[1], value[2], tuple(value[3]), tuple(value[4]), value[5])


@dataclass(frozen=True)
class Plan:
    """Everything a snapshot was planned with.

    ``p0`` is a low watermark taken before any table's smallest and largest key were read. Keys outside of
    [min, max] (all keys of an empty table) belong to virtual chunks with LW = HW = P0 that hold no rows, so no chunk is
    unbounded: a row that appears there was written after P0 and is in the binlog.

    :param pipeline: name of the pipeline.
    :param generation: number of the snapshot, from 1.
    :param p0: where the stream will begin.
    :param lineage: how positions become ``_cdc_seq``.
    :param patterns: ``source.tables`` and ``source.exclude`` that it was made with.
    :param tables: captured tables.
    :param chunks: chunks in key order, table by table. A table without chunks was empty.
    """

    pipeline: str
    generation: int
    p0: Offset
    lineage: Lineage
    patterns: tuple[tuple[str, ...], tuple[str, ...]]
    tables: tuple[TableSchema, ...]
    chunks: tuple[Chunk, ...]

    @property
    def p0_seq(self) -> int:
        """``_cdc_seq`` of P0."""
        return self.lineage.seq(self.p0.at)

    def groups(self) -> dict[int, list[Chunk]]:
        """Chunks by group number."""
        found: dict[int, list[Chunk]] = {}
        for chunk in self.chunks:
            found.setdefault(chunk.group, []).append(chunk)
        return found

    def groups_of(self, table: int) -> set[int]:
        """Numbers of the groups that hold chunks of a table."""
        return {c.group for c in self.chunks if c.table == table}

    def summaries(self, chunk_rows: int) -> list[dict[str, Any]]:
        """The groups for people and schedulers: ``group``, ``label``, ``tables``, ``chunks``, ``rows`` (about).

        :param chunk_rows: expected rows a chunk.
        """
        found = []
        for number, chunks in self.groups().items():
            tables = [self.tables[i].label for i in sorted({c.table for c in chunks})]
            label = f"{number}: {tables[0]}" + (f" and {len(tables) - 1} more" if len(tables) > 1 else "")
            rows = len(chunks) * chunk_rows
            found.append({"group": number, "label": label, "tables": tables, "chunks": len(chunks), "rows": rows})
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; :meth:`from_json` turns it back."""
        return {
            "version": 1,
            "pipeline": self.pipeline,
            "generation": self.generation,
            "p0": self.p0.to_json(),
            "lineage": self.lineage.to_json(),
            "patterns": [list(p) for p in self.patterns],
            "tables": [t.to_json() for t in self.tables],
            "chunks": [c.to_json() for c in self.chunks],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Plan:
        """Inverse of :meth:`to_json`."""
        return cls(
            value["pipeline"],
            value["generation"],
            Offset.from_json(value["p0"]),
            Lineage.from_json(value["lineage"]),
            (tuple(value["patterns"][0]), tuple(value["patterns"][1])),
            tuple(TableSchema.from_json(t) for t in value["tables"]),
            tuple(Chunk.from_json(c) for c in value["chunks"]),
        )


def even_step(low: int, high: int, rows: int, chunk_rows: int) -> int | None:
    """Width of chunks for an even split of integer keys, or ``None`` where the keys are too uneven for one.

    :param low: smallest key.
    :param high: largest key.
    :param rows: estimated rows; 0 if unknown.
    :param chunk_rows: wanted rows a chunk.
    """
    if rows <= 0:
        return None
    factor = (high - low + 1) / rows
    return max(1, math.ceil(factor * chunk_rows)) if FACTOR_LOW <= factor <= FACTOR_HIGH else None


def even_bounds(low: int, high: int, step: int) -> Iterator[Key]:
    """Lower bounds of chunks of equal width over [low, high]."""
    return ((value,) for value in range(low, high + 1, step))


def chunks_of(table: int, lowers: Iterable[Key], high: Key) -> list[Chunk]:
    """Chunks of one table from their lower bounds in order; the last one ends with ``high``, included.

    Numbers and groups are given by :func:`number_and_group`.
    """
    bounds = list(lowers)
    return [
        Chunk(0, table, 0, lower, bounds[i + 1] if i + 1 < len(bounds) else high, i + 1 == len(bounds))
        for i, lower in enumerate(bounds)
    ]


def number_and_group(chunks: Iterable[Chunk], group_rows: int, chunk_rows: int) -> tuple[Chunk, ...]:
    """Number the chunks and put them into at most :data:`MAX_GROUPS` groups; small tables share one.

    :param group_rows: wanted rows a group.
    :param chunk_rows: expected rows a chunk.
    """
    found = list(chunks)
    size = max(1, group_rows // chunk_rows, math.ceil(len(found) / MAX_GROUPS))
    return tuple(replace(chunk, no=i, group=i // size) for i, chunk in enumerate(found))


def slices(chunks: Sequence[Chunk], per_file: int = CHUNKS_PER_FILE) -> list[tuple[Chunk, ...]]:
    """Cut the chunks of a group into runs that become one file each; a run never crosses a table."""
    found: list[list[Chunk]] = []
    for chunk in chunks:
        if found and found[-1][0].table == chunk.table and len(found[-1]) < per_file:
            found[-1].append(chunk)
        else:
            found.append([chunk])
    return [tuple(run) for run in found]
