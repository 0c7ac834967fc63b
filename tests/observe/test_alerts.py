"""Troubles begin at one limit and are over at another."""

from __future__ import annotations

import math

import pytest

from airflow_provider_cdc.config.sections import Alerts
from airflow_provider_cdc.observe.alerts import (
    FAILED,
    LAG,
    PURGE_RISK,
    SUSPENDED,
    AlertKey,
    ObservedState,
    active_alerts,
)

LIMITS = Alerts(lag_seconds=100, hours_to_purge=10)


def stands(
    known: set[AlertKey], lag: float | None = 0.0, hours: float | None = math.inf, well: int | None = 1
) -> set[str]:
    return {kind for kind, _ in active_alerts(LIMITS, ObservedState(lag, hours, {}, well), known)}


@pytest.mark.parametrize(("lag", "new", "before"), [(100, 0, 1), (101, 1, 1), (51, 0, 1), (50, 0, 0), (None, 0, 1)])
def test_lag(lag: float | None, new: bool, before: bool) -> None:
    assert (LAG in stands(set(), lag=lag), LAG in stands({(LAG, "")}, lag=lag)) == (new, before)
    assert active_alerts(Alerts(), ObservedState(1e9, 0.0, {}, 1), {(LAG, ""), (PURGE_RISK, "")}) == {}, (
        "no limit any more"
    )


@pytest.mark.parametrize(("hours", "new", "before"), [(10, 0, 1), (9.9, 1, 1), (14.9, 0, 1), (15, 0, 0), (None, 0, 1)])
def test_purge(hours: float | None, new: bool, before: bool) -> None:
    assert (PURGE_RISK in stands(set(), hours=hours), PURGE_RISK in stands({(PURGE_RISK, "")}, hours=hours)) == (
        new,
        before,
    )


def test_a_failure_is_over_with_a_newer_epoch_that_runs_well() -> None:
    known = {(FAILED, "3")}
    assert [FAILED in stands(known, well=well) for well in (None, 2, 3, 4)] == [True, True, True, False]
    assert stands(set(), well=None) == set(), "it begins elsewhere"


def test_each_suspended_table() -> None:
    found = active_alerts(
        Alerts(), ObservedState(None, None, {"d.t": "why", "d.u": "why not"}, None), {(SUSPENDED, "d.gone")}
    )
    assert found == {
        (SUSPENDED, "d.t"): "table d.t is suspended: why",
        (SUSPENDED, "d.u"): "table d.u is suspended: why not",
    }
