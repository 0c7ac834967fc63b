"""Finished files of a killed group: which are used again, what the bookkeeping says of them; and copies of one task."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.chunk_groups import task as slices
from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup
from airflow_provider_cdc.chunk_groups.task import SnapshotJob, run_in_threads
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.mysql.chunks import chunk as chunk_reader
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.snapshot.group_result import GroupResult
from airflow_provider_cdc.snapshot.retention_guard import RetentionGuard
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.state import StateDatabase
from tests.support.chunk_rows import chunk_rows
from tests.support.failpoints import SNAPSHOT
from tests.support.harness import KILLED, Lake, Nursery
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer

ROWS, CHUNK_ROWS = 400, 5
#: 80 chunks, of which 16 share a file.
SLICES = 5


@dataclass
class World:
    """One table of five slices, its pipeline, and its snapshot in this process."""

    server: MySQLServer
    database: str
    lake: Lake
    file: Path
    context: RunContext
    read: list[SnapshotJob] = field(default_factory=list)

    def run(self, runner: Callable[[SnapshotJob], list[dict[str, Any]]] = run_in_threads) -> GroupResult:
        def run(job: SnapshotJob) -> list[dict[str, Any]]:
            self.read.append(job)
            return runner(job)

        with closing(self.context.open_state_database()) as store:
            return run_group(self.context, store, self.context.plans.ensure(store), 0, run, holder="a test")

    @property
    def group(self) -> ChunkGroup:
        return ChunkGroup(self.context, self.context.plans.require(), 0)

    def sidecar(self, slice_: int, attempt: int = 1) -> Path:
        name = self.context.layout.slice_manifest(self.group.plan.tables[0], 1, 0, attempt, slice_)
        return Path(self.context.storage.location(name))

    def equal(self, nursery: Nursery) -> bool:
        name = "AIRFLOW_CONN_CDC_SOURCE"
        assert nursery.start(self.file, {name: os.environ[name]}, only="stream").wait() == 0
        return not compare_database(self.server, self.database, self.lake.path)


def make(server: MySQLServer, database: str, user: dict[str, str], folder: Path, patch: pytest.MonkeyPatch) -> World:
    patch.setenv("AIRFLOW_CONN_CDC_SOURCE", server.uri(**user))
    with closing(server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        cursor.execute(f"INSERT INTO t VALUES {', '.join(f'({i}, 1)' for i in range(ROWS))}")
        cursor.execute("ANALYZE TABLE t")
    lake = Lake(folder / "lake", "slices")
    file = lake.write_pipeline(database, chunk_rows=CHUNK_ROWS, group_rows=10_000, parallelism=1)
    return World(server, database, lake, file, RunContext.for_pipeline(Pipeline.load(file)))


@pytest.fixture
def world(
    mysql_server: MySQLServer, cdc_user: dict[str, str], database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    return make(mysql_server, database, cdc_user, tmp_path, monkeypatch)


@pytest.fixture
def killed(world: World, nursery: Nursery) -> World:
    """The first three of five slices are finished."""
    name = "AIRFLOW_CONN_CDC_SOURCE"
    child = nursery.start(world.file, {name: os.environ[name]}, "manifest.after_write:3", only="snapshot")
    assert child.wait() == KILLED
    assert [no for no in range(SLICES) if world.sidecar(no).exists()] == [0, 1, 2]
    return world


def test_finished_files_are_used_again(killed: World, nursery: Nursery) -> None:
    killed.lake.check_books(complete=False)
    before = killed.lake.finished_files()
    assert (killed.run().attempt, killed.read[0].slice_numbers) == (2, (3, 4))
    killed.lake.check_files(before)
    killed.lake.check_books(complete=True)
    assert killed.equal(nursery)


def test_older_manifests_do_not_name_their_pipeline(killed: World) -> None:
    for sidecar in map(killed.sidecar, range(3)):
        older = json.loads(sidecar.read_text())
        assert older.pop("pipeline") == "slices"
        sidecar.write_text(json.dumps(older))
    killed.run()
    assert killed.read[0].slice_numbers == (3, 4)


def change(sidecar: Path, **values: Any) -> None:
    sidecar.write_text(json.dumps({**json.loads(sidecar.read_text()), **values}))


def change_chunk(sidecar: Path, **values: Any) -> None:
    chunks = json.loads(sidecar.read_text())["chunks"]
    change(sidecar, chunks=[*chunks[:3], {**chunks[3], **values}, *chunks[4:]])


def data_of(sidecar: Path) -> Path:
    return Path(sidecar.parents[4] / json.loads(sidecar.read_text())["file"]["path"])


def swapped(sidecar: Path) -> None:
    chunk = json.loads(sidecar.read_text())["chunks"][3]
    change_chunk(sidecar, lw=chunk["hw"], hw=[chunk["lw"][0], chunk["lw"][1] - 1])


#: Ways in which a finished slice can be damaged.
DAMAGE: dict[str, Callable[[Path], object]] = {
    "no file": lambda sidecar: data_of(sidecar).unlink(),
    "a file cut short": lambda sidecar: os.truncate(data_of(sidecar), data_of(sidecar).stat().st_size - 1),
    "no manifest": lambda sidecar: sidecar.unlink(),
    "an empty manifest": lambda sidecar: sidecar.write_text(""),
    "half a manifest": lambda sidecar: sidecar.write_text(sidecar.read_text()[:200]),
    "a chunk is missing": lambda sidecar: change(sidecar, chunks=json.loads(sidecar.read_text())["chunks"][1:]),
    "the chunks of another plan": lambda sidecar: change_chunk(sidecar, no=70),
    "another pipeline": lambda sidecar: change(sidecar, pipeline="another"),
    "a number that the plan lacks": lambda sidecar: change(sidecar, slice=99),
    "another definition": lambda sidecar: change(sidecar, fingerprint="of yesterday"),
    "high below low": swapped,
    "low before the plan": lambda sidecar: change_chunk(sidecar, lw=["binlog.000001", 4]),
    "rows that do not add up": lambda sidecar: change_chunk(sidecar, rows=4),
    "beyond the end of the binlog": lambda sidecar: change_chunk(sidecar, hw=[hw_file(sidecar), 1 << 40]),
    "in a binlog that is gone": lambda sidecar: change_chunk(sidecar, hw=["binlog.999999", 4]),
}


def hw_file(sidecar: Path) -> str:
    return str(json.loads(sidecar.read_text())["chunks"][3]["hw"][0])


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_slices_are_read_again(killed: World, nursery: Nursery, damage: str) -> None:
    DAMAGE[damage](killed.sidecar(1))
    assert killed.run().attempt == 2
    assert killed.read[0].slice_numbers == (1, 3, 4)
    group = killed.group
    marks = {c["no"]: c for c in group.read_totals(group.published_by_table()).chunks}
    assert len(marks) == ROWS / CHUNK_ROWS
    killed.lake.check_books(complete=True)
    assert killed.equal(nursery)


def test_a_binlog_that_was_purged_in_the_meantime(
    tmp_path: Path, nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of its own, whose binlogs are really purged. The stream could not go on from those watermarks."""
    with MySQLServer() as server:
        server.execute("CREATE DATABASE d")
        world = make(server, "d", server.create_cdc_user(), tmp_path, monkeypatch)
        name = "AIRFLOW_CONN_CDC_SOURCE"
        for purge, missing in ((False, (3, 4)), (True, (0, 1, 2, 3, 4))):
            child = nursery.start(world.file, {name: os.environ[name]}, "manifest.after_write:3", only="snapshot")
            assert child.wait() == KILLED
            server.execute("FLUSH BINARY LOGS")
            if purge:
                server.purge(flush=False)
                # It stands still at once, and not when all is read and the stream begins.
                with pytest.raises(TerminalError, match="is no longer on the server"):
                    world.run()
                monkeypatch.setattr(RetentionGuard, "check", lambda _: None)
            assert world.run().outcome == "published"
            assert world.read.pop().slice_numbers == missing
            world = make_again(world, tmp_path / "again")


