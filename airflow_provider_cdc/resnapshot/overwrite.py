"""Overwrite the rows of a table, or of ranges of its keys, with those of a staged read.

Only the stream's driver does this, between two batches, once it has passed the highest high watermark. Only this module
decides whether staged rows may still be published, and it records an outcome for every read, for the process that
waits for it. Key ranges are brought forward to the resume point, and their rows are overwritten. For a whole table the
driver also records that the table rejoins: from the resume point on, the stream follows it with the definition that it
was read with. The argument is in docs/correctness.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.apply.applier import Applier, explain_missing_rows
from airflow_provider_cdc.apply.follow_ddl import apply_pending_definition
from airflow_provider_cdc.apply.task import StreamJob, retry_in_next_epoch
from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup, generation_fence, watermarks_of
from airflow_provider_cdc.ddl.schema_policy import describe_change
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.changes import apply_changes, last_changes
from airflow_provider_cdc.model.errors import FencedError, TerminalError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Rejoin
from airflow_provider_cdc.model.schema import SEQ_COLUMN
from airflow_provider_cdc.model.staged_read import RANGES, TABLE, PublishRefusal, StagedRead, publish_refusal
from airflow_provider_cdc.mysql.binlog.events.xa import parse_xa_entry
from airflow_provider_cdc.mysql.client.key_sql import keys_of
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.keys.ownership import changes_after_snapshot, find_owning_chunks
from airflow_provider_cdc.mysql.positions.resume import why_purged
from airflow_provider_cdc.resnapshot.deleted_rows import keeps_deleted_rows, loss_error
from airflow_provider_cdc.resnapshot.staged_files import (
    ReadOutcome,
    load_outcome,
    published_read_numbers,
    ranges_marker,
    record_outcome,
)
from airflow_provider_cdc.resnapshot.staged_reads import (
    UNUSABLE_ERRORS,
    is_due,
    new_replay_path,
    publish_table,
    read_changes_since,
    replay_keyless,
    unusable_reason,
)
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.protocol import Adoptable, SinkTable
from airflow_provider_cdc.sinks.storage.storage import read_json, write_json_once
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint

_RETRY_REMEDY = "Re-snapshot it again"


class OverwriteResult(NamedTuple):
    """How a read ended, and the plan afterwards, which is a new one if the table has just rejoined.

    :param can_retry: whether another read may be published although this one was not.
    """

    published: bool
    message: str
    plan: Plan
    can_retry: bool = True


def overwrite_if_due(
    context: RunContext, store: StateDatabase, plan: Plan, applier: Applier, job: StreamJob, staged: StagedRead
) -> OverwriteResult | None:
    """Publish a staged read of a table or of key ranges if the stream is far enough.

    Only the stream's driver calls this, between two batches.

    :param applier: knows what has been applied.
    :param job: reads the binlog.
    :returns: how the read ended; ``None`` if it is too early to publish it.
    """
    if not is_due(staged, applier):
        return None
    index = staged.table
    if (earlier_outcome := load_outcome(context, plan.generation, staged.group)) is not None:
        record_outcome(context, plan, staged, earlier_outcome)  # a run died after it had recorded the outcome
        return OverwriteResult(*earlier_outcome, plan)
    if index is None:
        return _record_refused(
            context, store, plan, staged, PublishRefusal("it was read by an older version"), "a table"
        )
    label = plan.tables[index].label
    if (message := _published_message(context, plan, applier, staged, index)) is not None:
        return _record_published(context, store, plan, staged, message, maybe_recorded=True)
    try:
        rejection = _why_refused(context, plan, applier, staged, index)
        if rejection is None and staged.scope == RANGES and not applier.has_passed_snapshot(index):
            return None
        if rejection is None:
            publish = _rejoin_table if staged.scope == TABLE else _overwrite_ranges
            return publish(context, store, plan, applier, job, staged, index)
    except FencedError:
        raise
    except _UnusableReadError as error:  # the stream itself has lost nothing
        rejection = PublishRefusal(error.args[0])
    return _record_refused(context, store, plan, staged, rejection, label)


class _UnusableReadError(Exception):
    """The staged rows are no longer usable. Nothing was stored yet."""


@contextmanager
def _mark_unusable() -> Iterator[None]:
    """Separate errors in the staged rows from errors of the stream.

    :raises _UnusableReadError: for errors in the staged rows.
    """
    try:
        with retry_in_next_epoch():
            yield
    except FencedError:
        raise
    except UNUSABLE_ERRORS as error:
        raise _UnusableReadError(unusable_reason(error)) from error


def _load_reading_plan(context: RunContext, plan: Plan, staged: StagedRead) -> tuple[str, Plan]:
    """Return the name and the content of the plan that the rows were read with.

    :raises TerminalError: if it is missing.
    """
    name = context.layout.group_plan(plan.generation, staged.group)
    if (stored := read_json(context.storage, name)) is None:
        raise TerminalError(f"the plan {context.storage.location(name)} of the re-snapshot is missing")
    return name, Plan.from_json(stored).with_zero_dates(context.pipeline.source.zero_dates)


def _why_refused(
    context: RunContext, plan: Plan, applier: Applier, staged: StagedRead, index: int
) -> PublishRefusal | None:
    """Return why staged rows may no longer be published; ``None`` if they may."""
    target, captured = context.sink.table(plan.tables[index]), context.pipeline.captures(*plan.tables[index].id)
    with _mark_unusable():
        numbers = published_read_numbers(plan, index, target.markers() if target.exists() else {})
        rejection = publish_refusal(staged, index, plan, applier.timeline, numbers, captured=captured)
        if rejection is not None:
            return rejection
        with closing(connect(context.connect_args)) as connection:
            reason = why_purged(connection, staged.start, context.binlog_opener(slots.REPLAY))
    return None if reason is None else PublishRefusal(reason)


def _published_message(context: RunContext, plan: Plan, applier: Applier, staged: StagedRead, index: int) -> str | None:
    """Return the message for rows that are already in the copy because a run died before it recorded the outcome."""
    label = plan.tables[index].label
    if staged.scope == TABLE:
        steps = (step for step in plan.amendments if isinstance(step, Rejoin) and step.table == index)
        rejoin = next((step for step in steps if step.group == staged.group), None)
        return None if rejoin is None else _rejoined_message(label, applier, rejoin)
    with suppress(*UNUSABLE_ERRORS):
        if applier.tables[index].markers().get(ranges_marker(plan)) == staged.number:
            return _overwritten_message(label, applier)
    return None


def _rejoined_message(label: str, applier: Applier, rejoin: Rejoin) -> str:
    return f"{label} was re-snapshotted and is part of the stream from {applier.timeline.position(rejoin.seq)} on"


def _overwritten_message(label: str, applier: Applier) -> str:
    return f"{label} was re-snapshotted in part, and its rows were replaced at {applier.offset.at}"


def _overwrite_ranges(
    context: RunContext,
    store: StateDatabase,
    plan: Plan,
    applier: Applier,
    job: StreamJob,
    staged: StagedRead,
    index: int,
) -> OverwriteResult:
    """Overwrite the rows of key ranges, as of the resume point."""
    with _mark_unusable():
        _, reading_plan = _load_reading_plan(context, plan, staged)
        group = ChunkGroup(context, replace(plan, chunks=reading_plan.chunks), staged.group)
        publish_table(group, staged, index, applier, job, {ranges_marker(plan): staged.number})
    return _record_published(context, store, plan, staged, _overwritten_message(plan.tables[index].label, applier))


def _rejoin_table(
    context: RunContext,
    store: StateDatabase,
    plan: Plan,
    applier: Applier,
    job: StreamJob,
    staged: StagedRead,
    index: int,
) -> OverwriteResult:
    """Let a table rejoin at the resume point."""
    revision = plan.revision_of(index) + 1
    with _mark_unusable():
        generation_fence(plan, index, revision)  # there is such a revision
        plan_file, reading_plan = _load_reading_plan(context, plan, staged)
        files = _replay_onto_slices(
            ChunkGroup(context, reading_plan, staged.group), staged, index, applier, replace(job, plan_file=plan_file)
        )
        loss = loss_error(context, plan, index, reading_plan.tables[index], files)
    if loss is not None:
        rejection, label = PublishRefusal(loss.message), plan.tables[index].label
        return _record_refused(context, store, plan, staged, rejection, label, loss.remedy)._replace(can_retry=False)
    # Once the rejoin is recorded, it must be carried out.
    applier.check_fence()  # the file written below is not fenced
    known_xa = [text for text in applier.offset.open_xa if parse_xa_entry(text)[1] is not None]
    # Whether the others have rows of this table is unknown: it is looked up when they end.
    applier.replace_offset(replace(applier.offset, open_xa=tuple(known_xa)))
    target = context.sink.table(reading_plan.tables[index])
    if not target.exists() or _is_adopted(target, plan):  # it was added, or the copy was removed
        target.create(plan.pipeline)
        target.raise_fence(generation_fence(plan, index))
    seq = applier.timeline.seq(applier.offset.at)
    slices = tuple(file.to_json() for file in files)
    keeps = keeps_deleted_rows(context, plan, index, reading_plan.tables[index])
    rejoin = Rejoin(index, revision, seq, reading_plan.tables[index], slices, staged.group, keeps)
    failpoint("rejoin.before_write")
    name = context.layout.amendment(plan.generation, index, revision)
    if not write_json_once(context.storage, name, rejoin.to_json()):
        raise TransientError(f"another process is letting table {plan.tables[index].label} rejoin", "Run again")
    failpoint("rejoin.after_write")
    renewed = context.require_plan()
    apply_pending_definition(context, renewed, index, applier.fence)
    message = _rejoined_message(plan.tables[index].label, applier, rejoin)
    return _record_published(
        context, store, renewed, staged, message, describe_change(plan.tables[index], rejoin.schema)
    )


def _is_adopted(target: SinkTable, plan: Plan) -> bool:
    return isinstance(target, Adoptable) and target.will_adopt(plan.pipeline)


def _record_published(
    context: RunContext,
    store: StateDatabase,
    plan: Plan,
    staged: StagedRead,
    message: str,
    column_changes: str = "",
    *,
    maybe_recorded: bool = False,
) -> OverwriteResult:
    """Report that rows were published, and record the outcome of the read.

    :param plan: the plan afterwards.
    :param column_changes: description of how the table's columns changed.
    :param maybe_recorded: whether a run that died may have added the event already.
    """
    assert staged.table is not None
    label, kind = plan.tables[staged.table].label, "table_rejoined" if staged.scope == TABLE else "part_reread"
    with tolerate_outage():
        before = store.last_events(plan.pipeline, 100, [kind]) if maybe_recorded else []
        if not any(event.table == label and event.detail.startswith(message) for event in before):
            store.add_event(plan.pipeline, kind, message + column_changes, table=label, by=staged.requested_by)
    context.reporter.line(message + column_changes)
    record_outcome(context, plan, staged, ReadOutcome(True, message + column_changes))
    return OverwriteResult(True, message + column_changes, plan)


def _record_refused(
    context: RunContext,
    store: StateDatabase,
    plan: Plan,
    staged: StagedRead,
    rejection: PublishRefusal,
    label: str,
    remedy: str = _RETRY_REMEDY,
) -> OverwriteResult:
    """Report that rows are not published, and record the outcome of the read.

    If a later read of the whole table was published, the read counts as published.
    """
    part = " in part" if staged.scope == RANGES else ""
    if rejection.superseded:
        message = f"{label} was re-snapshotted{part}; a later re-snapshot of the whole table was published instead"
        context.reporter.line(message)
        record_outcome(context, plan, staged, ReadOutcome(True, message))
        return OverwriteResult(True, message, plan)
    detail = f"{label} was re-snapshotted{part}, but the rows cannot be published: {rejection.reason}"
    table = None if staged.table is None else label
    context.report_event(store, "reread_dropped", detail, table=table, remedy=remedy, by=staged.requested_by)
    message = f"{detail}. {remedy}"
    record_outcome(context, plan, staged, ReadOutcome(False, message))
    return OverwriteResult(False, message, plan)


def _replay_onto_slices(
    group: ChunkGroup, staged: StagedRead, index: int, applier: Applier, job: StreamJob
) -> list[DataFile]:
    """Return the slices as of the resume point. A slice without newer changes stays as it is."""
    table, target, timeline = group.plan.tables[index], group.context.sink.table(group.plan.tables[index]), job.timeline
    entries = group.read_manifest(staged.attempt)
    staged_files = [DataFile(**entry["file"]) for entry in entries]
    for file in staged_files:
        if not target.is_staged(file):
            raise TerminalError(f"the file {file.path} of the {target.name} is missing or damaged")
    chunks = group.plan.chunks
    high_seqs = [0] * len(chunks)
    for entry in entries:
        for chunk in entry["chunks"]:
            high_seqs[chunk["no"]] = timeline.seq(watermarks_of(chunk)[1])
    changes, emptied = read_changes_since(group, staged, index, applier.offset, job)
    if not table.key:
        with explain_missing_rows(table, timeline):
            return replay_keyless(group, staged, index, staged_files[0], high_seqs[0], changes, emptied)
    with closing(connect(group.context.connect_args)) as connection:
        start = timeline.seq(staged.start.at)
        changes = changes_after_snapshot(connection, table, chunks, high_seqs, start, last_changes(changes, table.key))
        owner_numbers = find_owning_chunks(connection, table, chunks, keys_of(table, changes))
    files = []
    changes_outside = changes.filter(pa.array([i < 0 for i in owner_numbers], pa.bool_()))
    for file, entry in zip(staged_files, entries, strict=True):
        chunk_numbers = {chunk["no"] for chunk in entry["chunks"]}
        newer_changes = changes.filter(pa.array([i in chunk_numbers for i in owner_numbers], pa.bool_()))
        if newer_changes.num_rows or any(high_seqs[no] < emptied for no in chunk_numbers):
            rows = pa.concat_tables([table.sink_schema.empty_table(), *target.read_staged(file)])
            rows = apply_changes(rows.filter(pc.greater_equal(rows[SEQ_COLUMN], emptied)), newer_changes, table.key)
            file = target.stage(new_replay_path(group, staged), [rows])
        files.append(file)
    added = apply_changes(table.sink_schema.empty_table(), changes_outside, table.key)
    return [*files, *([target.stage(new_replay_path(group, staged), [added])] if added.num_rows else [])]
