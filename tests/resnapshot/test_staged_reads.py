"""Chunk groups that are read again: before a stream, beside one and between two; killed, raced for, taken over.

``python -m tests.resnapshot.test_staged_reads`` is the process that some of these tests kill: it reads one group, or
streams.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.apply import applier as apply
from airflow_provider_cdc.apply.applier import stream_marker
from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup
from airflow_provider_cdc.chunk_groups.task import SnapshotJob, run_in_threads
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.progress import ChunkProgress
from airflow_provider_cdc.model.supervision import LOST_AFTER_SECONDS
from airflow_provider_cdc.mysql.client.identity import binlog_end
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.resnapshot.staged_files import list_pending_reads, remove_request
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.storage.storage import read_json, write_json
from airflow_provider_cdc.snapshot import claims
from airflow_provider_cdc.snapshot.group_result import GroupResult
from airflow_provider_cdc.snapshot.run import adopt_published_groups, run_group
from airflow_provider_cdc.stream.epoch import Epoch
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.system.failpoints import ENV_VARIABLE
from tests import ROOT
from tests.support.chance import killed_at
from tests.support.chunk_rows import chunk_rows
from tests.support.cli import Cli, asked_by, read_only
from tests.support.delta import as_delta, put
from tests.support.epochs import run_epoch_in_process, stage_everything
from tests.support.harness import KILLED
from tests.support.oracle import check_ledger, compare_database
from tests.support.servers import MySQLServer
from tests.support.workload import Writers, make_foreign, make_shop

ME = "dag/run/snapshot/1"
#: An integer key, a key that does not tell cases apart, and one of two columns; a group may hold chunks of two tables.
TABLES = {
    "a_int": ("id INT PRIMARY KEY, v INT", "(@ * 10, 1)"),
    "b_text": ("k VARCHAR(20) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY, v INT", "(CONCAT('Kéy', 100 + @, '0'), 1)"),
    "c_two": (
        "a INT, b VARCHAR(9) COLLATE utf8mb4_0900_ai_ci, v INT, PRIMARY KEY (a, b)",
        "(@ DIV 10 * 10, CONCAT('x', 10 + @ MOD 10, '0'), 1)",
    ),
}
ROWS = 100


class Heard:
    """Reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str, level: int = logging.INFO) -> None:
        self.lines.append(text)

    def progress(self, progress: ChunkProgress) -> None:
        pass


@dataclass
class World:
    """Three small tables, their pipeline, and its phases in this process or in others."""

    server: MySQLServer
    database: str
    cli: Cli

    def write(self, *statements: str) -> None:
        with contextlib.closing(self.server.connect(database=self.database)) as connection:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
            connection.commit()

    def run(
        self,
        group: int,
        me: str = "",
        runner: Callable[[SnapshotJob], Any] = run_in_threads,
        heard: Heard | None = None,
    ) -> GroupResult:
        with self.cli.opened() as (context, store):
            context.reporter = heard or Heard()
            plan = context.plans.ensure(store)
            return run_group(context, store, plan, group, runner, holder="somebody", requested_by=asked_by(me))

    def group(self, number: int) -> ChunkGroup:
        context = self.cli.context
        return ChunkGroup(context, context.plans.require(), number)

    def start(self, group: int | str, me: str = "", failpoint: str = "") -> subprocess.Popen[bytes]:
        """Read a group (or ``stream``) in a process and session of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "tests.resnapshot.test_staged_reads", str(self.cli.file), str(group), me],
            cwd=ROOT,
            env={**os.environ, **self.cli.env, ENV_VARIABLE: failpoint},
            start_new_session=True,
        )

    def killed(self, group: int | str, failpoint: str, me: str = "") -> bool:
        return self.start(group, me, failpoint).wait(60) == KILLED

    @contextlib.contextmanager
    def streaming(self) -> Iterator[Epoch]:
        """A stream that runs until the end of the block."""
        with self.cli.opened() as (context, store), ThreadPoolExecutor(1) as pool:
            epoch = begin_epoch(context, store, catch_up=False)
            run = pool.submit(run_epoch_in_process, epoch)
            try:
                yield epoch
            finally:
                epoch.stop.set()
                run.result(60)

    def live(self, name: str) -> set[str]:
        """Files of a table."""
        return {Path(uri).relative_to(self.cli.sink / self.database / name).as_posix() for uri in self.uris(name)}

    def uris(self, name: str) -> list[str]:
        found = DeltaTable(str(self.cli.sink / self.database / name)).file_uris()
        return [uri.removeprefix("file://") for uri in found]

    def damage(self, number: int) -> None:
        """Behind the project's back, in each table of a group: a wrong row, one that is missing, one too many."""
        group = self.group(number)
        for index, target in group.tables.items():
            damage(as_delta(target), f"snapshot/1/{number}/", group.plan.tables[index].key)

    def differences(self) -> str:
        return "\n".join(map(str, compare_database(self.server, self.database, self.cli.sink)))


