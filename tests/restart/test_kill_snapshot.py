"""The snapshot killed at every one of its failpoints, with writers that go on, on servers of every kind.

Each schedule follows from one number: ``CDC_SEED=n python -m pytest tests/restart/test_kill_snapshot.py`` replays one.
``CDC_SCHEDULES=n`` says how many there are, at most 500.

What makes them cheap: the snapshot's own code in forked processes without a JVM, small tables, and one database with
writers for many schedules. Writers are not stopped for the comparison but held by the server's global read lock.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_cdc.failpoints import SNAPSHOT
from tests.support.harness import KILLED, Lake, Nursery
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import check_ledger, compare_all
from tests.support.servers import MySQLServer
from tests.support.workload import Writers, make_foreign, make_shop

SCHEDULES = min(500, int(os.environ.get("CDC_SCHEDULES", 50)))
SEEDS = [int(os.environ["CDC_SEED"])] if "CDC_SEED" in os.environ else range(SCHEDULES)
#: So many schedules in a row share tables; so many of them on each kind of server.
BLOCK = 25
KINDS = ("GTID",) * 19 + ("MariaDB",) * 3 + ("no GTID",) * 3

#: Up to which time at a failpoint a fresh run dies for certain; once where nothing is said.
_CERTAIN = {"chunk": 12, "file": 3, "manifest": 3, "group": 3}
_deaths: Counter[str] = Counter()


@dataclass(frozen=True)
class Step:
    """One run that is to be killed.

    :param failpoint: where, as ``name:n``; empty: at any moment.
    :param seconds: then after so many seconds.
    :param rival: whether another run of the same pipeline begins at the same time, which nobody kills.
    :param forget: whether the bookkeeping is lost before the next start.
    """

    failpoint: str
    seconds: float
    rival: bool
    forget: bool


@dataclass(frozen=True)
class Schedule:
    """Everything about one test but the clock."""

    kind: str
    tables: str
    chunk_rows: int
    group_rows: int
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, seed: int) -> Schedule:
        draw = random.Random(seed)
        # The first run dies at each failpoint in turn, so that every one is met; what follows is chance.
        first = SNAPSHOT[seed % len(SNAPSHOT)]
        certain = _CERTAIN.get(first.partition(".")[0], 1)
        steps = [Step(f"{first}:{draw.randint(1, certain)}", 0, draw.random() < 0.15, draw.random() < 0.25)]
        for _ in range(draw.choice((0, 1, 1, 2))):
            failpoint = f"{draw.choice(SNAPSHOT)}:{draw.randint(1, 4)}" if draw.random() < 0.7 else ""
            steps.append(Step(failpoint, draw.uniform(0.02, 0.6), draw.random() < 0.15, draw.random() < 0.25))
        chunk_rows = draw.choice((40, 50, 60))
        tables = ("shop", "foreign")[seed // BLOCK % 2]
        return cls(KINDS[seed % BLOCK], tables, chunk_rows, chunk_rows * draw.choice((9, 1000)), tuple(steps))


class Sources:
    """Servers of all kinds, and on one of them the tables that are in use, with writers. A context manager."""

    def __init__(self, gtid: MySQLServer) -> None:
        self._servers: dict[str, MySQLServer] = {"GTID": gtid}
        self._users: dict[str, dict[str, str]] = {}
        self._all, self._present = ExitStack(), ExitStack()
        self._at: tuple[str, int] | None = None

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        self._present.close()
        self._all.close()

    def get(self, schedule: Schedule, block: int) -> tuple[MySQLServer, dict[str, str]]:
        """The server of a schedule and the project's user on it; its writers are at work."""
        kind = schedule.kind
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
            writers = Writers(server.connect_args(), schedule.tables, database=DATABASE, rate=30, seed=block)
            self._present.enter_context(writers)
            self._at = kind, block
        return self._servers[kind], self._users[kind]


DATABASE = "kill_snapshot"


@pytest.fixture(scope="module")
def sources(mysql_server: MySQLServer) -> Iterator[Sources]:
    with Sources(mysql_server) as found:
        yield found


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
def test_killed_and_started_again(seed: int, nursery: Nursery, sources: Sources, tmp_path: Path) -> None:
    schedule = Schedule.of(seed)
    print(f"replay with: CDC_SEED={seed} python -m pytest tests/restart/test_kill_snapshot.py\n{schedule}")
    lake, log = Lake(tmp_path / "lake", f"kill-{seed}"), tmp_path / "log"
    file = lake.write_pipeline(DATABASE, chunk_rows=schedule.chunk_rows, group_rows=schedule.group_rows, parallelism=2)
    server, user = sources.get(schedule, seed // BLOCK)
    connections = {"AIRFLOW_CONN_CDC_SOURCE": server.uri(**user)}
    finished: dict[Path, tuple[int, int]] = {}

    for number, step in enumerate(schedule.steps):
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
        # A later failpoint may lie behind what there is left to do, and so may an early one beside a rival.
        assert code == KILLED or (code == 0 and (number or step.rival)), log.read_text()
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


@pytest.mark.skipif(len(SEEDS) < 3 * len(SNAPSHOT), reason="too few schedules were asked for")
def test_every_failpoint_has_killed(request: pytest.FixtureRequest) -> None:
    """A schedule counts only if it died where it was to die."""
    ran = [item for item in request.session.items if item.path == request.path]
    if len(ran) <= len(SEEDS):
        pytest.skip("only some of the schedules were selected")
    print(", ".join(f"{name} {_deaths[name]}" for name in SNAPSHOT))
    assert not [name for name in SNAPSHOT if not _deaths[name]]
