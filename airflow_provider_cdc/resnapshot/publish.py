"""Publish or drop a staged read: only here is decided whether its rows may get into the copy.

Until a stream has begun, the process that reads a chunk group publishes it. After that, the stream owns the rows of the
table: only its driver publishes, between two batches, once it has passed the highest high watermark. It brings the
staged rows forward to its own position. The rows of a chunk group or of key ranges are then overwritten in one commit
per table. For a whole table, the driver first records that the table rejoins there: from that position on, the stream
follows it with the definition that it was read with. The argument is in docs/correctness.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from airflow_provider_cdc.apply.applier import Applier, epoch_fence, stream_marker
from airflow_provider_cdc.apply.follow_ddl import apply_pending_amendments
from airflow_provider_cdc.apply.task import StreamJob, retry_in_next_epoch
from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup, generation_fence, group_marker, read_coverage
from airflow_provider_cdc.ddl.schema_policy import describe_change
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import DuplicateKeyError, FencedError, TerminalError, TransientError
from airflow_provider_cdc.model.offset import Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Rejoin
from airflow_provider_cdc.model.staged_read import (
    GROUP,
    RANGES,
    TABLE,
    PublishRefusal,
    StagedRead,
    group_read_marker,
    publish_refusal,
    ranges_marker,
)
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.binlog.events.xa import parse_xa_entry
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.keys.ownership import mask_owned_rows
from airflow_provider_cdc.mysql.positions.resume import why_purged
from airflow_provider_cdc.resnapshot.deleted_rows import keeps_deleted_rows, loss_error
from airflow_provider_cdc.resnapshot.replay import BinlogReplay
from airflow_provider_cdc.resnapshot.staged_files import (
    ReadOutcome,
    load_outcome,
    load_reading_plan,
    record_outcome,
    remove_request,
)
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.protocol import (
    Adoptable,
    Extendable,
    Fence,
    HasUniqueKeys,
    Markers,
    OverwriteRange,
    SinkTable,
)
from airflow_provider_cdc.sinks.storage.storage import write_json_once
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint

#: Errors which show that staged rows are no longer usable. The stream itself has lost nothing.
_UNUSABLE_ERRORS = (TerminalError, FileNotFoundError, pa.ArrowInvalid)


class PublishResult(NamedTuple):
    """How a read ended, and the plan afterwards, which is a new one if a table has just rejoined.

    :param can_retry: whether another read may be published although this one was not.
    """

    published: bool
    message: str
    plan: Plan
    can_retry: bool = True


def find_refusal(
    group: ChunkGroup, staged: StagedRead, timeline: Timeline, open_at: OpenStreamAt
) -> PublishRefusal | None:
    """Return why a staged read may no longer be published; ``None`` if it may.

    :param group: the group that the read names, in the current plan.
    :param timeline: timeline of the resume point.
    :param open_at: opens a stream of the server's binlog.
    """
    context, plan, is_group = group.context, group.plan, staged.scope == GROUP
    if (reason := staged.why_without_table(plan)) is not None:
        return PublishRefusal(reason)
    targets = group.tables if staged.table is None else {staged.table: context.sink.table(plan.tables[staged.table])}
    for index, target in targets.items():
        table = plan.tables[index]
        captured = context.pipeline.captures(*table.id)
        refusal = publish_refusal(staged, index, plan, timeline, target.markers().get, captured=captured)
        if refusal is not None:
            return PublishRefusal(f"{refusal.reason} (table {table.label})") if is_group else refusal
        if table.has_hashed_key and staged.scope != TABLE:
            return PublishRefusal(
                f"the key of {table.label} is hashed in its copy, so its rows there belong to no chunk group",
                remedy=f"Re-snapshot the whole table: airflow-cdc resnapshot --table {table.label}",
            )
        before = plan.definitions_for(timeline)[index].at(staged.start.at) if is_group else None
        if before is not None and before.fingerprint() != table.fingerprint():
            return PublishRefusal(f"{table.label} was altered since it was read")
    with closing(connect(context.connect_args)) as connection:
        reason = why_purged(connection, staged.start, open_at)
    return None if reason is None else PublishRefusal(reason)


def publish_in_unstreamed_tables(group: ChunkGroup, staged: StagedRead) -> None:
    """Publish a chunk group in the tables that no stream has touched, unless that was done before."""
    epoch = epoch_fence(group.plan.pipeline, 0).name
    entries = group.read_manifest(staged.attempt)

    def is_due(markers: Markers) -> bool:
        return (markers.get(group.marker) or 0) < staged.attempt and markers.get(epoch) is None

    for index, target in group.tables.items():
        if is_due(target.markers()):
            files = [DataFile.from_json(entry["file"]) for entry in entries if entry["table"] == index]
            markers, fence = _publication_markers(group.plan, staged), generation_fence(group.plan, index)
            _commit_rows(group, staged, index, target, files, is_due, markers, fence)


def _publication_markers(plan: Plan, staged: StagedRead) -> dict[str, int]:
    """Return the table markers which record that a chunk group or key ranges are published."""
    if staged.scope == RANGES:
        return {ranges_marker(plan): staged.number}
    return {group_marker(plan, staged.group): staged.attempt, group_read_marker(plan, staged.group): staged.number}


def _commit_rows(
    group: ChunkGroup,
    staged: StagedRead,
    index: int,
    target: SinkTable,
    files: Sequence[DataFile],
    is_due: Callable[[Markers], bool],
    markers: Mapping[str, int],
    fence: Fence,
) -> None:
    """Replace a table's rows in a group by files, in one commit. The server decides which keys are in the group.

    :param is_due: whether the rows are to be published, decided inside the commit.
    """
    table = group.plan.tables[index]
    chunks = [chunk for chunk in group.chunks if chunk.table == index]
    span = None
    if table.integer_key_column is not None:
        span = int(chunks[0].lower[0]), int(chunks[-1].upper[0])
    with closing(connect(group.context.connect_args)) as connection:

        def is_owned(keys: pa.Table) -> pa.Array:
            if not table.key:  # one group has the whole table
                return pa.repeat(True, keys.num_rows)
            assert not table.has_hashed_key  # refused once a stream has written rows
            return mask_owned_rows(connection, table, chunks, table.source_keys(keys))

        file_group = None if staged.scope == RANGES else (group.plan.generation, group.number)
        change = OverwriteRange(files, file_group, is_owned, span)
        failpoint("reread.before_commit")
        target.commit(lambda current: change if is_due(current) else None, markers, fence)
        failpoint("reread.after_commit")


def explain_overwritten(plan: Plan, staged: StagedRead, read_tables: Collection[int]) -> tuple[str, str] | None:
    """Return message and remedy if an older re-snapshot of a whole table has overwritten a chunk group's rows.

    The copy of such a table may lack rows that were read for the group.

    :param plan: the plan as it is now.
    :param read_tables: indexes of the tables whose rows were read.
    """
    superseded = {chunk.table for chunk in plan.superseded_chunks if chunk.group == staged.group}
    rejoins = {index: plan.rejoin_of(index) for index in sorted(superseded.intersection(read_tables))}
    labels = [
        plan.tables[index].label
        for index, rejoin in rejoins.items()
        if rejoin is not None and rejoin.group < staged.number
    ]
    if not labels:
        return None
    message = f"{staged.describe(plan)}, but a re-snapshot that began earlier has overwritten {', '.join(labels)} since"
    return message, "Run " + " and ".join(f"airflow-cdc resnapshot --table {label}" for label in labels)


@dataclass(frozen=True)
class ReadPublisher:
    """Publishes or drops one staged read. Only the stream's driver uses it, between two batches.

    :param plan: the current plan.
    :param applier: knows what has been applied; receives the new coverage.
    :param job: reads the binlog.
    """

    context: RunContext
    store: StateDatabase
    plan: Plan
    applier: Applier
    job: StreamJob
    staged: StagedRead

    def publish_if_due(self) -> PublishResult | None:
        """Publish or drop the read if the stream is far enough, and record its outcome for the process that waits.

        :returns: how the read ended; ``None`` if it is too early.
        """
        staged, plan, applier = self.staged, self.plan, self.applier
        if not staged.is_due(plan, applier.offset.at, applier.timeline):
            return None
        if (earlier := self._find_earlier_result()) is not None:
            return earlier
        prepared: PublishRefusal | Rejoin | None
        try:
            with retry_in_next_epoch():
                open_at = self.context.binlog_opener(slots.REPLAY)
                prepared = find_refusal(self._group, staged, applier.timeline, open_at)
                if prepared is None and staged.scope == RANGES and not applier.has_passed_snapshot(self._index):
                    return None
                if prepared is None and staged.scope == TABLE:
                    prepared = self._prepare_rejoin()
                elif prepared is None:
                    self._overwrite_rows()
        except FencedError:
            raise
        except _UNUSABLE_ERRORS as error:
            prepared = PublishRefusal(error.message if isinstance(error, TerminalError) else str(error))
        if staged.group in plan.groups():
            applier.set_coverage(read_coverage(self.context, plan, applier.tables) or [])
        if isinstance(prepared, PublishRefusal):
            return self._drop_read(prepared)
        return self._record_published(self._published_message()) if prepared is None else self._rejoin_table(prepared)

    def _find_earlier_result(self) -> PublishResult | None:
        """Return how the read ended, and record that, if a run that died or an older re-snapshot has settled it."""
        staged, plan = self.staged, self.plan
        if staged.scope != GROUP and (outcome := load_outcome(self.context, plan.generation, staged.group)) is not None:
            self._end_read(outcome)
            return PublishResult(*outcome, plan)
        if staged.why_without_table(plan) is None:
            message = self._find_published()
            return None if message is None else self._record_published(message, maybe_recorded=True)
        if (overwritten := self._report_overwritten()) is None:
            return None
        self._end_read(ReadOutcome(False, overwritten))
        return PublishResult(False, overwritten, plan)

    @property
    def _index(self) -> int:
        """Index of the table, unless a chunk group was read."""
        assert self.staged.table is not None
        return self.staged.table

    @property
    def _label(self) -> str | None:
        return None if self.staged.table is None else self.plan.tables[self.staged.table].label

    @cached_property
    def _group(self) -> ChunkGroup:
        return ChunkGroup(self.context, self.plan, self.staged.group)

    def _find_published(self) -> str | None:
        """Return the message for rows that are in the copy already: a run died before it recorded the outcome."""
        staged = self.staged
        if staged.scope == TABLE:
            steps = (step for step in self.plan.amendments if isinstance(step, Rejoin) and step.table == staged.table)
            rejoin = next((step for step in steps if step.group == staged.group), None)
            return None if rejoin is None else self._rejoined_message(rejoin)
        with suppress(*_UNUSABLE_ERRORS):
            return None if self._tables_behind() else self._published_message()
        return None

    def _tables_behind(self) -> list[int]:
        """Return the tables whose copies lack the rows of a chunk group or of key ranges."""
        if self.staged.scope == GROUP:
            published = self._group.published_by_table()
            return [index for index, attempt in published.items() if attempt < self.staged.attempt]
        number = self.applier.tables[self._index].markers().get(ranges_marker(self.plan))
        return [] if number == self.staged.number else [self._index]

    def _published_message(self) -> str:
        at, description = self.applier.offset.at, self.staged.describe(self.plan)
        if self.staged.scope == GROUP:
            return f"{description}: published at {at}"
        return f"{description}, and its rows were replaced at {at}"

    def _rejoined_message(self, rejoin: Rejoin) -> str:
        at = self.applier.timeline.position(rejoin.seq)
        return f"{self.staged.describe(self.plan)} and is part of the stream from {at} on"

    def _overwrite_rows(self) -> None:
        """Overwrite the rows of a chunk group or of key ranges as of the resume point, in one commit per table."""
        group = self._group
        if self.staged.scope == RANGES:
            chunks = load_reading_plan(self.context, self.plan, self._index, self.staged.group).chunks
            group = replace(group, plan=self.plan.replace(chunks=chunks))
        for index in self._tables_behind():
            self._overwrite_rows_of(group, index)

    def _overwrite_rows_of(self, group: ChunkGroup, index: int) -> None:
        applier, target = self.applier, self.applier.tables[index]
        stream, expected = stream_marker(self.plan.pipeline), _publication_markers(self.plan, self.staged)
        # A run that was killed before it wrote the resume point may have left the table ahead of it.
        seq = max(applier.timeline.seq(applier.offset.at), target.markers().get(stream) or 0)
        at = applier.timeline.position(seq)
        end = applier.offset.replace(file=at.file, position=at.position)
        files = BinlogReplay(group, self.staged, index, target, self.job).replay_up_to(end)

        def is_due(markers: Markers) -> bool:
            return any((markers.get(name) or 0) < value for name, value in expected.items())

        _commit_rows(group, self.staged, index, target, files, is_due, {**expected, stream: seq}, applier.fence)

    def _prepare_rejoin(self) -> Rejoin | PublishRefusal:
        """Return the amendment with which the table rejoins at the resume point, with its rows as of there."""
        context, plan, index, offset = self.context, self.plan, self._index, self.applier.offset
        revision = plan.revision_of(index) + 1
        generation_fence(plan, index, revision)  # there is such a revision
        reading_plan = load_reading_plan(context, plan, index, self.staged.group)
        schema = reading_plan.tables[index]
        group, target = ChunkGroup(context, reading_plan, self.staged.group), context.sink.table(schema)
        job = replace(self.job, plan_file=context.layout.group_plan(plan.generation, self.staged.group))
        files = BinlogReplay(group, self.staged, index, target, job).replay_up_to(offset)
        if isinstance(target, Extendable) and (problem := target.why_not_extendable()) is not None:
            reason, remedy = problem
            return PublishRefusal(f"the copy of {self._label} cannot have its definition: {reason}", remedy=remedy)
        if isinstance(target, HasUniqueKeys):
            target.ignore_keys_of({plan.tables[i].label for i in plan.outdated_tables if i != index})
            try:
                target.refuse_taken_keys(files)
            except DuplicateKeyError as error:
                return PublishRefusal(error.message, remedy=error.remedy)
        loss = loss_error(context, plan, index, schema, files)
        if loss is not None:
            return PublishRefusal(loss.message, remedy=loss.remedy)
        seq, slices = self.applier.timeline.seq(offset.at), tuple(file.to_json() for file in files)
        keeps = keeps_deleted_rows(context, plan, index, schema)
        return Rejoin(index, revision, seq, schema, slices, self.staged.group, keeps)

    def _rejoin_table(self, rejoin: Rejoin) -> PublishResult:
        """Let a table rejoin. Once the amendment is recorded, it must be carried out."""
        context, plan, applier, index = self.context, self.plan, self.applier, self._index
        applier.check_fence()  # the file written below is not fenced
        known_xa = [text for text in applier.offset.open_xa if parse_xa_entry(text)[1] is not None]
        # Whether the others have rows of this table is unknown: it is looked up when they end.
        applier.replace_offset(applier.offset.replace(open_xa=tuple(known_xa)))
        target = context.sink.table(rejoin.schema)
        if not target.exists() or _is_adopted(target, plan):  # it was added, or the copy was removed
            target.create(plan.pipeline)
            target.raise_fence(generation_fence(plan, index))
        failpoint("rejoin.before_write")
        name = context.layout.amendment(plan.generation, index, rejoin.revision)
        if not write_json_once(context.storage, name, rejoin.to_json()):
            raise TransientError(f"another process is letting table {self._label} rejoin", "Run again")
        failpoint("rejoin.after_write")
        renewed = context.plans.require()
        apply_pending_amendments(context, renewed, index, applier.fence)
        message = self._rejoined_message(rejoin) + describe_change(plan.tables[index], rejoin.schema)
        return self._record_published(message)._replace(plan=renewed)

    def _record_published(self, message: str, *, maybe_recorded: bool = False) -> PublishResult:
        """Report that the rows are in the copy, and record the outcome of the read.

        :param maybe_recorded: whether a run that died may have added the event already.
        """
        staged, outcome = self.staged, ReadOutcome(True, message)
        kind = "table_rejoined" if staged.scope == TABLE else "part_reread"
        if staged.scope == GROUP:
            if not maybe_recorded:  # during an outage, this is called again until the outcome is recorded
                self.context.reporter.line(message)
        elif maybe_recorded and self._has_event(kind, message):
            self.context.reporter.line(message)
        else:
            self.context.report_event(self.store, kind, message, table=self._label, by=staged.requested_by)
        if staged.scope != GROUP:
            self._end_read(outcome)
            return PublishResult(*outcome, self.plan)
        self._report_overwritten()
        with tolerate_outage():  # during an outage the request stays, and is only recorded later
            row = self.store.group(self.plan.pipeline, self.plan.generation, staged.group)
            self._group.mirror_published(self.store, row.attempt)
            self._end_read(outcome)
        return PublishResult(*outcome, self.plan)

    def _has_event(self, kind: str, message: str) -> bool:
        """Return whether the event was recorded, or may have been."""
        with tolerate_outage():
            events = self.store.last_events(self.plan.pipeline, 100, [kind])
            return any(event.table == self._label and event.detail.startswith(message) for event in events)
        return True

    def _report_overwritten(self) -> str | None:
        """Report the tables in which an older re-snapshot has overwritten a chunk group's rows; return the message."""
        superseded = {chunk.table for chunk in self.plan.superseded_chunks if chunk.group == self.staged.group}
        if not superseded:
            return None
        try:
            read_tables = {entry["table"] for entry in self._group.read_manifest(self.staged.attempt)}
        except _UNUSABLE_ERRORS:  # unknown: report all tables of the group rather than nothing
            read_tables = superseded
        if (overwritten := explain_overwritten(self.plan, self.staged, read_tables)) is None:
            return None
        message, remedy = overwritten
        self.context.report_event(self.store, "reread_dropped", message, remedy=remedy)
        return message

    def _drop_read(self, refusal: PublishRefusal) -> PublishResult:
        """Drop the rows and report why. If a later read of the whole table was published, they count as published."""
        staged, message = self.staged, self.staged.describe(self.plan)
        if refusal.superseded:
            message += "; a later re-snapshot of the whole table was published instead"
            self.context.reporter.line(message)
        else:
            message += f", but cannot be published: {refusal.reason}"
            remedy = refusal.remedy or "Re-snapshot it again"
            if staged.scope == GROUP:
                message = f"{message}; the rows published before stay"
                remedy = refusal.remedy or "Clear its task to read it again"
            self.context.report_event(
                self.store, "reread_dropped", message, table=self._label, remedy=remedy, by=staged.requested_by
            )
            message = f"{message}. {remedy}"
        self._end_read(ReadOutcome(refusal.superseded, message))
        return PublishResult(refusal.superseded, message, self.plan, refusal.remedy is None)

    def _end_read(self, outcome: ReadOutcome) -> None:
        """Record how the read ended, and remove its request. The table markers record it for a chunk group."""
        if self.staged.scope == GROUP:
            remove_request(self.context, self.plan, self.staged.group, self.staged.attempt)
        else:
            record_outcome(self.context, self.plan, self.staged, outcome)


def _is_adopted(target: SinkTable, plan: Plan) -> bool:
    return isinstance(target, Adoptable) and target.will_adopt(plan.pipeline)
