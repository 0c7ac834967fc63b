"""The snapshot killed at every one of its failpoints, with writers that go on, on servers of every kind.

Every run of the tests has a few schedules that die at each failpoint once between them (``chain-0`` ...). The long
suite has many more (``seed-0`` ...), of which each follows from one number.

What makes them cheap: the snapshot's own code in forked processes without a JVM, small tables, and one database with
writers for many schedules. Writers are not stopped for the comparison but held by the server's global read lock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.failpoints import SNAPSHOT
from tests.support.harness import KILLED, Deaths, Lake, Nursery
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import check_ledger, compare_all
from tests.support.servers import MySQLServer
from tests.support.workload import Writers, make_foreign, make_shop

#: Schedules of the long suite. So many in a row share tables; so many of them are on each kind of server.
SEEDS, BLOCK = 500, 25
#: Those of them that are carried out with Iceberg tables as well.
ICEBERG_SEEDS = 50
KINDS = ("GTID",) * 19 + ("MariaDB",) * 3 + ("no GTID",) * 3
#: Schedules of every run of the tests: the kind of server, and the tables.
CHAINS = (("GTID", "shop"), ("MariaDB", "foreign"), ("no GTID", "shop"))

#: Up to which time at a failpoint a fresh run dies for certain; once where nothing is said.
_CERTAIN = {"chunk": 12, "file": 3, "manifest": 3, "group": 3}
_deaths = Deaths()


@dataclass(frozen=True)
class Step:
    """One run that is to be killed.

    :param failpoint: where, as ``name:n``; empty: at any moment.
    :param seconds: then after so many seconds.
    :param rival: whether another run of the same pipeline begins at the same time, which nobody kills.
    :param forget: whether the bookkeeping is lost before the next start.
    :param certain: whether it must die there. A later failpoint may lie behind what there is left to do, and so may an
        early one beside a rival; the run then ends in good order.
    """

    failpoint: str
    seconds: float
    rival: bool
    forget: bool
    certain: bool = False


@dataclass(frozen=True)
class Schedule:
    """Everything about one test but the clock."""

    block: str
    kind: str
    tables: str
    chunk_rows: int
    group_rows: int
    steps: tuple[Step, ...]

    @classmethod
    def chain(cls, number: int) -> Schedule:
        """Every third failpoint, one run after the other, in the order in which a run comes by."""
        names = enumerate(SNAPSHOT[number :: len(CHAINS)])
        steps = [Step(f"{name}:1", 0, False, forget=(i + number) % 3 == 1, certain=True) for i, name in names]
        # At the end beside another run, which may be faster.
        steps.append(Step(f"{SNAPSHOT[-1 - number]}:1", 0, True, forget=False))
        return cls("chains", *CHAINS[number], 50, 50 * (9, 1000)[number % 2], (*steps,))

    @classmethod
    def of(cls, seed: int) -> Schedule:
        """A schedule by chance."""
        draw = random.Random(seed)
        # The first run dies at each failpoint in turn, so that every one is met; what follows is chance.
        first = SNAPSHOT[seed % len(SNAPSHOT)]
        certain = _CERTAIN.get(first.partition(".")[0], 1)
        at, rival, forget = draw.randint(1, certain), draw.random() < 0.15, draw.random() < 0.25
        steps = [Step(f"{first}:{at}", 0, rival, forget, certain=not rival)]
        for _ in range(draw.choice((0, 1, 1, 2))):
            failpoint = f"{draw.choice(SNAPSHOT)}:{draw.randint(1, 4)}" if draw.random() < 0.7 else ""
            steps.append(Step(failpoint, draw.uniform(0.02, 0.6), draw.random() < 0.15, draw.random() < 0.25))
        chunk_rows = draw.choice((40, 50, 60))
        block, tables = seed // BLOCK, ("shop", "foreign")[seed // BLOCK % 2]
        return cls(
            str(block), KINDS[seed % BLOCK], tables, chunk_rows, chunk_rows * draw.choice((9, 1000)), tuple(steps)
        )


class Sources:
    """Servers of all kinds, and on one of them the tables that are in use, with writers. A context manager."""

    def __init__(self, gtid: MySQLServer) -> None:
        self._servers: dict[str, MySQLServer] = {"GTID": gtid}
        self._users: dict[str, dict[str, str]] = {}
        self._all, self._present = ExitStack(), ExitStack()
        self._at: tuple[str, str] | None = None

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        self._present.close()
        self._all.close()

    def get(self, schedule: Schedule) -> tuple[MySQLServer, dict[str, str]]:
        """The server of a schedule and the project's user on it; its writers are at work."""
        kind, block = schedule.kind, schedule.block
        if self._at != (kind, block):
            self._present.close()
            if kind not in self._servers:
                server = MariaDBServer() if kind == "MariaDB" else MySQLServer(variables={"gtid_mode": "OFF"})
                self._servers[kind] = self._all.enter_context(server)
            server = self._servers[kind]
            if kind not in self._users:
                user = self._users[kind] = server.create_cdc_user("kill_snapshot")
                if kind == "no GTID":
                    server.execute("GRANT BACKUP_ADMIN ON *.* TO %s@'%%'", (user["user"],))
                    server.execute("GRANT SELECT ON performance_schema.log_status TO %s@'%%'", (user["user"],))
            with closing(server.connect()) as connection:
                if schedule.tables == "shop":
                    make_shop(connection, DATABASE, 600, addresses=200, orders=300)
                else:
                    make_foreign(connection, DATABASE, 0.002)
            self._present.callback(server.execute, f"DROP DATABASE {DATABASE}")
            writers = Writers(server.connect_args(), schedule.tables, database=DATABASE, rate=30, seed=len(block))
            self._present.enter_context(writers)
            self._at = kind, block
        return self._servers[kind], self._users[kind]


