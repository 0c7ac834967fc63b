"""The sensor that waits for a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_cdc.operators.base import (
    PipelineLike,
    PipelineTemplates,
    context_of,
    plain,
    task_errors,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.core.plan import Plan
    from airflow_provider_cdc.phases.context import Context as Work


class CdcSnapshotSensor(PipelineTemplates, BaseSensorOperator):
    """Wait until every chunk group of the snapshot is published. A group that failed does not fail the sensor.

    XCom: ``generation``, ``groups``, ``tables``, ``rows``, ``min_lw`` (where the stream begins), ``max_hw``.

    :param pipeline: as in :class:`~airflow_provider_cdc.operators.cdc.CdcPreflightOperator`. (templated)
    :param deferrable: wait in the triggerer; otherwise in the worker, as ``mode`` says.
    :param poke_interval: seconds between two looks.
    """

    ui_color = "#e0f7fa"

    def __init__(
        self, *, pipeline: PipelineLike, deferrable: bool = True, poke_interval: float = 10.0, **kwargs: Any
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.pipeline = plain(pipeline)
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Wait in the triggerer, or in the worker."""
        if not self.deferrable:
            return super().execute(context)
        with task_errors(self.log):
            work = context_of(self.pipeline, self.log)
            plan, summary = self._look(work)
            if summary is None:
                self._defer(work, plan)
            return summary

    def resume(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Look again: the sink decides whether the snapshot is complete."""
        return self.execute(context)

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        with task_errors(self.log):
            _, summary = self._look(context_of(self.pipeline, self.log))
        return PokeReturnValue(is_done=summary is not None, xcom_value=summary)

    def _look(self, work: Work) -> tuple[Plan, dict[str, Any] | None]:
        from airflow_provider_cdc.phases.snapshot import adopt_published, coverage, targets

        plan = work.need_plan()
        with closing(work.store()) as store:
            # Also what the bookkeeping has lost, so that the trigger has something to wait for.
            adopt_published(work, store, plan)
            held = coverage(work, plan, targets(work, plan))
        if held is None:
            return plan, None
        marks = [seq for table in held for seq in table.high_watermarks]
        high = work.stand(plan)[1].position(max([plan.p0_seq, *marks]))
        return plan, {
            "generation": plan.generation,
            "groups": len(plan.groups()),
            "tables": len(plan.tables),
            "rows": sum(table.rows for table in held),
            "min_lw": plan.p0.at.to_json(),
            "max_hw": high.to_json(),
        }

    def _defer(self, work: Work, plan: Plan) -> None:
        from airflow_provider_cdc.triggers.cdc import CdcSnapshotTrigger

        self.defer(
            trigger=CdcSnapshotTrigger(
                pipeline=plan.pipeline,
                generation=plan.generation,
                state_conn_id=work.pipeline.state.conn_id,
                state_path=str(work.layout.bookkeeping),
                poll_seconds=self.poke_interval,
            ),
            method_name="resume",
            timeout=timedelta(seconds=self.timeout),
        )