def damage(target: DeltaSinkTable, home: str, key: tuple[str, ...]) -> None:
    path = min(path for path in target.load_log().files if path.startswith(home))
    found = pq.read_table(target.storage.location(path), partitioning=None).to_pylist()
    assert len(found) >= 3
    wrong, orphan = {**found[1], "v": -1}, dict(found[1])
    last = key[-1]
    orphan[last] = orphan[last] + 1 if isinstance(orphan[last], int) else f"{orphan[last]}!"
    rows = pa.Table.from_pylist([wrong, orphan, *found[2:]], schema=target.schema)
    stat = key[0] if len(key) == 1 and isinstance(wrong[key[0]], int) else None
    put(target, rows, instead_of=[path], stat=stat)


@pytest.fixture
def world(mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]) -> World:
    for name, (columns, row) in TABLES.items():
        mysql_server.execute(f"CREATE TABLE `{database}`.{name} ({columns})")
        values = ", ".join(row.replace("@", str(n)) for n in range(ROWS))
        mysql_server.execute(f"INSERT INTO `{database}`.{name} VALUES {values}")
        mysql_server.execute(f"ANALYZE TABLE `{database}`.{name}")
    cli = Cli(
        tmp_path / "p",
        mysql_server,
        rf"{database}\..*",
        name=database,
        user=cdc_user,
        snapshot={"chunk_rows": 20, "group_rows": 60, "parallelism": 1},
    )
    return World(mysql_server, database, cli)


@pytest.fixture
def copied(world: World) -> World:
    """The snapshot is taken; ``ME`` has finished every group."""
    with world.cli.opened() as (context, store):
        plan = context.plans.ensure(store)
        for number in plan.groups():
            found = run_group(
                context, store, plan, number, run_in_threads, holder="somebody", requested_by=asked_by(ME)
            )
            assert found.outcome == "published"
    assert [sorted(world.group(n).tables) for n in range(5)] == [[0], [0, 1], [1], [1, 2], [2]]
    assert not world.differences()
    return world


def test_a_stream_waits_for_every_group(world: World) -> None:
    """Also if each table has one that is published."""
    with world.cli.opened() as (context, store):
        plan = context.plans.ensure(store)
        for number in plan.groups():
            with pytest.raises(NotReadyError, match="is not complete"):
                begin_epoch(context, store, catch_up=True)
            run_group(context, store, plan, number, run_in_threads, holder="somebody", requested_by=asked_by(ME))
    world.cli.catch_up()


CHANGES = (
    "UPDATE a_int SET v = v + 1 WHERE id % 30 = 0",
    "DELETE FROM a_int WHERE id % 70 = 0",
    "UPDATE a_int SET id = id + 3 WHERE id % 110 = 0",
    "INSERT INTO a_int VALUES (555, 5), (777, 5), (-4, 5), (5000, 5)",
    "UPDATE b_text SET k = UPPER(k) WHERE k LIKE '%50'",
    "UPDATE b_text SET k = CONCAT(k, 'z') WHERE k LIKE '%70'",
    "DELETE FROM b_text WHERE k LIKE '%30'",
    "INSERT INTO b_text VALUES ('kEY1555', 5), ('a', 5), ('zz', 5)",
    "UPDATE c_two SET a = a + 5, b = UPPER(b) WHERE b = 'x150'",
    "DELETE FROM c_two WHERE b = 'x120'",
    "UPDATE c_two SET v = v + 1 WHERE a = 50",
)


