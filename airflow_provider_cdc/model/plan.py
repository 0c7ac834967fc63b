"""The chunk plan of a snapshot: the key ranges to read and their groups. It is written once and never changed.

Key values in bounds have a canonical form: ``int`` for integers, YEAR and ENUM (the index of the member); text as the
server prints it for decimals and temporal types; lower-case hex of the bytes for binary types, and of the UTF-8 text
for text types. Only the server compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import msgspec

from airflow_provider_cdc.model.definition_history import CapturedTables, DefinitionHistory, histories_by_table
from airflow_provider_cdc.model.errors import REMOVED
from airflow_provider_cdc.model.json_record import JsonRecord
from airflow_provider_cdc.model.offset import POSITION_BITS, Offset, Position, Timeline
from airflow_provider_cdc.model.plan_history import (
    Amendment,
    FollowedDdl,
    Rejoin,
    Replan,
    StoredAmendment,
    Suspension,
    sort_amendments,
    with_changed_schema,
)
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.start_mode import SNAPSHOT, StreamStart

KeyValue = int | str
Key = tuple[KeyValue, ...]

#: By default, Airflow maps at most 1024 tasks; the plan stays below that, even with one group per task.
MAX_GROUPS = 1000
#: Smallest group number outside the plan, for tables or key ranges that are re-snapshotted
#: (:mod:`airflow_provider_cdc.model.staged_read`).
AD_HOC_GROUP_BASE = 1_000_000
#: How many times the wanted rows a chunk may have at most, where that can be known in advance.
MAX_CHUNK_OVERSIZE = 4
#: Chunks per file: files are large, and little must be read again if a task dies.
CHUNKS_PER_FILE = 16


class Chunk(JsonRecord, frozen=True, array_like=True):
    """A key range of one table: ``lower <= key < upper``, or ``<= upper`` in the last chunk.

    A table without a usable key is one chunk with empty bounds.

    :param number: number of the chunk in the plan.
    :param table: index of the table in the plan.
    :param group: number of the chunk's group.
    :param lower: first key in the chunk.
    :param upper: first key after the chunk or, if ``includes_upper``, the last key in it.
    :param includes_upper: whether ``upper`` is included.
    """

    number: int
    table: int
    group: int
    lower: Key
    upper: Key
    includes_upper: bool


@dataclass(frozen=True)
class PlanningCost:
    """What planning one table cost the server, according to its own counters.

    :param statements: number of statements sent.
    :param rows: rows and index entries that the server read for them, including those of its own catalog.
    """

    statements: int
    rows: int


class Plan(JsonRecord, frozen=True, dict=True, tag_field="version", tag=1):
    """The result of planning a snapshot.

    ``p0`` is a low watermark taken before any table's smallest and largest key were read. Keys outside [min, max] (all
    keys of an empty table) belong to virtual chunks without rows, whose low and high watermarks are P0. So no chunk is
    unbounded: a row that appears there was written after P0 and is in the binlog.

    :param pipeline: name of the pipeline.
    :param generation: number of the snapshot, from 1.
    :param p0: where the stream will begin.
    :param timeline: maps positions to ``_cdc_seq``.
    :param patterns: the source patterns that the plan was made with.
    :param definitions: captured tables as they were planned, each with its definitions, followed by tables added later.
    :param chunks: chunks in key order, table by table. A table without chunks was empty, or its rows no longer come
        from the snapshot.
    :param costs: what planning each table cost; empty in older plans.
    :param start: what P0 is: ``snapshot``, or the binlog position where a stream without a snapshot begins. A plan of
        the latter kind has no chunks, as if all tables were empty at P0.
    :param table_path: ``sink.table_path`` that the plan was made with.
    :param lower_case: ``sink.lower_case`` that the plan was made with.
    :param routes: ``sink.routes`` that the plan was made with.
    :param amendments: what the stream has recorded about the tables since, in order of ``_cdc_seq``.
    :param superseded_chunks: planned chunks of tables whose rows no longer come from the snapshot, because the table
        was re-snapshotted as a whole or is suspended.
    :param sink_kind: ``sink.kind`` that the plan was made with; empty in older plans, whose tables show it.
    """

    pipeline: str
    generation: int
    p0: Offset
    timeline: Timeline
    patterns: tuple[tuple[str, ...], ...]
    definitions: tuple[DefinitionHistory, ...]
    chunks: tuple[Chunk, ...]
    costs: tuple[PlanningCost, ...] = ()
    start: StreamStart = SNAPSHOT
    table_path: str = "{database}/{table}"
    lower_case: bool = False
    amendments: tuple[Amendment, ...] = ()
    superseded_chunks: tuple[Chunk, ...] = ()
    sink_kind: str = ""
    routes: tuple[tuple[str, ...], ...] = ()

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

    @property
    def all_definitions(self) -> Iterator[TableSchema]:
        """Every definition that a table has had, as far as the plan still knows them."""
        for history in self.definitions:
            yield from (definition for _, definition in history.versions)
        yield from (step.schema for step in self.amendments if isinstance(step, FollowedDdl | Rejoin))

    @cached_property
    def active_tables(self) -> tuple[int, ...]:
        """Indexes of the tables that are not suspended."""
        return tuple(index for index in range(len(self.definitions)) if self.suspension_of(index) is None)

    @property
    def suspensions(self) -> tuple[Suspension, ...]:
        """The suspensions in effect, in the plan's order of tables."""
        suspensions = map(self.suspension_of, range(len(self.definitions)))
        return tuple(step for step in suspensions if step is not None)

    @property
    def outdated_tables(self) -> tuple[int, ...]:
        """Indexes of the tables whose copies are to be replaced by newer rows: suspended, but not gone for good."""
        return tuple(step.table for step in self.suspensions if not step.dropped and step.kind != REMOVED)

    def revision_of(self, table: int) -> int:
        """Return how often a table was planned again or re-snapshotted."""
        rejoin = self.rejoin_of(table)
        return self.definitions[table].revision if rejoin is None else rejoin.revision

    def rejoin_of(self, table: int) -> Rejoin | None:
        """Return the last rejoin of a table; ``None`` if it was never re-snapshotted as a whole."""
        rejoins = (step for step in self.amendments if isinstance(step, Rejoin) and step.table == table)
        return max(rejoins, key=lambda step: step.revision, default=None)

    def base_definition_of(self, table: int) -> TableSchema:
        """Return the definition with which a table was last planned or re-snapshotted."""
        rejoin = self.rejoin_of(table)
        return self.definitions[table].newest if rejoin is None else rejoin.schema

    def followed_ddls_of(self, table: int) -> list[FollowedDdl]:
        """Return the DDLs of a table that were followed since then, oldest first."""
        revision = self.revision_of(table)
        return [s for s in self.amendments if isinstance(s, FollowedDdl) and (s.table, s.revision) == (table, revision)]

    def suspension_of(self, table: int) -> Suspension | None:
        """Return the suspension of a table; ``None`` if it is not suspended."""
        revision = self.revision_of(table)
        suspensions = (
            s for s in self.amendments if isinstance(s, Suspension) and (s.table, s.revision) == (table, revision)
        )
        return next(suspensions, None)

    @staticmethod
    def is_addition(amendment: Amendment) -> bool:
        """Return whether an amendment adds a table to the plan."""
        return isinstance(amendment, Suspension) and amendment.schema is not None

    def definitions_for(self, timeline: Timeline) -> tuple[DefinitionHistory, ...]:
        """Return the definition histories for reading the binlog of a timeline's newest segment.

        Positions in another segment are meaningless there. A stream only continues in a new segment after it has passed
        all positions in earlier ones, so their last definition applies from the start of the new one.
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
                history = planned.replace(versions=((None, ddl.schema),))
            else:
                history = history.with_change(at, ddl.schema)
        if (suspension := self.suspension_of(index)) is not None:
            history = history.suspended_at(place(suspension))
        return history

    def captured_tables(self, timeline: Timeline) -> CapturedTables:
        """Return :meth:`definitions_for` by table."""
        return histories_by_table(self.definitions_for(timeline))

    def start_seq(self, table: int) -> int:
        """Return the watermark of keys outside a table's chunks: later changes of such keys are in the binlog.

        :returns: ``_cdc_seq`` of P0, or of where the table was last planned again or rejoined.
        """
        if (rejoin := self.rejoin_of(table)) is not None:
            return rejoin.seq
        since = self.definitions[table].start
        return self.p0_seq if since is None else self.timeline.seq(since)

    def with_amendments(self, amendments: Iterable[StoredAmendment]) -> Plan:
        """Return the plan with later amendments, of which the newest :class:`Replan` of each table counts."""
        listed = list(amendments)
        all_amendments = sort_amendments(
            [*self.amendments, *(amendment for amendment in listed if not isinstance(amendment, Replan))]
        )
        plan = self.replace(
            amendments=all_amendments, definitions=(*self.definitions, *self._added_tables(all_amendments))
        )
        replans = [amendment for amendment in listed if isinstance(amendment, Replan)]
        for replan in sorted(replans, key=lambda replan: (replan.table, replan.definitions.revision)):
            plan = plan._with_replanned_table(replan)
        return plan._without_superseded_chunks()

    def _added_tables(self, amendments: Iterable[Amendment]) -> list[DefinitionHistory]:
        """Return the tables that amendments add to the plan, in plan order.

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
        """Return the plan without the chunks of suspended and rejoined tables."""
        superseded = {i for i in range(len(self.definitions)) if self.rejoin_of(i) or self.suspension_of(i)}
        if not superseded:
            return self
        current_and_superseded: tuple[list[Chunk], list[Chunk]] = [], []
        for chunk in self.chunks:
            current_and_superseded[chunk.table in superseded].append(chunk)
        return self.replace(
            chunks=tuple(current_and_superseded[False]),
            superseded_chunks=(*self.superseded_chunks, *current_and_superseded[True]),
        )

    def _with_replanned_table(self, replan: Replan) -> Plan:
        chunks = list(self.chunks)
        numbers = [number for number, chunk in enumerate(chunks) if chunk.table == replan.table]
        if numbers:
            chunks[numbers[0]] = chunks[numbers[0]].replace(lower=replan.lower)
            chunks[numbers[-1]] = chunks[numbers[-1]].replace(upper=replan.upper)
        definitions = list(self.definitions)
        definitions[replan.table] = replan.definitions
        return self.replace(definitions=tuple(definitions), chunks=tuple(chunks))

    def with_zero_dates(self, policy: str) -> Plan:
        """Return the plan with the pipeline's ``source.zero_dates``; what is stored of it does not count."""
        return self.replace(
            definitions=tuple(d.with_zero_dates(policy) for d in self.definitions),
            amendments=tuple(
                with_changed_schema(step, lambda table: table.with_zero_dates(policy)) for step in self.amendments
            ),
        )

    def with_full_before_images(self, wanted: Callable[[TableSchema], bool]) -> Plan:
        """Return the plan with full before images for these tables only; what is stored of it does not count."""
        return self.replace(
            definitions=tuple(d.with_full_before_images(wanted(d.newest)) for d in self.definitions),
            amendments=tuple(
                with_changed_schema(step, lambda table: table.replace(full_before_images=wanted(table)))
                for step in self.amendments
            ),
        )

    def groups(self) -> dict[int, list[Chunk]]:
        """Return the chunks by group number."""
        return self._chunks_by_group

    def groups_of(self, table: int) -> set[int]:
        """Return the numbers of the groups that have chunks of a table; empty if the table was empty."""
        return self._groups_by_table.get(table, set())

    def superseded_groups(self) -> dict[int, list[Chunk]]:
        """Return the groups that have only superseded chunks, with these chunks as they were planned."""
        superseded = _chunks_by_group(self.superseded_chunks)
        return {number: chunks for number, chunks in superseded.items() if number not in self._chunks_by_group}

    def for_group(self, group: int) -> Plan:
        """Return the plan with the chunks of one group only."""
        return self.replace(chunks=tuple(self._chunks_by_group[group]))

    def part_for(self, tables: Collection[int]) -> PlanPart:
        """Return what readers of some tables need of the plan.

        :param tables: indexes of the tables.
        """
        plan = self.replace(
            definitions=tuple(self.definitions[index] for index in sorted(tables)),
            amendments=tuple(step for step in self.amendments if step.table in tables),
            costs=(),
            superseded_chunks=(),
        )
        return PlanPart(plan, tuple(sorted(tables)))

    @cached_property
    def _chunks_by_group(self) -> dict[int, list[Chunk]]:
        return _chunks_by_group(self.chunks)

    @cached_property
    def _groups_by_table(self) -> dict[int, set[int]]:
        groups: dict[int, set[int]] = {}
        for chunk in self.chunks:
            groups.setdefault(chunk.table, set()).add(chunk.group)
        return groups

    def group_label(self, chunks: Sequence[Chunk]) -> str:
        """Return a human-readable name of a group: its number and its tables.

        :param chunks: chunks of the group.
        """
        tables = sorted({chunk.table for chunk in chunks})
        more = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
        return f"{chunks[0].group}: {self.tables[tables[0]].label}{more}"

    def to_json(self) -> Any:
        """Return a plain JSON value, without costs and superseded chunks."""
        return msgspec.to_builtins(self.replace(costs=(), superseded_chunks=()))


