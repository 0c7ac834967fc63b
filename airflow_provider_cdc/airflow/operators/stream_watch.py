"""Watches a stream from the task's own process if the task does not defer."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.airflow.operators import defaults
from airflow_provider_cdc.airflow.operators.base import task_label
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.model.supervision import EpochWatch

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.state import StateDatabase

_KILLED_PAUSE_SECONDS = 1.0


def watch_epoch(
    context: Context,
    store: StateDatabase,
    name: str,
    epoch: int,
    log: Any,
    *,
    is_killed: Callable[[], bool],
    sleep: Callable[[], None],
    notify: Callable[[], None],
) -> str:
    """Watch an epoch until it is over.

    :param name: name of the pipeline.
    :param epoch: the epoch.
    :param log: the task's logger.
    :param is_killed: returns whether the task is being killed, in which case the stream is asked to stop.
    :param sleep: waits until the next check.
    :param notify: calls the hooks for new alerts.
    :returns: the verdict.
    """
    from airflow_provider_cdc.airflow.triggers.stats import STATS_SECONDS, send_stats
    from airflow_provider_cdc.airflow.triggers.stream_reports import StreamReporter

    watch, stats_sent_at, by = EpochWatch(epoch), float("-inf"), task_label(context)
    reports = StreamReporter(defaults.report_seconds())
    while True:
        row = None
        with suppress(CdcError):
            row = store.record_supervision(name, epoch, by)
            if row is not None and row.epoch == epoch and reports.is_due:
                values, lines = reports.make_report(store, row)
                for line in lines:
                    log.info("%s", line)
                reports.push_xcom(values, context["ti"], log)
            if time.monotonic() - stats_sent_at > STATS_SECONDS:
                stats_sent_at = time.monotonic()
                send_stats(store, name, task=True)
                notify()
            if is_killed():
                store.request_stop(name, epoch, by=by)
        verdict = watch.observe(row, time.monotonic())
        if verdict is not None:
            return verdict
        if is_killed():
            time.sleep(_KILLED_PAUSE_SECONDS)
        sleep()