def test_a_clear_reads_it_again_and_others_adopt_it(copied: World) -> None:
    """Whoever has adopted it since, and where the bookkeeping was lost; also for a task that had only adopted it."""
    versions = {name: DeltaTable(str(copied.cli.sink / copied.database / name)).version() for name in TABLES}
    for me in ("", "another", "another one"):
        found = copied.run(1, me)
        assert (found.outcome, found.attempt, found.rows_per_second) == ("adopted", 1, None)
    assert {n: DeltaTable(str(copied.cli.sink / copied.database / n)).version() for n in TABLES} == versions
    with copied.cli.opened() as (_, store):
        assert store.group(copied.database, 1, 1).state == "done"
    for file in (copied.cli.sink / "_cdc" / copied.database).glob("bookkeeping.db*"):
        file.unlink()
    found = copied.run(1, f"{ME}#5")
    assert copied.run(1, f"{ME}#5", never).outcome == "adopted"  # its retry: nobody has asked again
    assert (found.outcome, found.attempt, found.tables) == (
        "replaced",
        2,
        (f"{copied.database}.a_int", f"{copied.database}.b_text"),
    )
    shown = found.to_json()
    assert shown["rows"] == found.rows == 60 and shown["chunks"] == 3
    assert Position.from_json(shown["min_lw"]) <= Position.from_json(shown["max_hw"])
    assert copied.run(1, "another").outcome == "replaced"
    assert copied.run(1, ME).outcome == "replaced"


@pytest.mark.parametrize("failpoint", ["group.after_commit:2", "books.after_chunks:2", "books.after_group"])
def test_a_retry_adopts_what_its_try_had_published_when_it_died(world: World, failpoint: str) -> None:
    assert world.killed(1, failpoint, f"{ME}#1")
    assert world.run(1, f"{ME}#1", never).outcome == "adopted"
    assert world.run(1, f"{ME}#2").outcome == "replaced"
    again = failpoint.replace("group.after_commit", "reread.after_commit").replace("chunks:2", "chunks")
    assert world.killed(1, again, f"{ME}#3")
    assert world.run(1, f"{ME}#3", never).outcome in ("adopted", "replaced")
    with world.cli.opened() as (_, store):
        assert store.group(world.database, 1, 1).state == "done"
    assert world.run(1, f"{ME}#3", never).outcome == "adopted"


@pytest.mark.parametrize("number", [0, 1, 3])
def test_before_a_stream(copied: World, number: int) -> None:
    copied.damage(number)
    assert copied.differences()
    before = {name: copied.live(name) for name in TABLES}
    found = copied.run(number, ME)
    assert (found.outcome, found.attempt) == ("replaced", 2)
    assert not copied.differences()
    for name in TABLES:
        kept = {f for f in before[name] if f.startswith("snapshot/") and f"/1/{number}/" not in f}
        own = copied.live(name) - kept
        assert kept <= copied.live(name) and all(f.startswith(f"snapshot/1/{number}/2/") for f in own)
    with copied.cli.opened() as (context, store):
        row = store.group(copied.database, 1, number)
        assert (row.state, row.heartbeat_at) == ("done", None)
        assert not list_pending_reads(context, context.plans.require())
    copied.write(*CHANGES)
    copied.cli.catch_up()
    assert not copied.differences()


def test_rows_that_changed_before_a_stream(copied: World) -> None:
    """The groups are then exact as of different positions, and each has its own share in the handover."""
    copied.write(*CHANGES)
    for number in (0, 1, 3):
        assert copied.run(number, ME).outcome == "replaced"
        copied.write(*CHANGES[:2], "INSERT INTO a_int VALUES (1, 1)", "DELETE FROM a_int WHERE id = 1")
    copied.cli.catch_up()
    assert not copied.differences()