class PlanPart(JsonRecord, frozen=True, tag_field="version", tag=2):
    """The part of a plan that concerns some tables, as stored for their readers.

    Its size does not depend on how many tables the plan has: otherwise those of all chunk groups together would grow
    with the square of that number.

    :param plan: the plan with the definitions and amendments of these tables only.
    :param tables: indexes of the tables in the whole plan, in ascending order.
    """

    plan: Plan
    tables: tuple[int, ...]

    def to_plan(self) -> Plan:
        """Return a plan in which the tables have their own indexes. Other indexes have a table without a name."""
        definitions = [_OTHER_TABLE] * (self.tables[-1] + 1)
        for index, history in zip(self.tables, self.plan.definitions, strict=True):
            definitions[index] = history
        return self.plan.replace(definitions=tuple(definitions))


_OTHER_TABLE = DefinitionHistory.from_single(TableSchema(database="", name="", columns=(), key=()))
#: The plan of a chunk group, as stored: older versions wrote the whole plan.
StoredGroupPlan = PlanPart | Plan
STORED_GROUP_PLAN = cast(type[StoredGroupPlan], StoredGroupPlan)


def _chunks_by_group(chunks: Iterable[Chunk]) -> dict[int, list[Chunk]]:
    groups: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        groups.setdefault(chunk.group, []).append(chunk)
    return groups


