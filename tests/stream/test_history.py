"""Is the binlog that the server shows today still the one that was read? Resets, and older copies put back."""

from __future__ import annotations

import contextlib
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from airflow_provider_cdc.model.comparison import NOT_COMPARABLE
from airflow_provider_cdc.model.errors import DamageError, OtherHistoryError, PurgedError, TerminalError, TransientError
from airflow_provider_cdc.model.gtid import GtidSet
from airflow_provider_cdc.model.offset import Offset, Position
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction, read_transactions
from airflow_provider_cdc.mysql.chunks import chunk
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.resume import check_resume_offset
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer

# The servers have their turn: each test with each of them would be a product.
pytestmark = pytest.mark.one_of("server")

WITHOUT = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}


@dataclass
class World:
    """A server with the table ``d.t``, and a pipeline that copies it."""

    server: MySQLServer
    cli: Cli

    @property
    def mariadb(self) -> bool:
        return isinstance(self.server, MariaDBServer)

    @property
    def at(self) -> tuple[str, int]:
        file, position, *_ = self.server.execute("SHOW MASTER STATUS" if self.mariadb else "SHOW BINARY LOG STATUS")[0]
        return file, position

    @property
    def offset(self) -> Offset:
        found = self.cli.context.sink.resume_point().read()
        assert found is not None
        return found

    def reset(self) -> None:
        later()
        self.server.execute("RESET MASTER" if self.mariadb else "RESET BINARY LOGS AND GTIDS")

    def grow(self, place: tuple[str, int], first: int) -> None:
        """Write rows of one size, numbered from ``first`` on, until the binlog is past a place."""
        while int(place[0].rpartition(".")[2]) > int(self.at[0].rpartition(".")[2]):
            self.server.execute(f"INSERT INTO d.t VALUES ({first}, 'row')")
            self.server.execute("FLUSH BINARY LOGS")
            first += 1
        while self.at[1] <= place[1]:
            self.server.execute(f"INSERT INTO d.t VALUES ({first}, 'row')")
            first += 1

    def exact(self) -> None:
        self.cli.catch_up()
        assert compare_database(self.server, "d", self.cli.sink, ["t"]) == []

    def refused(self, match: str | None = None) -> None:
        """The stream stops, each time, and nothing is compared with what is not the binlog that was read, or
        re-snapshotted from there."""
        for _ in range(2):
            with pytest.raises(OtherHistoryError, match=match):
                self.cli.catch_up()
        assert {one.verdict for one in verify_tables(self.cli.context)} == {NOT_COMPARABLE}
        before = self.cli.rows("d", "t")
        with pytest.raises(OtherHistoryError):
            self.cli.resnapshot("d.t")
        assert self.cli.rows("d", "t").equals(before)


def later() -> None:
    """Files that are begun from now on are begun in another second."""
    time.sleep(1.1)


def make(server: MySQLServer, folder: Path, **settings: Any) -> World:
    server.execute("DROP DATABASE IF EXISTS d")
    server.execute("CREATE DATABASE d")
    server.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(20))")
    server.execute(f"INSERT INTO d.t VALUES {', '.join(f'({n}, {n})' for n in range(20))}")
    return World(server, Cli(folder, server, r"d\.t", snapshot={"chunk_rows": 5, "parallelism": 1}, **settings))


@pytest.fixture(scope="module", params=["MySQL", "MySQL without GTIDs", "MariaDB"])
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    own = MariaDBServer() if request.param == "MariaDB" else MySQLServer(WITHOUT if "without" in request.param else {})
    with own:
        yield own


@pytest.fixture
def world(server: MySQLServer, tmp_path: Path) -> World:
    return make(server, tmp_path)


