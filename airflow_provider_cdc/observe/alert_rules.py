"""Decide which alerts of a pipeline are active. An alert ends at another limit than it begins, so it does not flap."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

SUSPENDED, LAG, PURGE_RISK, FAILED = ALERT_KINDS = ("suspended", "lag", "purge_risk", "failed")
#: A lag alert ends below this fraction of its limit, and a purge-risk alert above this multiple of its limit.
LAG_RESOLVED_BELOW, PURGE_RISK_RESOLVED_ABOVE = 0.5, 1.5
#: Seconds that a stream must have run to count as recovered.
RECOVERED_AFTER_SECONDS = 60.0

#: (kind, subject); the subject is a table as ``database.table``, the epoch that failed, or empty.
AlertKey = tuple[str, str]


@dataclass(frozen=True)
class AlertLimits:
    """Limits at which alerts begin; ``None`` for never.

    :param lag_seconds: age of the oldest commit that was not read.
    :param hours_to_purge: hours until the source may purge what is needed.
    """

    lag_seconds: float | None = None
    hours_to_purge: float | None = None


@dataclass(frozen=True)
class ObservedState:
    """Current state of a pipeline, from the state database.

    :param lag_seconds: as in :class:`AlertLimits`; ``None`` if unknown.
    :param hours_to_purge: as in :class:`AlertLimits`; ``None`` if unknown, infinite for never.
    :param suspended: reason of each suspended table, by ``database.table``.
    :param healthy_epoch: the newest epoch, if it runs well or has ended without an error; otherwise ``None``.
    """

    lag_seconds: float | None
    hours_to_purge: float | None
    suspended: Mapping[str, str]
    healthy_epoch: int | None


def active_alerts(
    limits: AlertLimits, observed: ObservedState, active_before: Collection[AlertKey]
) -> dict[AlertKey, str]:
    """Return the active alerts, each with a one-line description.

    A failure alert begins elsewhere (see :func:`~airflow_provider_cdc.observe.alerts.record_failure`) and only ends
    here. Alerts about unknown values stay as they are.

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
