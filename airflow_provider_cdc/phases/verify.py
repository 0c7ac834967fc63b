"""Compare source and sink, table by table, at one position, while writers go on: see :mod:`.comparing`.

The sink is fixed at one version of known position E. Every chunk of the source is read like a snapshot chunk, so it is
exact as of its HW. Both sides are then brought to one common position F at or behind all of them: the sink with the
binlog's changes in (E, F], each source chunk with those in (HW, F].
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_cdc.core.comparison import Difference, TableComparison
from airflow_provider_cdc.core.selection import EVERYTHING, Selection
from airflow_provider_cdc.core.start import SNAPSHOT, start_text
from airflow_provider_cdc.exceptions import NotReadyError, TransientError
from airflow_provider_cdc.jobs.scans import Runner, run_in_threads
from airflow_provider_cdc.phases.comparing import Comparing
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.groups import coverage, targets
from airflow_provider_cdc.phases.schema_changes import beside_a_stream, lagging
from airflow_provider_cdc.phases.suspension import gone
from airflow_provider_cdc.sinks.protocol import Readable

__all__ = ["Difference", "TableComparison", "verify"]


def verify(
    context: Context,
    *,
    show_values: bool = False,
    selection: Selection = EVERYTHING,
    run: Runner = run_in_threads,
) -> list[TableComparison]:
    """Compare captured tables. Tables that were removed from the pipeline, or dropped in the source, are passed over.

    :param show_values: give examples of what differs: they are values of the source, which are nobody's by default.
    :param selection: which tables, and how fast they are read.
    :param run: runs the scans of the sink.
    :raises NotReadyError: if the patterns of the selection name no table.
    :raises NotReadyError: if there is no complete snapshot.
    :raises TerminalError: if the definition of a table changed since.
    """
    plan = context.need_plan()
    if plan.start != SNAPSHOT:
        raise NotReadyError(
            f"pipeline {plan.pipeline} began without a snapshot (stream.start: {start_text(plan.start)}): its tables "
            "hold only rows that were changed since, so they need not equal the source",
            "For a complete copy, use stream.start: snapshot with a fresh sink.path",
        )
    tables = targets(context, plan)
    if coverage(context, plan, tables) is None:
        raise NotReadyError(
            f"the snapshot of {plan.pipeline} is not complete",
            "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
        )
    found = list[TableComparison]()
    if not any(selection.names(*table.id) for table in plan.tables):
        raise NotReadyError(
            f"no table of {plan.pipeline} matches {', '.join(selection.tables)}",
            "Look at its tables: airflow-cdc status",
        )
    chosen = {index for index, table in enumerate(plan.tables) if selection.takes(*table.id)}
    if late := [plan.tables[index].label for index in lagging(context, plan, [i for i in plan.active if i in chosen])]:
        raise TransientError(
            f"the stream has begun to follow a DDL of {', '.join(late)}, and the copy does not have its columns yet",
            "Let the stream go on, then run again",
        )
    left = gone(context, plan)
    limits = selection.limits(context.pipeline.snapshot.limits)
    for index, target in enumerate(tables):
        if index not in chosen:
            continue
        if (step := plan.suspended_of(index)) is not None:
            if index in left or not context.pipeline.captures(*plan.tables[index].id):
                continue
            at = context.stand(plan)[1].position(step.seq)
            verdict = TableComparison(plan.tables[index].label, 0, 0, 0, 0, at, suspended=step.message)
            context.reporter.line(str(verdict))
            found.append(verdict)
            continue
        if not isinstance(target, Readable):
            raise NotReadyError(
                f"the {target.name} cannot be read back: a sink of kind {context.pipeline.sink.kind} is for writing",
                "Compare by other means, or use a sink.kind that can be read",
            )
        with beside_a_stream(context, plan):
            verdict = Comparing(context, plan, index, target, run, limits).compare()
        if not show_values:
            verdict = replace(verdict, examples=())
        context.reporter.line(str(verdict))
        for line in verdict.details(show_values=show_values):
            context.reporter.line(line)
        found.append(verdict)
    return found