def even_chunk_width(low: int, high: int, rows: int, chunk_rows: int) -> int | None:
    """Return the chunk width that splits integer keys evenly; ``None`` if too few of the numbers are keys.

    A chunk has at most as many rows as its width, so no chunk has more than :data:`MAX_CHUNK_OVERSIZE` times the wanted
    rows, regardless of how the rows are distributed and how wrong the estimate is.

    :param low: smallest key.
    :param high: largest key.
    :param rows: estimated rows; 0 if unknown.
    :param chunk_rows: wanted rows per chunk.
    """
    numbers = high - low + 1
    if numbers > MAX_CHUNK_OVERSIZE * rows:
        return None
    return max(chunk_rows, math.ceil(numbers * chunk_rows / rows))


def chunks_from_bounds(table: int, lowers: Iterable[Key], high: Key) -> list[Chunk]:
    """Make the chunks of one table from their lower bounds, in order; the last one ends with ``high``, inclusive.

    :func:`number_and_group` sets their numbers and groups.
    """
    bounds = list(lowers)
    return [
        Chunk(0, table, 0, lower, bounds[i + 1] if i + 1 < len(bounds) else high, i + 1 == len(bounds))
        for i, lower in enumerate(bounds)
    ]


def number_and_group(chunks: Iterable[Chunk], group_rows: int, chunk_rows: int) -> tuple[Chunk, ...]:
    """Number the chunks and put them into at most :data:`MAX_GROUPS` groups; small tables share one.

    :param group_rows: wanted rows per group.
    :param chunk_rows: expected rows per chunk.
    """
    listed_chunks = list(chunks)
    size = max(1, group_rows // chunk_rows, math.ceil(len(listed_chunks) / MAX_GROUPS))
    return tuple(chunk.replace(number=i, group=i // size) for i, chunk in enumerate(listed_chunks))


def cut_into_slices(chunks: Sequence[Chunk]) -> list[tuple[Chunk, ...]]:
    """Cut the chunks of a group into slices, each of which becomes one file and belongs to one table."""
    slices_so_far: list[list[Chunk]] = []
    for chunk in chunks:
        newest = slices_so_far[-1] if slices_so_far else []
        if newest and newest[0].table == chunk.table and len(newest) < CHUNKS_PER_FILE:
            newest.append(chunk)
        else:
            slices_so_far.append([chunk])
    return [tuple(run) for run in slices_so_far]
