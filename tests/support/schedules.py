"""Kill schedules: runs of a pipeline that die at given places, while writers go on, and what must come of it."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tests.support.failpoints import ICEBERG, RUN_FAILPOINTS, STREAM
from tests.support.gone import Gone
from tests.support.harness import KILLED, Nursery
from tests.support.heap import HeapWriter
from tests.support.hot import HotWriter, make_hot
from tests.support.oracle import Kept, Place, check_ledger, compare_database
from tests.support.servers import MySQLServer
from tests.support.sink_settings import Settings
from tests.support.transforms import HASH_ENV, make_schedule_views, schedule_rules
from tests.support.workload import Writers, make_foreign, make_shop

#: Chains that meet each failpoint once between them.
CHAINS = 4
#: What their settings are drawn from: with these numbers each setting is there, alone and with others.
CHAIN_SETTINGS = (42, 269, 22, 33)

#: Up to which time at a failpoint a fresh run dies for certain; once where nothing is said.
_CERTAIN = {"chunk": 12, "file": 3, "manifest": 3, "group": 3, "table": 2}


@dataclass(frozen=True)
class Step:
    """One run that is to be killed.

    :param failpoint: where, as ``name:n``; empty: at any moment.
    :param seconds: then after so many seconds.
    :param lose: what is removed before the next start.
    :param certain: whether it must die there. A later failpoint may lie behind what there is left to do, and the run
        then ends in good order.
    """

    failpoint: str
    seconds: float
    lose: tuple[str, ...]
    certain: bool = False


@dataclass(frozen=True)
class Schedule:
    """Everything about one test but the clock.

    :param settings: how the tables are written.
    :param rows: of the largest table.
    """

    seed: int
    tables: str
    chunk_rows: int
    group_rows: int
    batch_bytes: int
    steps: tuple[Step, ...]
    settings: Settings
    rows: int = 5000

    @classmethod
    def chain(cls, number: int) -> Schedule:
        """Every fourth failpoint, one run after the other, in the order in which a run comes by."""
        steps = [
            Step(f"{name}:1", 0, (("bookkeeping", "staging")[i % 2],) if (i + number) % 2 else (), certain=True)
            for i, name in enumerate(RUN_FAILPOINTS[number::CHAINS])
        ]
        tables = ("shop", "foreign")[number % 2]
        settings = Settings.drawn(random.Random(CHAIN_SETTINGS[number]), tables)
        settings = settings.with_rules() if number >= 2 else replace(settings, ruled=())
        return cls(number, tables, 400, 400 * (8, 1000)[number % 2], 64 << 10 << number, (*steps,), settings)

    @classmethod
    def iceberg_chain(cls) -> Schedule:
        """Each failpoint of a commit to an Iceberg table: in a stream whose commits have deletion vectors."""
        steps = [Step("group.after_commit:1", 0, (), certain=True)]
        steps += [Step(f"{name}:{n}", 0, (), certain=True) for n, name in enumerate(ICEBERG, 1)]
        settings = replace(Settings.drawn(random.Random(CHAIN_SETTINGS[0]), "shop"), adopted=()).with_rules()
        return cls(0, "shop", 400, 3200, 64 << 10, (*steps,), settings, rows=2000)

    def into_iceberg(self) -> Schedule:
        """The same, into Iceberg tables. pyiceberg could not make the tables that are to be adopted."""
        return replace(self, settings=replace(self.settings, adopted=()))

    @classmethod
    def of(cls, seed: int) -> Schedule:
        """A schedule by chance."""
        draw = random.Random(seed)
        # The first run dies at each failpoint in turn, so that every one is met; what follows is chance.
        first = RUN_FAILPOINTS[seed % len(RUN_FAILPOINTS)]
        certain = _CERTAIN.get(first.partition(".")[0], 1)
        steps = [Step(f"{first}:{draw.randint(1, certain)}", 0, _losses(draw), certain=True)]
        for _ in range(draw.choice((0, 1, 1, 2))):
            failpoint = f"{draw.choice(RUN_FAILPOINTS)}:{draw.randint(1, 4)}" if draw.random() < 0.6 else ""
            steps.append(Step(failpoint, draw.uniform(0.05, 1.5), _losses(draw)))
        chunk_rows = draw.choice((300, 400, 500))
        group_rows = chunk_rows * draw.choice((8, 24, 1000))
        tables, batch_bytes = draw.choice(("shop", "foreign")), draw.choice((64, 256, 1024)) << 10
        return cls(seed, tables, chunk_rows, group_rows, batch_bytes, (*steps,), Settings.drawn(draw, tables))


def _losses(draw: random.Random) -> tuple[str, ...]:
    return tuple(what for what in ("bookkeeping", "staging") if draw.random() < 0.25)


def _make(server: MySQLServer, schedule: Schedule, database: str) -> None:
    rows = schedule.rows
    with server.connect() as connection:
        if schedule.tables == "shop":
            make_shop(connection, database, rows, addresses=rows * 3 // 10, orders=rows * 2 // 5)
        else:
            make_foreign(connection, database, rows / 250_000)
        make_hot(connection, database)


class Target(Protocol):
    """What a schedule copies into, as a test looks at it."""

    @property
    def place(self) -> Place:
        """Where the tables are."""

    @property
    def sink(self) -> Mapping[str, Any]:
        """More of the pipeline's section ``sink``."""

    @property
    def connections(self) -> Mapping[str, str]:
        """Connections of the pipeline, besides the source's."""

    def write_pipeline(self, database: str, master: str = "local[2]", **snapshot: int) -> Path:
        """Write the pipeline's file."""

    def lose(self, what: str) -> None:
        """Remove what a run must be able to do without."""

    def finished_files(self) -> dict[Any, Any]:
        """Snapshot files with a manifest beside them, and what tells that they were not written again."""

    def check_files(self, before: Mapping[Any, Any]) -> None:
        """Finished files were read once."""


