"""Batches and chunk groups that are applied again, late, or by somebody who has been overtaken."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.apply import applier as apply
from airflow_provider_cdc.apply.applier import epoch_fence
from airflow_provider_cdc.chunk_groups import chunk_group
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.model.errors import FencedError, TerminalError
from airflow_provider_cdc.model.offset import Offset
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.lake.merge.change_merger import ChangeMerger
from airflow_provider_cdc.sinks.protocol import Fence
from airflow_provider_cdc.snapshot import run as snapshot
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.stream import run as stream
from airflow_provider_cdc.stream.epoch import Epoch
from tests.support.delta import as_delta
from tests.support.epochs import run_epoch_in_process
from tests.support.harness import KILLED, Lake, Nursery
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer

TABLES = ("a", "b")


@dataclass
class World:
    """Two small tables, their pipeline, and its phases in this process."""

    server: MySQLServer
    database: str
    lake: Lake
    file: Path
    context: RunContext
    stores: list[StateDatabase] = field(default_factory=list)

    def write(self, *statements: str) -> None:
        """One transaction."""
        with closing(self.server.connect(database=self.database)) as connection, connection.cursor() as cursor:
            connection.begin()
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    @property
    def store(self) -> StateDatabase:
        if not self.stores:
            self.stores.append(self.context.open_state_database())
        return self.stores[0]

    @property
    def targets(self) -> list[DeltaSinkTable]:
        return [as_delta(table) for table in chunk_group.open_sink_tables(self.context, self.context.plans.require())]

    def take_snapshot(self) -> None:
        snapshot.run_snapshot(self.context, self.store, self.context.plans.ensure(self.store), run_in_threads)

    def begin(self) -> Epoch:
        """A new epoch, as if the one before it had ended; nobody tells that one."""
        for number in range(1, 10):
            self.store.end_epoch(self.context.pipeline.name, number, "stopped")
        return stream.begin_epoch(self.context, self.store, catch_up=True)

    def end(self, epoch: Epoch, start: Offset) -> Offset:
        """Where the server stands now."""
        with closing(epoch.job.make_planner()) as planner:
            return planner.find_batch_end(start, 1 << 40)

    def forget_progress(self, epoch: Epoch, at: Offset) -> Epoch:
        """A new epoch that has to begin at an earlier point, as if the resume point had been lost since."""
        fence = epoch_fence(self.context.pipeline.name, epoch.number)
        self.context.sink.resume_point().write(at, epoch.plan.timeline, fence)
        return self.begin()

    def staged(self, manifest: dict[str, Any]) -> list[Path]:
        """What is there of the files of a batch."""
        storage, layout, tables = self.context.storage, self.context.layout, self.context.plans.require().tables
        found = [f"{layout.table_folder(tables[index])}/changes/{name}.parquet" for index, name in manifest["staged"]]
        paths = [Path(storage.location(name)) for name in found]
        return [path for path in paths if path.exists()]

    def ids(self) -> dict[str, list[int]]:
        """Keys in the sink."""
        return {
            name: sorted(target.read_with_soft_deleted()["id"].to_pylist())
            for name, target in zip(TABLES, self.targets, strict=True)
        }

    def versions(self) -> list[int]:
        """Number of commits of each table and of the resume point."""
        folders = [
            *(t.storage.uri() for t in self.targets),
            self.context.storage.uri(self.context.layout.resume_point_folder),
        ]
        return [DeltaTable(folder).version() for folder in folders]

    def killed_at(self, nursery: Nursery, failpoint: str) -> bool:
        """Run everything in a process of its own until it dies at the failpoint."""
        name = "AIRFLOW_CONN_CDC_SOURCE"
        return nursery.start(self.file, {name: os.environ[name]}, failpoint).wait() == KILLED

    def differences(self) -> Sequence[object]:
        return compare_database(self.server, self.database, self.lake.path)


@pytest.fixture
def world(
    mysql_server: MySQLServer, cdc_user: dict[str, str], database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.setenv("AIRFLOW_CONN_CDC_SOURCE", mysql_server.uri(**cdc_user))
    lake = Lake(tmp_path / "lake", "replay")
    file = lake.write_pipeline(database, chunk_rows=10, group_rows=10_000)
    made = World(mysql_server, database, lake, file, RunContext.for_pipeline(Pipeline.load(file)))
    for name in TABLES:
        made.write(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)")
        made.write(f"INSERT INTO {name} VALUES {', '.join(f'({i}, {i})' for i in range(1, 31))}")
    yield made
    for store in made.stores:
        store.close()


# ---------------------------------------------------------------- the stream


def test_a_batch_that_is_applied_twice(world: World) -> None:
    world.take_snapshot()
    epoch = world.begin()
    world.write("INSERT INTO a VALUES (100, 1)", "INSERT INTO b VALUES (100, 1)", "DELETE FROM b WHERE id = 3")
    manifest = epoch.job.stage_range(epoch.section_start, world.end(epoch, epoch.section_start), "0")
    assert epoch.apply_batch(manifest).changes == 3
    assert not world.differences()
    before = world.versions()
    assert epoch.apply_batch(manifest).changes == 0
    assert world.versions() == before

    # The same again without the resume point: each table's own marker says what it has.
    again = world.forget_progress(epoch, epoch.section_start)
    tables = world.versions()[:2]
    assert (
        again.apply_batch(
            again.job.stage_range(again.section_start, world.end(again, again.section_start), "1")
        ).changes
        == 3
    )
    assert world.versions()[:2] == tables and not world.differences()


def test_an_older_batch_after_a_newer_one(world: World) -> None:
    world.take_snapshot()
    epoch = world.begin()
    world.write("INSERT INTO a VALUES (100, 1)", "INSERT INTO b VALUES (100, 1)", "UPDATE a SET v = 7 WHERE id = 5")
    middle = world.end(epoch, epoch.section_start)
    world.write("DELETE FROM a WHERE id = 100", "DELETE FROM b WHERE id = 100", "UPDATE a SET v = 8 WHERE id = 5")
    end = world.end(epoch, middle)
    older = epoch.job.stage_range(epoch.section_start, middle, "0")
    epoch.apply_batch(epoch.job.stage_range(epoch.section_start, end, "1"))
    before = world.versions()
    epoch.apply_batch(older)
    assert world.versions() == before and not world.differences()

    again = world.forget_progress(epoch, epoch.section_start)
    tables = world.versions()[:2]
    again.apply_batch(again.job.stage_range(again.section_start, middle, "0"))
    assert world.versions()[:2] == tables, "the deleted rows must not come back, not even for a while"
    assert not world.differences()


def test_a_batch_that_begins_behind_the_resume_point(world: World) -> None:
    world.take_snapshot()
    epoch = world.begin()
    world.write("INSERT INTO a VALUES (100, 1)")
    middle = world.end(epoch, epoch.section_start)
    world.write("INSERT INTO a VALUES (101, 1)")
    gap = epoch.job.stage_range(middle, world.end(epoch, middle), "0")
    before = world.versions()
    with pytest.raises(TerminalError, match="a batch begins at .*, but the sink is at"):
        epoch.apply_batch(gap)
    assert world.versions() == before


def test_what_the_snapshot_holds_is_dropped(world: World) -> None:
    """In the end it would come out the same; but rows that were deleted long ago would be seen again in between."""
    world.context.plans.ensure(world.store)
    world.write("DELETE FROM a WHERE id = 15", "UPDATE b SET v = 1 WHERE id = 7")
    world.write("INSERT INTO a VALUES (15, 2)", "UPDATE b SET id = 1007 WHERE id = 7")
    world.write("DELETE FROM a WHERE id = 15", "UPDATE b SET id = 7 WHERE id = 1007")
    # When this comes, b has a marker of the stream.
    for sql in ("DELETE FROM b WHERE id = 9", "INSERT INTO b VALUES (9, 1)", "DELETE FROM b WHERE id = 9"):
        world.write(sql)
    world.take_snapshot()
    epoch = world.begin()
    held, versions = world.ids(), world.versions()
    assert 15 not in held["a"] and 7 in held["b"]
    with closing(epoch.job.make_planner()) as planner:
        at, last = epoch.section_start, world.end(epoch, epoch.section_start)
        while at.at < last.at:
            end = planner.find_batch_end(at, 1)
            epoch.apply_batch(epoch.job.stage_range(at, end, "0"))
            at = end
            # Beyond the largest key of the plan the snapshot holds nothing: 1007 may come and go, but nothing else.
            assert world.ids()["a"] == held["a"] and set(world.ids()["b"]) - {1007} == set(held["b"])
    assert world.versions()[0] == versions[0] and not world.differences()


def test_killed_between_the_tables_of_a_batch(world: World, nursery: Nursery) -> None:
    """One table has the whole batch, the other nothing of it; what comes next is cut in another way."""
    world.take_snapshot()
    world.write("INSERT INTO a VALUES (100, 1)", "INSERT INTO b VALUES (100, 1)", "UPDATE a SET v = 7 WHERE id = 5")
    world.write("DELETE FROM a WHERE id = 100", "DELETE FROM b WHERE id = 100", "UPDATE a SET v = 8 WHERE id = 5")
    world.write("INSERT INTO a VALUES (102, 1)", "INSERT INTO b VALUES (102, 1)")
    assert world.killed_at(nursery, "table.after_commit:1")
    held = world.ids()
    assert (102 in held["a"], 102 in held["b"]) == (True, False)

    epoch = world.begin()
    tables = world.versions()
    with closing(epoch.job.make_planner()) as planner:
        at, last = epoch.section_start, world.end(epoch, epoch.section_start)
        while at.at < last.at:
            end = planner.find_batch_end(at, 1)  # one transaction a batch
            epoch.apply_batch(epoch.job.stage_range(at, end, "0"))
            at = end
            assert 100 not in world.ids()["a"], "a deleted row came back"
    assert world.versions()[0] == tables[0] and not world.differences()


# ---------------------------------------------------------------- who has been overtaken


def test_an_older_epoch(world: World) -> None:
    world.take_snapshot()
    old = world.begin()
    checkpoint = world.context.local_files.checkpoint_folder(old.number, 0)
    checkpoint.mkdir(parents=True)
    world.write("INSERT INTO a VALUES (100, 1)", "INSERT INTO b VALUES (100, 1)")
    staged = old.job.stage_range(old.section_start, world.end(old, old.section_start), "0")
    new = world.begin()
    assert not checkpoint.exists(), "Spark must not continue where the old one stood"
    staged_again = new.job.stage_range(new.section_start, world.end(new, new.section_start), "0")
    assert staged["staged"] and not world.staged(staged)  # the new epoch has removed what the old one staged
    before = world.versions()
    with pytest.raises(FencedError):
        old.apply_batch(staged_again)
    assert world.versions() == before
    new.apply_batch(staged_again)
    assert not world.differences()


@pytest.mark.parametrize("moment", ["table.before_commit", "upsert", "table.after_commit", "progress.before_commit"])
def test_overtaken_in_the_middle_of_a_batch(world: World, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new epoch begins while the old one is at work: what the old one has not committed, it never commits."""
    world.take_snapshot()
    old = world.begin()
    world.write("INSERT INTO a VALUES (100, 1)", "INSERT INTO b VALUES (100, 1)")
    staged = old.job.stage_range(old.section_start, world.end(old, old.section_start), "0")
    taken: list[Epoch] = []
    held: list[dict[str, list[int]]] = []

    def take_over(name: str) -> None:
        if name == moment and not taken:
            contents = {path: path.read_bytes() for path in world.staged(staged)}
            taken.append(world.begin())
            for path, content in contents.items():  # so that it is the fence that stops the old one, not a lost file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            held.append(world.ids())

    whole = ChangeMerger.plan_edit

    def merge(merge: ChangeMerger, change: Any) -> Any:
        actions = whole(merge, change)
        take_over("upsert")
        return actions

    monkeypatch.setattr(apply, "failpoint", take_over)
    monkeypatch.setattr(ChangeMerger, "plan_edit", merge)
    with pytest.raises(FencedError):
        old.apply_batch(staged)
    assert taken and world.ids() == held[0]
    new = taken[0]
    assert new.section_start == old.section_start
    new.apply_batch(new.job.stage_range(new.section_start, world.end(new, new.section_start), "0"))
    assert not world.differences()


