"""The stream operator: makes sure that exactly one stream runs, and supervises it until it ends.

The Spark driver is a process in its own session and belongs to no task. A task that is retried, cleared or run again
finds the driver through the state database and supervises it from then on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_cdc.airflow.assets import declare_outlets
from airflow_provider_cdc.airflow.links.cdc import SparkUiLink, push_spark_ui_link
from airflow_provider_cdc.airflow.openlineage import OpenLineageMixin
from airflow_provider_cdc.airflow.operators import defaults
from airflow_provider_cdc.airflow.operators.alerts import AlertHook, AlertHooks
from airflow_provider_cdc.airflow.operators.base import (
    PipelineLike,
    PipelineOperator,
    make_run_context,
    map_task_errors,
    task_identity,
    task_label,
    task_request_number,
)
from airflow_provider_cdc.airflow.operators.stream_driver import request_stop, start_stream
from airflow_provider_cdc.airflow.operators.stream_epoch import (
    RestartNeeded,
    apply_changed_settings,
    count_failure,
    decide_after_epoch,
    emit_catch_up_events,
    parse_paused,
    pause_or_resume,
    summarize,
)
from airflow_provider_cdc.model.errors import (
    CdcError,
    NotReadyError,
    StreamStoppedError,
    TerminalError,
    TransientError,
    extract_error,
)
from airflow_provider_cdc.model.supervision import (
    EpochWatch,
    RestartHistory,
    WatchOutcome,
    is_superseded_by,
)
from airflow_provider_cdc.observe.log_lines import relay_log_lines

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import EpochRow, StateDatabase

_POLL_SECONDS = 1.0
#: Waits shorter than this (seconds) stay in the worker: a deferral takes about as long.
_SHORT_WAIT_SECONDS = 10.0
#: Set by KubernetesExecutor in each task's pod.
_POD_VARIABLE = "AIRFLOW_IS_K8S_EXECUTOR_POD"


class CdcStreamOperator(OpenLineageMixin, PipelineOperator):
    """Follow the binlog from the lowest low watermark of the snapshot, or from where the last stream stopped.

    The Spark driver runs in its own session, or in a cluster, and outlives the task's process. The task defers and
    watches the driver through the state database. If a stream ends for a transient reason (the source is unavailable,
    the driver was lost), it is restarted without using up a retry: first after one second, then after twice the
    previous delay, up to one minute. The delay is reset once the stream has made progress. A retry, a clear or a second
    DAG run never starts a second stream: it supervises the running one. Marking the task failed or successful stops its
    stream at a transaction boundary. Clearing the task starts the next stream after that. The task succeeds when the
    stream has caught up or was stopped with ``airflow-cdc stop``.

    XCom: ``epoch``, ``state``, ``start`` (the seed), ``end``, ``batches``, ``changes``, ``suspended`` (suspended
    tables).

    :param pipeline: as in :class:`~airflow_provider_cdc.airflow.operators.cdc.CdcPreflightOperator`. (templated)
    :param catch_up: whether to end at the source's current position. Default: according to ``stream.mode`` in the
        pipeline.
    :param deferrable: wait in the triggerer instead of keeping the worker slot. Default: defer wherever the driver
        survives it. A driver on the host of the task does not in a KubernetesExecutor pod, where ``True`` is refused.
        The section ``[cdc]`` in Airflow's configuration can change the default of this parameter and the next three.
    :param poll_seconds: seconds between two checks of the stream.
    :param restart_timeout: how long a stream that makes no progress is restarted after transient failures before the
        task attempt fails. Zero disables restarts.
    :param lease_seconds: a stream that no task has supervised for this long ends at a transaction boundary. If
        supervision was lost only because the triggerer was down, the stream is restarted afterwards. Zero disables the
        lease.
    :param paused: pause the stream (``True``) or resume it (``False``) once the task has found or started it. ``None``
        leaves it as it is. (templated: also text, such as ``"{{ params.pause }}"``)
    :param assets: whether to emit asset events for the tables that a catch-up has changed. For a continuous stream, the
        watcher of :func:`~airflow_provider_cdc.airflow.assets.cdc_asset` emits them.
    :param on_suspended: a notifier, a callable that accepts the context, or a list of these. Called once when a table
        is suspended. Likewise, ``on_lag`` and ``on_purge_risk`` are called when a limit in the pipeline's ``alerts`` is
        exceeded, ``on_failed`` when a task attempt fails, and ``on_recovered`` when such a problem is over.
        ``cdc_alert`` in the context has the alert.
    """

    template_fields = (*PipelineOperator.template_fields, "paused")
    operator_extra_links = (SparkUiLink(),)
    ui_color = "#f3e8fd"

    def __init__(
        self,
        *,
        pipeline: PipelineLike,
        catch_up: bool | None = None,
        deferrable: bool | None = None,
        poll_seconds: float | None = None,
        restart_timeout: timedelta | None = None,
        lease_seconds: float | None = None,
        paused: bool | str | None = None,
        assets: bool = True,
        on_suspended: AlertHook = None,
        on_lag: AlertHook = None,
        on_purge_risk: AlertHook = None,
        on_failed: AlertHook = None,
        on_recovered: AlertHook = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.catch_up = catch_up
        self.deferrable = False if deferrable is None and not defaults.deferrable() else deferrable
        self.poll_seconds = defaults.read_seconds("poll_seconds") if poll_seconds is None else poll_seconds
        self.restart_timeout = (
            timedelta(seconds=defaults.read_seconds("restart_timeout")) if restart_timeout is None else restart_timeout
        )
        self.lease_seconds = (
            defaults.read_seconds("lease_seconds") if lease_seconds is None else lease_seconds
        ) or None
        if self.lease_seconds is not None and self.lease_seconds < 3 * self.poll_seconds:
            raise ValueError(
                f"lease_seconds={self.lease_seconds:g} is less than three times poll_seconds={self.poll_seconds:g} s"
            )
        self.paused = paused
        declare_outlets(self, assets)
        self._hooks = AlertHooks(
            suspended=on_suspended, lag=on_lag, purge_risk=on_purge_risk, failed=on_failed, recovered=on_recovered
        )
        self._killed = self._pause_pending = False
        #: Whether this try has not found a stream yet. Only then does it check for changed pipeline settings.
        self._is_first_look = False
        #: Whether a user's request to stop from before the task was started has still to be lifted.
        self._must_allow_stream = False
        #: The run that this process supervises, for :meth:`on_kill`.
        self._supervised_run: tuple[RunContext, EpochRow, str] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Find or start the stream, and supervise it."""
        with map_task_errors(self.log):
            self._pause_pending = parse_paused(self.paused) is not None
        self._is_first_look = True
        self._must_allow_stream = True
        if (run := context.get("dag_run")) is not None and run.logical_date is None:
            self.log.warning(
                "this DAG run has no logical date. `airflow tasks test %s` without a date deletes such a run, which "
                "ends the stream: test a copy of the DAG with another dag_id and pipeline",
                run.dag_id,
            )
        return self._supervise(context, RestartHistory())

    def resume(
        self,
        context: Context,
        event: Mapping[str, Any],
        losses: Sequence[float] = (),
        failures: int = 0,
        seconds: float = 0.0,
        pending: Mapping[str, Any] | None = None,
        fresh: bool = False,
        allow: bool = False,
    ) -> dict[str, Any]:
        """Continue after the trigger has fired or a wait is over.

        :param event: ``epoch``, ``verdict``, and whether the epoch was ``found`` running. If the triggerer never saw
            the epoch, ``unseen`` replaces ``verdict`` and has the reason. Empty after a wait.
        :param losses: as in :class:`~airflow_provider_cdc.model.supervision.RestartHistory`, like ``failures`` and
            ``seconds``.
        :param pending: an event that could not be handled before the wait.
        :param fresh: whether the task still has to apply ``paused``, because it has not supervised a stream yet.
        :param allow: whether it still has to lift a user's earlier request to stop.
        """
        self._pause_pending, self._must_allow_stream = fresh, allow
        restarts = RestartHistory(failures, seconds, tuple(losses))
        event = pending or event
        if "alerts" in event:
            self._notify_and_defer(context, event, restarts)
        if "unseen" in event:
            event = self._resolve_unseen(context, event, restarts)
        return self._supervise(context, restarts, event or None)

    def on_kill(self) -> None:
        """Stop waiting. A driver that is still starting ends with this process. A running stream is asked to stop.

        Airflow calls this in a signal handler, seconds before SIGKILL, and after ``execution_timeout``.
        """
        self._killed = True
        if self._supervised_run is not None:
            request_stop(*self._supervised_run, self.log)

    def _notify_and_defer(self, context: Context, event: Mapping[str, Any], restarts: RestartHistory) -> NoReturn:
        """Call the hooks for the alerts that the trigger found, and defer again."""
        with map_task_errors(self.log):
            run_context = make_run_context(self.pipeline, self.log)
            with suppress(TransientError), closing(run_context.open_state_database()) as store:
                self._hooks.notify(context, store, run_context.pipeline, self.log)
            self._defer(context, run_context, int(event["epoch"]), bool(event["found"]), restarts)

    def _supervise(
        self, context: Context, restarts: RestartHistory, event: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        with (
            map_task_errors(self.log),
            self._hooks.notify_on_error(context, self._open_state, lambda: self._killed, self.log),
        ):
            defers = self._should_defer()
            while True:
                began = time.monotonic()
                try:
                    with self._open_state() as (run_context, store):
                        if event is not None:
                            result = decide_after_epoch(run_context, store, event, self.log)
                            if result is not None:
                                return self._finish(context, run_context, store, result)
                            event = None
                        if self._must_allow_stream:
                            request = f"{task_identity(context)} {task_request_number(context)}"
                            store.allow_stream(run_context.pipeline.name, request)
                            self._must_allow_stream = False
                        try:
                            epoch, found_running = self._find_or_start(context, run_context, store)
                        except StreamStoppedError as error:
                            self.log.info("%s: it is not started", error.message)
                            self._hooks.notify(context, store, run_context.pipeline, self.log)
                            result = summarize(store, run_context.pipeline.name, None)
                            self.task_result = {**result, "state": WatchOutcome.STOPPED}
                            return self.task_result
                        if defers:
                            self._defer(context, run_context, epoch, found_running, restarts)
                        verdict = self._watch_epoch(context, run_context, store, epoch)
                        event = {"epoch": epoch, "found": found_running, "verdict": verdict}
                    continue
                except RestartNeeded as end_of_epoch:
                    failure, event = end_of_epoch, None
                except TransientError as error:
                    failure = RestartNeeded(error, time.monotonic() - began, made_progress=False)
                if self._killed:
                    raise failure.error
                restarts = count_failure(restarts, failure, self.restart_timeout, self.log)
                self._wait_before_restart(restarts, failure.error, event, defers)
                restarts = restarts.after_delay()

    def _finish(
        self, context: Context, run_context: RunContext, store: StateDatabase, result: dict[str, Any]
    ) -> dict[str, Any]:
        self._hooks.notify(context, store, run_context.pipeline, self.log)
        emit_catch_up_events(self, context, run_context.pipeline, store, result)
        self.task_result = result
        return result

    def _should_defer(self) -> bool:
        pod = bool(os.environ.get(_POD_VARIABLE)) and make_run_context(self.pipeline, self.log).cluster is None
        if pod and self.deferrable:
            raise NotReadyError(
                "deferrable=True does not work with KubernetesExecutor: the pod ends when the task defers, and the "
                "stream's Spark driver ends with it",
                "Omit deferrable, or set it to False, so that the task keeps its pod",
            )
        if pod and self.deferrable is None:
            self.log.info("not deferring, because a KubernetesExecutor pod ends when its task defers")
        return not pod if self.deferrable is None else self.deferrable

    def _wait_before_restart(
        self, restarts: RestartHistory, error: TransientError, event: Mapping[str, Any] | None, defers: bool
    ) -> None:
        """Wait before the next start. Long waits take place in the triggerer."""
        until = datetime.now(UTC) + timedelta(seconds=restarts.delay)
        self.log.warning(
            "%s. The stream restarts in %g s, at %s (consecutive failures: %s; restart_timeout: %s)",
            error,
            restarts.delay,
            f"{until:%H:%M:%S} UTC",
            restarts.failures,
            self.restart_timeout,
        )
        if not defers or restarts.delay < _SHORT_WAIT_SECONDS:
            self._sleep(restarts.delay)
            return
        from airflow_provider_cdc.airflow.triggers.cdc import CdcPauseTrigger

        self.defer(
            trigger=CdcPauseTrigger(seconds=restarts.delay),
            method_name="resume",
            kwargs={
                **_resume_kwargs(restarts.after_delay()),
                "pending": event,
                "fresh": self._pause_pending,
                "allow": self._must_allow_stream,
            },
        )

    def _sleep(self, seconds: float) -> None:
        """Sleep for the given time, or until the task is killed."""
        end = time.monotonic() + seconds
        while not self._killed and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_SECONDS))

    def _resolve_unseen(self, context: Context, event: Mapping[str, Any], restarts: RestartHistory) -> dict[str, Any]:
        """Find out why the triggerer could not see an epoch that this task saw before it deferred.

        :returns: the event that the triggerer would have sent, if the epoch is over.
        :raises CdcError: the triggerer's own error, if the state database works. The stream is asked to stop, so that a
            failed task leaves no unsupervised stream.
        """
        with map_task_errors(self.log):
            run_context, epoch = make_run_context(self.pipeline, self.log), int(event["epoch"])
            run, label = None, task_label(context)
            try:
                with closing(run_context.open_state_database()) as store:
                    run = store.record_supervision(run_context.pipeline.name, epoch, label)
                    if run is not None and (run.epoch, run.state) == (epoch, "running"):
                        store.request_stop(run_context.pipeline.name, epoch, by=label)
            except TransientError as error:
                self.log.warning("%s; the stream continues", error)
            if run is None or run.epoch < epoch:  # unreachable for everyone, or being recreated: keep waiting
                self._defer(context, run_context, epoch, bool(event["found"]), restarts)
            if run.epoch == epoch and run.state == "running":
                raise extract_error(event["unseen"]) or TerminalError(event["unseen"])
            verdict = WatchOutcome.SUPERSEDED if run.epoch > epoch else WatchOutcome(run.state)
            return {"epoch": epoch, "found": event["found"], "verdict": verdict}

    @contextmanager
    def _open_state(self) -> Iterator[tuple[RunContext, StateDatabase]]:
        run_context = make_run_context(self.pipeline, self.log)
        with closing(run_context.open_state_database()) as store:
            yield run_context, store

    def _is_catch_up(self, run_context: RunContext) -> bool:
        return run_context.pipeline.stream.mode == "catch_up" if self.catch_up is None else self.catch_up

    def _find_or_start(self, context: Context, run_context: RunContext, store: StateDatabase) -> tuple[int, bool]:
        """Make sure that a stream runs.

        :returns: its epoch, and whether it was found running.
        :raises StreamStoppedError: if a user has asked the stream to stop.
        """
        logged_waiting = False
        while not self._killed:
            run, is_alive = run_context.liveness.check_once(store, run_context.pipeline.name)
            if run is None or is_alive is False:
                if (by := store.stop_requester(run_context.pipeline.name)) is not None:
                    raise StreamStoppedError(f"{by} has asked the stream to stop")
                new_run = self._start_stream(context, run_context, store)
                if new_run is not None:
                    return new_run.epoch, False
            elif run.desired_state != "stop" and is_alive:
                if self._was_cleared(context, run):
                    self.log.info("the task was cleared: asking epoch %s of its earlier try to stop", run.epoch)
                    store.request_stop(run.pipeline, run.epoch, by=task_label(context))
                    continue
                if self._is_catch_up(run_context) and run.mode == "continuous":
                    raise NotReadyError(
                        f"a continuous stream of {run.pipeline} is running (epoch {run.epoch}, supervised by "
                        f"{run.supervisor or 'no task'}), so a catch-up is not possible",
                        "Stop it with `airflow-cdc stop`, or do not use catch_up",
                    )
                if self._is_first_look and apply_changed_settings(
                    run_context, store, run, task_label(context), self.log
                ):
                    continue
                self._is_first_look = False
                self.log.info("supervising epoch %s, which runs on %s", run.epoch, run.host)
                self._take_supervision(context, store, run_context, run)
                return run.epoch, True
            elif run.desired_state == "stop" and not logged_waiting:
                self.log.info("epoch %s was asked to stop: waiting for it to end before starting the next", run.epoch)
                logged_waiting = True
            time.sleep(_POLL_SECONDS)
        raise TransientError("the task was stopped", "Clear it to run it again")

    def _was_cleared(self, context: Context, run: EpochRow) -> bool:
        """Return whether the task was cleared while one of its earlier tries supervised the run.

        The trigger of that try also asks the run to stop, but only if the trigger is still alive.
        """
        ti = context["ti"]
        after_clear = ti.try_number == ti.max_tries - (self.retries or 0) + 1  # the SDK's own way to find the first try
        return after_clear and is_superseded_by(run.supervisor or "", task_label(context))

    def _take_supervision(self, context: Context, store: StateDatabase, run_context: RunContext, run: EpochRow) -> None:
        """Record that this task supervises a run, unless the task was marked or cleared in the meantime.

        The task's process learns of that only later.
        """
        from airflow_provider_cdc.airflow.triggers.cdc import read_task_state

        if run.ui:
            push_spark_ui_link(context, run.ui, self.log)
        state = None
        with suppress(Exception):  # no answer from Airflow is not a new state
            state = read_task_state(context["ti"])
        if state not in (None, "running"):
            self._killed = True
            raise TransientError(f"the task is now {state}, so it supervises no stream", "Clear it to run it again")
        store.record_supervision(run_context.pipeline.name, run.epoch, task_label(context))
        if self._pause_pending:
            pause_or_resume(store, run_context.pipeline.name, self.paused, task_label(context), self.log)
            self._pause_pending = False
        self._supervised_run = run_context, run, task_label(context)

    def _start_stream(self, context: Context, run_context: RunContext, store: StateDatabase) -> EpochRow | None:
        """Start a stream and supervise it. Return ``None`` if another one started first, or a user has stopped it."""
        lease, catch_up = self.lease_seconds, self._is_catch_up(run_context)
        with start_stream(
            run_context,
            store,
            self.log,
            lambda: self._killed,
            requester=task_identity(context),
            catch_up=catch_up,
            lease=lease,
        ) as run:
            if run is not None:
                self._take_supervision(context, store, run_context, run)
        return run

    def _defer(
        self, context: Context, run_context: RunContext, epoch: int, found_running: bool, restarts: RestartHistory
    ) -> NoReturn:
        from airflow_provider_cdc.airflow.triggers.cdc import CdcStreamTrigger

        self.defer(
            trigger=CdcStreamTrigger.for_pipeline(
                run_context,
                epoch=epoch,
                found=found_running,
                supervisor=task_label(context),
                poll_seconds=self.poll_seconds,
                alerts=self._hooks.trigger_request(run_context.pipeline),
                report_seconds=defaults.read_seconds("report_seconds"),
            ),
            method_name="resume",
            kwargs=_resume_kwargs(restarts),
        )

    def _watch_epoch(self, context: Context, run_context: RunContext, store: StateDatabase, epoch: int) -> WatchOutcome:
        """Watch an epoch from the worker until it is over, and return why. If the task is killed, stop it."""
        from airflow_provider_cdc.airflow.triggers.stats import STATS_SECONDS, send_stats
        from airflow_provider_cdc.airflow.triggers.stream_reports import StreamReporter

        pipeline, by, stats_sent_at = run_context.pipeline, task_label(context), float("-inf")
        watch, reports = EpochWatch(epoch), StreamReporter(defaults.read_seconds("report_seconds"))
        outage = ""
        while True:
            row = None
            try:
                row = store.record_supervision(pipeline.name, epoch, by)
                if row is not None and row.epoch == epoch and reports.is_due:
                    values, lines = reports.make_report(store, row)
                    relay_log_lines(lines, self.log)
                    reports.push_xcom(values, context["ti"], self.log)
                if time.monotonic() - stats_sent_at > STATS_SECONDS:
                    stats_sent_at = time.monotonic()
                    send_stats(store, pipeline.name, task=True)
                    self._hooks.notify(context, store, pipeline, self.log)
                if self._killed:
                    store.request_stop(pipeline.name, epoch, by=by)
                outage = ""
            except CdcError as error:
                if outage != error.message:
                    self.log.warning("%s; checking again", error)
                outage = error.message
            if (verdict := watch.observe(row, time.monotonic())) is not None:
                return verdict
            if self._killed:
                time.sleep(_POLL_SECONDS)
            self._sleep(self.poll_seconds)


def _resume_kwargs(restarts: RestartHistory) -> dict[str, Any]:
    """Return keyword arguments for :meth:`CdcStreamOperator.resume`."""
    return {**asdict(restarts), "losses": list(restarts.losses)}
