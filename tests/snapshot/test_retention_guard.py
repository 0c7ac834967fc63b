"""A snapshot that its binlog does not outlive ends early, with numbers; one that reads holds nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.model.errors import PurgedError, TerminalError
from airflow_provider_cdc.model.progress import ChunkProgress
from airflow_provider_cdc.mysql.chunks import chunk as chunk_module
from airflow_provider_cdc.snapshot import retention_guard as retention_guard
from airflow_provider_cdc.snapshot.run import run_snapshot
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer

# The servers have their turn: each test with each of them would be a product.
pytestmark = pytest.mark.one_of("server")

SERVERS: dict[str, type[MySQLServer]] = {"MySQL": MySQLServer, "MariaDB": MariaDBServer}
ROWS = 8000


class Heard:
    """Reporter that keeps what it is told; ``then`` happens once so many chunks are done."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.progressed: list[ChunkProgress] = []

    def line(self, text: str, level: int = logging.INFO) -> None:
        self.lines.append(f"warning: {text}" if level == logging.WARNING else text)

    def progress(self, progress: ChunkProgress) -> None:
        self.progressed.append(progress)

    def until_read(self, chunks: int) -> None:
        end = time.monotonic() + 100
        while not self.progressed or self.progressed[-1].chunks_done < chunks:
            assert time.monotonic() < end
            time.sleep(0.05)


def fill(server: MySQLServer, rows: int = ROWS) -> None:
    server.execute("DROP DATABASE IF EXISTS d")
    server.execute("CREATE DATABASE d")
    server.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(40))")
    with closing(server.connect(database="d")) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, 'some text')", [(n,) for n in range(rows)])
        connection.commit()


@contextmanager
def reading(cli: Cli) -> Iterator[tuple[Heard, list[BaseException]]]:
    """A snapshot in a thread of its own; it has ended when the block has."""
    heard, failed = Heard(), []

    def run() -> None:
        try:
            with cli.opened() as (context, store):
                context.reporter = heard
                run_snapshot(context, store, context.plans.ensure(store), run_in_threads)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield heard, failed
    finally:
        thread.join(100)
        assert not thread.is_alive()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard looks often, and believes its estimate soon."""
    monkeypatch.setattr(retention_guard, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(retention_guard, "MIN_READ_SECONDS", 0.5)


#: 8,000 rows in files of 320, at 800 rows/s.
SLOW = {"chunk_rows": 20, "parallelism": 2, "max_rows_per_second": 800}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", SERVERS)
def test_a_snapshot_that_takes_longer_than_binlogs_are_kept(kind: str, tmp_path: Path) -> None:
    with SERVERS[kind]() as server:
        fill(server)
        server.execute("SET GLOBAL binlog_expire_logs_seconds = 3")
        cli = Cli(tmp_path, server, "d.t", user=server.create_cdc_user(), snapshot=SLOW)
        with reading(cli) as (heard, failed):
            heard.until_read(16)
            server.execute("FLUSH BINARY LOGS")  # only now the file of P0 has an end, from which on it is kept
        (error,) = failed
        assert isinstance(error, TerminalError), error
        last = heard.progressed[-1]
        assert 16 <= last.chunks_done < last.chunks_total, "it ended early"
        assert "with which the stream has to begin, may be removed in" in error.message
        assert "rows/s" in error.message and " left" in error.message and "kept for 3 s" in error.message
        assert "binlog_expire_logs_seconds" in error.remedy

        # What was read is used again once there is time.
        server.execute("SET GLOBAL binlog_expire_logs_seconds = 2592000")
        cli.value["snapshot"]["max_rows_per_second"] = None
        cli.write()
        cli.snapshot()
        assert cli.rows("d", "t").num_rows == ROWS
        cli.catch_up()


@pytest.mark.usefixtures("quick")
def test_a_file_in_use_has_no_end(tmp_path: Path) -> None:
    """However old: it is kept for the whole time after its end, which has not come. And enough time is no reason."""
    with MySQLServer() as server:
        fill(server, 3200)
        server.execute("SET GLOBAL binlog_expire_logs_seconds = 30")
        cli = Cli(tmp_path, server, "d.t", snapshot=SLOW)
        with reading(cli) as (heard, failed):
            pass
        assert failed == [] and not any("warning" in line for line in heard.lines)


@pytest.mark.usefixtures("quick")
def test_a_binlog_that_goes_in_the_middle(tmp_path: Path) -> None:
    with MySQLServer() as server:
        fill(server)
        cli = Cli(tmp_path, server, "d.t", snapshot=SLOW)
        with reading(cli) as (heard, failed):
            heard.until_read(16)
            server.execute("FLUSH BINARY LOGS")
            server.execute("PURGE BINARY LOGS TO %s", (server.execute("SHOW BINARY LOG STATUS")[0][0],))
        (error,) = failed
        # The guard says it, unless a task has asked for the file before the guard looked.
        assert isinstance(error, TerminalError)
        assert isinstance(error, PurgedError) or "is no longer on the server; so far: " in error.message
        assert heard.progressed[-1].chunks_done < heard.progressed[-1].chunks_total
        # Nothing is read by the next try, and check says so before.
        with pytest.raises(TerminalError, match="is no longer on the server"):
            cli.snapshot()
        result = cli.call("check")
        assert result.code == 2 and "with which the stream has to begin, is no longer on the server" in result.out


@pytest.mark.usefixtures("quick")
def test_files_that_go_before_their_time(tmp_path: Path) -> None:
    """A limit of the total size, a full disk: files vanish again and again, long before the settings say so."""
    with MySQLServer() as server:
        fill(server)
        server.execute("FLUSH BINARY LOGS")
        cli = Cli(tmp_path, server, "d.t")
        plan = cli.context.plans.make(1)
        watch = retention_guard.PurgeWatch(plan.p0, 3)
        assert watch.seconds_to_purge(cli.context) == 2_592_000, (
            "a file that is in use is kept for the whole time after its end"
        )
        server.execute("FLUSH BINARY LOGS")
        time.sleep(2.1)  # the server writes whole seconds
        kept = watch.seconds_to_purge(cli.context)
        assert kept is not None and 86_400 < kept < 2_592_000 - 1, "and then the time runs"
        for _ in range(2):
            server.execute("FLUSH BINARY LOGS")
        files = [row[0] for row in server.execute("SHOW BINARY LOGS")]
        spare = files.index(plan.p0.at.file)
        assert spare >= 1
        server.execute("PURGE BINARY LOGS TO %s", (plan.p0.at.file,))
        once = watch.seconds_to_purge(cli.context)
        assert once is not None and once > 86_400, "somebody may purge by hand, once"
        watch._oldest_file = "binlog.000000"  # and again: a file that went between two looks
        again = watch.seconds_to_purge(cli.context)
        assert again is not None and again < 86_400
        assert "as observed" in watch.retention_text()


def test_what_check_and_plan_say_before(tmp_path: Path) -> None:
    with MySQLServer() as server:
        fill(server)
        server.execute("ANALYZE TABLE d.t")
        cli = Cli(tmp_path, server, "d.t", snapshot={"max_rows_per_second": 1})
        server.execute("SET GLOBAL binlog_expire_logs_seconds = 3600")
        for command in ("check", "plan"):
            result = cli.call(command)
            assert result.code == 0, result
            assert "2.2 h at a cautious guess; the binlog is kept for 60 min" in result.out
        assert "warning a snapshot of about" in cli.call("check").out
        server.execute("SET GLOBAL binlog_expire_logs_seconds = 864000")
        assert "ok      a snapshot of about" in cli.call("check").out
        server.execute("SET GLOBAL binlog_expire_logs_auto_purge = OFF")
        assert "the binlog is kept for ever" in cli.call("check").out


class Locks:
    """Looks at the locks of a user's sessions all the time, and at how each statement of it began."""

    def __init__(self, server: MySQLServer, user: str) -> None:
        self.server, self.user = server, user
        self.table_locks: set[tuple[str, str]] = set()
        self.rows = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Locks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def held(self, cursor: Any) -> list[tuple[str, str]]:
        """(kind, duration) of the metadata locks on tables of the pipeline."""
        cursor.execute(
            "SELECT lock_type, lock_duration FROM performance_schema.metadata_locks m "
            "JOIN performance_schema.threads t ON t.thread_id = m.owner_thread_id "
            "WHERE t.processlist_user = %s AND m.object_type = 'TABLE' AND m.object_schema = 'd'",
            (self.user,),
        )
        return list(cursor.fetchall())

    def _watch(self) -> None:
        with closing(self.server.connect(autocommit=True)) as connection, connection.cursor() as cursor:
            while not self._stop.is_set():
                self.table_locks |= set(self.held(cursor))
                cursor.execute(
                    "SELECT COUNT(*) FROM performance_schema.data_locks l "
                    "JOIN performance_schema.threads t USING (thread_id) WHERE t.processlist_user = %s",
                    (self.user,),
                )
                self.rows += cursor.fetchall()[0][0]


