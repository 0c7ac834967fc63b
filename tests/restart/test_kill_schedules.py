"""Killed at any moment and started again, while writers go on: in the end the sink equals the source.

Every run of the tests has a few schedules that die at each failpoint once between them (``chain-0`` ...). The long
suite has many more (``seed-0`` ...), of which each follows from one number.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_cdc.failpoints import NAMES
from tests.support.harness import Lake, Nursery
from tests.support.schedules import CHAINS, Schedule, carry_out
from tests.support.servers import MySQLServer

#: Schedules of the long suite.
SEEDS = 500

_deaths: Counter[str] = Counter()


@pytest.mark.parametrize(
    "schedule",
    [
        *(pytest.param(Schedule.chain(n), id=f"chain-{n}") for n in range(CHAINS)),
        *(pytest.param(Schedule.of(n), marks=pytest.mark.long, id=f"seed-{n}") for n in range(SEEDS)),
    ],
)
def test_killed_and_started_again(
    schedule: Schedule,
    nursery: Nursery,
    mysql_server: MySQLServer,
    cdc_user: dict[str, str],
    database: str,
    tmp_path: Path,
) -> None:
    print(schedule)
    lake, log = Lake(tmp_path / "lake", f"kill-{schedule.seed}"), tmp_path / "log"
    _deaths.update(carry_out(schedule, lake, nursery, mysql_server, cdc_user, database, log))


def test_every_failpoint_has_killed(request: pytest.FixtureRequest) -> None:
    """A schedule counts only if it died where it was to die."""
    if sum("[chain-" in item.name for item in request.session.items if item.path == request.path) < CHAINS:
        pytest.skip("only some of the schedules were selected")
    print(", ".join(f"{name} {_deaths[name]}" for name in NAMES))
    assert not [name for name in NAMES if not _deaths[name]]
