"""A table is read again as a whole while the stream runs, and takes its place in the stream again: it rejoins.

Whoever wants that plans the table by itself, as it is now, and reads it with the ordinary chunk reader into staged
slices, which nobody sees. Then it asks the stream to exchange the rows. The stream's driver does that between two
batches, when it has passed the highest high watermark: it brings the slices to its own place in the binlog, writes
down that the table begins anew there, and exchanges all rows and the columns in one commit. From that place on the
stream follows the table as it was read. The argument is in docs/correctness.md.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.core import slots
from airflow_provider_cdc.core.alter_words import NotFollowed
from airflow_provider_cdc.core.changes import apply_changes, last_changes
from airflow_provider_cdc.core.plan import FIRST_ASIDE, Plan
from airflow_provider_cdc.core.schema import SEQ, TableSchema
from airflow_provider_cdc.core.schema_policy import describe_change
from airflow_provider_cdc.core.step_kinds import ADDED
from airflow_provider_cdc.core.steps import Rejoined
from airflow_provider_cdc.exceptions import (
    CdcError,
    DdlError,
    FencedError,
    NotReadyError,
    TableAlteredError,
    TableChangedError,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.failpoints import failpoint
from airflow_provider_cdc.jobs.batches import StreamJob, moved
from airflow_provider_cdc.jobs.slices import Runner
from airflow_provider_cdc.mysql.binlog.events.xa import parse_entry
from airflow_provider_cdc.mysql.keys.ownership import owners, uncovered
from airflow_provider_cdc.mysql.places.resume import gone
from airflow_provider_cdc.mysql.server.key_sql import keys_of
from airflow_provider_cdc.mysql.server.session import connect
from airflow_provider_cdc.mysql.snapshot.planner import plan_again, plan_table
from airflow_provider_cdc.phases.apply import Applier, found_rows
from airflow_provider_cdc.phases.aside import read_aside
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.groups import Group, coverage, generation_fence, targets, watermarks_of
from airflow_provider_cdc.phases.reread import (
    Exchange,
    Staged,
    changes_since,
    forget,
    place_of,
    recounted,
    request,
    taken,
)
from airflow_provider_cdc.phases.schema_changes import finish_table
from airflow_provider_cdc.sinks.files import DataFile
from airflow_provider_cdc.sinks.protocol import Adopting, Feature, SinkTable
from airflow_provider_cdc.sinks.storage import read_json, write_json_once
from airflow_provider_cdc.store import RequestRow, Store

#: How often a table may be altered while it is read again.
_TRIES = 20
#: What the server says of a table that has changed since it was planned: no such database, column, table, index.
_OTHER = frozenset({1049, 1054, 1146, 1176})


def resnapshot(context: Context, store: Store, label: str, run: Runner) -> str:
    """Read a table again, and wait for the stream to exchange its rows.

    :param label: ``database.table``.
    :param run: runs the slices.
    :returns: ``rejoined``, or ``staged`` where no stream runs: the next one does it.
    :raises NotReadyError: if the pipeline has no such table, its snapshot is not complete, or the table cannot be
        copied.
    :raises TransientError: if it is altered all the time, or the stream could not exchange the rows.
    """
    index = asked_for(context, label)
    group, staged = read_table(context, index, run, asked=True)

    def done() -> bool:
        step = context.need_plan().rejoined_of(index)
        return step is not None and step.revision >= (staged.revision or 0)

    if taken(group, store, staged, done, f"{label} was read again"):
        return "rejoined"
    context.reporter.line(f"{label} was read again; no stream runs: the next one takes it in")
    return "staged"


def asked_for(context: Context, label: str) -> int:
    """Index of a table that somebody wants to be read again.

    :param label: ``database.table``.
    :raises NotReadyError: if the pipeline has no such table, or its snapshot is not complete.
    """
    plan = context.need_plan()
    index = index_of(context, plan, label)
    if coverage(context, plan, targets(context, plan)) is None:
        raise NotReadyError(
            f"the snapshot of {plan.pipeline} is not complete",
            "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
        )
    return index


def index_of(context: Context, plan: Plan, label: str) -> int:
    """Index of a table that the pipeline copies.

    :param label: ``database.table``.
    :raises NotReadyError: if it copies no such table.
    """
    tables = {t.label: i for i, t in enumerate(plan.tables) if context.pipeline.captures(*t.id)}
    if (index := tables.get(label)) is None:
        known = ", ".join(sorted(tables)[:10])
        raise NotReadyError(f"pipeline {plan.pipeline} copies no table {label}", f"It copies {known}")
    return index


def read_table(
    context: Context, index: int, run: Runner, *, asked: bool = False, by_request: RequestRow | None = None
) -> tuple[Group, Staged]:
    """Read a table again, and ask the stream to exchange its rows.

    :param index: index of the table in the plan.
    :param asked: whether somebody has asked for it, and takes columns of other types for granted.
    :param by_request: the request by which somebody has, if it was by one.
    :returns: what was read, and what asks for it.
    :raises NotReadyError: if the table cannot be copied, or the sink cannot exchange it.
    :raises TransientError: if it is altered all the time.
    """
    label = context.need_plan().tables[index].label
    for feature in (Feature.REREAD, Feature.ALTER):
        context.need(feature, f"table {label} is to be read again")
    for last in (*[False] * (_TRIES - 1), True):
        try:
            return _read(context, context.need_plan(), index, run, asked, by_request)
        except CdcError as error:
            if not altered_meanwhile(error):
                raise
            if last:
                raise TransientError(error.message, "Run again when the table is not altered any more") from error
            context.reporter.line(f"{error.message}: {label} is read once more")
    raise AssertionError("unreachable")


def altered_meanwhile(error: CdcError) -> bool:
    """Whether a table could not be read since it was altered."""
    return isinstance(error, TableAlteredError | DdlError | TableChangedError) or error.code in _OTHER


def _read(
    context: Context, plan: Plan, index: int, run: Runner, asked: bool, by_request: RequestRow | None
) -> tuple[Group, Staged]:
    """Plan the table by itself, read it, and ask for it to be exchanged."""
    _, lineage = context.stand(plan)
    open_at = context.opener(slots.PLAN)
    with closing(connect(context.connect_args)) as connection:
        since, schema, chunks = plan_again(
            connection,
            plan.tables[index],
            index,
            lineage.server,
            keeps=context.pipeline.keeps,
            cut=lambda connection, table: plan_table(connection, index, table, context.pipeline.snapshot.chunk_rows),
            open_at=open_at,
        )
    schema = _shaped(context, plan, index, schema, asked)
    context.sink.table(schema)  # what it cannot have is refused before anything is read
    context.pipeline.sink.deletions.of(schema)
    begun = Rejoined(index, plan.revision(index) + 1, lineage.seq(since.at), schema)
    number = FIRST_ASIDE * (index + 1) + 1000 * begun.revision
    made = replace(plan, steps=(*plan.steps, begun))
    group, high = read_aside(context, made, chunks, number, since, lineage, run)
    staged = with_request(Staged(group.number, 1, high, since, lineage.newest, begun.revision), by_request)
    request(group, staged)
    return group, staged


def _shaped(context: Context, plan: Plan, index: int, found: TableSchema, asked: bool) -> TableSchema:
    """The definition with the columns that the copy is to have.

    :raises NotReadyError: if the pipeline's ``stream.schema_changes`` does not allow it.
    """
    step, before = plan.suspended_of(index), plan.tables[index]
    if step is not None and step.kind == ADDED:  # there is no copy yet
        return found
    try:
        return context.policy.shaped(before, found, read_again=True, asked=asked)
    except NotFollowed as error:
        raise NotReadyError(
            f"{before.label}: {error}", f"To take it over: airflow-cdc resnapshot --table {before.label}"
        ) from None


def table_of(staged: Staged) -> int:
    """Index of the table that was read again as a whole."""
    return staged.group // FIRST_ASIDE - 1


def with_request(staged: Staged, by_request: RequestRow | None) -> Staged:
    """What was read, with the request for which it was."""
    return staged if by_request is None else replace(staged, request=by_request.id, by=by_request.by)


def rejoin(
    context: Context, store: Store, plan: Plan, applier: Applier, job: StreamJob, staged: Staged
) -> Exchange | None:
    """Exchange the rows of a table that was read again, if the stream is far enough. Only the stream's driver calls
    it, between two batches.

    :param applier: what has been applied.
    :param job: reads the binlog.
    :returns: what has become of it, with the plan in which the table begins anew, or the plan as it was, if the table
        cannot take its place; ``None`` if it is too early.
    """
    if staged.lineage == applier.lineage.newest and applier.at.at < staged.high:
        return None
    index = table_of(staged)
    if (step := _taken_in(plan, applier, staged)) is not None:
        return _rejoined(context, store, plan, applier, staged, step, again=True)
    share = context.layout.share(plan.generation, staged.group)
    made = Plan.from_json(read_json(context.storage, share)).with_zero_dates(context.pipeline.source.zero_dates)
    group = Group(context, made, staged.group)
    label = made.tables[index].label
    try:
        with moved():
            why = _unfit(group, staged, plan, applier, index)
            files = None if why is not None else _brought(group, staged, index, applier, replace(job, share=share))
    except FencedError:
        raise
    except (TerminalError, FileNotFoundError, pa.ArrowInvalid) as error:  # the stream itself has lost nothing
        why, files = error.message if isinstance(error, TerminalError) else str(error), None
    if files is None:
        detail = f"{label} was read again, and cannot take its place in the stream: {why}"
        with suppress(CdcError, SQLAlchemyError):  # the line says it, too
            store.event(plan.pipeline, "reread_dropped", detail, table=label, remedy="Read it once more", by=staged.by)
        context.reporter.line(f"{detail}. Read it once more")
        forget(group, staged.attempt)
        return Exchange(False, f"{detail}. Read it once more", plan)
    applier.confirm()  # what is written down is not fenced
    known = [text for text in applier.at.xa if parse_entry(text)[1] is not None]
    # Of the others nobody knows whether they have rows of this table: when they end, that is looked up.
    applier.go_on(replace(applier.at, xa=tuple(known)))
    target = context.sink.table(made.tables[index])
    if not target.exists() or _is_adopted(target, plan):  # it was added, or somebody has removed it
        target.create(plan.pipeline)
        target.raise_fence(generation_fence(made, index))
    seq = applier.lineage.seq(applier.at.at)
    slices = tuple(file.to_json() for file in files)
    step = Rejoined(index, staged.revision or 0, seq, made.tables[index], slices, staged.group)
    failpoint("rejoin.before_write")
    write_json_once(context.storage, context.layout.amendment(plan.generation, index, step.revision), step.to_json())
    failpoint("rejoin.after_write")
    renewed = context.need_plan()
    finish_table(context, renewed, index, applier.fence)
    return _rejoined(context, store, renewed, applier, staged, step, describe_change(plan.tables[index], step.schema))


def _taken_in(plan: Plan, applier: Applier, staged: Staged) -> Rejoined | None:
    """How a table has rejoined with just these rows, if it has: a run died before it could say so.

    Rows that somebody else has read at the same time bear the same numbers, and are mostly of later.
    """
    step = plan.rejoined_of(table_of(staged))
    if step is None or (step.group, step.revision) != (staged.group, staged.revision):
        return None
    is_here = staged.lineage == applier.lineage.newest
    return None if is_here and applier.lineage.seq(staged.high) > step.seq else step


def _rejoined(
    context: Context,
    store: Store,
    plan: Plan,
    applier: Applier,
    staged: Staged,
    step: Rejoined,
    change: str = "",
    *,
    again: bool = False,
) -> Exchange:
    """Tell people that a table has rejoined, and forget what has asked for it.

    :param plan: in which it has.
    :param change: what has become of its columns.
    :param again: whether a run that has died may have told them already.
    """
    label, kind = plan.tables[step.table].label, "table_rejoined"
    said = f"{label} was read again, and is part of the stream from {applier.lineage.position(step.seq)} on"
    with suppress(CdcError, SQLAlchemyError):  # this is for people
        before = store.events(plan.pipeline, 100, [kind]) if again else []
        if not any(event.table == label and event.detail.startswith(said) for event in before):
            store.event(plan.pipeline, kind, said + change, table=label, by=staged.by)
    context.reporter.line(said + change)
    forget(Group(context, plan, staged.group), staged.attempt)
    return Exchange(True, said + change, plan)


def _is_adopted(target: SinkTable, plan: Plan) -> bool:
    return isinstance(target, Adopting) and target.adopts(plan.pipeline)


def _unfit(group: Group, staged: Staged, plan: Plan, applier: Applier, index: int) -> str | None:
    """Why rows that were read again cannot take their place any more, if they cannot."""
    if staged.lineage != applier.lineage.newest:
        return f"it was read at server {staged.lineage.server}, before the stream went on at another"
    if plan.revision(index) + 1 != staged.revision:
        return "it was read once more since"
    steps = (plan.suspended_of(index), *plan.followed_of(index))
    since = applier.lineage.seq(staged.since.at)
    if any(step is not None and step.seq > since for step in steps):
        return "it was altered, or suspended, since"
    # When it is written down that the table rejoins, nothing else will do: an exchange that is refused stops all.
    target = group.context.sink.table(group.plan.tables[index])
    if target.exists():
        target.markers()
    with closing(connect(group.context.connect_args)) as connection:
        return gone(connection, staged.since, group.context.opener(slots.REPLAY))


def _brought(group: Group, staged: Staged, index: int, applier: Applier, job: StreamJob) -> list[DataFile]:
    """The slices as of the resume point. Those that nothing has changed since stay as they are."""
    table, target, lineage = group.plan.tables[index], group.context.sink.table(group.plan.tables[index]), job.lineage
    entries = group.manifest(staged.attempt)
    staged_files = [DataFile(**entry["file"]) for entry in entries]
    for file in staged_files:
        if not target.staged(file):
            raise TerminalError(f"the file {file.path} of the {target.name} is missing or damaged")
    chunks = group.plan.chunks
    marks = [0] * len(chunks)
    for entry in entries:
        for chunk in entry["chunks"]:
            marks[chunk["no"]] = lineage.seq(watermarks_of(chunk)[1])
    changes, emptied = changes_since(group, staged, index, applier.at, job)
    if not table.key:
        with found_rows(table, lineage):
            return recounted(group, staged, index, staged_files[0], marks[0], changes, emptied)
    with closing(connect(group.context.connect_args)) as connection:
        start = lineage.seq(staged.since.at)
        changes = uncovered(connection, table, chunks, marks, start, last_changes(changes, table.key))
        owned = owners(connection, table, chunks, keys_of(table, changes))
    found = []
    outside = changes.filter(pa.array([i < 0 for i in owned], pa.bool_()))
    for file, entry in zip(staged_files, entries, strict=True):
        mine = {chunk["no"] for chunk in entry["chunks"]}
        late = changes.filter(pa.array([i in mine for i in owned], pa.bool_()))
        if late.num_rows or any(marks[no] < emptied for no in mine):
            rows = pa.concat_tables([table.sink_schema.empty_table(), *target.read_staged(file)])
            rows = apply_changes(rows.filter(pc.greater_equal(rows[SEQ], emptied)), late, table.key)
            file = target.stage(place_of(group, staged), [rows])
        found.append(file)
    added = apply_changes(table.sink_schema.empty_table(), outside, table.key)
    return [*found, *([target.stage(place_of(group, staged), [added])] if added.num_rows else [])]
