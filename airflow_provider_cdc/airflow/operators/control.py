"""Operators that stop a stream or report the status of a pipeline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_cdc.airflow.operators import defaults
from airflow_provider_cdc.airflow.operators.base import (
    PipelineLike,
    PipelineOperator,
    make_run_context,
    map_task_errors,
    task_label,
)
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError, TransientError, extract_error
from airflow_provider_cdc.model.supervision import EpochWatch, WatchOutcome

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.config import Pipeline
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import StateDatabase

#: Conditions on which a status can fail the task.
SUSPENDED, STOPPED, LAG, PURGE_RISK = "suspended", "stopped", "lag", "purge_risk"
FAIL_ON = (SUSPENDED, STOPPED, LAG, PURGE_RISK)


class CdcStopOperator(PipelineOperator):
    """Ask the running stream to stop at a transaction boundary, and wait until it has ended.

    This is the same as ``airflow-cdc stop``: the task that supervises the stream succeeds.

    XCom: ``epoch`` and ``state`` of the stream that ended, and ``end``, its resume point. ``epoch`` is ``None`` if no
    stream was running.

    :param pipeline: as in :class:`~airflow_provider_cdc.airflow.operators.cdc.CdcPreflightOperator`. (templated)
    :param timeout: how long to wait. The stream ends after the batch that is being applied.
    :param deferrable: wait in the triggerer. Default: ``[cdc] default_deferrable``.
    :param poll_seconds: seconds between two checks. Default: ``[cdc] poll_seconds``.
    """

    ui_color = "#f3e8fd"

    def __init__(
        self,
        *,
        pipeline: PipelineLike,
        timeout: timedelta = timedelta(hours=1),
        deferrable: bool | None = None,
        poll_seconds: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.timeout = timeout
        self.deferrable = defaults.deferrable() if deferrable is None else deferrable
        self.poll_seconds = defaults.read_seconds("poll_seconds") if poll_seconds is None else poll_seconds

    def execute(self, context: Context) -> dict[str, Any]:
        """Request the stop and wait for it."""
        until = time.time() + self.timeout.total_seconds()
        with map_task_errors(self.log):
            run_context = make_run_context(self.pipeline, self.log)
            name = run_context.plans.require().pipeline
            with closing(run_context.open_state_database()) as store:
                # stop_stream(), not request_stop(): after the latter the stream's task starts the next epoch.
                asked_epoch = store.stop_stream(name, by=task_label(context))
                run, is_alive = run_context.liveness.wait_until_known(store, name)
                is_lost = run is not None and run.state == "running" and not is_alive
                if asked_epoch is None or is_lost:
                    last_run_text = f"; epoch {run.epoch} is {run.state}" if run else ""
                    self.log.info(
                        "no stream of %s is running%s; one that is starting will not begin", name, last_run_text
                    )
                    return {"epoch": None, "state": None, "end": None}
                self.log.info("epoch %s was asked to stop", asked_epoch)
                if self.deferrable:
                    self._defer(run_context, asked_epoch, until)
                return self._end_result(
                    store, name, asked_epoch, self._watch_until_end(store, name, asked_epoch, until)
                )

    def resume(self, context: Context, event: Mapping[str, Any], until: float) -> dict[str, Any]:
        """Continue after the trigger has seen the end or has given up.

        :param event: ``epoch`` and ``verdict``. If the triggerer never saw the epoch, ``unseen`` has the reason.
        :param until: when to give up, in seconds since 1970.
        """
        with map_task_errors(self.log):
            run_context = make_run_context(self.pipeline, self.log)
            name, epoch = run_context.pipeline.name, int(event["epoch"])
            if "unseen" in event:
                raise extract_error(event["unseen"]) or TerminalError(event["unseen"])
            with closing(run_context.open_state_database()) as store:
                return self._end_result(store, name, epoch, event["verdict"])

    def _defer(self, run_context: RunContext, epoch: int, until: float) -> NoReturn:
        from airflow_provider_cdc.airflow.triggers.cdc import CdcStreamEndTrigger

        trigger = CdcStreamEndTrigger.for_pipeline(
            run_context, epoch=epoch, until=until, poll_seconds=self.poll_seconds
        )
        self.defer(trigger=trigger, method_name="resume", kwargs={"until": until})

    def _watch_until_end(self, store: StateDatabase, name: str, epoch: int, until: float) -> str | None:
        watch = EpochWatch(epoch)
        while time.time() < until:
            try:
                row = store.probe_newest_epoch(name)
            except TransientError as error:
                self.log.warning("%s; checking again", error)
                row = None
            verdict = watch.observe(row, time.monotonic())
            if verdict is not None:
                return verdict
            time.sleep(self.poll_seconds)
        return None

    def _end_result(self, store: StateDatabase, name: str, epoch: int, verdict: str | None) -> dict[str, Any]:
        if verdict is None:
            raise TransientError(
                f"epoch {epoch} of {name} was asked to stop, but has not ended within {self.timeout}",
                "It ends after the batch that is being applied: check its driver's log, and clear this task to keep "
                "waiting",
            )
        run = store.newest_epoch(name)
        if verdict == WatchOutcome.SUPERSEDED or (run is not None and run.epoch > epoch):
            raise TransientError(
                f"epoch {epoch} of {name} has ended, but epoch {run.epoch if run else '?'} has begun since",
                "Mark the task that supervises the stream as success, or clear this one to ask again",
            )
        ended = store.epoch_row(name, epoch)
        self.log.info("epoch %s has ended (%s)", epoch, verdict)
        return {"epoch": epoch, "state": str(verdict), "end": ended and ended.end_offset}


class CdcStatusOperator(PipelineOperator):
    """Report the status of a pipeline: the output of ``airflow-cdc status --json`` as XCom, and as text in the log.

    The XCom omits the driver's log lines and the table definitions, which may be long.

    :param pipeline: as in :class:`~airflow_provider_cdc.airflow.operators.cdc.CdcPreflightOperator`. (templated)
    :param fail_on: conditions that fail the task without a retry: ``suspended`` (a table is suspended), ``stopped``
        (the snapshot is complete and no stream runs), ``lag`` and ``purge_risk`` (a limit in the pipeline's ``alerts``
        is exceeded, or the value is unknown). Default: none. A copy that cannot be read always fails the task.
    """

    ui_color = "#e0f7fa"

    def __init__(self, *, pipeline: PipelineLike, fail_on: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        unknown = [fail_on] if isinstance(fail_on, str) else [word for word in fail_on if word not in FAIL_ON]
        if unknown:
            raise ValueError(f"fail_on is {fail_on!r}: give a list of {', '.join(FAIL_ON)}")
        self.fail_on = list(fail_on)

    def execute(self, context: Context) -> dict[str, Any]:
        """Read the status, log it, and check it against ``fail_on``."""
        from airflow_provider_cdc.observe.status import read_status
        from airflow_provider_cdc.observe.status_text import status_lines

        with map_task_errors(self.log):
            run_context = make_run_context(self.pipeline, self.log)
            _check_limits(run_context.pipeline, self.fail_on)
            report = read_status(run_context)
            for line in status_lines(report):
                self.log.info("%s", line)
            if report["stream"] is not None:
                del report["stream"]["log_tail"]
            for table in report["tables"]:
                del table["definitions"]
            if reasons := list(_failure_reasons(report, run_context.pipeline, self.fail_on)):
                context["ti"].xcom_push("return_value", report)
                raise TerminalError(
                    f"{report['pipeline']}: {'; '.join(reasons)}", "The status above has the details and remedies"
                )
            return report


def _check_limits(pipeline: Pipeline, fail_on: Sequence[str]) -> None:
    for word, key in ((LAG, "lag_seconds"), (PURGE_RISK, "hours_to_purge")):
        if word in fail_on and getattr(pipeline.alerts, key) is None:
            raise NotReadyError(
                f"fail_on has {word}, but alerts.{key} of {pipeline.name} is not set", f"Set alerts.{key}"
            )


def _failure_reasons(report: Mapping[str, Any], pipeline: Pipeline, fail_on: Sequence[str]) -> Iterator[str]:
    """Yield the reasons for which a status fails the task."""
    from airflow_provider_cdc.observe.status import describe_unreadable_copies

    alerts = pipeline.alerts
    if problem := describe_unreadable_copies(report):
        yield problem
    if SUSPENDED in fail_on and report["suspended"]:
        yield "suspended: " + ", ".join(suspended_table["table"] for suspended_table in report["suspended"])
    if STOPPED in fail_on and report["phase"] in ("snapshot_complete", "stopped"):
        yield f"no stream is running ({report['phase']})"
    if report["lag_unknown"] and {LAG, PURGE_RISK} & {*fail_on}:
        yield f"the lag is unknown: {report['lag_unknown']}"
        return
    if LAG in fail_on and alerts.lag_seconds is not None and report["lag_seconds"] > alerts.lag_seconds:
        yield f"a lag of {report['lag_seconds']:g} s exceeds alerts.lag_seconds={alerts.lag_seconds:g}"
    hours_left = report["purge_in_hours"] if PURGE_RISK in fail_on else None  # None for never
    if hours_left is not None and alerts.hours_to_purge is not None and hours_left < alerts.hours_to_purge:
        yield f"the source may purge needed binlogs in {hours_left:g} h, less than {alerts.hours_to_purge:g}"
