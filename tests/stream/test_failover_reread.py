"""Failovers there and back, with chunk groups that are read again before, between and after, and with runs that die.

Two servers of each kind, which run the same transactions under positions of their own.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.apply import applier as apply
from airflow_provider_cdc.apply import task as batches
from airflow_provider_cdc.chunk_groups import task as slices
from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup
from airflow_provider_cdc.chunk_groups.task import SnapshotJob, run_in_threads
from airflow_provider_cdc.model.errors import TerminalError, TransientError
from airflow_provider_cdc.resnapshot import publish
from airflow_provider_cdc.resnapshot import staged_files as staged
from airflow_provider_cdc.resnapshot.staged_files import list_pending_reads, remove_request
from airflow_provider_cdc.resnapshot.wait import publish_or_wait
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.protocol import Fence
from airflow_provider_cdc.snapshot.group_result import GroupResult
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.verify.run import verify_tables
from tests.stream import test_failover, test_failover_mariadb
from tests.stream.test_failover import Pair, epoch
from tests.stream.test_failover_mariadb import Domains
from tests.support.chance import Killed, killed_at
from tests.support.cli import asked_by
from tests.support.delta import as_delta, put
from tests.support.epochs import run_epoch_in_process, stage_everything
from tests.support.servers import MySQLServer

# The servers have their turn: each test with each of them would be a product.
pytestmark = pytest.mark.one_of("servers")

ME = "dag/run/snapshot/1"


@pytest.fixture(scope="module", params=[test_failover, test_failover_mariadb], ids=["MySQL", "MariaDB"])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[MySQLServer, MySQLServer]]:
    with request.param.two_servers() as found:
        yield found


@pytest.fixture
def fresh(servers: tuple[MySQLServer, MySQLServer], tmp_path: Path) -> Pair:
    """Tables with rows in all of them, whose snapshot was taken from the old server."""
    mariadb = "mariadb" in servers[0].execute("SELECT VERSION()")[0][0].lower()
    for server in servers:
        for name in ("d", "pad"):
            server.execute(f"DROP DATABASE IF EXISTS {name}")
        server.execute("RESET MASTER" if mariadb else "RESET BINARY LOGS AND GTIDS")
    for _ in range(5):
        servers[1].execute("FLUSH BINARY LOGS")
    made = (Domains if mariadb else Pair)(*servers, "d", tmp_path)
    made.run("CREATE DATABASE pad")
    made.run("CREATE TABLE pad.t (v LONGTEXT)")
    made.run("INSERT INTO d.keyed VALUES (20, 1)")
    made.run("INSERT INTO d.other VALUES ('a', 1), ('b', 1), ('c', 1)")
    made.run("INSERT INTO d.plain VALUES (1), (1), (2)")
    assert read_again(made, made.old).outcome == "published"
    return made


@pytest.fixture
def pair(fresh: Pair) -> Pair:
    """The same when the stream has begun."""
    change(fresh)
    fresh.copy(fresh.old)
    return fresh


_numbers = iter(range(100, 100_000))


def change(pair: Pair, *on: MySQLServer) -> list[str]:
    """Changes of every kind to all tables; their GTIDs."""
    n = next(_numbers)
    return [
        pair.run(*sql, on=on)
        for sql in (
            ("UPDATE d.keyed SET v = v + 1 WHERE id = 1", f"INSERT INTO d.keyed VALUES ({n}, 1), ({-n}, 1)"),
            (f"DELETE FROM d.keyed WHERE id = {-n}", f"UPDATE d.other SET v = {n} WHERE id = 'b'"),
            (f"INSERT INTO d.plain VALUES ({n}), ({n}), (1)", "DELETE FROM d.plain WHERE v = 1 LIMIT 1"),
        )
    ]


def read_again(
    pair: Pair, server: MySQLServer, runner: Callable[[SnapshotJob], Any] = run_in_threads, me: str = ME
) -> GroupResult:
    """Read the one group, for the first time or again."""
    pair.cli.env["AIRFLOW_CONN_CDC_SOURCE"] = server.uri()
    with pair.cli.opened() as (context, store):
        plan = context.plans.ensure(store)
        return run_group(context, store, plan, 0, runner, holder="somebody", requested_by=asked_by(me))


class Counted:
    """Runner that counts the files that it has to read."""

    def __init__(self) -> None:
        self.missing: list[int] = []

    def __call__(self, job: SnapshotJob) -> list[dict[str, Any]]:
        self.missing.append(len(job.slice_numbers))
        return run_in_threads(job)


def group(pair: Pair) -> ChunkGroup:
    context = pair.cli.context
    return ChunkGroup(context, context.plans.require(), 0)


def break_copy(pair: Pair) -> None:
    """Behind the project's back: a wrong row, one that is missing, one too many; only reading again mends that."""
    for index, wrong in ((0, [1, 2, 10]), (1, ["a", "b", "aa"])):
        target = as_delta(group(pair).tables[index])
        rows = [row for row in target.read_with_soft_deleted().to_pylist() if row["id"] not in wrong]
        rows += [{**rows[0], "id": key, "v": -1} for key in (wrong[0], wrong[2])]
        stat = "id" if isinstance(rows[0]["id"], int) else None
        put(target, pa.Table.from_pylist(rows, schema=target.schema), stat=stat)
    assert pair.differences(pair.old)