def test_a_stream_that_begins_in_the_meantime(copied: World) -> None:
    """It fences the tables and then looks at what they hold: the job must not replace anything behind its back."""
    copied.damage(1)
    copied.write(*CHANGES)

    def run(job: SnapshotJob) -> list[dict[str, Any]]:
        copied.cli.catch_up()
        copied.write("UPDATE a_int SET v = v + 7", "DELETE FROM b_text WHERE k LIKE '%60'")
        return run_in_threads(job)

    heard = Heard()
    found = copied.run(1, ME, run, heard)
    assert (found.outcome, found.attempt) == ("staged", 2)
    assert any("no stream is running: the next one will publish it" in line for line in heard.lines)
    assert copied.group(1).published_by_table() == {0: 1, 1: 1}
    copied.cli.catch_up()
    assert copied.group(1).published_by_table() == {0: 2, 1: 2}
    assert not copied.differences()


def test_between_two_streams(copied: World) -> None:
    """All groups are staged, one of them twice; the next stream publishes them."""
    copied.write(*CHANGES[:6])
    copied.cli.catch_up()
    for name, key in (("a_int", ("id",)), ("b_text", ("k",)), ("c_two", ("a", "b"))):
        tables = [as_delta(table) for n in range(5) for table in copied.group(n).tables.values()]
        target = next(table for table in tables if table.storage.location().endswith(f"/{name}"))
        damage(target, "", key)
    copied.write(*CHANGES[6:])
    assert [copied.run(n, ME).outcome for n in range(5)] == ["staged"] * 5
    copied.write("UPDATE a_int SET v = v + 7", "DELETE FROM a_int WHERE id < 300", "UPDATE b_text SET k = LOWER(k)")
    assert copied.run(1, ME).attempt == 3
    copied.write("DELETE FROM c_two WHERE b = 'X160'", "INSERT INTO a_int VALUES (301, 3), (-9, 3)")
    with copied.cli.opened() as (context, store):
        assert [s.attempt for s in list_pending_reads(context, context.plans.require())] == [2, 3, 2, 2, 2]
        assert {g.state for g in store.groups(copied.database, 1)} == {"done"}
    copied.cli.catch_up()
    assert not copied.differences()
    with copied.cli.opened() as (context, store):
        assert not list_pending_reads(context, context.plans.require())
        for row in store.groups(copied.database, 1):
            held = copied.group(row.group_no).read_totals(copied.group(row.group_no).published_by_table())
            assert row.rows == held.rows
    copied.write("UPDATE a_int SET v = 0 WHERE id > 500", "UPDATE b_text SET v = 0", "UPDATE c_two SET v = 0")
    copied.cli.catch_up()
    assert not copied.differences()


def test_of_two_requests_the_newer_counts(copied: World) -> None:
    """A job was killed after it had staged its attempt, and before it took the older one away."""
    copied.cli.catch_up()
    assert copied.run(1, ME).attempt == 2
    with copied.cli.opened() as (context, _):
        plan = context.plans.require()
        folder = context.layout.staged_reads_folder(plan.generation)
        ((request, _),) = context.storage.list(folder)
        value = read_json(context.storage, request)
        for attempt in (1, 9, 4):
            write_json(context.storage, f"{folder}/1-{attempt}.json", {**value, "attempt": attempt})
        assert [(s.group, s.attempt) for s in list_pending_reads(context, plan)] == [(1, 9)]


def test_a_table_that_is_ahead_of_the_resume_point(copied: World) -> None:
    """A run died between the commit of a table and that of the resume point: the table must not go back."""
    copied.write(*CHANGES)
    copied.cli.catch_up()
    assert copied.run(0, ME).outcome == "staged"
    with copied.cli.opened() as (context, store):
        (staged,) = list_pending_reads(context, context.plans.require())
        epoch = begin_epoch(context, store, catch_up=False)
        assert staged.high_watermark <= epoch.applier.offset.at
        copied.write("UPDATE a_int SET v = 99 WHERE id < 200", "INSERT INTO a_int VALUES (303, 3)")
        with killed_at("progress.before_commit", apply):
            epoch.applier.apply(stage_everything(epoch))
        store.end_epoch(copied.database, epoch.number, "failed")
        before = copied.group(0).tables[0].markers().get(stream_marker(copied.database))
        assert before is not None and before > epoch.plan.timeline.seq(epoch.section_start.at)
        assert not copied.differences()
        again = begin_epoch(context, store, catch_up=True)
        assert again.section_start == epoch.section_start
        again.publish_pending()
        assert copied.group(0).published_by_table() == {0: 2}
        assert copied.group(0).tables[0].markers().get(stream_marker(copied.database)) == before
        assert not copied.differences()
        run_epoch_in_process(again)
    assert not copied.differences()


