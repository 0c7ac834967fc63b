"""The kill schedules with a sink in an object store, and with a way to it on which requests meet faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import TransientError
from tests.support.failpoints import RUN_FAILPOINTS
from tests.support.harness import Deaths, Nursery
from tests.support.s3 import Kind, s3_server
from tests.support.schedules import CHAINS, Schedule, carry_out
from tests.support.servers import MySQLServer
from tests.support.store_lake import StoreLake
from tests.support.store_proxy import FAULTS, StoreProxy

#: Schedules of the long suite, each once with faults beside the kills, and once on each kind of server.
SEEDS = 60
#: Chains of every run of the tests: a quarter of the failpoints, and all faults. Two minutes each.
QUICK = 1

pytestmark = pytest.mark.timeout(1800)  # two minutes where nothing else runs

_deaths = Deaths()
_met: Counter[str] = Counter()


@pytest.fixture
def kind() -> Kind:
    return "moto"


@pytest.fixture
def proxy(kind: Kind) -> Iterator[StoreProxy]:
    with s3_server(kind) as place, StoreProxy(place.under("lake")) as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [
        *(
            pytest.param(
                replace(Schedule.chain(n), rows=1000, batch_bytes=1 << 20),
                "moto",
                id=f"chain-{n}",
                marks=[pytest.mark.long] * (n >= QUICK),
            )
            for n in range(CHAINS)
        ),
        *(
            pytest.param(Schedule.of(n), kind, marks=pytest.mark.long, id=f"{kind}-seed-{n}")
            for n in range(SEEDS)
            for kind in ("moto", "versitygw")
        ),
    ],
)
def test_killed_and_started_again_while_requests_fail(
    schedule: Schedule,
    kind: Kind,
    proxy: StoreProxy,
    nursery: Nursery,
    mysql_server: MySQLServer,
    cdc_user: dict[str, str],
    database: str,
    tmp_path: Path,
) -> None:
    print(schedule)
    place = proxy.place.at(proxy.behind)
    sink = schedule.settings.section(database)
    lake, log = StoreLake(place, proxy.place, f"kill-{schedule.seed}", tmp_path / "host", sink), tmp_path / "log"
    proxy.disturb(schedule.seed, every=16)
    deaths = carry_out(
        schedule,
        lake,
        nursery,
        mysql_server,
        cdc_user,
        database,
        log,
        worth_a_retry=TransientError.exit_code,
    )
    print(f"{len(proxy.requests)} requests, faults {dict(proxy.met)}")
    _deaths.update(deaths)
    _met.update(proxy.met)


def test_each_failpoint_of_the_chains_has_killed_and_every_fault_was_met(request: pytest.FixtureRequest) -> None:
    """A schedule counts only if it died where it was to die, and met what it was to meet."""
    _deaths.check(request, RUN_FAILPOINTS, CHAINS, QUICK)
    print(dict(_met))
    assert not [fault for fault in FAULTS if not _met[fault]]
