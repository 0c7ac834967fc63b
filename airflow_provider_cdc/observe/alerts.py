"""Alerts of a pipeline that have begun or ended since the last notification.

They come only from the state database, which also records the notifications. So a restart does not repeat a
notification, unless the process was killed between sending and recording it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.observe.alert_rules import (
    FAILED,
    RECOVERED_AFTER_SECONDS,
    SUSPENDED,
    AlertLimits,
    ObservedState,
    active_alerts,
)
from airflow_provider_cdc.observe.metrics import FRESH_SECONDS, is_suspended

if TYPE_CHECKING:
    from airflow_provider_cdc.state import StateDatabase


@dataclass(frozen=True)
class Alert:
    """An alert that has begun, or is over.

    :param pipeline: name of the pipeline.
    :param kind: ``suspended``, ``lag``, ``purge_risk`` or ``failed``.
    :param subject: the table that it is about, as ``database.table``; the epoch that failed; or empty.
    :param detail: one-line description.
    :param since: when it began.
    :param over: whether it is over.
    """

    pipeline: str
    kind: str
    subject: str
    detail: str
    since: datetime
    over: bool

    def to_json(self) -> dict[str, Any]:
        """Return the plain JSON value that hooks receive; ``table`` is ``None`` if it is not about a table."""
        table = self.subject if self.kind == SUSPENDED else None
        since = self.since.isoformat(timespec="seconds")
        return {**{n: getattr(self, n) for n in ("pipeline", "kind", "detail", "over")}, "table": table, "since": since}


def find_alert_changes(store: StateDatabase, pipeline: str, limits: AlertLimits, kinds: Collection[str]) -> list[Alert]:
    """Return the alerts to notify of now.

    :param kinds: kinds of alerts whose beginning is to be notified.
    """
    from airflow_provider_cdc.state import utc_now

    recorded = {(row.kind, row.subject): row for row in store.alerts(pipeline)}
    active = active_alerts(limits, _observe(store, pipeline), recorded.keys())
    alerts = []
    for (kind, subject), detail in active.items():
        row = recorded.get((kind, subject))
        if kind in kinds and (row is None or row.told_at is None):
            since = utc_now() if row is None else row.since
            text = row.detail if row is not None and kind == FAILED else detail
            alerts.append(Alert(pipeline, kind, subject, text, since, over=False))
    resolved = [row for key, row in recorded.items() if key not in active]
    alerts += [Alert(pipeline, row.kind, row.subject, row.detail, row.since, over=True) for row in resolved]
    return alerts


def has_alert_changes(store: StateDatabase, pipeline: str, request: Mapping[str, Any]) -> bool | None:
    """Return ``True`` if there is an alert to notify of, otherwise ``None``.

    :param request: ``kinds`` and ``limits``, as plain JSON values.
    """
    return bool(find_alert_changes(store, pipeline, AlertLimits(**request["limits"]), request["kinds"])) or None


def record_alert(store: StateDatabase, alert: Alert) -> None:
    """Record that an alert is active, before the notification is sent."""
    if not alert.over:
        store.raise_alert(alert.pipeline, alert.kind, alert.subject, alert.detail)


def record_failure(store: StateDatabase, pipeline: str, error: str) -> None:
    """Record that the stream has failed, unless it has not recovered from an earlier failure."""
    if not any(row.kind == FAILED for row in store.alerts(pipeline)):
        run = store.newest_epoch(pipeline)
        store.raise_alert(pipeline, FAILED, str(run.epoch if run else 0), error)


def record_notified(store: StateDatabase, alert: Alert) -> None:
    """Record that the notification was sent."""
    record = store.clear_alert if alert.over else store.mark_alert_notified
    record(alert.pipeline, alert.kind, alert.subject)


def _observe(store: StateDatabase, pipeline: str) -> ObservedState:
    from airflow_provider_cdc.state import utc_now

    current_time, run, sample = utc_now(), store.newest_epoch(pipeline), store.last_sample(pipeline)
    epoch = None if run is None else run.epoch
    if sample is not None and (sample.epoch != epoch or (current_time - sample.at).total_seconds() > FRESH_SECONDS):
        sample = None
    lag = hours = None
    if sample is not None:
        lag, hours = sample.lag_seconds, sample.purge_hours
        if hours is None and sample.unknown is None:
            hours = float("inf")
    tables = [row for row in store.table_states(pipeline) if is_suspended(row)]
    is_healthy = run is not None and (
        run.state in ("caught_up", "stopped")
        or (run.state == "running" and (run.heartbeat_at - run.started_at).total_seconds() > RECOVERED_AFTER_SECONDS)
    )
    suspended = {f"{row.database}.{row.name}": row.reason or "" for row in tables}
    return ObservedState(lag, hours, suspended, epoch if is_healthy else None)
