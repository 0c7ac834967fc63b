"""The history of the reads that include a key: by the snapshot, or by re-snapshots of the table or of key ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup, entry_timeline, watermarks_of
from airflow_provider_cdc.explain.explanation import (
    KEYS,
    NOTHING,
    PUBLISHED,
    READ,
    SNAPSHOT,
    STAGED,
    TABLE,
    WAITING,
    ReadRecord,
)
from airflow_provider_cdc.model.offset import Timeline
from airflow_provider_cdc.model.plan import Chunk, Key, Plan
from airflow_provider_cdc.model.plan_history import StoredAmendment, Suspension
from airflow_provider_cdc.model.staged_read import RANGES
from airflow_provider_cdc.model.start_mode import SNAPSHOT as BEGIN
from airflow_provider_cdc.mysql.keys.ownership import find_owning_chunks
from airflow_provider_cdc.resnapshot.staged_files import (
    list_pending_reads,
    list_read_numbers,
    load_outcome,
    load_reading_plan,
)
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.layout import read_amendments
from airflow_provider_cdc.sinks.storage.storage import read_json, read_record
from airflow_provider_cdc.transforms.sealed_bounds import open_plan


@dataclass(frozen=True)
class HistoricalRead:
    """A read, and what is needed to replay the binlog between its watermarks.

    :param read: what the user is shown.
    :param plan: the plan with whose definitions it was read.
    :param timeline: the timeline segment of the server it was read from; ``None`` if nothing was read.
    :param binlog_begun: start times of the binlog files that contain its watermarks, by file name.
    """

    read: ReadRecord
    plan: Plan
    timeline: Timeline | None = None
    binlog_begun: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadHistory:
    """Finds the reads that include a key.

    :param plan: the current plan.
    :param index: index of the table.
    :param key: the key, by the definition of the copy.
    """

    context: RunContext
    connection: Connection[Any]
    plan: Plan
    index: int
    key: Key

    def find_reads(self) -> list[HistoricalRead]:
        """Return all relevant reads, ordered by high watermark; those not done or not published yet come last."""
        reads = [self._find_whole_table_read(), *self._find_range_reads()]

        def order(historical_read: HistoricalRead) -> tuple[bool, int]:
            high = historical_read.read.high
            seq = historical_read.timeline.seq(high) if historical_read.timeline is not None and high is not None else 0
            return historical_read.read.state != PUBLISHED, seq

        return sorted(reads, key=order)

    def _find_whole_table_read(self) -> HistoricalRead:
        """Return the read by the snapshot, or by the re-snapshot of the whole table that replaced it."""
        rejoin = self.plan.rejoin_of(self.index)
        suspension = self.plan.suspension_of(self.index)
        if self.plan.start != BEGIN:
            return HistoricalRead(ReadRecord(NOTHING, PUBLISHED), self.plan)
        if rejoin is None and suspension is not None and suspension.schema is not None:
            return HistoricalRead(ReadRecord(TABLE, WAITING), self.plan)
        if rejoin is None:
            plan = self._plan_with_chunks()
            chunk = self._find_owning_chunk(plan)
            if chunk is None:
                return HistoricalRead(ReadRecord(SNAPSHOT, PUBLISHED), plan)
            return self._find_snapshot_read(plan, chunk)
        plan = load_reading_plan(self.context, self.plan, self.index, rejoin.group)
        chunk = self._find_owning_chunk(plan)
        if chunk is None:
            return HistoricalRead(ReadRecord(TABLE, PUBLISHED), plan)
        return self._recorded_read(TABLE, PUBLISHED, plan, chunk)

    def _find_range_reads(self) -> Iterator[HistoricalRead]:
        """Yield later re-snapshots of key ranges, and re-snapshots of the table that the stream has yet to publish."""
        rejoin = self.plan.rejoin_of(self.index)
        last_number, since_seq = (0, 0) if rejoin is None else (rejoin.group, rejoin.seq)
        staged = {
            one.number: one.scope for one in list_pending_reads(self.context, self.plan) if one.table == self.index
        }
        for number in sorted(self._published_range_reads(last_number) | {*staged}):
            plan = load_reading_plan(self.context, self.plan, self.index, number)
            if (chunk := self._find_owning_chunk(plan)) is None:
                continue
            how = TABLE if staged.get(number, RANGES) != RANGES else KEYS
            historical_read = self._recorded_read(how, STAGED if number in staged else PUBLISHED, plan, chunk)
            assert historical_read.timeline is not None and historical_read.read.high is not None
            if historical_read.timeline.seq(historical_read.read.high) > since_seq:
                yield historical_read

    def _plan_with_chunks(self) -> Plan:
        """Return the plan including the chunks of the table, which the current plan lacks while it is suspended."""
        context, layout = self.context, self.context.layout
        if self.plan.suspension_of(self.index) is None:
            return self.plan

        def is_end(step: StoredAmendment) -> bool:
            return isinstance(step, Suspension) and step.table == self.index and step.schema is None

        plan = read_record(context.storage, layout.plan, Plan)
        assert plan is not None
        amendments = read_amendments(context.storage, layout, self.plan.generation)
        plan = open_plan(plan.with_amendments(step for step in amendments if not is_end(step)), context.hash_key)
        return plan.with_zero_dates(context.pipeline.source.zero_dates)

    def _find_owning_chunk(self, plan: Plan) -> Chunk | None:
        table_chunks = [chunk for chunk in plan.chunks if chunk.table == self.index]
        (owner,) = find_owning_chunks(self.connection, plan.tables[self.index], table_chunks, [self.key])
        return table_chunks[owner] if owner >= 0 else None

    def _find_snapshot_read(self, plan: Plan, chunk: Chunk) -> HistoricalRead:
        group = ChunkGroup(self.context, plan, chunk.group)
        attempt = group.published_by_table().get(self.index)
        if attempt is not None:
            return self._recorded_read(SNAPSHOT, PUBLISHED, plan, chunk, attempt)
        number = next(no for no, listed in enumerate(group.slices) if chunk in listed)
        read = group.read_finished_slices().get(number)
        if read is None:
            return HistoricalRead(ReadRecord(SNAPSHOT, WAITING, chunk.group, chunk.number), plan)
        return _make_historical_read(SNAPSHOT, READ, plan, chunk, read[0], 0, read[1])

    def _recorded_read(self, how: str, state: str, plan: Plan, chunk: Chunk, attempt: int = 1) -> HistoricalRead:
        group = ChunkGroup(self.context, plan, chunk.group)
        entries = (e for e in group.read_manifest(attempt) if any(c["no"] == chunk.number for c in e["chunks"]))
        return _make_historical_read(how, state, plan, chunk, attempt, group.count_complete_attempts(), next(entries))

    def _published_range_reads(self, last_number: int) -> set[int]:
        """Return the numbers of the published re-snapshots of key ranges of the table.

        :param last_number: number of the re-snapshot with which the table rejoined; only later ones count.
        """
        layout, generation, storage = self.context.layout, self.plan.generation, self.context.storage
        numbers = set()
        for number in list_read_numbers(self.context, generation):
            if number > last_number:
                record = read_json(storage, layout.resnapshot(generation, number))
                outcome = load_outcome(self.context, generation, number)
                is_part = record is not None and (record["scope"], record["table"]) == (RANGES, self.index)
                if is_part and outcome is not None and outcome.published:
                    numbers.add(number)
        return numbers


def _make_historical_read(
    how: str, state: str, plan: Plan, chunk: Chunk, attempt: int, attempts: int, entry: Mapping[str, Any]
) -> HistoricalRead:
    """Return the read of a chunk, from the manifest entry of its file."""
    chunk_entry = next(c for c in entry["chunks"] if c["no"] == chunk.number)
    low, high = watermarks_of(chunk_entry)
    timeline = entry_timeline(entry)
    counts = chunk_entry["rows"], chunk_entry["corrected"], chunk_entry["seconds"]
    read = ReadRecord(how, state, chunk.group, chunk.number, attempt, attempts, low, high, *counts, timeline.server)
    return HistoricalRead(read, plan, timeline, entry["binlogs"])
