"""Ranges of a table's keys are read again while the stream goes on, and take the place of what the copy has there.

It is what a chunk group that is read again is, with chunks of its own: the argument is in docs/correctness.md. The
table keeps its definition, and its place in the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pymysql.connections import Connection
from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.core import slots
from airflow_provider_cdc.core.alter_words import NotFollowed
from airflow_provider_cdc.core.key_predicate import BadPredicate
from airflow_provider_cdc.core.plan import FIRST_ASIDE, Chunk, Plan
from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.exceptions import (
    CdcError,
    FencedError,
    NotReadyError,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.jobs.batches import StreamJob, moved
from airflow_provider_cdc.jobs.slices import Runner
from airflow_provider_cdc.mysql.keys.ranges import key_ranges
from airflow_provider_cdc.mysql.places.resume import gone
from airflow_provider_cdc.mysql.server.session import connect
from airflow_provider_cdc.mysql.snapshot.planner import plan_again, plan_ranges
from airflow_provider_cdc.phases.apply import Applier
from airflow_provider_cdc.phases.aside import read_aside
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.groups import Group
from airflow_provider_cdc.phases.reread import Exchange, Staged, forget, publish_table, request, taken
from airflow_provider_cdc.phases.resnapshot import altered_meanwhile, asked_for, resnapshot, table_of, with_request
from airflow_provider_cdc.sinks.protocol import Feature
from airflow_provider_cdc.sinks.storage import read_json, write_json
from airflow_provider_cdc.store import RequestRow, Store

#: Numbers of groups of ranges begin here, in those of their table; below are those of the whole table.
FIRST_RANGES = 500_000
_AGAIN = "Read them once more"
#: Gives the ranges of a table's keys, in the order of the key; none overlap.
Ranges = Callable[["Connection[Any]", TableSchema], Sequence[Chunk]]


def read_again(context: Context, store: Store, label: str, where_key: str | None, run: Runner) -> str:
    """Read a table again, or the rows of it whose keys are as a condition says, and wait for the stream.

    :param where_key: the condition; ``None`` for the whole table.
    :returns: what :func:`~airflow_provider_cdc.phases.resnapshot.resnapshot` or :func:`resnapshot_where` does, which
        say what it raises.
    """
    if where_key is None:
        return resnapshot(context, store, label, run)
    return resnapshot_where(context, store, label, where_key, run)


def resnapshot_where(context: Context, store: Store, label: str, where_key: str, run: Runner) -> str:
    """Read the rows of a table again whose keys are as a condition says, and wait for the stream to exchange them.

    :param label: ``database.table``.
    :param where_key: the condition; see :func:`airflow_provider_cdc.core.key_predicate.parse`.
    :param run: runs the slices.
    :returns: ``replaced``, or ``staged`` where no stream runs: the next one does it.
    :raises NotReadyError: if the pipeline has no such table, its snapshot is not complete, the condition is no range of
        its key, or the table is suspended.
    :raises TransientError: if the stream has not followed its last DDL yet, or could not exchange the rows.
    """
    index = asked_for(context, label)
    return read_ranges(context, store, index, _ranges_of(index, where_key), run)


def _ranges_of(index: int, where_key: str) -> Ranges:
    """Ranges that a condition means."""

    def ranges(connection: Connection[Any], table: TableSchema) -> Sequence[Chunk]:
        try:
            return key_ranges(connection, table, index, where_key)
        except BadPredicate as error:
            raise NotReadyError(
                f"the condition on the key of {table.label}: {error}",
                f"Say it as a range of the key ({', '.join(table.key)})",
                table=table.label,
            ) from None

    return ranges


def read_ranges(context: Context, store: Store, index: int, ranges: Ranges, run: Runner) -> str:
    """Read ranges of a table's keys again, and wait for the stream to exchange their rows.

    :param index: index of the table in the plan.
    :param ranges: gives them.
    :param run: runs the slices.
    :returns: and raises what :func:`resnapshot_where` does.
    """
    label = context.need_plan().tables[index].label
    group, staged = _read(context, index, ranges, run)
    said = f"{label} was read again in part"
    if taken(group, store, staged, lambda: _is_exchanged(group), said):
        return "replaced"
    context.reporter.line(f"{said}; no stream runs: the next one exchanges the rows")
    return "staged"


def read_where(context: Context, index: int, where_key: str, run: Runner, by_request: RequestRow) -> None:
    """Read rows that somebody wants to be read again, and ask the stream to exchange them.

    :param by_request: the request by which somebody does; the others and what it raises as of :func:`resnapshot_where`.
    """
    _read(context, index, _ranges_of(index, where_key), run, by_request)


def _read(
    context: Context, index: int, ranges: Ranges, run: Runner, by_request: RequestRow | None = None
) -> tuple[Group, Staged]:
    """Read ranges into staged slices, and ask for them to be exchanged.

    :raises TransientError: if the table is altered meanwhile.
    """
    try:
        return _staged(context, index, ranges, run, by_request)
    except CdcError as error:
        if not altered_meanwhile(error):
            raise
        label = context.need_plan().tables[index].label
        said = f"{label} was altered while it was read: {error.message}"
        raise TransientError(said, "Run again when the stream has followed that", table=label) from error


def _staged(
    context: Context, index: int, ranges: Ranges, run: Runner, by_request: RequestRow | None
) -> tuple[Group, Staged]:
    plan = context.need_plan()
    label = plan.tables[index].label
    context.need(Feature.REREAD, f"a part of table {label} is to be read again")
    _, lineage = context.stand(plan)

    def cut(connection: Connection[Any], found: TableSchema) -> list[Chunk]:
        _check(context, plan, index, found)
        return plan_ranges(connection, found, ranges(connection, found), context.pipeline.snapshot.chunk_rows)

    with closing(connect(context.connect_args)) as connection:
        since, _, chunks = plan_again(
            connection,
            plan.tables[index],
            index,
            lineage.server,
            keeps=context.pipeline.keeps,
            cut=cut,
            open_at=context.opener(slots.PLAN),
        )
    standing = context.sink.table(plan.tables[index]).markers().get(_marker(plan)) or 0
    number = max(FIRST_ASIDE * (index + 1) + FIRST_RANGES, standing + 1)
    group, high = read_aside(context, plan, chunks, number, since, lineage, run)
    staged = with_request(
        Staged(group.number, 1, high, since, lineage.newest, plan.revision(index), ranges=True), by_request
    )
    request(group, staged)
    return group, staged


def _check(context: Context, plan: Plan, index: int, found: TableSchema) -> None:
    """Make sure that rows that are read now fit those that are there.

    :param found: the definition as it is now.
    :raises NotReadyError: if the table can only be read as a whole.
    :raises TransientError: if the stream has not followed its last DDL yet.
    """
    table = plan.tables[index]
    whole = f"Read it as a whole: airflow-cdc resnapshot --table {table.label}"
    if plan.suspended_of(index) is not None:
        raise NotReadyError(f"{table.label} is suspended, and has no place in the stream", whole, table=table.label)
    if not table.key:
        raise NotReadyError(f"{table.label} has no usable key", whole, table=table.label)
    try:
        shaped = context.policy.shaped(table, found)
    except NotFollowed as error:
        raise NotReadyError(f"{table.label}: {error}", whole, table=table.label) from None
    if shaped.fingerprint() != table.fingerprint():
        raise TransientError(
            f"{table.label} was altered, and the stream has not followed that yet",
            "Run again when it has",
            table=table.label,
        )


def exchange_ranges(
    context: Context, store: Store, plan: Plan, applier: Applier, job: StreamJob, staged: Staged
) -> Exchange | None:
    """Exchange the rows of ranges that were read again, if the stream is far enough. Only the stream's driver calls it,
    between two batches.

    :param applier: what has been applied.
    :param job: reads the binlog.
    :returns: what has become of them; ``None`` if it is too early.
    """
    index = table_of(staged)
    is_here = staged.lineage == applier.lineage.newest
    if is_here and (applier.at.at < staged.high or not applier.has_passed_snapshot(index)):
        return None
    share = Plan.from_json(read_json(context.storage, context.layout.share(plan.generation, staged.group)))
    group, label = Group(context, replace(plan, chunks=share.chunks), staged.group), plan.tables[index].label
    standing = applier.tables[index].markers().get(_marker(plan)) or 0
    is_new = standing != staged.group and not _is_exchanged(group)  # else a run died when it had done it
    why: str | None = None
    try:
        with moved():
            if is_new:
                why = _unfit(group, staged, standing, applier, index)
            if is_new and why is None:
                publish_table(group, staged, index, applier, job, {_marker(plan): staged.group})
    except FencedError:
        raise
    except (TerminalError, FileNotFoundError, pa.ArrowInvalid) as error:  # the stream itself has lost nothing
        why = error.message if isinstance(error, TerminalError) else str(error)
    if why is not None:
        kind, said = "reread_dropped", f"{label} was read again in part, and the rows cannot be exchanged: {why}"
    else:
        kind, said = "part_reread", f"{label} was read again in part, and its rows were exchanged at {applier.at.at}"
        write_json(context.storage, context.layout.exchanged(plan.generation, staged.group), {"at": str(applier.at.at)})
    with suppress(CdcError, SQLAlchemyError):  # this is for people
        store.event(plan.pipeline, kind, said, table=label, remedy=None if why is None else _AGAIN, by=staged.by)
    said = said if why is None else f"{said}. {_AGAIN}"
    context.reporter.line(said)
    forget(group, staged.attempt)
    return Exchange(why is None, said, plan)


def _unfit(group: Group, staged: Staged, standing: int, applier: Applier, index: int) -> str | None:
    """Why rows that were read again cannot be exchanged any more, if they cannot.

    :param standing: the table's marker.
    """
    plan = group.plan
    if standing > staged.group:  # the marker could not tell that it was done
        return "another part of it was exchanged meanwhile"
    if staged.lineage != applier.lineage.newest:
        return f"they were read at server {staged.lineage.server}, before the stream went on at another"
    if plan.revision(index) != staged.revision:
        return "it was read again as a whole since"
    since = applier.lineage.seq(staged.since.at)
    if plan.suspended_of(index) is not None:
        return "it is suspended"
    if any(step.seq > since for step in plan.followed_of(index)):
        return "it was altered since"
    with closing(connect(group.context.connect_args)) as connection:
        return gone(connection, staged.since, group.context.opener(slots.REPLAY))


def _is_exchanged(group: Group) -> bool:
    """Whether the stream has exchanged the rows of ranges."""
    name = group.context.layout.exchanged(group.plan.generation, group.number)
    return read_json(group.context.storage, name) is not None


def _marker(plan: Plan) -> str:
    """Name of a table's marker: the highest number of a group of ranges that was exchanged."""
    return f"cdc/{plan.pipeline}/{plan.generation}/ranges"
