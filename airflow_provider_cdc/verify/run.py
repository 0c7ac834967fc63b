"""Compare source and sink, table by table, each at one position, while writers continue.

The sink is read at one version of known position E. Every chunk of the source is read like a snapshot chunk, so it is
exact as of its high watermark HW. Both sides are then brought to a common position F that is not before any of them:
the sink with the binlog's changes in (E, F], each source chunk with those in (HW, F]. See :mod:`.compare`.

Each table gets a verdict. If a table cannot be compared, the reason is its verdict, and the others are still compared.
A verdict does not say how old E is: the stream may have stopped there long ago. So the age of the copy is checked
first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from airflow_provider_cdc.apply.follow_ddl import copies_with_old_definition, tolerate_concurrent_ddl
from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables, published_attempts, published_attempts_in
from airflow_provider_cdc.config.selection import ALL_TABLES, TableSelection
from airflow_provider_cdc.model.comparison import ComparisonRefusal, CopyPosition, TableComparison
from airflow_provider_cdc.model.errors import (
    ADDED,
    REMOVED,
    REPORT_REMEDY,
    CdcError,
    NotReadyError,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Suspension
from airflow_provider_cdc.model.progress import format_duration
from airflow_provider_cdc.model.start_mode import SNAPSHOT, format_start
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.observe.lag import read_copy_position
from airflow_provider_cdc.resnapshot.suspension import suspension_remedy, tables_missing_in_source
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Readable
from airflow_provider_cdc.verify.compare import TableComparer
from airflow_provider_cdc.verify.task import ScanRunner, run_scans_in_threads

__all__ = ["TableComparison", "verify_tables"]


def verify_tables(
    context: RunContext,
    *,
    show_values: bool = False,
    selection: TableSelection = ALL_TABLES,
    runner: ScanRunner = run_scans_in_threads,
) -> list[TableComparison]:
    """Compare captured tables. Tables removed from the pipeline or dropped in the source are skipped.

    :param show_values: include examples of differences. They contain values of the source, so this is off by default.
    :param selection: which tables, how fast they are read, and how old the copy may be.
    :param runner: runs the scans of the sink.
    :returns: a verdict for each table; the reason why a table cannot be compared is a verdict as well.
    :raises NotReadyError: if the patterns of the selection name no table, there is no complete snapshot, or the sink
        cannot be read back.
    :raises TransientError: if the source or the sink cannot be reached, or the comparison was interrupted.
    """
    plan = context.plans.require()
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
            "contain only rows changed since then, so they need not equal the source",
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
            "List its tables: airflow-cdc status",
        )
    first = next((context.sink.table(plan.tables[index]) for index in plan.active_tables), None)
    if first is not None and not isinstance(first, Readable):
        raise NotReadyError(
            f"the {first.name} cannot be read back: a sink of kind {context.pipeline.sink.kind} is write-only",
            "Compare by other means, or use a sink.kind that can be read",
        )


def _is_complete(context: RunContext, plan: Plan) -> bool:
    """Return whether the snapshot was ever complete. A copy lost or damaged since then is reported by its verdict."""
    if context.sink.resume_point().read_with_timeline() is not None:  # a stream begins only after a complete snapshot
        return True
    try:
        return published_attempts(plan, open_sink_tables(context, plan)) is not None
    except CdcError:
        return True


@dataclass
class _Verification:
    """The comparison of the tables of a plan.

    :param plan: the plan; it is reloaded for each table, because the stream continues.
    """

    context: RunContext
    plan: Plan
    selection: TableSelection
    runner: ScanRunner

    def verdicts(self) -> Iterator[TableComparison]:
        """Yield the verdict of each selected table, in the order of the plan."""
        context, plan = self.context, self.plan
        copy_position, refusal = self._read_copy_position()
        self.limits = self.selection.apply_to_limits(context.pipeline.snapshot.load_limits)
        missing = tables_missing_in_source(context, plan)
        for index, table in enumerate(plan.tables):
            if not self.selection.includes(*table.id):
                continue
            context.check_interrupted()
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
            except Exception as error:  # no error of one table may keep the others from being compared
                error_refusal = ComparisonRefusal(f"unexpected {type(error).__name__}: {error}", REPORT_REMEDY)
            yield TableComparison.from_refusal(table.label, error_refusal, copy_position)
            if error_refusal.retry:
                refusal = self._why_unreachable()

    def _read_copy_position(self) -> tuple[CopyPosition | None, ComparisonRefusal | None]:
        """Return the position of the copy, and why no table can be compared there (``None`` if they can).

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
            "Let the stream catch up. If it has stopped, airflow-cdc status shows why. To compare anyway, raise "
            "--max-lag-seconds (max_lag_seconds of the operator)",
            retry=True,
        )

    def _suspended_verdict(self, index: int, suspension: Suspension) -> TableComparison:
        at = self.context.resume_state(self.plan)[1].position(suspension.seq)
        refusal = ComparisonRefusal(
            f"it has been suspended since {suspension.since}, at {at}: {suspension.message}",
            suspension_remedy(self.plan, suspension),
            retry=suspension.kind in (ADDED, REMOVED),  # the stream will handle these
        )
        place = None if suspension.kind == ADDED else CopyPosition(at, suspension.since)
        return TableComparison.from_refusal(self.plan.tables[index].label, refusal, place)

    def _compare_table(self, index: int) -> TableComparison:
        context = self.context
        self.plan = plan = context.plans.refresh(self.plan)
        table = plan.tables[index]
        if (suspension := plan.suspension_of(index)) is not None:
            return self._suspended_verdict(index, suspension)
        if copies_with_old_definition(context, plan, [index]):
            raise TransientError(
                "the stream has begun to follow a DDL, and the copy does not have the new columns yet",
                "Let the stream continue, then run again",
            )
        target = context.sink.table(table)
        assert isinstance(target, Readable)
        if published_attempts_in(plan, index, target) is None:
            raise TerminalError(
                f"the {target.name} is missing, or is not the one that was written before",
                f"Restore it, or re-snapshot it: airflow-cdc resnapshot --table {table.label}",
            )
        with tolerate_concurrent_ddl(context, plan):
            return TableComparer(context, plan, index, target, self.runner, self.limits).compare()

    def _why_unreachable(self) -> ComparisonRefusal | None:
        """Return why no further table can be compared, if the source or the sink can no longer be reached."""
        try:
            with closing(connect(self.context.connect_args)):
                self.context.resume_state(self.plan)
        except CdcError as error:
            return _refusal_from_error(error)
        return None


def _refusal_from_error(error: CdcError) -> ComparisonRefusal:
    return ComparisonRefusal(error.message, error.remedy, isinstance(error, TransientError))