def exact(pair: Pair, server: MySQLServer) -> None:
    """The copy is right, goes on being so under changes, and ``verify`` says the same."""
    pair.copy(server)
    assert pair.differences(server) == []
    change(pair)
    assert all(verdict.is_equal for verdict in verify_tables(pair.cli.context))
    pair.copy(server)
    assert pair.differences(server) == []


def events(pair: Pair, kind: str) -> list[str]:
    with pair.cli.opened() as (_, store):
        return [event.detail for event in store.last_events("d", 100) if event.kind == kind]


def die_in_a_batch(pair: Pair, server: MySQLServer) -> None:
    """Apply what there is to the tables, and die before the resume point is written."""
    with epoch(pair, server) as found, killed_at("progress.before_commit", apply):
        found.applier.apply(stage_everything(found))


# ---------------------------------------------------------------- tables that are further than the resume point


def test_a_marker_in_a_later_file_than_the_resume_point(pair: Pair) -> None:
    """The batch of the run that died crossed a rotation; what comes next stands lower in the new server's next file."""
    padding, gtid = "INSERT INTO pad.t VALUES (REPEAT('x', {}))", ""
    for server, size in ((pair.old, 100_000), (pair.new, 1)):
        server.execute("FLUSH BINARY LOGS")
        gtid = pair.run(padding.format(size), gtid=gtid, on=[server])
    pair.run("UPDATE d.keyed SET v = 5 WHERE id = 1", "INSERT INTO d.other VALUES ('e', 1)")
    die_in_a_batch(pair, pair.old)
    pair.run("UPDATE d.keyed SET v = 6 WHERE id = 1", "DELETE FROM d.keyed WHERE id = 2")
    pair.run("DELETE FROM d.other WHERE id = 'e'", "INSERT INTO d.other VALUES ('f', 1)")
    exact(pair, pair.new)


