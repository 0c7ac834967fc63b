"""What the task does with an epoch of its stream that runs or has ended.

A running epoch is paused or resumed, and gets changed settings. One that has ended decides whether the task is done,
has failed, or continues with the next epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.airflow.assets import CHANGES, emit_asset_events, is_partition_run
from airflow_provider_cdc.airflow.operators.base import PipelineOperator, log_driver_tail, task_identity
from airflow_provider_cdc.config.fingerprint import RELOADABLE_SETTINGS, changed_settings, settings_fingerprint
from airflow_provider_cdc.model.errors import NotReadyError, TransientError, UnexpectedError, make_error
from airflow_provider_cdc.model.supervision import LOSS_WINDOW_SECONDS, MAX_LOSSES, RestartHistory, WatchOutcome
from airflow_provider_cdc.observe.asset_windows import is_window_empty, take_catch_up_windows

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.config import Pipeline
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import EpochRow, StateDatabase

_PAUSE_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "none": None, "": None}


def parse_paused(value: object) -> bool | None:
    """Parse ``paused``, after its templates have been rendered. ``None`` leaves the stream as it is.

    :raises NotReadyError: if the value is not recognized.
    """
    if value is None or isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in _PAUSE_WORDS:
        raise NotReadyError(f"paused is {value!r}", "Give true, false, or none to leave the stream as it is")
    return _PAUSE_WORDS[word]


def pause_or_resume(store: StateDatabase, pipeline: str, paused: object, by: str, log: Any) -> None:
    """Pause or resume the stream.

    :param paused: as in :func:`parse_paused`.
    :param by: the task that asks for it.
    """
    pause = parse_paused(paused)
    if pause is None:
        return
    accepted = store.pause_stream(pipeline, by) if pause else store.resume_stream(pipeline, by)
    what = "paused" if pause else "resumed"
    log.info(
        "the stream is %s, according to the task's parameter" if accepted else "the stream is about to end: not %s",
        what,
    )


def apply_changed_settings(run_context: RunContext, store: StateDatabase, run: EpochRow, by: str, log: Any) -> bool:
    """Apply the current pipeline settings to a stream that was found running.

    The stream adopts a changed list of tables while it runs. For all other changes it is asked to stop at a transaction
    boundary, and the next epoch begins with the new settings.

    :param run: the live run.
    :param by: the task that found it.
    :param log: the task's logger.
    :returns: whether the stream was asked to stop.
    """
    from airflow_provider_cdc.resnapshot.membership import reload_tables

    changed = changed_settings(run.settings or {}, settings_fingerprint(run_context.pipeline))
    if not changed:
        return False
    description = f"the pipeline has changed since epoch {run.epoch} began: {', '.join(changed)}"
    if run.log is None:  # it runs in a terminal
        log.warning(
            "%s. The stream was started from the command line on %s, and keeps its old settings until it is restarted",
            description,
            run.host,
        )
        return False
    if RELOADABLE_SETTINGS.issuperset(changed):
        if run.desired_state != "run":
            log.warning("%s. The stream is paused, and adopts the new list of tables when it is restarted", description)
            return False
        log.info("%s. The stream adopts these while it runs", description)
        added, removed = reload_tables(run_context, store) or ([], [])
        log.info("added: %s; removed: %s", ", ".join(added) or "none", ", ".join(removed) or "none")
        return False
    log.info("%s. Asking the stream to stop; the next epoch begins with the new settings", description)
    store.request_stop(run.pipeline, run.epoch, by=by)
    return True


class RestartNeeded(Exception):
    """An epoch has ended unexpectedly, and the stream is to be restarted.

    :param error: the reason.
    :param ran_seconds: how long the epoch ran, in seconds.
    :param made_progress: whether it has applied a batch.
    """

    def __init__(self, error: TransientError, ran_seconds: float, made_progress: bool) -> None:
        super().__init__(str(error))
        self.error, self.ran_seconds, self.made_progress = error, ran_seconds, made_progress


def decide_after_epoch(
    run_context: RunContext, store: StateDatabase, event: Mapping[str, Any], log: Any
) -> dict[str, Any] | None:
    """Decide what the end of an epoch means for the task.

    :param run_context: the pipeline.
    :param event: ``epoch``, ``verdict``, and whether the epoch was ``found`` running.
    :param log: the task's logger.
    :returns: the task's result, or ``None`` if a stream must continue to run.
    :raises CdcError: the stream's error, if it needs a decision or a fix.
    :raises RestartNeeded: if the stream is to be restarted.
    """
    from airflow_provider_cdc.driver.launchers.launcher import clean_up_stream, end_lost_stream

    pipeline = run_context.pipeline.name
    epoch, verdict = int(event["epoch"]), WatchOutcome(event["verdict"])
    started_run = None if event["found"] else store.epoch_row(pipeline, epoch)
    if started_run is not None and started_run.state == WatchOutcome.CAUGHT_UP:  # even if another epoch has begun since
        log_driver_tail(run_context, log, started_run.log)
        clean_up_stream(run_context, started_run.log)
        return summarize(store, pipeline, epoch)
    if verdict is WatchOutcome.SUPERSEDED:
        log.info("epoch %s was taken over by a newer one", epoch)
        return None
    run = store.newest_epoch(pipeline)
    if run is None or run.epoch != epoch:
        return None
    log_driver_tail(run_context, log, run.log)
    # Both times come from the driver's clock: tries of this task may run on hosts whose clocks differ.
    ran_seconds = (run.heartbeat_at - run.started_at).total_seconds()
    if verdict is WatchOutcome.FAILED:
        error = make_error(run.error_kind, run.error or f"epoch {epoch} failed")
    elif verdict is WatchOutcome.LOST or (verdict is WatchOutcome.STOPPED and run.desired_state != "stop"):
        explanation = end_lost_stream(run_context, store, run.log)
        error = UnexpectedError(
            f"the Spark driver of epoch {epoch} on {run.host} was lost{explanation and f' ({explanation})'}",
            f"Check the end of its log {run.log} and the memory of {run.host}, and whether that host or pod was shut "
            "down",
        )
    else:
        error = None
    if isinstance(error, TransientError) and (by := store.stop_requester(pipeline)) is not None:
        log.warning("%s. %s had asked it to stop, so the stream is not restarted", error, by)
        if verdict is WatchOutcome.LOST:
            store.end_epoch(pipeline, epoch, WatchOutcome.FAILED, error.message, type(error).__name__)
        return summarize(store, pipeline, epoch)
    if isinstance(error, TransientError):
        made_progress = run.batches > 0
        raise RestartNeeded(error, ran_seconds, made_progress)
    if error is not None:
        raise error
    clean_up_stream(run_context, run.log)
    if verdict is WatchOutcome.STOPPED and run.stop_by is not None:
        log.info("epoch %s was stopped by %s; starting the next", epoch, run.stop_by)
        return None
    if verdict is WatchOutcome.CAUGHT_UP and event["found"]:
        log.info("epoch %s, which was already running, has caught up; starting this task's own catch-up", epoch)
        return None
    return summarize(store, pipeline, epoch)


def count_failure(
    restarts: RestartHistory, failure: RestartNeeded, restart_timeout: timedelta, log: Any
) -> RestartHistory:
    """Record one more failure.

    :param restart_timeout: how long a stream that makes no progress is restarted.
    :param log: the task's logger.
    :raises TransientError: if there were too many, which fails the task attempt.
    """
    error, driver_lost = failure.error, isinstance(failure.error, UnexpectedError)
    restarts = restarts.with_failure(failure.ran_seconds, made_progress=failure.made_progress, lost=driver_lost)
    if restarts.is_crash_looping:
        raise TransientError(
            f"the Spark driver was lost {MAX_LOSSES} times within {LOSS_WINDOW_SECONDS / 60:g} minutes of "
            f"running; last error: {error.message}",
            error.remedy,
        )
    if not driver_lost and restarts.seconds + restarts.delay > restart_timeout.total_seconds():
        if restart_timeout:
            log.warning("the stream has made no progress for %s (restart_timeout)", restart_timeout)
        raise error
    return restarts


def emit_catch_up_events(
    operator: PipelineOperator, context: Context, pipeline: Pipeline, store: StateDatabase, result: Mapping[str, Any]
) -> None:
    """Emit asset events for everything that was applied since the last catch-up, if this run was one.

    A run with a partition key completes that partition for all tables, including those without changes.

    :param result: the task's result.
    """
    if result["state"] != WatchOutcome.CAUGHT_UP:
        return
    windows = take_catch_up_windows(store, pipeline.name, task_identity(context))
    events = {
        t: {"kind": CHANGES, **w} for t, w in windows.items() if is_partition_run(context) or not is_window_empty(w)
    }
    emit_asset_events(operator, context, pipeline, events)


def summarize(store: StateDatabase, pipeline: str, epoch: int | None) -> dict[str, Any]:
    """Return the task's result after an epoch; ``None`` for none."""
    run = store.epoch_row(pipeline, epoch) if epoch is not None else None
    tables = [f"{row.database}.{row.name}" for row in store.table_states(pipeline) if row.state == "suspended"]
    return {
        "epoch": run and run.epoch,
        "state": run and run.state,
        "batches": run.batches if run else 0,
        "changes": run.changes if run else 0,
        "start": run and run.start_offset,
        "end": run and run.end_offset,
        "suspended": tables,
    }
