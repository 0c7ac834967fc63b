"""The sensor that waits for a snapshot."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowSensorTimeout, AirflowSkipException
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_cdc.airflow.assets import SNAPSHOT, declare_outlets, emit_asset_events
from airflow_provider_cdc.airflow.operators import defaults
from airflow_provider_cdc.airflow.operators.base import (
    PipelineLike,
    PipelineTemplateMixin,
    make_run_context,
    map_task_errors,
    task_identity,
    to_plain,
)
from airflow_provider_cdc.model.errors import TerminalError, TransientError, extract_error

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.chunk_groups.chunk_group import SnapshotCoverage
    from airflow_provider_cdc.model.plan import Plan
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import StateDatabase


class CdcSnapshotSensor(PipelineTemplateMixin, BaseSensorOperator):
    """Wait until every chunk group of the snapshot is published. A failed group does not fail the sensor.

    XCom: ``generation``, ``groups``, ``tables``, ``rows``, ``min_lw`` (where the stream begins), ``max_hw``.

    :param pipeline: as in :class:`~airflow_provider_cdc.airflow.operators.cdc.CdcPreflightOperator`. (templated)
    :param deferrable: wait in the triggerer instead of in the worker (according to ``mode``). Default: ``[cdc]
        default_deferrable`` in Airflow's configuration.
    :param poke_interval: seconds between two checks.
    :param assets: whether to emit asset events when the snapshot is complete, once for each snapshot.
    :param kwargs: as in Airflow's sensors. ``timeout`` counts from the first check of a try, across all deferrals.
    """

    ui_color = "#e0f7fa"

    def __init__(
        self,
        *,
        pipeline: PipelineLike,
        deferrable: bool | None = None,
        poke_interval: float = 10.0,
        assets: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.pipeline = to_plain(pipeline)
        declare_outlets(self, assets)
        self.deferrable = defaults.deferrable() if deferrable is None else deferrable

    def execute(self, context: Context) -> Any:
        """Wait in the triggerer or in the worker."""
        if not self.deferrable:
            return super().execute(context)
        try:
            return self.resume(context, {}, time.time() + self.timeout)
        except Exception as error:  # as the base class does after a resume
            if self.never_fail or (self.soft_fail and isinstance(error, AirflowException)):
                raise AirflowSkipException(f"skipped because the sensor must not fail: {error}") from error
            raise

    def resume(self, context: Context, event: Mapping[str, Any], deadline: float | None = None) -> Any:
        """Check the sink, which decides whether the snapshot is complete, and defer again if it is not.

        :param event: the trigger's event. ``unseen`` is why the trigger never saw the snapshot in the state database.
        :param deadline: when to give up, in seconds since 1970.
        """
        deadline = deadline or time.time() + self.timeout
        with map_task_errors(self.log):
            while (checked := self._check_once(context)) is None:
                self._time_left(deadline)
                time.sleep(self.poke_interval)
            run_context, plan, is_recorded, summary = checked
            if summary is not None:
                return summary
            if is_recorded and "unseen" in event:  # the worker sees it, so only the triggerer has this problem
                raise extract_error(event["unseen"]) or TerminalError(event["unseen"])
            self._defer(run_context, plan, deadline)

    def poke(self, context: Context) -> PokeReturnValue:
        """Check once. An outage of source, sink or state database is not a failure."""
        with map_task_errors(self.log):
            checked = self._check_once(context)
        summary = checked[3] if checked else None
        return PokeReturnValue(is_done=summary is not None, xcom_value=summary)

    def _check_once(self, context: Context) -> tuple[RunContext, Plan, bool, dict[str, Any] | None] | None:
        """Check once.

        :returns: run context, plan, whether the state database knows the snapshot, and the result if the snapshot is
            complete, or ``None`` if not even the plan could be read now.
        """
        checked = None
        try:
            run_context = make_run_context(self.pipeline, self.log)
            plan = run_context.plans.require()
            checked = run_context, plan, False, None
            return run_context, plan, *self._check_snapshot(context, run_context, plan)
        except TransientError as error:
            self.log.warning("%s; checking again", error)
            return checked

    def _check_snapshot(
        self, context: Context, run_context: RunContext, plan: Plan
    ) -> tuple[bool, dict[str, Any] | None]:
        from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables, read_coverage
        from airflow_provider_cdc.snapshot.run import adopt_published_groups

        with closing(run_context.open_state_database()) as store:
            is_recorded = store.snapshot(plan.pipeline, plan.generation) is not None
            # Also restores records that the state database has lost, so that the trigger has something to wait for.
            adopt_published_groups(run_context, store, plan)
            table_coverages = read_coverage(run_context, plan, open_sink_tables(run_context, plan))
            if table_coverages is None:
                return is_recorded, None
            self._emit_snapshot_events(context, run_context, store, plan, table_coverages)
        marks = [seq for table in table_coverages for seq in table.high_watermarks]
        high = run_context.resume_state(plan)[1].position(max([plan.p0_seq, *marks]))
        return is_recorded, {
            "generation": plan.generation,
            "groups": len(plan.groups()),
            "tables": len(plan.tables),
            "rows": sum(table.rows for table in table_coverages),
            "min_lw": plan.p0.at.to_json(),
            "max_hw": high.to_json(),
        }

    def _emit_snapshot_events(
        self,
        context: Context,
        run_context: RunContext,
        store: StateDatabase,
        plan: Plan,
        table_coverages: list[SnapshotCoverage],
    ) -> None:
        from airflow_provider_cdc.observe.asset_windows import take_new_snapshots
        from airflow_provider_cdc.state import utc_now

        timeline, by = run_context.resume_state(plan)[1], task_identity(context)
        tables = {plan.tables[i].id: table_coverages[i] for i in plan.active_tables}
        events = {
            table: {
                "kind": SNAPSHOT,
                "generation": plan.generation,
                "rows": tables[table].rows,
                "start": str(plan.p0.at),
                "end": str(timeline.position(max([plan.p0_seq, *tables[table].high_watermarks]))),
                "until": utc_now().isoformat(timespec="seconds"),
            }
            for table in take_new_snapshots(store, plan.pipeline, plan.generation, tables, by)
        }
        emit_asset_events(self, context, run_context.pipeline, events)

    def _time_left(self, deadline: float) -> timedelta:
        """Return the time until the deadline.

        :raises AirflowSensorTimeout: if it has passed.
        """
        seconds_left = deadline - time.time()
        if seconds_left <= 0:
            raise AirflowSensorTimeout(f"the snapshot was not complete within {self.timeout:g} s")
        return timedelta(seconds=seconds_left)

    def _defer(self, run_context: RunContext, plan: Plan, deadline: float) -> NoReturn:
        from airflow_provider_cdc.airflow.triggers.cdc import CdcSnapshotTrigger

        trigger = CdcSnapshotTrigger.for_pipeline(
            run_context, generation=plan.generation, poll_seconds=self.poke_interval
        )
        kwargs, timeout = {"deadline": deadline}, self._time_left(deadline)
        self.defer(trigger=trigger, method_name="resume", kwargs=kwargs, timeout=timeout)