def test_nothing_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither rows nor, beyond its SELECT, the definition of a table; and no statement asks for a lock."""
    with MySQLServer() as server:
        fill(server)
        with closing(server.connect(database="d")) as connection, connection.cursor() as cursor:
            for _ in range(4):
                cursor.execute("INSERT INTO t SELECT id + (SELECT MAX(id) + 1 FROM t), REPEAT('x', 40) FROM t")
            connection.commit()
        user = server.create_cdc_user()
        server.execute("SET GLOBAL log_output = 'TABLE'")
        between: list[Any] = []
        looks = server.connect(autocommit=True)
        locks = Locks(server, user["user"])

        def moment(name: str) -> None:
            if name != "chunk.before_lw":
                with looking, looks.cursor() as cursor:
                    between.extend(locks.held(cursor))
                    moments.append(name)

        looking, moments = threading.Lock(), list[str]()
        monkeypatch.setattr(chunk_module, "failpoint", moment)
        # One reader, so that what is seen between two statements is its own.
        cli = Cli(tmp_path, server, "d.t", user=user, snapshot={"chunk_rows": 20_000, "parallelism": 1})
        server.execute("SET GLOBAL general_log = ON")
        with locks:
            cli.snapshot()
        server.execute("SET GLOBAL general_log = OFF")
        looks.close()
        assert cli.rows("d", "t").num_rows == ROWS * 16
        assert {("SHARED_READ", "TRANSACTION")} <= locks.table_locks, "the watch has seen the SELECT"
        assert locks.table_locks <= {("SHARED_READ", "TRANSACTION"), ("SHARED", "TRANSACTION")}, (
            "of the kinds that a SELECT takes: to read, and for an instant, weaker still, to be prepared"
        )
        assert between == [] and len(moments) > 10, "none outlives its SELECT"
        assert locks.rows == 0
        said = server.execute(
            "SELECT DISTINCT UPPER(CONVERT(argument USING utf8mb4)) FROM mysql.general_log "
            "WHERE user_host LIKE %s AND command_type IN ('Query', 'Prepare', 'Execute')",
            (f"%{user['user']}%",),
        )
        statements = [row[0] for row in said]
        assert any("FROM `D`.`T`" in s for s in statements)
        assert not [
            s for s in statements if any(w in s for w in ("LOCK ", "FOR UPDATE", "FOR SHARE", "FLUSH ", "BEGIN"))
        ]
