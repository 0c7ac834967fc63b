"""Compare source and sink, table by table, at one position, while writers go on: see :mod:`.comparing`.

The sink is fixed at one version of known position E. Every chunk of the source is read like a snapshot chunk, so it is
exact as of its HW. Both sides are then brought to one common position F at or behind all of them: the sink with the
binlog's changes in (E, F], each source chunk with those in (HW, F].

Each table gets a verdict. What stands in the way of one table is its verdict, and the others are compared. That says
nothing about how old E is: the copy may stand there since the stream has stopped. So its age is looked up first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from airflow_provider_cdc.apply.follow_ddl import beside_a_stream, lagging
from airflow_provider_cdc.chunk_groups.groups import published_attempts, published_in, targets
from airflow_provider_cdc.config.selection import EVERYTHING, Selection
from airflow_provider_cdc.model.comparison import CopyPlace, Difference, Refusal, TableComparison
from airflow_provider_cdc.model.errors import REPORT, CdcError, NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Suspended
from airflow_provider_cdc.model.progress import duration
from airflow_provider_cdc.model.start_mode import SNAPSHOT, start_text
from airflow_provider_cdc.model.step_kinds import ADDED, REMOVED
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.observe.lag import copy_place
from airflow_provider_cdc.resnapshot.suspension import gone, remedy_of
from airflow_provider_cdc.runtime.run_context import Context
from airflow_provider_cdc.sinks.protocol import Readable
from airflow_provider_cdc.verify.compare import Comparing
from airflow_provider_cdc.verify.task import Runner, run_in_threads

__all__ = ["Difference", "TableComparison", "verify"]


def verify(
    context: Context,
    *,
    show_values: bool = False,
    selection: Selection = EVERYTHING,
    runner: Runner = run_in_threads,
) -> list[TableComparison]:
    """Compare captured tables. Tables that were removed from the pipeline, or dropped in the source, are passed over.

    :param show_values: give examples of what differs: they are values of the source, which are nobody's by default.
    :param selection: which tables, how fast they are read, and how old the copy may be.
    :param runner: runs the scans of the sink.
    :returns: a verdict for each table: what stands in the way of a comparison is one as well.
    :raises NotReadyError: if the patterns of the selection name no table, there is no complete snapshot, or the sink
        cannot be read back.
    :raises TransientError: if the source or the sink cannot be reached.
    """
    plan = context.require_plan()
    _check_ready(context, plan, selection)
    verification = _Verifying(context, plan, selection, runner)
    verdicts = []
    for verdict in verification.verdicts():
        shown = verdict if show_values else replace(verdict, examples=())
        context.reporter.line(str(shown))
        for line in shown.detail_lines(show_values=show_values):
            context.reporter.line(line)
        verdicts.append(shown)
    return verdicts


def _check_ready(context: Context, plan: Plan, selection: Selection) -> None:
    if plan.start != SNAPSHOT:
        raise NotReadyError(
            f"pipeline {plan.pipeline} began without a snapshot (stream.start: {start_text(plan.start)}): its tables "
            "hold only rows that were changed since, so they need not equal the source",
            "For a complete copy, use stream.start: snapshot with a fresh sink.path",
        )
    if not _is_complete(context, plan):
        raise NotReadyError(
            f"the snapshot of {plan.pipeline} is not complete",
            "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
        )
    if not any(selection.matches_patterns(*table.id) for table in plan.tables):
        raise NotReadyError(
            f"no table of {plan.pipeline} matches {', '.join(selection.tables)}",
            "Look at its tables: airflow-cdc status",
        )
    first = next((context.sink.table(plan.tables[index]) for index in plan.active_tables), None)
    if first is not None and not isinstance(first, Readable):
        raise NotReadyError(
            f"the {first.name} cannot be read back: a sink of kind {context.pipeline.sink.kind} is for writing",
            "Compare by other means, or use a sink.kind that can be read",
        )


def _is_complete(context: Context, plan: Plan) -> bool:
    """Whether the snapshot was complete once. A copy that is gone or damaged since is that table's own trouble."""
    if context.sink.resume_point().read_with_timeline() is not None:  # without a complete snapshot no stream begins
        return True
    try:
        return published_attempts(plan, targets(context, plan)) is not None
    except CdcError:
        return True