def carry_out(
    schedule: Schedule,
    lake: Target,
    nursery: Nursery,
    server: MySQLServer,
    user: dict[str, str],
    database: str,
    log: Path,
    *,
    worth_a_retry: int = 0,
    last: Callable[[], None] = lambda: None,
) -> Counter[str]:
    """Carry out a schedule; at the end the copy must be its source, row by row.

    :param worth_a_retry: exit code with which a run may also end, and is then started again.
    :param last: called before the last runs.
    :return: the failpoints at which a run died.
    """
    seed, deaths = schedule.seed, Counter[str]()
    file = lake.write_pipeline(database, chunk_rows=schedule.chunk_rows, group_rows=schedule.group_rows, parallelism=2)
    connections = {"AIRFLOW_CONN_CDC_SOURCE": server.uri(**user), **lake.connections, **HASH_ENV}
    if schedule.settings.ruled:
        value = json.loads(file.read_text()) | {"transforms": schedule_rules(database, schedule.settings.ruled)}
        file.write_text(json.dumps(value))
    finished: dict[Any, Any] = {}
    _make(server, schedule, database)

    def go(failpoint: str = "", seconds: float | None = None) -> int:
        for _ in range(10):
            child = nursery.start(file, connections, failpoint, batch_bytes=schedule.batch_bytes, log=log)
            if seconds is not None:
                time.sleep(seconds)
                child.kill()
            code = child.wait()
            if not worth_a_retry or code != worth_a_retry:
                break
        return code

    args, settings = server.connect_args(), schedule.settings
    with (
        Gone(args, database, [*settings.soft, *settings.kept]) as gone,
        HeapWriter(args, database, seed) as heap,
        HotWriter(args, database, gone, seed) as hot,
        Writers(args, schedule.tables, database=database, rate=25, seed=seed) as writers,
    ):
        with server.connect() as connection:
            settings.make_adopted(connection, database, lake.place)
        since = ""
        for step in schedule.steps:
            code = go(step.failpoint) if step.failpoint else go(seconds=step.seconds)
            for _ in range(9 if step.certain else 0):
                if code == 0:  # the writers had not come to so many changes yet
                    time.sleep(0.3)
                    code = go(step.failpoint)
            name = step.failpoint.partition(":")[0]
            if code == KILLED and name:
                deaths[name] += 1
            assert code == KILLED or (code == 0 and not step.certain), log.read_text()
            if not since and (code == 0 or name in STREAM):  # the snapshot is complete
                since = gone.now()
            finished |= lake.finished_files()
            for what in step.lose:
                lake.lose(what)
        last()
        assert go() == 0, log.read_text()
        since = since or gone.now()
        time.sleep(0.5)
        for writer in (writers, heap, hot):
            writer.stop()
        assert go() == 0, log.read_text()
        kept = {table: Kept(gone.database, since, table in settings.soft) for table in gone.tables}
        views = make_schedule_views(server, database, settings.ruled)
        differences = compare_database(server, database, lake.place, folder=settings.folder, kept=kept, views=views)
    assert not differences, "\n".join(map(str, differences))
    if schedule.tables == "shop":
        assert not check_ledger(lake.place, database, folder=settings.folder)
    lake.check_files(finished)
    return deaths