@pytest.mark.parametrize("kind", ["shop", "foreign"])
def test_beside_a_stream_with_writers(
    mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str], kind: str
) -> None:
    with contextlib.closing(mysql_server.connect()) as connection:
        if kind == "shop":
            make_shop(connection, database, 3000, addresses=1000, orders=1000)
        else:
            make_foreign(connection, database, 0.01)
    settings = {"snapshot": {"chunk_rows": 250, "group_rows": 2500}}
    cli = Cli(tmp_path / "p", mysql_server, rf"{database}\..*", name=database, user=cdc_user, **settings)
    world = World(mysql_server, database, cli)
    with Writers(mysql_server.connect_args(), kind, database=database, rate=30, seed=3) as writers:
        with cli.opened() as (context, store):
            numbers = list(context.plans.ensure(store).groups())
        for number in numbers:
            world.run(number, ME)
        with world.streaming() as epoch:
            outcomes = []
            for number in numbers[:3]:
                outcomes.append(world.run(number, ME).outcome)
            with ThreadPoolExecutor(2) as pool:  # two jobs at the same time, beside the stream
                outcomes += [f.result().outcome for f in [pool.submit(world.run, n, ME) for n in numbers[:2]]]
            assert outcomes == ["replaced"] * len(outcomes)
            assert epoch.batches > 3
        writers.stop()
    cli.catch_up()
    assert not world.differences()
    if kind == "shop":
        assert not check_ledger(cli.sink, database)


def test_beside_a_stream_that_has_nothing_to_do(copied: World) -> None:
    """Nothing is written, so there are no batches: the driver looks by itself."""
    copied.write(*CHANGES)
    with copied.streaming() as epoch:
        with contextlib.closing(connect(copied.server.connect_args())) as connection:
            end = binlog_end(connection)
        while epoch.applier.offset.at < end:
            time.sleep(0.05)
        for target, key in ((copied.group(0).tables[0], ("id",)), (copied.group(2).tables[1], ("k",))):
            damage(as_delta(target), "", key)
        assert copied.differences()
        heard = Heard()
        assert [copied.run(n, ME, heard=heard).outcome for n in range(4)] == ["replaced"] * 4
        assert any("the stream (epoch 1) publishes it" in line for line in heard.lines)
        assert not copied.differences()


# ---------------------------------------------------------------- killed


@pytest.mark.parametrize(
    "failpoint",
    ["manifest.after_write:1", "reread.after_stage", "reread.before_commit:2", "reread.after_commit:2"],
)
def test_a_job_that_is_killed(copied: World, failpoint: str) -> None:
    copied.damage(1)
    assert copied.killed(1, failpoint, ME)
    if failpoint == "reread.before_commit:2":
        assert copied.group(1).published_by_table() == {0: 2, 1: 1}
    read: list[SnapshotJob] = []

    def run(job: SnapshotJob) -> list[dict[str, Any]]:
        read.append(job)
        return run_in_threads(job)

    assert copied.run(1, "another", run).outcome == "adopted" and not read
    found = copied.run(1, ME, run)
    assert found.outcome == "replaced"
    assert [len(job.slice_numbers) for job in read] == ([1] if failpoint.startswith("manifest") else [])
    assert len(set(copied.group(1).published_by_table().values())) == 1
    assert not any(f.startswith("snapshot/1/1/1/") for name in TABLES for f in copied.live(name))
    assert not copied.differences()
    assert copied.run(1, ME, run).outcome == "replaced" and len(read[-1].slice_numbers) == 2  # asked for once more
    copied.write(*CHANGES)
    copied.cli.catch_up()
    assert not copied.differences()