@pytest.fixture(autouse=True)
def shared_servers_are_left_clean(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests in other files expect no database ``d`` there."""
    used = {"mysql_server", "mariadb_server"} & set(request.fixturenames)
    servers = [request.getfixturevalue(name) for name in used]
    yield
    for shared in servers:
        shared.execute("DROP DATABASE IF EXISTS d")


# ------------------------------------------------------------ resets


@pytest.mark.parametrize("place", ["head", "middle", "later file"])
def test_a_reset_that_has_grown_past_the_resume_point(world: World, place: str) -> None:
    """By rows of the same size, so that positions are ends of transactions again, and GTIDs are the same ones."""
    world.reset()  # the first binlog, too: the same statements give the same GTIDs at the same places
    if place == "later file":
        world.server.execute("FLUSH BINARY LOGS")
    world.cli.snapshot()
    first = 100
    for first in range(100, 110):
        world.server.execute(f"INSERT INTO d.t VALUES ({first}, 'row')")
    if place == "head":
        world.server.execute("FLUSH BINARY LOGS")
    world.exact()
    stood = world.at
    world.reset()
    world.grow(stood, 1000)
    world.refused()


def test_a_reset_that_has_not(world: World) -> None:
    world.cli.snapshot()
    world.server.execute("INSERT INTO d.t VALUES (100, 'row')")
    world.exact()
    world.reset()
    world.refused(r"ends at \d+, and was read up to|no binlog file after")


def test_a_reset_that_has_fewer_files(world: World) -> None:
    world.cli.snapshot()
    world.server.execute("FLUSH BINARY LOGS")
    world.server.execute("INSERT INTO d.t VALUES (100, 'row')")
    world.exact()
    world.reset()
    world.refused("no binlog file after")


def test_a_reset_under_a_stream_that_runs(world: World) -> None:
    """The server goes on to serve the file that it has deleted; its own end of the binlog tells, then its file."""
    world.cli.snapshot()
    with world.cli.opened() as (context, store):
        epoch = begin_epoch(context, store, catch_up=False)
        with contextlib.closing(epoch.job.make_planner()) as planner:
            world.server.execute("INSERT INTO d.t VALUES (100, 'row')")
            (end,) = epoch.job.find_range_ends(planner, epoch.section_start)
            epoch.apply_batch(epoch.job.stage_range(epoch.section_start, end, "0"))
            stood = world.at
            world.reset()
            with pytest.raises(OtherHistoryError, match="and was read up to"):
                epoch.job.find_range_ends(planner, end)
            world.grow(stood, 1000)
            planner._binlog.close()  # the connection is lost
            with pytest.raises(OtherHistoryError, match=r"was created at .*, but the file of this name"):
                epoch.job.find_range_ends(planner, end)
            with pytest.raises(OtherHistoryError, match=r"was created at .*, but the file of this name"):
                epoch.job.stage_range(end, end.replace(position=world.at[1]), "1")
        store.end_epoch("p", epoch.number, "failed", "", "")


def test_a_reset_before_the_stream_begins(world: World) -> None:
    world.reset()
    world.cli.snapshot()
    stood = world.at
    world.reset()
    with pytest.raises(OtherHistoryError):
        world.cli.catch_up()
    world.grow(stood, 1000)
    with pytest.raises(OtherHistoryError):
        world.cli.catch_up()


def test_a_reset_while_a_chunk_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark lies before the low one."""
    for n in range(100, 110):
        world.server.execute(f"INSERT INTO d.t VALUES ({n}, 'row')")

    def failpoint(name: str) -> None:
        if name == "chunk.after_select":
            world.reset()

    monkeypatch.setattr(chunk, "failpoint", failpoint)
    with pytest.raises(OtherHistoryError, match="ends at .*, but had already reached "):
        world.cli.snapshot()


def test_tables_are_not_read_again_behind_a_reset(server: MySQLServer, tmp_path: Path) -> None:
    """Numbers of transactions would begin anew, below the markers of the stream."""
    world = make(server, tmp_path, stream={"on_purged": "reread"})
    world.cli.snapshot()
    world.server.execute("FLUSH BINARY LOGS")
    world.exact()
    world.reset()
    world.cli.snapshot()
    with pytest.raises(OtherHistoryError):
        world.cli.catch_up()
    assert world.cli.context.plans.require().generation == 1


# ------------------------------------------------------------ older copies


@contextlib.contextmanager
def copied(server: MySQLServer, folder: Path) -> Iterator[Callable[[], None]]:
    """Copies the data folder of a server that is stopped for it; what it gives puts the copy back."""
    if server._folder is None:
        pytest.skip("the data folder of this server is out of reach")
    data = server._folder / "data"

    def stopped(what: Callable[[], Any]) -> None:
        assert server._process is not None
        server._process.terminate()
        server._process.wait(60)
        what()
        server.start()

    def put_back() -> None:
        later()
        shutil.rmtree(data)
        shutil.copytree(folder, data, symlinks=True)

    stopped(lambda: shutil.copytree(data, folder, symlinks=True))
    yield lambda: stopped(put_back)


def test_an_older_copy_of_the_server(server: MySQLServer, tmp_path: Path) -> None:
    """It is the same server to all that ask, and writes files of the same names."""
    world = make(server, tmp_path / "p")
    world.cli.snapshot()
    world.server.execute("INSERT INTO d.t VALUES (100, 'both')")
    world.exact()
    with copied(server, tmp_path / "copy") as put_back:
        # What was read before the copy was made is in the copy.
        world.server.execute("INSERT INTO d.t VALUES (200, 'lost')")
        put_back()
        world.server.execute("INSERT INTO d.t VALUES (300, 'read')")
        world.exact()
        # What was read after it is not, whatever comes in its place.
        stood = world.at
        put_back()
        world.refused()
        world.grow(stood, 1000)
        world.refused()


def test_an_older_copy_after_the_snapshot(server: MySQLServer, tmp_path: Path) -> None:
    """P0 is in the copy, the high watermarks are not: what they cover was never in the binlog of today."""
    world = make(server, tmp_path / "p")
    with world.cli.opened() as (context, store):
        context.plans.ensure(store)
    with copied(server, tmp_path / "copy") as put_back:
        server.execute("INSERT INTO d.t VALUES (100, 'lost')")
        world.cli.snapshot()
        stood = world.at
        put_back()
        with pytest.raises(OtherHistoryError, match="and the snapshot read up to|was created at"):
            world.cli.catch_up()
        world.grow(stood, 1000)
        with pytest.raises(OtherHistoryError, match="was created at .*, but the file of this name"):
            world.cli.catch_up()


# ------------------------------------------------------------ GTIDs


def test_what_lies_before_a_file_was_read(world: World) -> None:
    """GTIDs tell, even if the time at which the file was begun did not."""
    world.reset()
    world.cli.snapshot()
    world.exact()
    world.server.execute("INSERT INTO d.t VALUES (100, 'row')")
    world.server.execute("FLUSH BINARY LOGS")
    world.exact()
    old = world.offset.replace(file_start_time=0)
    with contextlib.closing(connect(world.server.connect_args())) as connection:
        opener = world.cli.context.binlog_opener(0)
        assert check_resume_offset(connection, old, opener) == old
        world.reset()
        for n in range(200, 210):
            world.server.execute(f"INSERT INTO d.t VALUES ({n}, 'row')")
        world.server.execute("FLUSH BINARY LOGS")
        if not old.gtid_set:
            return  # only the file tells there
        give_up = time.monotonic() + 60
        while Position(*world.at) < old.at:  # MariaDB adds an event of its own, some time later
            assert time.monotonic() < give_up
            time.sleep(0.05)
        with pytest.raises(OtherHistoryError, match=r"before binlog file|corresponds to"):
            check_resume_offset(connection, old, opener)


def test_a_gtid_that_comes_again(mysql_server: MySQLServer, tmp_path: Path) -> None:
    world = make(mysql_server, tmp_path)
    world.cli.snapshot()
    world.server.execute("INSERT INTO d.t VALUES (100, 'row')")
    world.exact()
    with world.cli.opened() as (context, store):
        epoch = begin_epoch(context, store, catch_up=False)
        world.server.session("d", "SET gtid_next = 'AUTOMATIC:shop'", "INSERT INTO t VALUES (101, 'row')")
        uuid = world.server.execute("SELECT @@server_uuid")[0][0]
        with contextlib.closing(epoch.job.make_planner()) as planner:
            start = epoch.section_start
            ahead = start.replace(gtid_set=str(GtidSet.parse(start.gtid_set).add(f"{uuid}:shop:1")))
            with pytest.raises(OtherHistoryError, match=rf"{uuid}:shop:1 is in the binlog of the server"):
                epoch.job.find_range_ends(planner, ahead)
            # Held after a failover.
            (end,) = epoch.job.find_range_ends(planner, start.replace(already_applied=f"{uuid}:shop:1"))
            assert f"{uuid}:shop:1" in GtidSet.parse(end.gtid_set) and not end.already_applied
        store.end_epoch("p", epoch.number, "stopped", "", "")


def test_the_first_offset_is_exact(mysql_server: MySQLServer, tmp_path: Path) -> None:
    """Nothing that is behind P0 is in its set, though others commit all the time."""
    world = make(mysql_server, tmp_path)
    over = threading.Event()

    def write(k: int) -> None:
        with contextlib.closing(mysql_server.connect(database="d")) as connection, connection.cursor() as cursor:
            if k == 1:
                cursor.execute("SET gtid_next = 'AUTOMATIC:shop'")
            while not over.is_set():
                cursor.execute(f"UPDATE t SET v = v + 1 WHERE id = {k}")

    writers = [threading.Thread(target=write, args=(k,)) for k in range(4)]
    for writer in writers:
        writer.start()
    try:
        plans = [world.cli.context.plans.make(1) for _ in range(5)]
    finally:
        over.set()
        for writer in writers:
            writer.join()
    mysql_server.execute("FLUSH BINARY LOGS")
    for plan in plans:
        with contextlib.closing(world.cli.context.binlog_opener(5)(plan.p0.at)) as stream:
            behind = [t.gtid for t in read_transactions(stream, {}) if isinstance(t, Transaction)]
        assert behind and not GtidSet.parse(plan.p0.gtid_set).repeated_in(GtidSet().with_all(behind))


# ------------------------------------------------------------ purged files


def test_a_purged_file_that_had_nothing_more(world: World) -> None:
    """GTIDs prove that nothing is missing; without them nothing does."""
    world.cli.snapshot()
    world.server.execute("INSERT INTO d.t VALUES (100, 'row')")
    world.exact()
    for _ in range(2):
        world.server.purge()
        if "gtid_mode" in world.server.variables and world.server.variables["gtid_mode"] == "OFF":
            with pytest.raises(PurgedError):
                world.cli.catch_up()
            return
        before = world.offset.at
        world.exact()
        assert world.offset.at > before, "it would be purged the next time"
        world.server.execute("DELETE FROM d.t WHERE id < 3")
        world.exact()
    world.server.execute("DELETE FROM d.t WHERE id = 5")
    world.server.purge()
    with pytest.raises(PurgedError, match="is no longer on the server"):
        world.cli.catch_up()


@pytest.mark.parametrize("had", [False, True])
def test_what_was_purged_may_have_had_no_gtids(tmp_path: Path, had: bool) -> None:
    """GTIDs are switched on while the stream stands still: they say nothing of what was written before."""
    with MySQLServer({} if had else WITHOUT) as server:
        world, switch = make(server, tmp_path), ("ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF")
        for mode in switch if had else ():
            server.execute(f"SET GLOBAL gtid_mode = {mode}")
        world.cli.snapshot()
        server.execute("INSERT INTO d.t VALUES (100, 'row')")
        world.exact()
        assert bool(world.offset.gtid_set) is had
        server.execute("DELETE FROM d.t WHERE id < 5")
        server.execute("SET GLOBAL enforce_gtid_consistency = ON")
        for mode in (*switch[1::-1], "ON"):
            server.execute(f"SET GLOBAL gtid_mode = {mode}")
        server.purge(flush=False)
        with pytest.raises(PurgedError, match="is no longer on the server"):
            world.cli.catch_up()


def test_a_batch_that_ends_before_what_has_no_gtids(tmp_path: Path) -> None:
    """GTIDs are on when it is read, but were not yet when what follows was written."""
    with MySQLServer() as server:
        world = make(server, tmp_path)
        server.execute("SET GLOBAL gtid_mode = ON_PERMISSIVE")
        world.cli.snapshot()
        server.execute("INSERT INTO d.t VALUES (100, 'row')")
        server.session("d", "SET gtid_next = 'ANONYMOUS'", "INSERT INTO t VALUES (101, 'row')")
        server.execute("SET GLOBAL gtid_mode = ON")
        with world.cli.epoch() as epoch, contextlib.closing(epoch.job.make_planner()) as planner:
            epoch.apply_batch(
                epoch.job.stage_range(epoch.section_start, planner.find_batch_end(epoch.section_start, 1), "0")
            )
        assert world.offset.at > epoch.section_start.at
        server.purge(flush=False)
        with pytest.raises(PurgedError, match="is no longer on the server"):
            world.cli.catch_up()


@pytest.mark.parametrize(
    "modes", [("ON", "ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"), ("OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON")]
)
def test_gtids_are_switched_before_what_is_there_is_read(tmp_path: Path, modes: tuple[str, ...]) -> None:
    """A server does not hand out what does not fit its gtid_mode: it is said what helps."""
    with MySQLServer({"gtid_mode": modes[0]}) as server:
        world = make(server, tmp_path)
        world.cli.snapshot()
        server.execute("INSERT INTO d.t VALUES (100, 'row')")
        for mode in modes[1:]:
            server.execute(f"SET GLOBAL gtid_mode = {mode}")
        server.execute("INSERT INTO d.t VALUES (101, 'row')")
        with pytest.raises(TerminalError, match="Cannot replicate") as refused:
            world.cli.catch_up()
        assert f"SET GLOBAL gtid_mode = {modes[-1]}_PERMISSIVE" in refused.value.remedy
        server.execute(f"SET GLOBAL gtid_mode = {modes[-1]}_PERMISSIVE")
        world.exact()


def test_a_purged_file_before_the_stream_begins(world: World) -> None:
    world.cli.snapshot()
    world.server.purge()
    if not world.cli.context.plans.require().p0.gtid_set:
        with pytest.raises(TerminalError):
            world.cli.catch_up()
        return
    world.server.execute("DELETE FROM d.t WHERE id = 5")
    world.exact()


# ------------------------------------------------------------ MariaDB: domains that are taken out


def test_a_domain_that_is_taken_out(mariadb_server: MySQLServer, tmp_path: Path) -> None:
    """FLUSH BINARY LOGS DELETE_DOMAIN_ID, while the stream stands still and while it runs."""
    world = make(mariadb_server, tmp_path)

    def write(n: int, domain: int) -> None:
        world.server.session("d", f"SET gtid_domain_id = {domain}", f"INSERT INTO t VALUES ({n}, 'row')")

    write(100, 7)
    world.cli.snapshot()
    write(101, 7)
    world.exact()
    assert "7-1-2" in world.offset.gtid_set
    world.server.purge()  # such a domain has no transaction in any file
    world.exact()
    world.server.execute("FLUSH BINARY LOGS DELETE_DOMAIN_ID = (7)")
    write(102, 0)
    world.exact()
    world.exact()
    write(103, 7)  # its numbers begin anew
    world.exact()
    world.exact()
    assert "7-1-1" in world.offset.gtid_set
    write(104, 8)
    with world.cli.opened() as (context, store):
        epoch = begin_epoch(context, store, catch_up=False)
        with contextlib.closing(epoch.job.make_planner()) as planner:
            (end,) = epoch.job.find_range_ends(planner, epoch.section_start)
            epoch.apply_batch(epoch.job.stage_range(epoch.section_start, end, "0"))
            world.server.purge()
            world.server.execute("FLUSH BINARY LOGS DELETE_DOMAIN_ID = (7, 8)")
            # The planner may have to connect again, where its file is gone: that is for the next epoch.
            with contextlib.suppress(TransientError):
                epoch.job.find_range_ends(planner, end)
            with pytest.raises(TransientError, match="the next epoch continues if nothing is missing"):
                epoch.job.stage_range(end, end.replace(file=world.at[0], position=world.at[1]), "1")
        store.end_epoch("p", epoch.number, "stopped", "", "")
    write(105, 8)
    world.exact()


def test_an_encrypted_binlog() -> None:
    """MariaDB sends it decrypted. What says that it is encrypted comes at its place, or without one."""
    stream = object.__new__(BinlogStream)
    stream.file, stream.position, stream.file_start_times = "binlog.000001", 1000, {}
    stream.has_checksums, stream.is_mariadb = True, True

    def packet(kind: int, end: int) -> bytes:
        data = struct.pack("<IBIIIH", 7, kind, 1, 40, end, 0) + bytes(17)
        return data + zlib.crc32(data).to_bytes(4, "little")

    for end, position in ((0, 1000), (1040, 1040)):
        event = stream._parse_event(packet(164, end))
        assert (event.position, [*read_transactions([event], {})]) == (
            position,
            [Position("binlog.000001", position)],
        )
    with pytest.raises(DamageError, match="instead of 1080"):
        stream._parse_event(packet(164, 1041))


# ------------------------------------------------------------ a server that is killed


@pytest.mark.parametrize("cut", ["inside of an event", "between two events"])
def test_a_file_with_a_torn_end(cut: str, tmp_path: Path) -> None:
    """MariaDB leaves it so. Whoever reads over it goes on in the next file."""
    with MariaDBServer() as server:
        world = make(server, tmp_path)
        world.server.execute("CREATE TABLE d.big (id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)")
        world.cli.snapshot()
        world.server.execute("INSERT INTO d.t VALUES (100, 'row')")
        world.exact()
        world.server.execute("INSERT INTO d.t VALUES (101, 'row')")
        file, end = world.at
        if server._folder is None:
            pytest.skip("the data folder of this server is out of reach")
        path = server._folder / "data" / file
        with contextlib.closing(server.connect(database="d", autocommit=False)) as connection:
            cursor = connection.cursor()
            cursor.execute("DELETE FROM t WHERE id < 10")
            for _ in range(2):
                cursor.execute("INSERT INTO big (v) VALUES (REPEAT('x', 2000000))")
            connection.commit()
            listed = server.execute(f"SHOW BINLOG EVENTS IN '{file}' FROM {end}")
        server.kill()
        # As a kill leaves it that comes a little earlier. The engine has kept the transaction here: the log counts.
        rows = [event for event in listed if event[2].startswith("Write_rows")]
        with path.open("r+b") as binlog:
            binlog.truncate(int(rows[-1][1]) + (1000 if "inside" in cut else 0))
        server.start()
        for _ in range(2):
            world.cli.catch_up()
            assert world.offset.at.file != file
            world.server.execute(f"INSERT INTO d.t VALUES ({world.at[1] + 1000}, 'row')")
        world.cli.catch_up()
        ids = set(world.cli.rows("d", "t")["id"].to_pylist())
        assert {0, 9, 100, 101} <= ids and len(ids) == 24
        # One who begins before it, and looks for its place by reading.
        world.cli.value["name"], world.cli.value["stream"] = "q", {"start": {"file": world.at[0], "position": 4}}
        assert world.cli.context.plans.make(1)
        later = {"gtid_set": server.execute("SELECT @@global.gtid_binlog_pos")[0][0]}
        world.cli.value["stream"] = {"start": later}
        world.cli.write()
        assert str(world.cli.context.plans.make(1).p0.at) == f"{world.at[0]}:{world.at[1]}"


@pytest.mark.parametrize("kind", [MySQLServer, MariaDBServer])
def test_killed_while_it_wrote_a_transaction(kind: type[MySQLServer], tmp_path: Path) -> None:
    with kind(
        {"max_allowed_packet": "64M", "innodb_redo_log_capacity": "512M"} if kind is MySQLServer else {}
    ) as server:
        world = make(server, tmp_path)
        server.execute("CREATE TABLE d.big (id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)")
        world.cli.snapshot()
        world.exact()
        file, end = world.at
        if server._folder is None:
            pytest.skip("the data folder of this server is out of reach")
        path = server._folder / "data" / file

        def write() -> None:
            with (
                contextlib.suppress(pymysql.MySQLError),
                contextlib.closing(server.connect(database="d", autocommit=False)) as connection,
            ):
                cursor = connection.cursor()
                cursor.execute("DELETE FROM t WHERE id < 10")
                for _ in range(15):
                    cursor.execute("INSERT INTO big (v) VALUES (REPEAT('x', 5000000))")
                connection.commit()

        writer = threading.Thread(target=write)
        writer.start()
        while writer.is_alive() and path.stat().st_size < end + 1_000_000:
            time.sleep(0.0005)
        server.kill()
        writer.join()
        assert path.stat().st_size > end, "nothing of it was written"
        server.start()
        assert server.execute("SELECT COUNT(*) FROM d.t")[0][0] == 20, "it was committed before the kill"
        server.execute("INSERT INTO d.t VALUES (100, 'row')")
        world.exact()
        world.exact()


def test_a_restart_is_noted(tmp_path: Path) -> None:
    with MySQLServer({"innodb_flush_log_at_trx_commit": 0, "sync_binlog": 0}) as server:
        world = make(server, tmp_path)
        found = world.cli.call("check").out
        said = "sync_binlog is 0 and innodb_flush_log_at_trx_commit is 0: a server that crashes may lose commits"
        assert said in found, found
        world.cli.snapshot()
        world.exact()
        for restarts in range(2):
            with world.cli.opened() as (_, store):
                kinds = [event.kind for event in store.last_events("p", 10, ["restart", "server"])]
                assert kinds == ["restart"] * restarts, kinds  # the first server is no news
                source = store.source("p")
                assert source is not None and source["version"].startswith("MySQL "), source
                assert source["conn_id"] and source["port"] and "user" not in source
            time.sleep(3)
            server.restart()
            world.exact()
        with world.cli.opened() as (_, store):
            event = store.last_events("p", 1, ["restart"])[0]
        assert event.kind == "restart" and "innodb_flush_log_at_trx_commit=0" in event.detail
        assert "`airflow-cdc verify` compares them" in event.detail
