"""Which troubles of a pipeline stand: each begins at one limit and is over at another, so that it does not flicker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

SUSPENDED, LAG, PURGE_RISK, FAILED = ALERT_KINDS = ("suspended", "lag", "purge_risk", "failed")
#: A lag is over below this part of its limit, and the risk of a purge above this multiple.
LAG_RESOLVED_BELOW, PURGE_RISK_RESOLVED_ABOVE = 0.5, 1.5
#: Seconds that a stream must have run to count as recovered.
RECOVERED_AFTER_SECONDS = 60.0

#: Kind, and what it is about: a table as ``database.table``, the epoch that has failed, or an empty text.
AlertKey = tuple[str, str]


@dataclass(frozen=True)
class AlertLimits:
    """From where on something is trouble; ``None`` for never.

    :param lag_seconds: age of the oldest commit that was not read.
    :param hours_to_purge: hours until the source may purge what is needed.
    """

    lag_seconds: float | None = None
    hours_to_purge: float | None = None


@dataclass(frozen=True)
class ObservedState:
    """What the bookkeeping says of a pipeline now.

    :param lag_seconds: as of :class:`AlertLimits`; ``None`` if it is not known.
    :param hours_to_purge: the same; infinite for never.
    :param suspended: tables that the stream goes on without, and why.
    :param healthy_epoch: the newest epoch, if it runs well or has ended as it should; else ``None``.
    """

    lag_seconds: float | None
    hours_to_purge: float | None
    suspended: Mapping[str, str]
    healthy_epoch: int | None


def active_alerts(
    limits: AlertLimits, observed: ObservedState, active_before: Collection[AlertKey]
) -> dict[AlertKey, str]:
    """The troubles that stand, each with a line about it. A failure begins elsewhere, and only ends here.

    :param active_before: those that stood before: they are over only well within their limits. What is not known
        changes nothing.
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