@pytest.mark.parametrize("statement", ["INSERT INTO d.keyed VALUES (9, 9)", "TRUNCATE d.keyed"])
def test_a_table_that_holds_what_the_new_server_never_got(
    pair: Pair, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resume point says nothing of it: the run died between the two commits, and the server with it."""
    monkeypatch.setattr("airflow_provider_cdc.mysql.client.gtids.WAIT_SECONDS", 0.5)
    lost = pair.run(statement, on=[pair.old])
    die_in_a_batch(pair, pair.old)
    pair.refused(TransientError, "has not executed|whose binlog ends at")
    pair.run(statement, gtid=lost, on=[pair.new])
    exact(pair, pair.new)


def test_what_was_read_at_another_server_says_nothing_of_the_tables_now(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run wrote down the end of its batch, far ahead, and died before any table had it. The numbers of the next
    server must not be taken for those: what a table holds of it may be what no other server ever got.
    """
    monkeypatch.setattr("airflow_provider_cdc.mysql.client.gtids.WAIT_SECONDS", 0.5)
    for _ in range(3):
        pair.old.execute("FLUSH BINARY LOGS")
    pair.run("INSERT INTO d.keyed VALUES (9, 9)")
    with epoch(pair, pair.old) as found:
        manifest = stage_everything(found)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(DeltaSinkTable, "commit", _die)
            found.applier.apply(manifest)
    pair.copy(pair.new)
    lost = pair.run("INSERT INTO d.keyed VALUES (10, 10)", on=[pair.new])
    die_in_a_batch(pair, pair.new)
    pair.refused(TransientError, "has not executed|whose binlog ends at", pair.old)
    pair.run("INSERT INTO d.keyed VALUES (10, 10)", gtid=lost, on=[pair.old])
    exact(pair, pair.old)


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def test_nobody_knows_what_a_table_holds(pair: Pair) -> None:
    pair.run("INSERT INTO d.keyed VALUES (9, 9)")
    die_in_a_batch(pair, pair.old)
    pair.cli.context.storage.delete(pair.cli.context.layout.current_batch)
    pair.refused(TerminalError, r"d\.keyed is ahead of the resume point, and nothing says which transactions")
    pair.copy(pair.old)
    exact(pair, pair.new)


# ---------------------------------------------------------------- read again


def test_read_again_at_the_new_server(pair: Pair) -> None:
    """Numbers, watermarks and replay are those of the binlog that the resume point is in; and so at the next one."""
    change(pair)
    pair.copy(pair.new)
    for server in (pair.new, pair.old, pair.new):
        pair.copy(server)
        break_copy(pair)
        change(pair)
        found = read_again(pair, server)
        assert found.outcome == "staged"
        change(pair)
        pair.copy(server)
        assert set(group(pair).published_by_table().values()) == {found.attempt}
        assert pair.differences(server) == []
        pair.run("UPDATE d.keyed SET v = 0", "DELETE FROM d.keyed WHERE id > 200")
        pair.run("DELETE FROM d.plain WHERE v > 100", "DELETE FROM d.other WHERE id = 'c'")
        pair.run("INSERT INTO d.other VALUES ('c', 1)", "INSERT INTO d.keyed VALUES (3000, 1)")
        exact(pair, server)
        pair.run("DELETE FROM d.keyed WHERE id = 3000")


def test_read_again_at_the_first_server_after_many_files(pair: Pair) -> None:
    """By the numbers of the first segment its files lie far ahead of what the stream has reached."""
    pair.copy(pair.new)
    for _ in range(8):
        pair.old.execute("FLUSH BINARY LOGS")
    change(pair)
    pair.copy(pair.old)
    break_copy(pair)
    assert read_again(pair, pair.old).outcome == "staged"
    pair.run("UPDATE d.keyed SET v = 0", "DELETE FROM d.other WHERE id = 'c'", "DELETE FROM d.plain WHERE v = 2")
    exact(pair, pair.old)


def test_a_request_of_an_earlier_segment(pair: Pair) -> None:
    """Staged at a server that the stream has left and come back to: dropped by name, and read when asked for again."""
    assert read_again(pair, pair.old).outcome == "staged"
    change(pair)
    with epoch(pair, pair.new) as found:
        assert len(list_pending_reads(found.context, found.plan)) == 1
    for _ in range(3):
        pair.old.execute("FLUSH BINARY LOGS")
    change(pair)
    pair.copy(pair.old)
    with pair.cli.opened() as (context, _):
        assert not list_pending_reads(context, context.plans.require())
    assert set(group(pair).published_by_table().values()) == {1}
    (told,) = events(pair, "reread_dropped")
    assert told.startswith("group 0 was re-snapshotted (attempt 2), but cannot be published: it was read from server ")
    break_copy(pair)
    assert read_again(pair, pair.old).outcome == "staged"
    exact(pair, pair.old)


@pytest.mark.parametrize("there", [False, True], ids=["there and back", "there"])
def test_files_of_an_earlier_segment(pair: Pair, there: bool) -> None:
    """Files of a try that was killed are not taken over from another server, nor from an earlier stay at this one."""

    def killed(job: SnapshotJob) -> list[dict[str, Any]]:
        run_in_threads(job)
        raise KeyboardInterrupt

    break_copy(pair)
    with pytest.raises(KeyboardInterrupt):
        read_again(pair, pair.old, killed)
    for server in (pair.new, pair.old)[: 2 - there]:
        change(pair)
        pair.copy(server)
    assert read_again(pair, server, counted := Counted()).outcome == "staged"
    assert counted.missing == [3]
    exact(pair, server)


def test_a_request_that_is_left_behind_is_read_again(pair: Pair) -> None:
    """While its job reads, or waits, the stream goes on at another server: worth another try."""
    change(pair)

    def run(job: SnapshotJob) -> list[dict[str, Any]]:
        found = run_in_threads(job)
        pair.copy(pair.new)
        pair.cli.env["AIRFLOW_CONN_CDC_SOURCE"] = pair.old.uri()
        return found

    with pytest.raises(TransientError, match="the stream moved to another server while group 0 was read"):
        read_again(pair, pair.old, run)
    with pytest.raises(TransientError, match="the connection reaches server .* Run again after the stream"):
        read_again(pair, pair.old)
    assert read_again(pair, pair.new).outcome == "staged"
    with pair.cli.opened() as (context, store):
        (staged,) = list_pending_reads(context, context.plans.require())
        assert not publish_or_wait(group(pair), staged, store)
        remove_request(context, context.plans.require(), staged.group, staged.attempt)
        with pytest.raises(TransientError, match="but cannot be published"):
            publish_or_wait(group(pair), staged, store)
    break_copy(pair)
    assert read_again(pair, pair.new).outcome == "staged"
    exact(pair, pair.new)


# ---------------------------------------------------------------- from where the binlog is replayed


def test_the_stream_moves_on_between_two_tries(pair: Pair) -> None:
    """What a file of the first try lacks lies behind its own high watermark, not where the second try began."""
    _killed_try(pair, purged=False)
    assert read_again(pair, pair.old, counted := Counted()).outcome == "staged"
    assert counted.missing == [2]
    exact(pair, pair.old)


def test_the_binlog_of_the_first_try_is_gone(pair: Pair) -> None:
    """Its files are not used: what they lack cannot be read any more."""
    _killed_try(pair, purged=True)
    assert read_again(pair, pair.old, counted := Counted()).outcome == "staged"
    assert counted.missing == [3]
    exact(pair, pair.old)


def _killed_try(pair: Pair, *, purged: bool) -> None:
    """One of three files is finished; the binlog that the snapshot began with is gone, and perhaps this try's, too."""

    def killed(job: SnapshotJob) -> list[dict[str, Any]]:
        pair.old.execute("FLUSH BINARY LOGS")  # the high watermark lies in another file than where the try begins
        next(job.read_slices(0))
        raise KeyboardInterrupt

    break_copy(pair)
    pair.old.execute("FLUSH BINARY LOGS")
    change(pair)
    pair.copy(pair.old)
    pair.old.purge(flush=False)
    with pytest.raises(KeyboardInterrupt):
        read_again(pair, pair.old, killed)
    change(pair)
    pair.copy(pair.old)
    if purged:
        pair.old.purge(flush=False)


def _purged_before_it_is_published(pair: Pair) -> None:
    """The stream goes on, dies before it publishes what is staged, and the server removes what is needed for that."""
    pair.old.execute("FLUSH BINARY LOGS")
    change(pair)
    with epoch(pair, pair.old) as found:
        found.applier.apply(stage_everything(found))
    pair.old.purge(flush=False)


def test_a_request_whose_binlog_is_gone(pair: Pair) -> None:
    """The stream is healthy and goes on: the request is dropped by name, and asked for again it is carried out."""
    assert read_again(pair, pair.old).outcome == "staged"
    _purged_before_it_is_published(pair)
    exact(pair, pair.old)
    (told,) = events(pair, "reread_dropped")
    assert "(attempt 2), but cannot be published: the binlog position" in told and "is no longer on the server" in told
    assert set(group(pair).published_by_table().values()) == {1}
    break_copy(pair)
    assert read_again(pair, pair.old).outcome == "staged"
    exact(pair, pair.old)
    assert set(group(pair).published_by_table().values()) == {3}


def test_a_try_that_died_behind_its_request(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next try finds what it has staged, and that it cannot be published any more: it reads the group itself."""

    def die(name: str) -> None:
        raise Killed(name)

    break_copy(pair)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(staged, "failpoint", die)
        read_again(pair, pair.old)
    _purged_before_it_is_published(pair)
    assert read_again(pair, pair.old, counted := Counted()).outcome == "staged"
    assert counted.missing == [3]
    exact(pair, pair.old)


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: os.truncate(path, 100)], ids=["gone", "cut short"])
def test_a_request_whose_file_is_damaged(pair: Pair, harm: Callable[[Path], Any]) -> None:
    assert read_again(pair, pair.old).outcome == "staged"
    harm(next((pair.cli.sink / "d" / "other" / "snapshot" / "1" / "0" / "2").glob("*.parquet")))
    exact(pair, pair.old)
    (told,) = events(pair, "reread_dropped")
    assert "cannot be published" in told
    assert read_again(pair, pair.old).outcome == "staged"
    exact(pair, pair.old)


def test_nothing_is_published_before_its_high_watermark_is_reached(pair: Pair) -> None:
    """Else the table would be ahead of its stream in a part of its rows, and could not go on at another server."""
    change(pair)
    assert read_again(pair, pair.old).outcome == "staged"
    with epoch(pair, pair.old) as found:
        found.publish_pending()
        assert set(group(pair).published_by_table().values()) == {1}
        run_epoch_in_process(found)
    assert set(group(pair).published_by_table().values()) == {2}
    exact(pair, pair.new)


def test_a_group_that_is_read_again_before_the_fence(fresh: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job publishes it by itself, after the stream has looked for the first time what the tables hold."""
    raise_fence, done = DeltaSinkTable.raise_fence, list[str]()

    def first(target: DeltaSinkTable, fence: Fence) -> bool:
        if fence.name.endswith("/epoch") and not done:
            done.append(fence.name)
            change(fresh)
            assert read_again(fresh, fresh.old).outcome == "replaced"
        return raise_fence(target, fence)

    monkeypatch.setattr(DeltaSinkTable, "raise_fence", first)
    exact(fresh, fresh.old)
    assert done


# ---------------------------------------------------------------- random schedules


def twisted(pair: Pair, draw: random.Random) -> None:
    """Changes that both servers run, each in an order of its own where the order does not matter."""
    if draw.random() < 0.3:
        draw.choice((pair.old, pair.new)).execute("FLUSH BINARY LOGS")
    if draw.random() < 0.5:
        change(pair)
        return
    n = next(_numbers)
    texts = [
        f"INSERT INTO d.plain VALUES ({n})",
        f"UPDATE d.keyed SET v = {n} WHERE id = {draw.choice((1, 2, 3, 20))}",
        f"REPLACE INTO d.other VALUES ('{draw.choice('abcdef')}', {n})",
    ]
    named = [(text, pair.next(domain) if isinstance(pair, Domains) else "") for domain, text in enumerate(texts, 1)]
    named = [(text, pair.run(text, gtid=gtid, on=[pair.old])) for text, gtid in named]
    draw.shuffle(named)
    for text, gtid in named:
        pair.run(text, gtid=gtid, on=[pair.new])
    if draw.random() < 0.15:
        pair.run(f"TRUNCATE d.{draw.choice(('keyed', 'other', 'plain'))}")
        pair.run("REPLACE INTO d.keyed VALUES (1, 1), (2, 1), (3, 1), (20, 1)")


def gone_back(pair: Pair, server: MySQLServer, error: TerminalError) -> MySQLServer:
    """A run has left a table without a key further than the resume point: back to the other server, and on there."""
    assert "has no usable key" in error.message
    other = pair.old if server is pair.new else pair.new
    pair.copy(other)
    return other


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed in (1, 4) else pytest.mark.long) for seed in range(40)]
)
def test_whatever_happens(pair: Pair, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers, streams and readings that die anywhere, failovers there and back, binlogs that go."""
    draw, server, left = random.Random(seed), pair.old, [0]

    def failpoint(name: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed(name)

    for module in (apply, publish, batches, slices):
        monkeypatch.setattr(module, "failpoint", failpoint)
    seen = Counter[str]()
    broken = bool(seed % 3 == 0)
    if broken:
        break_copy(pair)
    for _ in range(14):
        what = draw.choices(("write", "stream", "read", "move", "purge"), (6, 6, 4, 3, 1))[0]
        seen[what] += 1
        left[0] = draw.randrange(1, 16) if draw.random() < 0.5 and what != "purge" else 0
        try:
            if what == "write":
                twisted(pair, draw)
            elif what == "stream":
                with epoch(pair, server, draw.choice((1, 2000, 1 << 28))) as found:
                    run_epoch_in_process(found)
            elif what == "read":
                seen[read_again(pair, server).outcome] += 1
            elif what == "move":
                server = pair.old if server is pair.new else pair.new
            else:
                server.execute("FLUSH BINARY LOGS")
                change(pair)
                pair.copy(server)
                server.purge(flush=False)
        except Killed as error:
            seen[str(error)] += 1
        except TransientError as error:
            seen[error.message[:30]] += 1
            assert what == "read" and "reaches server" in error.message  # the stream is not there yet
        except TerminalError as error:
            left[0] = 0
            server = gone_back(pair, server, error)
            seen["refused"] += 1
    left[0] = 0
    try:
        pair.copy(server)
    except TerminalError as error:  # of a run that was killed before the last move
        server = gone_back(pair, server, error)
        seen["refused"] += 1
    if broken:
        attempt = read_again(pair, server).attempt
        pair.copy(server)
        assert set(group(pair).published_by_table().values()) == {attempt}
    print(seed, dict(seen))
    exact(pair, server)