@pytest.mark.parametrize("failpoint", ["reread.before_commit:2", "reread.after_commit:2"])
def test_a_stream_that_is_killed(copied: World, failpoint: str) -> None:
    copied.write(*CHANGES[:6])
    copied.cli.catch_up()
    copied.write(*CHANGES[6:])
    assert copied.run(1, ME).outcome == "staged"
    copied.write("UPDATE a_int SET v = v + 7", "DELETE FROM b_text WHERE k LIKE '%60'")
    assert copied.killed("stream", failpoint)
    copied.write("UPDATE a_int SET v = v + 7", "INSERT INTO b_text VALUES ('kéy1160', 3)")
    copied.cli.catch_up()
    assert copied.group(1).published_by_table() == {0: 2, 1: 2}
    assert not copied.differences()


def test_each_table_of_a_group_has_an_attempt_of_its_own(copied: World) -> None:
    """One was replaced when the job died, and the request is gone: the other has what its own attempt has."""
    copied.write(*CHANGES)
    assert copied.killed(1, "reread.before_commit:2", ME)
    assert copied.group(1).published_by_table() == {0: 2, 1: 1}
    with copied.cli.opened() as (context, _):
        (staged,) = list_pending_reads(context, context.plans.require())
        remove_request(context, context.plans.require(), 1, staged.attempt)
    copied.cli.catch_up()
    assert not copied.differences()


def test_published_after_its_job_was_killed(copied: World) -> None:
    """The request was fulfilled by the stream: the task's next try must not read the group once more."""
    copied.cli.catch_up()
    assert copied.killed(1, "reread.after_stage", ME)
    copied.cli.catch_up()
    found = copied.run(1, ME, never)
    assert (found.outcome, found.attempt) == ("replaced", 2)
    assert copied.run(1, ME).attempt > 2  # and now it is asked for again


def never(job: SnapshotJob) -> list[dict[str, Any]]:
    raise AssertionError("nothing was to be read")


# ---------------------------------------------------------------- claims


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_of_two_callers_the_second_waits_and_adopts(world: World, again: bool) -> None:
    if again:
        world.run(0, ME)
    inside, go_on = threading.Event(), threading.Event()

    def slowly(job: SnapshotJob) -> list[dict[str, Any]]:
        inside.set()
        assert go_on.wait(30)
        return run_in_threads(job)

    heard = Heard()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(world.run, 0, ME, slowly)
        assert inside.wait(30)
        second = pool.submit(world.run, 0, ME, never, heard)
        time.sleep(2.5)
        assert not second.done()
        go_on.set()
        assert first.result(30).outcome == ("replaced" if again else "published")
        assert second.result(30).outcome == "adopted"
    attempt = 2 if again else 1
    assert heard.lines == [f"group 0 is being read by somebody (attempt {attempt}); waiting"]
    assert world.group(0).published_by_table() == {0: attempt}


def test_a_reader_that_was_killed_here_is_followed_at_once(world: World) -> None:
    assert world.killed(0, "chunk.after_select:2")
    began, heard = time.monotonic(), Heard()
    assert world.run(0, heard=heard).attempt == 2
    assert time.monotonic() - began < LOST_AFTER_SECONDS / 2
    assert not [line for line in heard.lines if "waiting" in line]


