"""Batches of the stream into an object store: how often it is asked, in which order, and what unknown answers do."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.apply.applier import epoch_fence
from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.maintenance import table_maintenance
from airflow_provider_cdc.model.errors import FencedError, NotReadyError
from airflow_provider_cdc.observe.status import read_status
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.storage.request_counts import count_requests_in, format_counts, sum_counts
from airflow_provider_cdc.snapshot.run import run_group, run_snapshot
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.stream import epoch as epoch_module
from airflow_provider_cdc.stream import run as stream
from airflow_provider_cdc.stream.epoch import Epoch
from tests.support.epochs import run_epoch_in_process
from tests.support.harness import Lake
from tests.support.oracle import compare_database
from tests.support.s3 import S3
from tests.support.servers import MySQLServer
from tests.support.store_lake import StoreLake
from tests.support.store_proxy import LATE, Fault, Request, StoreProxy, What, counted_by, in_a_row

TABLES = ("a", "b", "c", "d")
#: A commit of a table, and of the resume point.
_OF_TABLE, _OF_PROGRESS = re.compile("^lake/t_.*/_delta_log/"), re.compile("^lake/_cdc_progress/.*/_delta_log/")


@dataclass
class World:
    """Four small tables, their pipeline, and its phases in this process."""

    server: MySQLServer
    database: str
    proxy: StoreProxy
    place: S3
    context: RunContext
    store: StateDatabase
    snapshot: list[Request]

    def write(self, *tables: str, value: int) -> None:
        """One transaction that changes a row and adds one in each table."""
        with closing(self.server.connect(database=self.database)) as connection, connection.cursor() as cursor:
            connection.begin()
            for table in tables:
                cursor.execute(f"UPDATE {table} SET v = {value} WHERE id = {value % 30 + 1}")
                cursor.execute(f"INSERT INTO {table} VALUES ({1000 + value}, {value})")
            connection.commit()

    def begin(self) -> Epoch:
        for number in range(1, 10):
            self.store.end_epoch(self.context.pipeline.name, number, "stopped")
        return stream.begin_epoch(self.context, self.store, catch_up=False)

    def batch(self, epoch: Epoch) -> dict[str, Any]:
        """Stage what is new."""
        start = epoch.applier.offset
        with closing(epoch.job.make_planner()) as planner:
            return epoch.job.stage_range(start, planner.find_batch_end(start, 1 << 40), "0")

    def differences(self) -> str:
        return "\n".join(map(str, compare_database(self.server, self.database, self.place)))

    def version(self, table: str) -> int:
        place = self.place.under(f"{self.database}/{table}")
        return int(DeltaTable(place.uri(), storage_options=place.options).version())


@pytest.fixture
def world(
    s3: S3,
    mysql_server: MySQLServer,
    cdc_user: dict[str, str],
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    place = s3.under("lake")
    with StoreProxy(place) as proxy, closing(mysql_server.connect(database=database)) as connection:
        with connection.cursor() as cursor:
            for name in TABLES:
                cursor.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)")
                cursor.execute(f"INSERT INTO {name} VALUES {', '.join(f'({i}, {i})' for i in range(1, 31))}")
        lake = StoreLake(place, proxy.place, "store", tmp_path / "host")
        monkeypatch.setenv("AIRFLOW_CONN_CDC_SOURCE", mysql_server.uri(**cdc_user))
        for name, value in lake.connections.items():
            monkeypatch.setenv(name, value)
        context = RunContext.for_pipeline(Pipeline.load(lake.write_pipeline(database)))
        with closing(context.open_state_database()) as store:
            plan = context.plans.ensure(store)

            def snapshot() -> None:
                for group in plan.groups():
                    run_group(context, store, plan, group, run_in_threads, holder="test")

            yield World(mysql_server, database, proxy, place, context, store, proxy.record(snapshot))


def warmed_up(world: World) -> Epoch:
    """An epoch that has applied some batches: plan and tables are known then."""
    epoch = world.begin()
    for value in (1, 2):
        world.write(*TABLES, value=value)
        epoch.apply_batch(world.batch(epoch))
    return epoch


def ends(requests: list[Request], what: What, key: re.Pattern[str]) -> list[Request]:
    return [r for r in requests if r.what == what and key.search(r.key)]


def test_a_store_that_begins_to_let_several_be_the_first(world: World) -> None:
    """Each epoch looks at it again: of two commits of one version the first would be lost."""
    warmed_up(world)
    version, original = world.version(TABLES[0]), world.proxy.ask
    world.proxy.ask = lambda method, path, headers, body: original(  # type: ignore[method-assign]
        method, path, [(k, v) for k, v in headers if k.lower() != "if-none-match"], body
    )
    with pytest.raises(NotReadyError, match="does not let only one writer create a file"):
        world.begin()
    assert world.version(TABLES[0]) == version


def test_a_batch_into_one_table_makes_few_requests_one_after_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = warmed_up(world)
    monkeypatch.setattr(
        epoch_module, "_PUBLISH_CHECK_SECONDS", 3600
    )  # looks for groups that were read again are not counted
    world.write("a", value=7)
    # While it is said how far the batch goes, its files are read: held up, the one meets the other on any machine.
    world.proxy.meet("delay", "put", "/batch.json$")
    found = world.proxy.record(lambda: epoch.apply_batch(world.batch(epoch)))
    said = [(r.what, r.key.removeprefix("lake/")) for r in found]
    print(*said, sep="\n")
    assert in_a_row(found) <= 6, said
    assert not [r for r in found if r.what in ("list", "head")], said
    assert not world.differences()


def test_what_status_says_of_the_store_is_what_the_store_has_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the snapshot's groups, the last batch, and the whole run: with what tasks and other threads have asked."""
    found = read_status(world.context)
    assert found["snapshot"]["traffic"] == sum_counts(group["traffic"] for group in found["groups"])
    assert found["snapshot"]["traffic"] == counted_by(world.snapshot)

    monkeypatch.setattr(table_maintenance, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(
        epoch_module, "_PUBLISH_CHECK_SECONDS", 3600
    )  # looks for groups that were read again are not counted
    monkeypatch.setattr(compaction, "FANOUT", 3)
    lines: list[str] = []
    monkeypatch.setattr(world.context.reporter, "line", lambda text, *_: lines.append(text))
    last: dict[str, int] = {}

    def run() -> None:
        world.write(*TABLES, value=5)
        epoch = world.begin()
        with stream._EpochLifecycle(epoch):
            for value in range(8):
                world.write(*TABLES, value=100 + value)
                with count_requests_in(epoch.request_counts):
                    manifest = world.batch(epoch)  # the plan is read once
                if value == 7:
                    with count_requests_in(epoch.request_counts):
                        epoch.maintenance.__exit__()  # from now on nothing else asks the store
                applied = world.proxy.record(partial(epoch.apply_batch, manifest))
                last.clear()
                last.update(sum_counts([counted_by(applied), manifest["asked"]]))
                time.sleep(0.3)

    seen = world.proxy.record(run)
    traffic = read_status(world.context)["stream"]["traffic"]
    assert traffic["run"] == counted_by(seen)
    assert [r for r in seen if "/part-" in r.key], "compactions are part of the run"
    assert traffic["last_batch"] == last and last["put"] >= 4
    batch_lines = [line for line in lines if line.startswith("batch to ")]  # the observer writes lines, too
    assert batch_lines[-1].endswith(f"; {format_counts(last)}")


def test_nothing_is_said_of_a_store_where_there_is_none(
    mysql_server: MySQLServer, cdc_user: dict[str, str], database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CDC_SOURCE", mysql_server.uri(**cdc_user))
    with closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY)")
        cursor.execute("INSERT INTO t VALUES (1)")
    context = RunContext.for_pipeline(Pipeline.load(Lake(tmp_path / "lake", "local").write_pipeline(database)))
    with closing(context.open_state_database()) as store:
        run_snapshot(context, store, context.plans.ensure(store), run_in_threads)
        epoch = stream.begin_epoch(context, store, catch_up=True)
        run_epoch_in_process(epoch)
    found = read_status(context)
    assert found["snapshot"]["traffic"] is None and found["stream"]["traffic"] is None
    assert [group["traffic"] for group in found["groups"]] == [None]


def test_tables_are_committed_at_the_same_time_and_all_before_the_resume_point(world: World) -> None:
    epoch = warmed_up(world)
    world.write(*TABLES, value=7)
    world.proxy.meet("delay", "create", f"/{TABLES[1]}/_delta_log/")
    world.proxy.meet("delay", "put", "/batch.json$")
    found = world.proxy.record(lambda: epoch.apply_batch(world.batch(epoch)))
    commits = ends(found, "create", _OF_TABLE)
    assert len(commits) == len(TABLES) and in_a_row(commits) < len(TABLES)
    resume_point, said = ends(found, "create", _OF_PROGRESS), ends(found, "put", re.compile("/batch.json$"))
    assert len(resume_point) == len(said) == 1
    assert said[0].end <= min(r.begin for r in commits), "a table was ahead before it was said how far"
    assert max(r.end for r in commits) <= resume_point[0].begin, "the resume point was ahead of a table"
    assert not world.differences()


def test_a_table_that_fails_beside_others_keeps_the_resume_point_back(world: World) -> None:
    epoch = warmed_up(world)
    world.write(*TABLES, value=7)
    manifest = world.batch(epoch)
    before = [world.version(table) for table in TABLES]
    # As if a newer run had come so far.
    open_sink_tables(world.context, epoch.plan)[1].raise_fence(epoch_fence("store", epoch.number + 1))
    stood = world.context.sink.resume_point().read()
    with pytest.raises(FencedError):
        epoch.apply_batch(manifest)
    assert [world.version(table) - old for table, old in zip(TABLES, before, strict=True)] == [1, 1, 1, 1]
    assert world.context.sink.resume_point().read() == stood == epoch.applier.offset
    again = world.begin()
    again.apply_batch(world.batch(again))
    assert not world.differences()


@pytest.mark.one_of("commit")
@pytest.mark.parametrize("fault", ["lost", "denied", "late", "error", "slow_down", "conflict", "cut"])
@pytest.mark.parametrize("commit", ["a/_delta_log/", "_cdc_progress/.*/_delta_log/"], ids=["table", "resume-point"])
def test_a_commit_whose_answer_says_nothing(world: World, commit: str, fault: Fault) -> None:
    """It stands once, whether the store had heard of it or not; also if it is done once more when all is over."""
    epoch = warmed_up(world)
    before = world.version("a")
    world.write(*TABLES, value=7)
    world.proxy.meet(fault, "create", commit)
    epoch.apply_batch(world.batch(epoch))
    assert not world.proxy.waiting and world.proxy.met == {fault: 1}
    assert world.version("a") == before + 1 and not world.differences()
    world.write(*TABLES, value=8)
    epoch.apply_batch(world.batch(epoch))
    if fault == "late":
        time.sleep(LATE)
    assert world.version("a") == before + 2 and not world.differences()