@pytest.mark.parametrize("begins_with", [[], ["TRUNCATE TABLE a"]], ids=["rows", "truncate"])
def test_two_runs_with_one_epoch(world: World, begins_with: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No fence tells them apart, as when the bookkeeping was lost between two starts: the markers do."""
    world.take_snapshot()
    epoch = world.begin()
    world.write(*begins_with, "INSERT INTO a VALUES (100, 1)")
    middle = world.end(epoch, epoch.section_start)
    older = epoch.job.stage_range(epoch.section_start, middle, "0")
    world.write("DELETE FROM a WHERE id = 100", "INSERT INTO a VALUES (101, 1)")
    newer = epoch.job.stage_range(epoch.section_start, world.end(epoch, middle), "1")
    held = chunk_group.read_coverage(world.context, epoch.plan, world.targets) or []
    progress = world.context.sink.resume_point()
    twin = apply.Applier(world.context, epoch.plan, world.targets, held, progress, epoch.number)
    moments: list[str] = []

    def failpoint(name: str) -> None:
        moments.append(name)
        if len(moments) == 1:
            twin.apply(newer)

    monkeypatch.setattr(apply, "failpoint", failpoint)
    epoch.apply_batch(older)
    assert moments[0] == "table.before_commit"
    assert 100 not in world.ids()["a"] and 101 in world.ids()["a"], "a deleted row came back"


# ---------------------------------------------------------------- the snapshot


def test_a_group_that_is_published_twice(world: World) -> None:
    """Of two attempts the first one's files and watermarks stand."""
    world.take_snapshot()
    plan = world.context.plans.require()
    held = chunk_group.read_coverage(world.context, plan, world.targets)
    world.write("UPDATE a SET v = 99")
    first = chunk_group.ChunkGroup(world.context, plan, 0).read_manifest(1)
    late = json.loads(json.dumps(first).replace("slice-", "late-"))
    for chunk in (chunk for entry in late for chunk in entry["chunks"]):
        chunk["hw"][1] += 1
    before = [target.load_log().version for target in world.targets]
    chunk_group.ChunkGroup(world.context, plan, 0, world.targets).publish(2, late)
    assert [target.load_log().version for target in world.targets] == before
    assert chunk_group.read_coverage(world.context, plan, world.targets) == held
    run_epoch_in_process(world.begin())
    assert not world.differences()


def test_two_processes_with_one_number(world: World) -> None:
    """The bookkeeping was lost between their starts, and both have read the group: the first manifest stands."""
    world.take_snapshot()
    plan = world.context.plans.require()
    first = chunk_group.ChunkGroup(world.context, plan, 0).read_manifest(1)
    late = json.loads(json.dumps(first).replace("slice-", "late-"))
    assert chunk_group.ChunkGroup(world.context, plan, 0).write_manifest(1, late) == first
    assert chunk_group.ChunkGroup(world.context, plan, 0).read_manifest(1) == first


def test_an_older_snapshot(world: World) -> None:
    plan = world.context.plans.ensure(world.store)
    for target in world.targets:
        target.create(plan.pipeline)
        fence = chunk_group.generation_fence(plan, 0)
        target.raise_fence(Fence(fence.name, fence.value + 1))
    with pytest.raises(FencedError):
        world.take_snapshot()
    assert world.ids() == {"a": [], "b": []}


def test_attempts_go_on_counting_without_the_bookkeeping(world: World, nursery: Nursery) -> None:
    """A manifest in the sink, once written, belongs to its attempt for ever."""
    assert world.killed_at(nursery, "group.after_commit:1")
    manifest = Path(world.context.storage.location(world.context.layout.attempt_manifest(1, 0, 1)))
    before = manifest.stat().st_mtime_ns
    world.lake.lose("bookkeeping")
    world.take_snapshot()
    assert manifest.stat().st_mtime_ns == before
    app = chunk_group.group_marker(world.context.plans.require(), 0)
    assert [target.markers().get(app) for target in world.targets] == [1, 2]
    run_epoch_in_process(world.begin())
    assert not world.differences()


def test_a_stream_without_the_bookkeeping(world: World) -> None:
    world.take_snapshot()
    run_epoch_in_process(world.begin())
    world.store.close()
    world.stores.clear()
    world.lake.lose("bookkeeping")
    world.write("INSERT INTO a VALUES (100, 1)")
    epoch = world.begin()
    assert epoch.number == 2
    run_epoch_in_process(epoch)
    assert not world.differences()
