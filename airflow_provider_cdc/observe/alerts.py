"""Alerts of a pipeline: which are active, and which have begun or ended since the last notification.

An alert ends at another limit than it begins, so it does not flap. All comes from the state database, which also
records the notifications. So a restart does not repeat a notification, unless the process was killed between sending
and recording it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.config.sections import Alerts
from airflow_provider_cdc.observe.metrics import FRESH_SECONDS, is_suspended

if TYPE_CHECKING:
    from airflow_provider_cdc.state import StateDatabase

SUSPENDED, LAG, PURGE_RISK, FAILED = ALERT_KINDS = ("suspended", "lag", "purge_risk", "failed")
#: A lag alert ends below this fraction of its limit, and a purge-risk alert above this multiple of its limit.
LAG_RESOLVED_BELOW, PURGE_RISK_RESOLVED_ABOVE = 0.5, 1.5
#: Seconds that a stream must have run to count as recovered.
RECOVERED_AFTER_SECONDS = 60.0

#: (kind, subject); the subject is a table as ``database.table``, the epoch that failed, or empty.
AlertKey = tuple[str, str]


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


@dataclass(frozen=True)
class ObservedState:
    """Current state of a pipeline, from the state database.

    :param lag_seconds: age of the oldest commit that was not read; ``None`` if unknown.
    :param hours_to_purge: hours until the source may purge what is needed; ``None`` if unknown, infinite for never.
    :param suspended: reason of each suspended table, by ``database.table``.
    :param healthy_epoch: the newest epoch, if it runs well or has ended without an error; otherwise ``None``.
    """

    lag_seconds: float | None
    hours_to_purge: float | None
    suspended: Mapping[str, str]
    healthy_epoch: int | None


def active_alerts(limits: Alerts, observed: ObservedState, active_before: Collection[AlertKey]) -> dict[AlertKey, str]:
    """Return the active alerts, each with a one-line description.

    A failure alert begins in :func:`record_failure` and only ends here. Alerts about unknown values stay as they are.

    :param active_before: alerts that were active before; they end only well within their limits.
    """
    active = {(SUSPENDED, table): f"table {table} is suspended: {why}" for table, why in observed.suspended.items()}
    lag, max_lag, was_lagging = observed.lag_seconds, limits.lag_seconds, (LAG, "") in active_before
    if max_lag is not None and (
        was_lagging if lag is None else lag > (max_lag * LAG_RESOLVED_BELOW if was_lagging else max_lag)
    ):
        active[LAG, ""] = f"the oldest commit that was not read is {lag or 0:,.0f} s old (limit: {max_lag:g} s)"
    hours, min_hours = observed.hours_to_purge, limits.hours_to_purge
    was_at_risk = (PURGE_RISK, "") in active_before
    if min_hours is not None and (
        was_at_risk if hours is None else hours < (min_hours * PURGE_RISK_RESOLVED_ABOVE if was_at_risk else min_hours)
    ):
        active[PURGE_RISK, ""] = f"the source may purge what is needed in {hours or 0:.1f} hours (limit: {min_hours:g})"
    for kind, subject in active_before:
        if kind == FAILED and (observed.healthy_epoch is None or observed.healthy_epoch <= int(subject)):
            active[FAILED, subject] = "the stream has failed"
    return active


def find_alert_changes(store: StateDatabase, pipeline: str, limits: Alerts, kinds: Collection[str]) -> list[Alert]:
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
    return bool(find_alert_changes(store, pipeline, Alerts(**request["limits"]), request["kinds"])) or None


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