DATABASE = "kill_snapshot"


@pytest.fixture(scope="module")
def sources(mysql_server: MySQLServer) -> Iterator[Sources]:
    with Sources(mysql_server) as found:
        yield found


@pytest.mark.parametrize(
    "schedule",
    [
        *(pytest.param(Schedule.chain(n), id=f"chain-{n}") for n in range(len(CHAINS))),
        *(pytest.param(Schedule.of(n), marks=pytest.mark.long, id=f"seed-{n}") for n in range(SEEDS)),
    ],
)
def test_killed_and_started_again(schedule: Schedule, nursery: Nursery, sources: Sources, tmp_path: Path) -> None:
    carry_out(schedule, nursery, sources, Lake(tmp_path / "lake", "kill"))


@pytest.mark.parametrize(
    "schedule",
    [
        *(
            pytest.param(Schedule.chain(n), marks=[] if n == 0 else pytest.mark.long, id=f"chain-{n}-iceberg")
            for n in range(len(CHAINS))
        ),
        *(pytest.param(Schedule.of(n), marks=pytest.mark.long, id=f"seed-{n}-iceberg") for n in range(ICEBERG_SEEDS)),
    ],
)
def test_killed_and_started_again_with_iceberg(
    schedule: Schedule, nursery: Nursery, sources: Sources, tmp_path: Path
) -> None:
    carry_out(schedule, nursery, sources, Lake(tmp_path / "lake", "kill", {"kind": "iceberg"}))


def carry_out(schedule: Schedule, nursery: Nursery, sources: Sources, lake: Lake) -> None:
    """Carry out a schedule; at the end the copy is its source."""
    print(schedule)
    log = lake.path.with_name("log")
    file = lake.write_pipeline(DATABASE, chunk_rows=schedule.chunk_rows, group_rows=schedule.group_rows, parallelism=2)
    server, user = sources.get(schedule)
    connections = {"AIRFLOW_CONN_CDC_SOURCE": server.uri(**user)}
    finished: dict[Path, tuple[int, int]] = {}

    for step in schedule.steps:
        children = [
            nursery.start(file, connections, failpoint, only="snapshot", log=log)
            for failpoint in [step.failpoint, *[""] * step.rival]
        ]
        if not step.failpoint:
            time.sleep(step.seconds)
            children[0].kill()
        code, *others = [child.wait() for child in children]
        if code == KILLED and step.failpoint:
            _deaths[step.failpoint.partition(":")[0]] += 1
        assert code == KILLED or (code == 0 and not step.certain), log.read_text()
        assert others == [0] * step.rival, log.read_text()
        finished |= lake.finished_files()
        if (lake.private / "bookkeeping.db").exists():
            lake.check_books(complete=step.rival)
        if step.forget:
            lake.lose("bookkeeping")

    assert nursery.start(file, connections, only="snapshot", log=log).wait() == 0, log.read_text()
    lake.check_books(complete=True)
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        assert nursery.start(file, connections, only="stream", log=log).wait() == 0, log.read_text()
        differences = compare_all(connection, DATABASE, lake.path)
    assert not differences, "\n".join(map(str, differences))
    if schedule.tables == "shop":
        assert not check_ledger(lake.path, DATABASE)
    lake.check_files(finished)


def test_every_failpoint_has_killed(request: pytest.FixtureRequest) -> None:
    _deaths.check(request, SNAPSHOT, len(CHAINS))