@dataclass
class _Verifying:
    """The comparison of the tables of a plan.

    :param plan: the plan, which is read again for each table: the stream goes on.
    """

    context: Context
    plan: Plan
    selection: Selection
    runner: Runner

    def verdicts(self) -> Iterator[TableComparison]:
        """The verdict of each table that is chosen, in the plan's order."""
        context, plan = self.context, self.plan
        copy_position, refusal = self._read_copy_position()
        self.limits = self.selection.apply_to_limits(context.pipeline.snapshot.load_limits)
        missing = gone(context, plan)
        for index, table in enumerate(plan.tables):
            if not self.selection.includes(*table.id):
                continue
            if (suspension := plan.suspension_of(index)) is not None:
                if index not in missing and context.pipeline.captures(*table.id):
                    yield self._suspended_verdict(index, suspension)
                continue
            if refusal is not None:
                yield TableComparison.from_refusal(table.label, refusal, copy_position)
                continue
            try:
                yield replace(self._compare_table(index), copy=copy_position)
                continue
            except CdcError as error:
                error_refusal = _refusal(error)
            except Exception as error:  # whatever it is: it must not take the other tables along
                error_refusal = Refusal(f"unexpected {type(error).__name__}: {error}", REPORT)
            yield TableComparison.from_refusal(table.label, error_refusal, copy_position)
            if error_refusal.retry:
                refusal = self._why_unreachable()

    def _read_copy_position(self) -> tuple[CopyPlace | None, Refusal | None]:
        """How far the copy stands, and why nothing can be compared there, if it cannot.

        :raises TransientError: if the source or the sink cannot be reached.
        """
        try:
            copy_position = copy_place(self.context, self.plan)
        except TerminalError as error:
            return None, _refusal(error)
        self.context.reporter.line(str(copy_position))
        max_lag = self.selection.max_lag_seconds
        if copy_position.lag_seconds is None or copy_position.lag_seconds <= max_lag:
            return copy_position, None
        return copy_position, Refusal(
            f"{copy_position}, and the limit is {duration(max_lag)}",
            "Let the stream catch up; if it has stopped, airflow-cdc status says why. To compare all the same, raise "
            "--max-lag-seconds (max_lag_seconds of the operator)",
            retry=True,
        )

    def _suspended_verdict(self, index: int, suspension: Suspended) -> TableComparison:
        at = self.context.resume_state(self.plan)[1].position(suspension.seq)
        refusal = Refusal(
            f"it is suspended since {suspension.since}, at {at}: {suspension.message}",
            remedy_of(self.plan, suspension),
            retry=suspension.kind in (ADDED, REMOVED),  # the stream is at it
        )
        place = None if suspension.kind == ADDED else CopyPlace(at, suspension.since)
        return TableComparison.from_refusal(self.plan.tables[index].label, refusal, place)

    def _compare_table(self, index: int) -> TableComparison:
        context = self.context
        self.plan = plan = context.refresh_plan(self.plan)
        table = plan.tables[index]
        if (suspension := plan.suspension_of(index)) is not None:
            return self._suspended_verdict(index, suspension)
        if lagging(context, plan, [index]):
            raise TransientError(
                "the stream has begun to follow a DDL, and the copy does not have its columns yet",
                "Let the stream go on, then run again",
            )
        target = context.sink.table(table)
        assert isinstance(target, Readable)
        if published_in(plan, index, target) is None:
            raise TerminalError(
                f"the {target.name} is missing, or is not the one that was written before",
                f"Put it back, or read it again: airflow-cdc resnapshot --table {table.label}",
            )
        with beside_a_stream(context, plan):
            return Comparing(context, plan, index, target, self.runner, self.limits).compare()

    def _why_unreachable(self) -> Refusal | None:
        """Why no other table can be compared, if the source or the sink cannot be reached any more."""
        try:
            with closing(connect(self.context.connect_args)):
                self.context.resume_state(self.plan)
        except CdcError as error:
            return _refusal(error)
        return None


def _refusal(error: CdcError) -> Refusal:
    return Refusal(error.message, error.remedy, isinstance(error, TransientError))
