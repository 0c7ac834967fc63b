"""Writers and DDL of every kind go on while tables are suspended, read again and rejoin, in runs that are killed; then
each table is compared, row by row and column by column.

Each schedule follows from one number, but for the clock.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.apply import applier as apply
from airflow_provider_cdc.apply import follow_ddl as schema_changes
from airflow_provider_cdc.apply import task as batches
from airflow_provider_cdc.chunk_groups import chunk_group
from airflow_provider_cdc.chunk_groups import task as slices
from airflow_provider_cdc.model.errors import (
    CdcError,
    NotFollowedError,
    NotReadyError,
    TableSuspendedError,
    TransientError,
)
from airflow_provider_cdc.model.plan_history import Rejoin, Suspension
from airflow_provider_cdc.model.schema import INTEGER_TYPES, TEXT_TYPES
from airflow_provider_cdc.mysql.chunks import chunk, keyless
from airflow_provider_cdc.resnapshot import publish, suspension
from airflow_provider_cdc.resnapshot import staged_files as staged
from airflow_provider_cdc.resnapshot import worker as rereading
from airflow_provider_cdc.sinks.iceberg import commit_encoder
from airflow_provider_cdc.sinks.iceberg.log import iceberg_log
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.altering import quoted
from tests.support.chance import Killed, at_once, killed
from tests.support.cli import Cli
from tests.support.definitions import check_definitions
from tests.support.epochs import run_epoch_in_process
from tests.support.failpoints import ICEBERG, RESNAPSHOT, SCHEMA_CHANGES, STREAM, SUSPENSION
from tests.support.loaded_pipeline import LoadedPipeline
from tests.support.oracle import compare, compare_all
from tests.support.redefining import TABLES, Load, change
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import seeds_by_kind

#: Tables that must have been suspended, and have rejoined, at least: a schedule without is none.
_SUSPENDED, _REJOINED = 3, 3
#: Epochs of a schedule, at most, if that has not happened yet.
_MORE = 20
_DATABASE = "chance_s"
#: Seeds of schedules whose copies do not take over all that the source does begin here.
_POLICIES = 100
_MODULES = (
    *(apply, publish, staged, schema_changes, suspension, batches, slices, chunk_group, chunk, keyless),
    *(commit_encoder, iceberg_log),
)
#: What may become of a table that an operator reads again while it is altered.
_REFUSED = ("no longer exists", "was altered", "altered all the time", "cannot be published", "has changed")
#: The same where some rows are to be read.
_NO_PART = (
    *("is suspended", "has no usable key", "the condition on the key of", "has not followed that yet"),
    *("a table without a usable key", "leaves new columns out", "does not take over", "had a column"),  # by policies
)


class World(LoadedPipeline):
    """A pipeline under a load."""

    def __init__(self, server: MySQLServer, folder: Path, seed: int, kind: str) -> None:
        super().__init__(server, folder, seed)
        self.patterns = {name: rf"{_DATABASE}[.]{name}" for name in TABLES}
        self.sink: dict[str, Any] = {
            "kind": kind,
            "merge": {"copy_on_write": [self.patterns[n] for n in self.chance.sample([*TABLES], 2)]},
        }
        #: What becomes of the columns of copies. Schedules of the others have tables that are emptied, too.
        self.mode = "evolve" if seed < _POLICIES else self.chance.choice(["lenient", "ignore"])
        if self.mode != "evolve":
            self.sink["on_dropped"] = self.chance.choice(["keep", "drop"])
        stream = {
            "schema_changes": self.mode,
            "parallelism": self.chance.choice([1, 2]),
            "on_table_error": "suspend",
            "reread": "auto",
            "fail_on_suspended": self.chance.random() < 0.7,
        }
        self.settings: dict[str, Any] = {
            "snapshot": {"chunk_rows": 5, "group_rows": 20},
            "stream": stream,
            "source": {"zero_dates": "null"},  # a column that becomes NOT NULL has them
        }
        self.cli = Cli(folder / "p", server, *self.patterns.values(), sink=self.sink, **self.settings)
        self.load = Load(server, seed, _DATABASE)
        self.own_failpoints = ICEBERG if kind == "iceberg" else ()

    def there(self) -> list[str]:
        found = self.server.execute(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema='{_DATABASE}'"
        )
        return [name for name in TABLES if (name,) in found]

    # ---------------------------------------------------------------- what is done to it

    def stream(self, *, dies: bool = False, ends: bool = False) -> None:
        """One epoch, in batches of a random size.

        :param dies: it is killed at a random place, or stopped at a random moment.
        :param ends: it goes on to where the server is.
        """
        chance, catch_up = self.chance, ends or self.chance.random() < 0.7
        name = chance.choice(
            [None, *SUSPENSION, *SUSPENSION, *SCHEMA_CHANGES, *STREAM, *RESNAPSHOT, *self.own_failpoints]
        )
        at = chance.randrange(1, 40 if name is None else 4)
        size, piece, seconds = chance.choice([3000, 1 << 20]), chance.choice([700, 1 << 20]), chance.uniform(0.5, 3)
        stop = threading.Event()
        with self.cli.opened() as (context, store):
            with killed(_MODULES, name, at, self.done, dies=dies, died=stop.set), suppress(TableSuspendedError):
                epoch = begin_epoch(context, store, catch_up=catch_up)
                epoch.stop = stop
                epoch.job = replace(epoch.job, max_batch_bytes=size, min_range_bytes=piece)
                timer = threading.Timer(seconds, stop.set)
                if not catch_up:
                    timer.start()
                try:
                    run_epoch_in_process(epoch)
                finally:
                    timer.cancel()
            run = store.newest_epoch(context.pipeline.name)
            if run is not None and run.state == "running":  # it was killed before it had begun
                store.end_epoch(context.pipeline.name, run.epoch, "failed", "killed")
        self.done["epochs"] += 1

    def dies(self) -> None:
        self.stream(dies=True)

    def read(self, name: str | None = None) -> None:
        """An operator reads a table again, whatever it is."""
        label = f"{_DATABASE}.{name or self.chance.choice([*TABLES])}"
        try:
            self.done[self.cli.resnapshot(label)] += 1
        except (NotReadyError, TransientError) as error:
            assert any(text in str(error) for text in _REFUSED), error
            self.done["readings that were refused"] += 1

    def part(self) -> None:
        """An operator reads some rows of a table again, by its key, if it has one."""
        tables = self.cli.context.plans.require().tables
        table = self.chance.choice([table for table in tables if table.key])
        name, kind = quoted(table.key[0]), table.key_columns[0].data_type
        low = self.chance.randint(-2, 30)
        if kind in INTEGER_TYPES:
            condition = f"{name} >= {low} AND {name} < {low + 12}"
        else:
            condition = f"{name} >= 'b'" if kind in TEXT_TYPES else f"{name} IN ({low}, 'x')"
        try:
            self.done[f"{self.cli.resnapshot(table.label, condition)} in part"] += 1
        except (NotReadyError, TransientError) as error:
            assert any(text in str(error) for text in (*_REFUSED, *_NO_PART)), error
            self.done["parts that were refused"] += 1

    def beside(self) -> None:
        """Both at a time; either may die, and then both do."""
        at_once(self.chance.choice([self.read, self.part]), lambda: self.stream(dies=self.chance.random() < 0.5))

    # ---------------------------------------------------------------- how it is

    def is_enough(self) -> bool:
        """Whether so many tables were suspended, and have rejoined, that the schedule is one."""
        kinds = Counter(type(step) for step in self.cli.context.plans.require().amendments)
        return kinds[Suspension] >= _SUSPENDED and kinds[Rejoin] >= _REJOINED

    def steps(self) -> list[str]:
        """What has happened to the tables."""
        plan = self.cli.context.plans.require()
        return [
            f"{type(step).__name__} {plan.tables[step.table].label}, revision {step.revision}, at "
            f"{plan.timeline.position(step.seq)} {getattr(step, 'kind', '')}: {getattr(step, 'message', '')}"
            for step in plan.amendments
        ]

    def check(self) -> None:
        """Nobody writes any more: all tables that are there rejoin, and are what the source has."""
        there = self.there()
        for _ in range(3):
            self.stream(ends=True)
            plan = self.cli.context.plans.require()
            left = [step for step in plan.suspensions if plan.tables[step.table].name in there]
            if not left:
                break
            for step in left:
                assert self.mode != "evolve" or step.kind != NotFollowedError.__name__, step
                self.read(plan.tables[step.table].name)
        else:
            raise AssertionError(left)
        gone = {plan.tables[step.table].name for step in plan.suspensions}
        assert not gone & set(there)
        with closing(self.server.connect(database=_DATABASE)) as connection:
            if self.mode == "evolve":
                assert compare_all(connection, _DATABASE, self.cli.sink, there) == []
            for table in self.cli.context.plans.require().tables if self.mode != "evolve" else ():
                if table.name in there:
                    without, beside = table.excluded, [column.name for column in table.retained]
                    folder = self.cli.sink / _DATABASE / table.name
                    difference = compare(connection, _DATABASE, table.name, folder, without, beside=beside)
                    assert difference is None, difference
                    assert self.mode == "ignore" or not without
        found = {v.table.partition(".")[2]: v for v in verify_tables(self.cli.context, show_values=True)}
        assert all(found[name].is_equal for name in there), found
        self.done["comparisons"] += 1

    def columns(self) -> None:
        """Definitions, and names, order, types and comments of the columns, are those of a copy that is made now."""
        plan = self.cli.context.plans.require()
        self.done["suspended"] = sum(isinstance(step, Suspension) for step in plan.amendments)
        self.done["rejoined"] = sum(isinstance(step, Rejoin) for step in plan.amendments)
        if self.mode != "evolve":  # a copy that is made now knows nothing of what has been
            return
        there = self.there()
        patterns = [self.patterns[name] for name in there]
        fresh = Cli(self.folder / "fresh", self.server, *patterns, sink=self.sink, **self.settings)
        fresh.snapshot()
        check_definitions(self.server, self.cli, fresh, there)


@pytest.fixture
def world(
    server: MySQLServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, kind: str
) -> Iterator[World]:
    monkeypatch.setattr(rereading, "_RETRY_SECONDS", 0.2)
    go = rereading.ResnapshotWorker._run

    def ends(self: rereading.ResnapshotWorker) -> None:
        with suppress(Killed):
            go(self)

    monkeypatch.setattr(rereading.ResnapshotWorker, "_run", ends)
    with World(server, tmp_path, seed, kind).with_tables(monkeypatch, TABLES, 50, change) as found:
        yield found


@pytest.mark.parametrize(("seed", "kind"), seeds_by_kind([0], range(1, 150)))
def test_a_schedule(world: World, seed: int) -> None:
    chance, load, began = world.chance, world.load, time.monotonic()
    kinds = ["stream", "dies", "dies", "dies", "beside", "beside", "read", "part", "verified", "metadata"]
    steps = [chance.choice(kinds) for _ in range(6)]
    try:
        world.cli.snapshot()
        with load:
            for step in [*steps, "dies", "stream"]:
                load.alters.release(3)
                getattr(world, step)()
            for _ in range(_MORE):
                if world.is_enough():
                    break
                load.alters.release(3)
                world.stream()
        if seed % 3:  # else those that are gone stay so, and stay suspended
            for name in set(TABLES) - set(world.there()):
                world.server.session(_DATABASE, f"CREATE TABLE {quoted(name)} {TABLES[name]}")
        world.check()
        world.columns()
    except (Exception, CdcError):
        print(f"seed {seed}, steps {steps}", *load.said, sep=";\n")
        print(*world.steps(), sep="\n")
        raise
    finally:
        print(f"seed {seed}, {time.monotonic() - began:.0f} s: {dict(world.done)}, {dict(load.done)}")
    assert world.is_enough()
