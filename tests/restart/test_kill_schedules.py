"""Killed at any moment and started again, while writers go on: in the end the sink equals the source.

Every run of the tests has a few schedules that die at each failpoint once between them (``chain-0`` ...). The long
suite has many more (``seed-0`` ...), of which each follows from one number.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.failpoints import RUN_FAILPOINTS
from tests.support.harness import Deaths, Lake, Nursery
from tests.support.hot import HOT
from tests.support.schedules import CHAINS, Schedule, carry_out
from tests.support.servers import MySQLServer

#: Schedules of the long suite.
SEEDS = 500
#: Those of them that are carried out with Iceberg tables as well.
ICEBERG_SEEDS = 100

_deaths = Deaths()


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
    lake = Lake(tmp_path / "lake", f"kill-{schedule.seed}", schedule.settings.section(database))
    log = tmp_path / "log"
    _deaths.update(carry_out(schedule, lake, nursery, mysql_server, cdc_user, database, log))


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(Schedule.iceberg_chain(), id="commits"),
        pytest.param(Schedule.chain(2).into_iceberg(), id="chain-2-iceberg"),
        *(
            pytest.param(Schedule.chain(n).into_iceberg(), marks=pytest.mark.long, id=f"chain-{n}-iceberg")
            for n in range(CHAINS)
            if n != 2
        ),
        *(
            pytest.param(Schedule.of(n).into_iceberg(), marks=pytest.mark.long, id=f"seed-{n}-iceberg")
            for n in range(ICEBERG_SEEDS)
        ),
    ],
)
def test_killed_and_started_again_with_iceberg(
    schedule: Schedule,
    nursery: Nursery,
    mysql_server: MySQLServer,
    cdc_user: dict[str, str],
    database: str,
    tmp_path: Path,
) -> None:
    print(schedule)
    sink = {"kind": "iceberg", **schedule.settings.section(database)}
    lake, log = Lake(tmp_path / "lake", f"kill-{schedule.seed}", sink), tmp_path / "log"
    deaths = carry_out(schedule, lake, nursery, mysql_server, cdc_user, database, log)
    assert {step.failpoint.partition(":")[0] for step in schedule.steps if step.certain} <= deaths.keys()


def test_every_failpoint_has_killed(request: pytest.FixtureRequest) -> None:
    _deaths.check(request, RUN_FAILPOINTS, CHAINS)


def test_the_chains_have_every_setting() -> None:
    """Deleted rows that go, stay and are marked, with each merge, in tables with and without partitions, and so on."""
    found = set[object]()
    for n in range(CHAINS):
        settings = Schedule.chain(n).settings
        found.add(settings.template)
        for table in HOT:
            deletes = "soft" if table in settings.soft else "kept" if table in settings.kept else "hard"
            merge = "copies" if table in settings.copies else "vectors"
            by = settings.partitions.get(table)
            found |= {(deletes, merge, bool(by)), (deletes, by is not None and by[0] in ("k", "n"))}
            found |= {("adopted", deletes), ("adopted", bool(by))} if table in settings.adopted else set()
    wanted: set[object] = {
        (d, m, p) for d in ("soft", "kept", "hard") for m in ("copies", "vectors") for p in (False, True)
    }
    wanted |= {(deletes, True) for deletes in ("soft", "kept", "hard")}  # a column of the key makes the partitions
    wanted |= {("adopted", what) for what in ("soft", "kept", "hard", False, True)}
    assert found >= wanted and len([name for name in found if isinstance(name, str)]) == 2