def test_a_reader_elsewhere_is_followed_when_its_heart_stands_still(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own clock is wrong by a day; that it moves is all that counts."""
    monkeypatch.setattr(claims, "LOST_AFTER_SECONDS", 2.0)
    with world.cli.opened() as (context, store):
        plan = context.plans.ensure(store)
        key = plan.pipeline, 1, 0
        monkeypatch.setattr("airflow_provider_cdc.state.snapshots.utc_now", skewed)
        assert store.claim_group(*key, holder="a task [elsewhere 1 1]") == 1
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(world.run, 0)
            for _ in range(8):
                time.sleep(0.5)
                assert store.record_group_heartbeat(*key, 1)
                assert not second.done()
            stopped = time.monotonic()
            assert second.result(30).attempt == 2
            assert time.monotonic() - stopped > 1.5
        assert not store.record_group_heartbeat(*key, 1)


def test_nobody_is_followed_while_nothing_can_be_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the heart of a reader stood still proves nothing then."""
    monkeypatch.setattr(claims, "LOST_AFTER_SECONDS", 3.0)
    with world.cli.opened() as (context, store):
        plan = context.plans.ensure(store)
        assert store.claim_group(plan.pipeline, 1, 0, holder="a task [elsewhere 1 1]") == 1
        with ThreadPoolExecutor(1) as pool:
            with read_only(store):
                asked = pool.submit(claims.claim_group, world.group(0), store, "me", None)
                time.sleep(1.5)
        with pytest.raises(TransientError, match="readonly database"):
            asked.result(30)
        assert store.group(plan.pipeline, 1, 0).attempt == 1


def skewed() -> Any:
    from datetime import UTC, datetime, timedelta

    return datetime.now(UTC) - timedelta(days=1)


def test_a_reader_that_was_taken_over_says_so(world: World) -> None:
    def overtaken(job: SnapshotJob) -> list[dict[str, Any]]:
        found = run_in_threads(job)
        with world.cli.opened() as (context, store):
            assert store.claim_group(context.pipeline.name, 1, 0, holder="the next") == 2
        time.sleep(2.5)
        return found

    with pytest.raises(TransientError, match=r"taken over by the next \(attempt 2\) while attempt 1 was read"):
        world.run(0, runner=overtaken)
    assert world.group(0).published_attempt() is None
    with world.cli.opened() as (context, store):
        store.release_group(context.pipeline.name, 1, 0, 2)
    assert world.run(0, runner=never).attempt == 3  # the files that it has finished are used


def test_groups_of_one_plan_side_by_side(world: World) -> None:
    """Each by a process of its own, as a scheduler starts them; the last one completes the snapshot."""
    with world.cli.opened() as (context, store):
        context.plans.ensure(store)
    for number in (0, 4):
        world.run(number)
    started = [world.start(number) for number in (1, 2, 3)]
    assert [process.wait(90) for process in started] == [0] * 3
    with world.cli.opened() as (context, store):
        found = store.snapshot(context.pipeline.name)
        assert found is not None and found.state == "done"
    assert not world.differences()


# ---------------------------------------------------------------- the bookkeeping is lost


def test_a_bookkeeping_that_is_lost_in_the_middle(world: World) -> None:
    held = {number: world.run(number, ME) for number in (0, 1, 3)}
    for file in (world.cli.sink / "_cdc" / world.database).glob("bookkeeping.db*"):
        file.unlink()
    with world.cli.opened() as (context, store):
        plan = context.plans.require()
        assert not adopt_published_groups(context, store, plan)
        rows = store.groups(plan.pipeline, 1)
        assert [r.state for r in rows] == ["done", "done", "pending", "done", "pending"]
        for number, found in held.items():
            row = rows[number]
            assert (row.attempt, row.rows) == (1, found.rows)
            assert {c.state for c in chunk_rows(store, plan.pipeline, number)} == {"done"}
    assert [world.run(n, runner=never).outcome for n in (0, 1, 3)] == ["adopted"] * 3
    assert [world.run(n).outcome for n in (2, 4)] == ["published"] * 2
    with world.cli.opened() as (context, store):
        assert adopt_published_groups(context, store, context.plans.require())
    world.cli.catch_up()
    assert not world.differences()


def test_a_request_that_was_staged_outlives_the_bookkeeping(copied: World) -> None:
    copied.cli.catch_up()
    copied.write(*CHANGES)
    assert copied.run(1, ME).outcome == "staged"
    for file in (copied.cli.sink / "_cdc" / copied.database).glob("bookkeeping.db*"):
        file.unlink()
    copied.cli.catch_up()
    assert copied.group(1).published_by_table() == {0: 2, 1: 2}
    assert not copied.differences()


def main(file: str, group: str, me: str) -> None:
    context = RunContext.for_pipeline(Pipeline.load(file))
    with contextlib.closing(context.open_state_database()) as store:
        if group == "stream":
            run_epoch_in_process(begin_epoch(context, store, catch_up=True))
        else:
            plan = context.plans.ensure(store)
            run_group(context, store, plan, int(group), run_in_threads, holder="a process", requested_by=asked_by(me))


if __name__ == "__main__":
    main(*sys.argv[1:])