def make_again(world: World, folder: Path) -> World:
    """The same table, another sink."""
    folder.mkdir(exist_ok=True)
    lake = Lake(folder / "lake", "slices")
    file = lake.write_pipeline(world.database, chunk_rows=CHUNK_ROWS, group_rows=10_000, parallelism=1)
    return World(world.server, world.database, lake, file, RunContext.for_pipeline(Pipeline.load(file)))


def test_the_bookkeeping_of_a_killed_group(killed: World) -> None:
    """A chunk is ``read`` while its file is used, ``pending`` while it is read again, ``done`` when it is published."""

    def states(store: StateDatabase) -> list[tuple[str, int]]:
        chunks = chunk_rows(store, "slices", 0)
        assert len(chunks) == ROWS / CHUNK_ROWS
        found = [{(c.state, c.attempt) for c in chunks[i : i + 16]} for i in range(0, len(chunks), 16)]
        assert all(len(slice_) == 1 for slice_ in found)
        return [next(iter(slice_)) for slice_ in found]

    seen: list[list[tuple[str, int]]] = []

    def run(job: SnapshotJob) -> list[dict[str, Any]]:
        with closing(killed.context.open_state_database()) as store:
            seen.append(states(store))
        return run_in_threads(job)

    with closing(
        killed.context.open_state_database()
    ) as store:  # what the killed run may have told of the file that is lost now
        told = [(c.chunk_no, 1, ["b", 1], ["b", 2], 9, 0, 9, 9.0) for c in chunk_rows(store, "slices", 0)[16:32]]
        store.record_read_chunks("slices", 1, told)
    data_of(killed.sidecar(1)).unlink()
    killed.run(run)
    assert seen[0][:3] == [("read", 1), ("pending", 0), ("read", 1)]
    with closing(killed.context.open_state_database()) as store:
        assert states(store) == [("done", 2)] * SLICES
        # What a reader that was overtaken tells afterwards changes nothing.
        store.record_read_chunks("slices", 1, [(0, 9, ["b", 1], ["b", 2], 77, 7, 7, 7.0)])
        store.record_published_chunks("slices", 1, [(0, 1, ["b", 1], ["b", 2], 77, 7, 7, 7.0)])
        store.reset_unpublished_chunks("slices", 1, 0)
        assert states(store) == [("done", 2)] * SLICES
    killed.lake.check_books(complete=True)


