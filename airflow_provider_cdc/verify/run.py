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

from airflow_provider_cdc.apply.follow_ddl import copies_with_old_definition, tolerate_concurrent_ddl
from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables, published_attempts, published_attempts_in
from airflow_provider_cdc.config.selection import ALL_TABLES, TableSelection
from airflow_provider_cdc.model.comparison import ComparisonRefusal, CopyPosition, TableComparison
from airflow_provider_cdc.model.errors import REPORT_REMEDY, CdcError, NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Suspension
from airflow_provider_cdc.model.progress import format_duration
from airflow_provider_cdc.model.start_mode import SNAPSHOT, format_start
from airflow_provider_cdc.model.suspension_kinds import ADDED, REMOVED
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.observe.lag import read_copy_position
from airflow_provider_cdc.resnapshot.suspension import suspension_remedy, tables_missing_in_source
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Readable
from airflow_provider_cdc.verify.compare import TableComparer
from airflow_provider_cdc.verify.table_scan import ScanRunner, run_scans_in_threads

__all__ = ["TableComparison", "verify_tables"]


def verify_tables(
    context: RunContext,
    *,
    show_values: bool = False,
    selection: TableSelection = ALL_TABLES,
    runner: ScanRunner = run_scans_in_threads,
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
    verification = _Verification(context, plan, selection, runner)
    verdicts = []
    for verdict in verification.verdicts():
        shown = verdict if show_values else replace(verdict, examples=())
        context.reporter.line(str(shown))
        for line in shown.detail_lines(show_values=show_values):
            context.reporter.line(line)
        verdicts.append(shown)
    return verdicts


def _check_ready(context: RunContext, plan: Plan, selection: TableSelection) -> None:
    if plan.start != SNAPSHOT:
        raise NotReadyError(
            f"pipeline {plan.pipeline} began without a snapshot (stream.start: {format_start(plan.start)}): its tables "
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


def _is_complete(context: RunContext, plan: Plan) -> bool:
    """Whether the snapshot was complete once. A copy that is gone or damaged since is that table's own trouble."""
    if context.sink.resume_point().read_with_timeline() is not None:  # without a complete snapshot no stream begins
        return True
    try:
        return published_attempts(plan, open_sink_tables(context, plan)) is not None
    except CdcError:
        return True


@dataclass
class _Verification:
    """The comparison of the tables of a plan.

    :param plan: the plan, which is read again for each table: the stream goes on.
    """

    context: RunContext
    plan: Plan
    selection: TableSelection
    runner: ScanRunner

    def verdicts(self) -> Iterator[TableComparison]:
        """The verdict of each table that is chosen, in the plan's order."""
        context, plan = self.context, self.plan
        copy_position, refusal = self._read_copy_position()
        self.limits = self.selection.apply_to_limits(context.pipeline.snapshot.load_limits)
        missing = tables_missing_in_source(context, plan)
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
                error_refusal = _refusal_from_error(error)
            except Exception as error:  # whatever it is: it must not take the other tables along
                error_refusal = ComparisonRefusal(f"unexpected {type(error).__name__}: {error}", REPORT_REMEDY)
            yield TableComparison.from_refusal(table.label, error_refusal, copy_position)
            if error_refusal.retry:
                refusal = self._why_unreachable()

    def _read_copy_position(self) -> tuple[CopyPosition | None, ComparisonRefusal | None]:
        """How far the copy stands, and why nothing can be compared there, if it cannot.

        :raises TransientError: if the source or the sink cannot be reached.
        """
        try:
            copy_position = read_copy_position(self.context, self.plan)
        except TerminalError as error:
            return None, _refusal_from_error(error)
        self.context.reporter.line(str(copy_position))
        max_lag = self.selection.max_lag_seconds
        if copy_position.lag_seconds is None or copy_position.lag_seconds <= max_lag:
            return copy_position, None
        return copy_position, ComparisonRefusal(
            f"{copy_position}, and the limit is {format_duration(max_lag)}",
            "Let the stream catch up; if it has stopped, airflow-cdc status says why. To compare all the same, raise "
            "--max-lag-seconds (max_lag_seconds of the operator)",
            retry=True,
        )

    def _suspended_verdict(self, index: int, suspension: Suspension) -> TableComparison:
        at = self.context.resume_state(self.plan)[1].position(suspension.seq)
        refusal = ComparisonRefusal(
            f"it is suspended since {suspension.since}, at {at}: {suspension.message}",
            suspension_remedy(self.plan, suspension),
            retry=suspension.kind in (ADDED, REMOVED),  # the stream is at it
        )
        place = None if suspension.kind == ADDED else CopyPosition(at, suspension.since)
        return TableComparison.from_refusal(self.plan.tables[index].label, refusal, place)

    def _compare_table(self, index: int) -> TableComparison:
        context = self.context
        self.plan = plan = context.refresh_plan(self.plan)
        table = plan.tables[index]
        if (suspension := plan.suspension_of(index)) is not None:
            return self._suspended_verdict(index, suspension)
        if copies_with_old_definition(context, plan, [index]):
            raise TransientError(
                "the stream has begun to follow a DDL, and the copy does not have its columns yet",
                "Let the stream go on, then run again",
            )
        target = context.sink.table(table)
        assert isinstance(target, Readable)
        if published_attempts_in(plan, index, target) is None:
            raise TerminalError(
                f"the {target.name} is missing, or is not the one that was written before",
                f"Put it back, or read it again: airflow-cdc resnapshot --table {table.label}",
            )
        with tolerate_concurrent_ddl(context, plan):
            return TableComparer(context, plan, index, target, self.runner, self.limits).compare()

    def _why_unreachable(self) -> ComparisonRefusal | None:
        """Why no other table can be compared, if the source or the sink cannot be reached any more."""
        try:
            with closing(connect(self.context.connect_args)):
                self.context.resume_state(self.plan)
        except CdcError as error:
            return _refusal_from_error(error)
        return None


def _refusal_from_error(error: CdcError) -> ComparisonRefusal:
    return ComparisonRefusal(error.message, error.remedy, isinstance(error, TransientError))
