"""The chunk plan of a snapshot: which key ranges are read, in which groups. Written once, never changed.

Key values in bounds are canonical: ``int`` for integers, YEAR and ENUM (the index of the member), text for decimals and
temporal types as the server prints them, lower-case hex of the bytes for binary types and of the text in UTF-8 for text
types. What compares them is the server alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from airflow_provider_cdc.model.definition_history import CapturedTables, DefinitionHistory, histories_by_table
from airflow_provider_cdc.model.offset import POSITION_BITS, Offset, Position, Timeline
from airflow_provider_cdc.model.plan_history import (
    Amendment,
    FollowedDdl,
    Rejoin,
    Suspension,
    parse_amendment,
    sort_amendments,
    with_changed_schema,
)
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.start_mode import SNAPSHOT, StreamStart

KeyValue = int | str
Key = tuple[KeyValue, ...]

#: Airflow maps at most 1024 tasks; the plan stays below.
MAX_GROUPS = 1000
#: Numbers of groups that are not of the plan are not below this one: tables, or ranges of keys, that are read again by
#: themselves (:mod:`airflow_provider_cdc.model.staged_read`).
AD_HOC_GROUP_BASE = 1_000_000
#: A chunk has at most so many times the wanted rows, where that can be known beforehand.
MAX_CHUNK_OVERSIZE = 4
#: Chunks that one file holds: large files, and not much to read again when a task dies.
CHUNKS_PER_FILE = 16


@dataclass(frozen=True, slots=True)
class Chunk:
    """A key range of one table: ``lower <= key < upper``, or ``<= upper`` in the last one.

    A table without a usable key is one chunk, whose bounds are empty.

    :param number: number of the chunk in the plan.
    :param table: index of the table in the plan.
    :param group: number of its group.
    :param lower: first key that belongs to it.
    :param upper: first key that does not (or, if ``last``, the last one that does).
    :param includes_upper: whether ``upper`` is included.
    """

    number: int
    table: int
    group: int
    lower: Key
    upper: Key
    includes_upper: bool

    def to_json(self) -> list[Any]:
        """Plain JSON value; :meth:`from_json` turns it back."""
        return [self.number, self.table, self.group, list(self.lower), list(self.upper), self.includes_upper]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Chunk:
        """Inverse of :meth:`to_json`."""
        return cls(value[0], value[1], value[2], tuple(value[3]), tuple(value[4]), value[5])


@dataclass(frozen=True)
class PlanCost:
    """What it cost the server to plan one table, as its own counters say.

    :param statements: statements that were sent.
    :param rows: rows and index entries that it read for them, those of its own catalog included.
    """

    statements: int
    rows: int


@dataclass(frozen=True)
class Plan:
    """Everything a snapshot was planned with.

    ``p0`` is a low watermark taken before any table's smallest and largest key were read. Keys outside of
    [min, max] (all keys of an empty table) belong to virtual chunks with LW = HW = P0 that hold no rows, so no chunk is
    unbounded: a row that appears there was written after P0 and is in the binlog.

    :param pipeline: name of the pipeline.
    :param generation: number of the snapshot, from 1.
    :param p0: where the stream will begin.
    :param timeline: how positions become ``_cdc_seq``.
    :param patterns: the patterns of the pipeline's source that it was made with.
    :param definitions: captured tables, each with its definitions as it was planned; then those that were added since.
    :param all_amendments: what has happened to them in the stream since, in order of ``_cdc_seq``.
    :param chunks: chunks in key order, table by table. A table without chunks was empty, or is not what the snapshot
        has read any more.
    :param superseded: chunks as they were planned of tables that are not what the snapshot has read any more: they were
        read again as a whole, or are suspended.
    :param costs: what planning each table cost; empty in a plan that was made before.
    :param start: what P0 is: ``snapshot``, or the place in the binlog where a stream without a snapshot begins. Such a
        plan has no chunks, as if all tables were empty at P0.
    :param table_path: ``sink.table_path`` with which it was made, and ``lower_case``: ``sink.lower_case``.
    """

    pipeline: str
    generation: int
    p0: Offset
    timeline: Timeline
    patterns: tuple[tuple[str, ...], ...]
    definitions: tuple[DefinitionHistory, ...]
    chunks: tuple[Chunk, ...]
    costs: tuple[PlanCost, ...] = field(default=(), compare=False)
    start: StreamStart = field(default=SNAPSHOT, hash=False)
    table_path: str = "{database}/{table}"
    lower_case: bool = False
    amendments: tuple[Amendment, ...] = ()
    superseded_chunks: tuple[Chunk, ...] = field(default=(), compare=False)

    @property
    def p0_seq(self) -> int:
        """``_cdc_seq`` of P0."""
        return self.timeline.seq(self.p0.at)

    @cached_property
    def tables(self) -> tuple[TableSchema, ...]:
        """The newest definition of each table."""
        return tuple(
            self.followed_ddls_of(index)[-1].schema if self.followed_ddls_of(index) else self.base_definition_of(index)
            for index in range(len(self.definitions))
        )

    @cached_property
    def active_tables(self) -> tuple[int, ...]:
        """Indexes of the tables that are not suspended."""
        return tuple(index for index in range(len(self.definitions)) if self.suspension_of(index) is None)

    @property
    def suspensions(self) -> tuple[Suspension, ...]:
        """What has suspended those that are, in the plan's order."""
        suspensions = map(self.suspension_of, range(len(self.definitions)))
        return tuple(step for step in suspensions if step is not None)

    def revision_of(self, table: int) -> int:
        """How often a table was planned or read again."""
        rejoin = self.rejoin_of(table)
        return self.definitions[table].revision if rejoin is None else rejoin.revision

    def rejoin_of(self, table: int) -> Rejoin | None:
        """How a table has rejoined the last time that it was read again as a whole."""
        rejoins = (step for step in self.amendments if isinstance(step, Rejoin) and step.table == table)
        return max(rejoins, key=lambda step: step.revision, default=None)

    def base_definition_of(self, table: int) -> TableSchema:
        """The definition with which a table was planned, or read again, the last time."""
        rejoin = self.rejoin_of(table)
        return self.definitions[table].newest if rejoin is None else rejoin.schema

    def followed_ddls_of(self, table: int) -> list[FollowedDdl]:
        """The DDL of a table that has been followed since then, the oldest first."""
        revision = self.revision_of(table)
        return [s for s in self.amendments if isinstance(s, FollowedDdl) and (s.table, s.revision) == (table, revision)]

    def suspension_of(self, table: int) -> Suspension | None:
        """What has suspended a table; ``None`` if it is not."""
        revision = self.revision_of(table)
        suspensions = (
            s for s in self.amendments if isinstance(s, Suspension) and (s.table, s.revision) == (table, revision)
        )
        return next(suspensions, None)

    @staticmethod
    def is_addition(amendment: Amendment) -> bool:
        """Whether a step adds a table to the plan."""
        return isinstance(amendment, Suspension) and amendment.schema is not None

    def definitions_for(self, timeline: Timeline) -> tuple[DefinitionHistory, ...]:
        """The definitions over time, for those who read the binlog of a lineage's newest segment.

        Places of another segment mean nothing there. A stream goes on in a new segment only when it has passed all
        places of those before it, so what holds last of these holds from its beginning.
        """
        is_same_segment = timeline.newest_segment == self.timeline.newest_segment
        return tuple(
            self._definition_history(index, history if is_same_segment else history.on_other_server(), timeline)
            for index, history in enumerate(self.definitions)
        )

    def _definition_history(self, index: int, planned: DefinitionHistory, timeline: Timeline) -> DefinitionHistory:
        def place(step: Amendment) -> Position | None:
            return None if step.seq >> POSITION_BITS < timeline.first_ordinal else timeline.position(step.seq)

        if (rejoin := self.rejoin_of(index)) is not None:
            planned = DefinitionHistory(((place(rejoin), rejoin.schema),), rejoin.revision)
        history = planned
        for ddl in self.followed_ddls_of(index):
            if (at := place(ddl)) is None:
                history = replace(planned, versions=((None, ddl.schema),))
            else:
                history = history.with_change(at, ddl.schema)
        if (suspension := self.suspension_of(index)) is not None:
            history = history.suspended_at(place(suspension))
        return history

    def captured_tables(self, timeline: Timeline) -> CapturedTables:
        """The same by table."""
        return histories_by_table(self.definitions_for(timeline))

    def start_seq(self, table: int) -> int:
        """``_cdc_seq`` up to which nothing outside of a table's chunks is in the binlog's changes: P0, or where the
        table was planned again, or has rejoined.
        """
        if (rejoin := self.rejoin_of(table)) is not None:
            return rejoin.seq
        since = self.definitions[table].start
        return self.p0_seq if since is None else self.timeline.seq(since)

    def with_amendments(self, amendments: Iterable[Mapping[str, Any]]) -> Plan:
        """The plan with what has changed since: tables planned again, and what has happened to them in the stream.

        :param amendments: of a table that was planned again ``table`` (index), ``definitions``, and its outermost
            bounds ``lower`` and ``upper`` (``None`` for a table without chunks), of which the newest one of a table
            counts; or what a step's ``to_json`` returned.
        """
        parsed = [(amendment, parse_amendment(amendment)) for amendment in amendments]
        all_amendments = sort_amendments([*self.amendments, *(step for _, step in parsed if step is not None)])
        plan = replace(
            self, amendments=all_amendments, definitions=(*self.definitions, *self._added_tables(all_amendments))
        )
        replans = [amendment for amendment, step in parsed if step is None]
        replanned = [(a["table"], DefinitionHistory.from_json(a.get("definitions") or a["schema"]), a) for a in replans]
        for index, definitions, amendment in sorted(replanned, key=lambda found: (found[0], found[1].revision)):
            plan = plan._with_replanned_table(index, definitions, amendment["lower"], amendment["upper"])
        return plan._without_superseded_chunks()

    def _added_tables(self, amendments: Iterable[Amendment]) -> list[DefinitionHistory]:
        """Tables that steps add to the plan, in their order.

        :raises ValueError: if one is missing.
        """
        added = {s.table: s.schema for s in amendments if isinstance(s, Suspension) and s.schema is not None}
        indexes = sorted(index for index in added if index >= len(self.definitions))
        if indexes != [len(self.definitions) + n for n in range(len(indexes))]:
            raise ValueError(f"tables {indexes} were added to a plan of {len(self.definitions)}")
        return [
            DefinitionHistory.from_single(definition) for index in indexes if (definition := added[index]) is not None
        ]

    def _without_superseded_chunks(self) -> Plan:
        """The plan without the chunks of tables whose rows are not what those hold any more."""
        superseded = {i for i in range(len(self.definitions)) if self.rejoin_of(i) or self.suspension_of(i)}
        if not superseded:
            return self
        current_and_superseded: tuple[list[Chunk], list[Chunk]] = [], []
        for chunk in self.chunks:
            current_and_superseded[chunk.table in superseded].append(chunk)
        return replace(
            self,
            chunks=tuple(current_and_superseded[False]),
            superseded_chunks=(*self.superseded_chunks, *current_and_superseded[True]),
        )

    def _with_replanned_table(
        self, index: int, definitions: DefinitionHistory, lower: Sequence[Any], upper: Sequence[Any]
    ) -> Plan:
        table_chunks = [c for c in self.chunks if c.table == index]
        changed_chunks = {}
        if table_chunks:
            changed_chunks[table_chunks[0].number] = replace(table_chunks[0], lower=tuple(lower))
            last = changed_chunks.get(table_chunks[-1].number, table_chunks[-1])
            changed_chunks[last.number] = replace(last, upper=tuple(upper))
        histories = tuple(definitions if i == index else d for i, d in enumerate(self.definitions))
        return replace(self, definitions=histories, chunks=tuple(changed_chunks.get(c.number, c) for c in self.chunks))

    def with_zero_dates(self, policy: str) -> Plan:
        """The plan with the pipeline's ``source.zero_dates``, which is not written down with it."""
        return replace(
            self,
            definitions=tuple(d.with_zero_dates(policy) for d in self.definitions),
            amendments=tuple(
                with_changed_schema(step, lambda table: table.with_zero_dates(policy)) for step in self.amendments
            ),
        )

    def with_full_before_images(self, wanted: Callable[[TableSchema], bool]) -> Plan:
        """The plan where the old rows of some tables are wanted whole, which is not written down with it, either."""
        return replace(
            self,
            definitions=tuple(d.with_full_before_images() if wanted(d.newest) else d for d in self.definitions),
            amendments=tuple(
                with_changed_schema(
                    step, lambda table: replace(table, full_before_images=table.full_before_images or wanted(table))
                )
                for step in self.amendments
            ),
        )

    def groups(self) -> dict[int, list[Chunk]]:
        """Chunks by group number."""
        return self._chunks_by_group

    def groups_of(self, table: int) -> set[int]:
        """Numbers of the groups that hold chunks of a table; empty if the table was."""
        return self._groups_by_table.get(table, set())

    def superseded_groups(self) -> dict[int, list[Chunk]]:
        """Groups of which no table is what the snapshot has read any more, with their chunks as they were planned."""
        return {
            number: chunks
            for number, chunks in self._superseded_by_group.items()
            if number not in self._chunks_by_group
        }

    def for_group(self, group: int) -> Plan:
        """The plan with the chunks of one group only."""
        return replace(self, chunks=tuple(self._chunks_by_group[group]))

    @cached_property
    def _chunks_by_group(self) -> dict[int, list[Chunk]]:
        groups: dict[int, list[Chunk]] = {}
        for chunk in self.chunks:
            groups.setdefault(chunk.group, []).append(chunk)
        return groups

    @cached_property
    def _superseded_by_group(self) -> dict[int, list[Chunk]]:
        groups: dict[int, list[Chunk]] = {}
        for chunk in self.superseded_chunks:
            groups.setdefault(chunk.group, []).append(chunk)
        return groups

    @cached_property
    def _groups_by_table(self) -> dict[int, set[int]]:
        groups: dict[int, set[int]] = {}
        for chunk in self.chunks:
            groups.setdefault(chunk.table, set()).add(chunk.group)
        return groups

    def group_label(self, chunks: Sequence[Chunk]) -> str:
        """A group for people: its number and its tables.

        :param chunks: its chunks.
        """
        tables = sorted({chunk.table for chunk in chunks})
        more = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
        return f"{chunks[0].group}: {self.tables[tables[0]].label}{more}"

    def group_summaries(self, chunk_rows: int, *, include_superseded: bool = False) -> list[dict[str, Any]]:
        """The groups for people and schedulers: ``group``, ``label``, ``tables``, ``chunks``, ``rows`` (about).

        :param chunk_rows: expected rows a chunk.
        :param include_superseded: whether groups are among them of which there is nothing left to read: all that were
            planned.
        """
        summaries = []
        groups = self.groups() | (self.superseded_groups() if include_superseded else {})
        for number, chunks in sorted(groups.items()):
            tables, label = [self.tables[i].label for i in sorted({c.table for c in chunks})], self.group_label(chunks)
            rows = len(chunks) * chunk_rows
            summaries.append({"group": number, "label": label, "tables": tables, "chunks": len(chunks), "rows": rows})
        return summaries

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; :meth:`from_json` turns it back."""
        return {
            "version": 1,
            "pipeline": self.pipeline,
            "generation": self.generation,
            "p0": self.p0.to_json(),
            "lineage": self.timeline.to_json(),
            "patterns": [list(p) for p in self.patterns],
            "tables": [d.to_json() for d in self.definitions],
            "steps": [step.to_json() for step in self.amendments],
            "chunks": [c.to_json() for c in self.chunks],
            "start": self.start,
            "table_path": self.table_path,
            "lower_case": self.lower_case,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Plan:
        """Inverse of :meth:`to_json`."""
        return cls(
            value["pipeline"],
            value["generation"],
            Offset.from_json(value["p0"]),
            Timeline.from_json(value["lineage"]),
            tuple(tuple(p) for p in value["patterns"]),
            tuple(DefinitionHistory.from_json(t) for t in value["tables"]),
            tuple(Chunk.from_json(c) for c in value["chunks"]),
            start=value.get("start", SNAPSHOT),
            table_path=value.get("table_path", cls.table_path),
            lower_case=value.get("lower_case", cls.lower_case),
            amendments=sort_amendments(
                filter(None, map(parse_amendment, value.get("steps", value.get("followed", ()))))
            ),
        )


def even_chunk_width(low: int, high: int, rows: int, chunk_rows: int) -> int | None:
    """Width of chunks for an even split of integer keys, or ``None`` where too many numbers are no keys.

    A chunk cannot have more rows than numbers, so none has more than :data:`TOLERANCE` times the wanted rows, wherever
    the rows lie and however wrong the estimate is.

    :param low: smallest key.
    :param high: largest key.
    :param rows: estimated rows; 0 if unknown.
    :param chunk_rows: wanted rows a chunk.
    """
    numbers = high - low + 1
    if numbers > MAX_CHUNK_OVERSIZE * rows:
        return None
    return max(chunk_rows, math.ceil(numbers * chunk_rows / rows))


def chunks_from_bounds(table: int, lowers: Iterable[Key], high: Key) -> list[Chunk]:
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
    listed_chunks = list(chunks)
    size = max(1, group_rows // chunk_rows, math.ceil(len(listed_chunks) / MAX_GROUPS))
    return tuple(replace(chunk, number=i, group=i // size) for i, chunk in enumerate(listed_chunks))


def cut_into_slices(chunks: Sequence[Chunk], per_file: int = CHUNKS_PER_FILE) -> list[tuple[Chunk, ...]]:
    """Cut the chunks of a group into runs that become one file each; a run never crosses a table."""
    slices_so_far: list[list[Chunk]] = []
    for chunk in chunks:
        if slices_so_far and slices_so_far[-1][0].table == chunk.table and len(slices_so_far[-1]) < per_file:
            slices_so_far[-1].append(chunk)
        else:
            slices_so_far.append([chunk])
    return [tuple(run) for run in slices_so_far]