def test_what_is_published_counts_and_not_what_was_read_last(killed: World) -> None:
    """Of two readers the first has won, and the second one's progress stands in the bookkeeping."""

    def run(job: SnapshotJob) -> list[dict[str, Any]]:
        found = run_in_threads(job)
        with closing(killed.context.open_state_database()) as store:
            read = [(c.chunk_no, 7, ["b", 1], ["b", 2], 99, 9, 9, 9.0) for c in chunk_rows(store, "slices", 0)]
            store.record_read_chunks("slices", 1, read)
        return found

    killed.run(run)
    killed.lake.check_books(complete=True)


# ---------------------------------------------------------------- two copies of a task


class Copies:
    """A copy of a task that stands still at a failpoint, while another one goes on."""

    def __init__(self, patch: pytest.MonkeyPatch, point: str, at: int) -> None:
        self.standing, self.release = threading.Event(), threading.Event()
        self._point, self._left, self._slow = point, at, -1
        for module in (slices, chunk_reader):
            patch.setattr(module, "failpoint", self._hit)

    def _hit(self, name: str) -> None:
        if name == self._point and threading.get_ident() == self._slow:
            self._left -= 1
            if self._left == 0:
                self.standing.set()
                assert self.release.wait(60)

    def start(self, job: SnapshotJob) -> Iterator[list[dict[str, Any]]]:
        """Begin to read with the slow copy; ends with what it has read, when it was released."""
        found: list[dict[str, Any]] = []

        def read() -> None:
            self._slow = threading.get_ident()
            found.extend(job.read_slices(0, 0))

        thread = threading.Thread(target=read)
        thread.start()
        assert self.standing.wait(60)
        yield []
        self.release.set()
        thread.join(60)
        assert not thread.is_alive()
        yield found


POINTS = [name for name in SNAPSHOT if name.startswith(("chunk.", "file.", "manifest."))]


@pytest.mark.one_of("late")
@pytest.mark.parametrize("late", [False, True], ids=["released before the commit", "released after the commit"])
@pytest.mark.parametrize("point", POINTS)
def test_a_copy_that_goes_on(
    world: World, nursery: Nursery, point: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that was taken for lost, or the slower one of two speculative copies, at every place it may stand."""
    copies = Copies(monkeypatch, point, 20 if point.startswith("chunk") else 2)
    slow: list[Iterator[list[dict[str, Any]]]] = []
    both: list[list[dict[str, Any]]] = []

    def run(job: SnapshotJob) -> list[dict[str, Any]]:
        slow.append(copies.start(job))
        next(slow[0])
        with closing(world.server.connect(database=world.database)) as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE t SET v = v + 1, id = IF(id % 50 = 0, id + 10000, id)")
            connection.commit()
        both.append(list(job.read_slices(0, 1)))
        if not late:
            both.append(next(slow[0]))
        return both[0]

    assert world.run(run).outcome == "published"
    files = world.lake.finished_files()
    if late:
        both.append(next(slow[0]))
    for manifest in (*both[0], *both[1]):
        manifest.pop("asked", None)  # what it took, each for itself
    assert both[0] == both[1], "each slice has one file and one pair of watermarks, whoever is asked"
    world.lake.check_files(files)
    table = DeltaTable(str(world.lake.path / world.database / "t"))
    live = {uri.removeprefix("file://") for uri in table.file_uris()}
    assert live == {str(file) for file in files}
    assert sum(pq.ParquetFile(file).metadata.num_rows for file in live) == sum(m["file"]["rows"] for m in both[0])
    left = set(next(iter(files)).parent.glob("slice-*.parquet"))
    assert left == set(files), "the slower copy removes its file"
    assert world.equal(nursery)


def test_a_copy_does_not_read_what_is_finished(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure a task begins again, but not with the slices that it had finished."""
    seen: list[str] = []
    monkeypatch.setattr(chunk_reader, "failpoint", seen.append)

    def run(job: SnapshotJob) -> list[dict[str, Any]]:
        first = job.read_slices(0, 0)
        taken = [next(first) for _ in range(3)]
        first.close()  # type: ignore[attr-defined]
        before = world.lake.finished_files()
        again = list(job.read_slices(0, 1))
        assert again[:3] == taken
        assert seen.count("chunk.before_lw") == sum(len(manifest["chunks"]) for manifest in again)
        now = world.lake.finished_files()
        assert {file: now[file] for file in before} == before
        return again

    world.run(run)
    world.lake.check_books(complete=True)


def test_copies_have_replication_ids_of_their_own(world: World) -> None:
    """Of two readers with the same id the server throws one out."""

    def run(job: SnapshotJob) -> list[dict[str, Any]]:
        return run_in_threads(job)

    world.run(run)
    of_group = [pair for worker in world.read[0].replica_ids for pair in worker]
    assert len(of_group) == len(set(of_group)) == len(world.read[0].replica_ids) * slots.MAX_TASK_COPIES
