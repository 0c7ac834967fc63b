"""A stream goes on at another server, which has the same transactions in an order and under positions of its own."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from airflow_provider_cdc.apply import follow_ddl as schema_changes
from airflow_provider_cdc.apply.applier import stream_marker
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.explain.explanation import Explanation
from airflow_provider_cdc.explain.run import explain_row
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.model.gtid import GtidSet
from airflow_provider_cdc.model.schema import SEQ_COLUMN
from airflow_provider_cdc.mysql.chunks import chunk
from airflow_provider_cdc.sinks.delta.resume_point import DeltaResumePoint
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.protocol import PublishSlices
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.stream.epoch import Epoch
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.chance import killed_at
from tests.support.cli import Cli, asked_by
from tests.support.epochs import run_epoch_in_process
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, ICEBERG, seeds_by_kind

TABLES = ("keyed", "other", "plain")
#: A source that the servers have transactions of besides their own, as after an earlier failover.
ELSEWHERE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
#: The same in schedules with another kind of sink: a server does nothing twice under one GTID.
ELSEWHERE_BY_KIND = {DELTA: ELSEWHERE, ICEBERG: "3e11fa47-71ca-11e1-9e33-c80aa9429563"}


@dataclass
class Pair:
    """Two servers that run the same transactions, each in an order of its own."""

    old: MySQLServer
    new: MySQLServer
    database: str
    folder: Path
    kind: str = DELTA
    gtids: dict[str, int] = field(default_factory=dict)
    cli: Cli = field(init=False)

    def __post_init__(self) -> None:
        d = self.database
        self.run(f"CREATE DATABASE {d}")
        self.run(f"CREATE TABLE {d}.keyed (id INT PRIMARY KEY, v INT)")
        self.run(f"CREATE TABLE {d}.other (id VARCHAR(20) PRIMARY KEY, v INT)")
        self.run(f"CREATE TABLE {d}.plain (v INT)")
        self.run(f"INSERT INTO {d}.keyed VALUES (1, 1), (2, 1), (3, 1)")
        self.cli = Cli(self.folder, self.old, rf"{d}\..*", name=d, sink={"kind": self.kind})

    def run(self, *sql: str, gtid: str = "", on: Sequence[MySQLServer] = ()) -> str:
        """One transaction with the same GTID on both servers, or on one of them."""
        if not gtid:
            source = self.old.execute("SELECT @@server_uuid")[0][0]
            number = self.gtids.get(source) or self._highest(source)
            self.gtids[source] = number + 1
            gtid = f"{source}:{number + 1}"
        for server in on or (self.old, self.new):
            with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET gtid_next = '{gtid}'")
                for statement in sql if len(sql) == 1 else ("BEGIN", *sql, "COMMIT"):
                    cursor.execute(statement)
        return gtid

    def _highest(self, source: str) -> int:
        executed = GtidSet.parse(self.old.execute("SELECT @@global.gtid_executed")[0][0])
        return max((n for n in range(1, 1000) if f"{source}:{n}" in executed), default=0)

    def level(self) -> None:
        """Make both servers have the same GTIDs, by empty transactions."""
        for one, other in ((self.old, self.new), (self.new, self.old)):
            held = [GtidSet.parse(s.execute("SELECT @@global.gtid_executed")[0][0]) for s in (one, other)]
            for (source, tag), parts in held[0].subtract(held[1])._intervals.items():
                for number in (n for first, last in parts for n in range(first, last + 1)):
                    gtid = ":".join(filter(None, (source, tag, str(number))))
                    self.run("SELECT 1", "SELECT 2", gtid=gtid, on=[other])

    def copy(self, server: MySQLServer) -> None:
        """Catch up from a server."""
        self.cli.env["AIRFLOW_CONN_CDC_SOURCE"] = server.uri()
        self.cli.catch_up()

    def differences(self, server: MySQLServer) -> list[str]:
        return [str(d) for d in compare_database(server, self.database, self.cli.sink)]

    def refused(self, kind: type[CdcError], text: str, server: MySQLServer | None = None) -> None:
        """The stream does not begin on the new server, and the resume point stays where it was."""
        self.cli.env["AIRFLOW_CONN_CDC_SOURCE"] = (server or self.new).uri()
        progress = DeltaResumePoint(LocalStorage(self.cli.sink / "_cdc_progress" / self.database), self.database)
        before = progress.read()
        with self.cli.opened() as (context, store), pytest.raises(kind, match=text):
            begin_epoch(context, store, catch_up=True)
        assert progress.read() == before


@contextlib.contextmanager
def two_servers() -> Iterator[tuple[MySQLServer, MySQLServer]]:
    with MySQLServer() as old, MySQLServer() as new:
        # Files of other numbers and another name: positions of the two have nothing to do with each other.
        for _ in range(5):
            old.execute("FLUSH BINARY LOGS")
        foreign = old.execute("SELECT @@global.gtid_executed")[0][0]
        new.execute("RESET BINARY LOGS AND GTIDS")
        new.execute(f"SET GLOBAL gtid_purged = '{foreign}'")
        yield old, new


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[MySQLServer, MySQLServer]]:
    with two_servers() as found:
        yield found


@pytest.fixture
def kind() -> str:
    """Kind of the sink."""
    return DELTA


@pytest.fixture
def pair(servers: tuple[MySQLServer, MySQLServer], database: str, tmp_path: Path, kind: str) -> Iterator[Pair]:
    made = Pair(*servers, f"f{database}", tmp_path, kind)
    yield made
    made.level()
    made.gtids.clear()
    made.run(f"DROP DATABASE {made.database}")


def epoch(pair: Pair, server: MySQLServer, batch_bytes: int = 1 << 28) -> AbstractContextManager[Epoch]:
    pair.cli.env["AIRFLOW_CONN_CDC_SOURCE"] = server.uri()
    return pair.cli.epoch(batch_bytes)


def test_there_and_back(pair: Pair) -> None:
    """The command line and Spark, over three segments; numbers grow all the time, and all is told."""
    d = pair.database
    pair.cli.snapshot()
    pair.run(f"INSERT INTO {d}.plain VALUES (1), (1)")
    pair.copy(pair.old)
    highest = []
    for number, server in enumerate((pair.new, pair.old, pair.new), 10):
        pair.run(f"INSERT INTO {d}.keyed VALUES ({number}, 1)", f"UPDATE {d}.keyed SET v = v + 1 WHERE id = 1")
        pair.run(f"DELETE FROM {d}.plain WHERE v = 1 LIMIT 1", f"INSERT INTO {d}.plain VALUES ({number}), (1)")
        pair.cli.env["AIRFLOW_CONN_CDC_SOURCE"] = server.uri()
        if number == 10:
            ran = pair.cli.run("stream", "--catch-up")
            assert ran.code == 0 and re.search(
                r"continuing on server \S+, binlog\.\d+:\d+ \(before: \S+, binlog", ran.err
            )
        else:
            pair.copy(server)
        assert pair.differences(server) == []
        highest.append(max(pair.cli.rows(d, "keyed")[SEQ_COLUMN].to_pylist()))
        assert pair.cli.call("verify").code == 0
        status = pair.cli.call("status", "--json")
        assert status.code == 0 and server.execute("SELECT @@server_uuid")[0][0] in status.out
    assert highest == sorted(set(highest))
    with pair.cli.opened() as (context, store):
        stand = context.sink.resume_point().read_with_timeline()
        assert stand is not None and len(stand[1].segments) == 4
        assert len([e for e in store.last_events(d, 50) if e.kind == "failover"]) == 3
        # Every number leads back to its segment.
        for segment in stand[1].segments:
            at = segment.position(segment.first_ordinal << 41 | 1000)
            assert stand[1].position(segment.seq(at)) == at and segment.start_file == at.file


def test_why_a_row_is_as_it_is(pair: Pair) -> None:
    """Before the stream goes on at the new server, and afterwards: it says what it cannot know there."""

    def why(key: str) -> Explanation:
        found = explain_row(pair.cli.context, f"{pair.database}.keyed", [key])
        assert all(line.strip() for line in found.lines())
        return found

    d = pair.database
    pair.cli.snapshot()
    pair.run(f"UPDATE {d}.keyed SET v = 2 WHERE id = 1")
    pair.copy(pair.old)
    before = why("1")
    assert (before.equal, before.pending_changes, before.corrections.unknown_reason) == (True, 0, "")
    pair.run(f"UPDATE {d}.keyed SET v = 3 WHERE id = 2")
    pair.cli.env["AIRFLOW_CONN_CDC_SOURCE"] = pair.new.uri()
    for key, value in (("1", 2), ("2", 1)):
        between = why(key)
        assert between.equal is None and "the connection reaches server" in between.not_compared_reason
        assert [row["v"] for row in between.copy.rows] == [value] and between.source.rows
        assert "whose binlog is not available" in between.corrections.unknown_reason
        assert between.last_change is not None and between.last_change.operation == "update", (
            "the new server has that as well"
        )
    pair.copy(pair.new)
    for key, value in (("1", 2), ("2", 3), ("3", 1)):
        found = why(key)

        assert (found.equal, found.pending_changes) == (True, 0), found.not_compared_reason
        assert found.copy.rows == found.source.rows == ({"id": int(key), "v": value},)


def transactions(draw: random.Random, database: str, count: int) -> list[tuple[set[str], tuple[str, ...]]]:
    """What each touches, and its statements."""
    found: list[tuple[set[str], tuple[str, ...]]] = []
    for number in range(count):
        key, value = draw.randrange(8), draw.randrange(1000)
        kind = draw.randrange(9)
        if kind < 4:
            sql = f"INSERT INTO {database}.keyed VALUES ({key}, {value}) ON DUPLICATE KEY UPDATE v = {value}"
            found.append(({f"k{key}"}, (sql,)))
        elif kind == 4:
            found.append(({f"k{key}"}, (f"DELETE FROM {database}.keyed WHERE id = {key}",)))
        elif kind == 5:
            sql = f"REPLACE INTO {database}.other VALUES ('{key}', {value})"
            found.append(({f"o{key}", f"k{key}"}, (sql, f"REPLACE INTO {database}.keyed VALUES ({key}, {value})")))
        elif kind == 6:
            found.append(({f"p{number}"}, (f"INSERT INTO {database}.plain VALUES ({draw.randrange(3)})",)))
        elif kind == 7:
            # Takes a row that is there whatever the order is: it was inserted before.
            found.append(({"p"}, (f"DELETE FROM {database}.plain WHERE v = 7 LIMIT 1",)))
        else:
            found.append(({"p", "k", "o"}, (f"TRUNCATE {database}.{draw.choice(('keyed', 'other'))}",)))
    return found


def conflict(one: set[str], two: set[str]) -> bool:
    """Whether their order matters. A letter alone stands for the whole table."""
    return bool(one & two) or any(
        a[0] == b[0] for a in one for b in two if len(a) == 1 or len(b) == 1 if not (a == b == "p")
    )


@pytest.mark.parametrize(("seed", "kind"), seeds_by_kind(range(3), range(3, 20)))
def test_another_order(pair: Pair, seed: int) -> None:
    """The new server has committed in another order, with gaps and tags, when the stream comes over at any moment."""
    draw, d, elsewhere = random.Random(seed), pair.database, ELSEWHERE_BY_KIND[pair.kind]
    pair.run(f"INSERT INTO {d}.plain VALUES {', '.join(['(7)'] * 60)}")
    pair.cli.snapshot()
    pair.run(f"INSERT INTO {d}.keyed VALUES (100, 1)")
    listed = [
        (touched, sql, name)
        for (touched, sql), name in zip(transactions(draw, d, 40), names(draw, elsewhere), strict=False)
    ]
    copied = draw.randrange(5, 30)
    for done, (_, sql, gtid) in enumerate(listed):
        if done == copied:
            pair.copy(pair.old)
        pair.run(*sql, gtid=gtid, on=[pair.old])
    # Another order that could have come about: what conflicts stays in its order.
    rest, swapped = list(listed), 0
    while rest:
        free = [i for i, t in enumerate(rest) if not any(conflict(t[0], before[0]) for before in rest[:i])]
        index = draw.choice(free)
        swapped += index > 0
        _, sql, gtid = rest.pop(index)
        pair.run(*sql, gtid=gtid, on=[pair.new])
    assert swapped > 5
    pair.run(f"INSERT INTO {d}.keyed VALUES (101, 1)", on=[pair.new])
    with epoch(pair, pair.new, batch_bytes=draw.choice((1, 2000, 1 << 28))) as found:
        assert found.section_start.already_applied or seed > 2  # else the orders agree up to there, by chance
        verified = pair.cli.call("verify")
        assert not found.section_start.already_applied or (verified.code == 4 and "Let it catch up" in verified.err), (
            verified
        )
        run_epoch_in_process(found)
        assert not found.applier.offset.already_applied
    assert pair.differences(pair.new) == []
    pair.run(f"UPDATE {d}.keyed SET v = -1", gtid=f"{elsewhere}:{seed + 1000}")
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []


def test_a_truncate_that_the_copy_holds(pair: Pair) -> None:
    """It empties the table once: the row that was inserted after it is held, too, and would not come again."""
    d = pair.database
    pair.cli.snapshot()
    both = [f"TRUNCATE {d}.keyed", f"INSERT INTO {d}.keyed VALUES (5, 5)"]
    gtids = [pair.run(sql, on=[pair.old]) for sql in both]
    pair.copy(pair.old)
    late = pair.run(f"INSERT INTO {d}.plain VALUES (1)", on=[pair.new])
    for sql, gtid in zip(both, gtids, strict=True):
        pair.run(sql, gtid=gtid, on=[pair.new])
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []
    pair.run(f"INSERT INTO {d}.plain VALUES (1)", gtid=late, on=[pair.old])


def names(draw: random.Random, source: str) -> Iterator[str]:
    """GTIDs of two sources, with tags and with gaps; each once."""
    numbers = {"": draw.randrange(10**6), ":tag": draw.randrange(10**6)}
    while True:
        tag = draw.choice(list(numbers))
        numbers[tag] += draw.choice((1, 1, 1, 2, 5))
        yield f"{source}{tag}:{10**6 + numbers[tag]}"


def test_xa_on_both_sides(pair: Pair) -> None:
    """One ended before the stream came over but stands behind its place there, and one that is prepared afterwards."""
    d = pair.database
    pair.cli.snapshot()

    def prepare(server: MySQLServer, name: str, row: int, gtid: str) -> None:
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET gtid_next = '{gtid}'")
            for sql in (f"XA START '{name}'", f"INSERT INTO {d}.plain VALUES ({row})", f"XA END '{name}'"):
                cursor.execute(sql)
            cursor.execute(f"XA PREPARE '{name}'")

    first = [f"{ELSEWHERE}:{n}" for n in (1, 2)]
    prepare(pair.old, "one", 1, first[0])
    pair.run("XA COMMIT 'one'", gtid=first[1], on=[pair.old])
    pair.copy(pair.old)
    late = pair.run(f"INSERT INTO {d}.plain VALUES (2)", on=[pair.new])
    prepare(pair.new, "one", 1, first[0])
    pair.run("XA COMMIT 'one'", gtid=first[1], on=[pair.new])
    prepare(pair.new, "one", 3, f"{ELSEWHERE}:3")
    pair.copy(pair.new)
    pair.run("XA COMMIT 'one'", gtid=f"{ELSEWHERE}:4", on=[pair.new])
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []
    assert sorted(pair.cli.rows(d, "plain")["v"].to_pylist()) == [1, 2, 3]
    # So that both servers are alike again.
    pair.run(f"INSERT INTO {d}.plain VALUES (2)", gtid=late, on=[pair.old])
    prepare(pair.old, "one", 3, f"{ELSEWHERE}:3")
    pair.run("XA COMMIT 'one'", gtid=f"{ELSEWHERE}:4", on=[pair.old])


def test_an_open_xa_transaction(pair: Pair) -> None:
    d = pair.database
    pair.cli.snapshot()
    with contextlib.closing(pair.old.connect()) as connection, connection.cursor() as cursor:
        for sql in ("XA START 'open'", f"INSERT INTO {d}.keyed VALUES (9, 9)", "XA END 'open'", "XA PREPARE 'open'"):
            cursor.execute(sql)
    try:
        pair.copy(pair.old)
        pair.refused(TerminalError, r"XA transaction X'6f70656e',X'',1 is open, and only the binlog of server")
    finally:
        pair.old.execute("XA ROLLBACK 'open'")


def test_a_server_that_is_behind(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_cdc.mysql.client.gtids.WAIT_SECONDS", 0.5)
    d = pair.database
    pair.cli.snapshot()
    late = pair.run(f"INSERT INTO {d}.keyed VALUES (9, 9)", on=[pair.old])
    pair.copy(pair.old)
    pair.refused(TransientError, rf"has not executed {late}, which the copy holds")
    pair.run(f"INSERT INTO {d}.keyed VALUES (9, 9)", gtid=late, on=[pair.new])
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []


def test_a_server_that_has_purged_what_comes_next(pair: Pair) -> None:
    d = pair.database
    pair.cli.snapshot()
    pair.run(f"INSERT INTO {d}.keyed VALUES (8, 8)")
    pair.copy(pair.old)
    gap = pair.run(f"INSERT INTO {d}.keyed VALUES (9, 9)")
    pair.new.purge()
    pair.refused(TerminalError, rf"has purged \S*{gap.split(':')[1]}, which was never read")


def test_another_server_altogether(pair: Pair, mysql_server: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_cdc.mysql.client.gtids.WAIT_SECONDS", 0.5)
    pair.cli.snapshot()
    pair.run(f"INSERT INTO {pair.database}.keyed VALUES (9, 9)")
    pair.copy(pair.old)
    pair.refused(TransientError, "has not executed", mysql_server)
    with MySQLServer({"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}) as without:
        pair.refused(TerminalError, "the connection reaches server .*, but this pipeline began on", without)


def test_what_has_no_gtid_and_is_not_there(pair: Pair) -> None:
    """All GTIDs of the copy are at the other server, and yet not all of its transactions."""
    d = pair.database
    pair.old.execute("SET GLOBAL gtid_mode = ON_PERMISSIVE")
    try:
        pair.cli.snapshot()
        pair.old.session(d, "SET gtid_next = 'ANONYMOUS'", "INSERT INTO keyed VALUES (50, 1)")
        pair.copy(pair.old)
    finally:
        pair.old.execute("SET GLOBAL gtid_mode = ON")
    pair.refused(TerminalError, r"copy may hold transactions without GTIDs.*whether server \S+ has them")
    pair.run(f"DELETE FROM {d}.keyed WHERE id = 50", f"INSERT INTO {d}.keyed VALUES (51, 1)")
    pair.copy(pair.old)  # GTIDs are on, and the stream is at the end
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []


def test_a_server_with_other_tables(pair: Pair) -> None:
    """One that leaves changes out, and one whose table has a column more."""
    d = pair.database
    pair.cli.snapshot()
    pair.run(f"INSERT INTO {d}.keyed VALUES (8, 8)")
    pair.copy(pair.old)
    pair.new.execute(f"CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ({d}.plain)")
    pair.new.execute("CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'nowhere.invalid'")
    try:
        pair.refused(TerminalError, rf"a replica that leaves out changes of {d}.plain \(Replicate_Ignore_Table\)")
    finally:
        pair.new.execute("RESET REPLICA ALL")
        pair.new.execute("CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ()")
    with contextlib.closing(pair.new.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")  # else it is a DDL that the stream meets there
        cursor.execute(f"ALTER TABLE {d}.keyed ADD more INT")
    pair.refused(TerminalError, rf"{d}.keyed has another definition")


def test_a_table_that_was_planned_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its definition begins to hold is told by a position of the old server."""
    d = pair.database
    with pair.cli.opened() as (context, store):
        context.plans.ensure(store)
    for table in ("keyed", "plain"):
        pair.run(f"ALTER TABLE {d}.{table} ADD more INT")
    pair.cli.snapshot()
    pair.run(f"INSERT INTO {d}.keyed VALUES (8, 8, 8)")
    with pair.cli.opened() as (context, store):
        assert [d.start is None for d in context.plans.ensure(store).definitions] == [False, True, False]
    pair.copy(pair.old)
    pair.run(f"UPDATE {d}.keyed SET v = 9", f"INSERT INTO {d}.plain VALUES (1, 1)")
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []
    pair.run(f"INSERT INTO {d}.keyed VALUES (10, 10, 10)")  # verify reads what the copy lacks
    assert pair.cli.call("verify").code == 0
    meanwhile = [f"UPDATE {d}.keyed SET v = 11"]

    def failpoint(name: str) -> None:
        if name == "chunk.after_select" and meanwhile:
            pair.run(meanwhile.pop())

    monkeypatch.setattr(chunk, "failpoint", failpoint)
    with pair.cli.opened() as (context, store):
        plan = context.plans.ensure(store)
        for _ in range(2):  # the first time it takes what is there
            run_group(context, store, plan, 0, run_in_threads, holder="somebody", requested_by=asked_by("again"))
    assert not meanwhile
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []


def test_ddl_at_each_server(pair: Pair) -> None:
    """Followed at the old one, and met again under another place at the new one."""
    d = pair.database
    pair.cli.snapshot()
    pair.run(f"ALTER TABLE {d}.keyed ADD a INT FIRST")
    pair.run(f"UPDATE {d}.keyed SET a = id")
    pair.copy(pair.old)
    pair.run(f"UPDATE {d}.keyed SET v = 5 WHERE id = 1")
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []
    pair.run(f"ALTER TABLE {d}.keyed ADD b INT AFTER id")
    pair.run(f"ALTER TABLE {d}.plain ADD b INT")
    pair.run(f"INSERT INTO {d}.keyed VALUES (1, 8, 2, 3)", f"INSERT INTO {d}.plain VALUES (1, 1)")
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []
    pair.run(f"UPDATE {d}.keyed SET b = 7 WHERE id < 3")
    pair.copy(pair.old)
    pair.run(f"ALTER TABLE {d}.keyed ADD c INT")
    pair.run(f"UPDATE {d}.keyed SET c = 7 WHERE id > 2")
    pair.copy(pair.old)
    assert pair.differences(pair.old) == []
    assert pair.cli.call("verify").code == 0


def test_a_ddl_that_the_new_server_has_and_the_stream_has_not_met(pair: Pair) -> None:
    d = pair.database
    pair.cli.snapshot()
    pair.run(f"UPDATE {d}.keyed SET v = 5 WHERE id = 1")
    pair.copy(pair.old)
    pair.run(f"UPDATE {d}.keyed SET v = 6 WHERE id = 2")
    pair.run(f"ALTER TABLE {d}.keyed ADD a INT FIRST")
    pair.run(f"UPDATE {d}.keyed SET a = 7 WHERE id = 3")
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []


def test_a_ddl_that_was_begun_at_the_old_server(pair: Pair) -> None:
    """Its definition is written down, and the resume point stands before it: where that is, the old server knows."""
    d = pair.database
    pair.cli.snapshot()
    pair.run(f"UPDATE {d}.keyed SET v = 5 WHERE id = 1")
    pair.copy(pair.old)
    pair.run(f"ALTER TABLE {d}.keyed ADD a INT")
    pair.run(f"UPDATE {d}.keyed SET a = 5 WHERE id = 1")
    with killed_at("definition.after_alter", schema_changes):
        pair.copy(pair.old)
    pair.refused(TerminalError, rf"had begun to follow an ALTER of {d}.keyed.*Point the connection at server")
    pair.copy(pair.old)
    pair.run(f"UPDATE {d}.keyed SET a = 6 WHERE id = 2")
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []


def test_before_the_first_batch(pair: Pair) -> None:
    """Without a resume point the stream stands at P0, and goes on at another server if the chunks hold nothing more."""
    pair.cli.snapshot()
    pair.run(f"INSERT INTO {pair.database}.keyed VALUES (8, 8)", f"INSERT INTO {pair.database}.plain VALUES (8)")
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []


def test_before_the_first_batch_and_the_snapshot_is_ahead(pair: Pair) -> None:
    """Positions of the old server count, which the new one knows nothing of."""
    with pair.cli.opened() as (context, store):
        context.plans.ensure(store)
    pair.run(f"INSERT INTO {pair.database}.keyed VALUES (8, 8)")
    pair.cli.snapshot()
    pair.refused(TerminalError, "the stream had not passed the snapshot of")


#: Filters, and how to take them back.
FILTERS = {
    "Replicate_Ignore_Table": ("REPLICATE_IGNORE_TABLE = ({d}.plain)", "REPLICATE_IGNORE_TABLE = ()"),
    "Replicate_Rewrite_DB": ("REPLICATE_REWRITE_DB = (({d}, elsewhere))", "REPLICATE_REWRITE_DB = ()"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_replica_that_was_promoted(pair: Pair, name: str) -> None:
    """It is no replica any more, and still lacks what it has left out."""
    d = pair.database
    pair.cli.snapshot()
    pair.run(f"INSERT INTO {d}.keyed VALUES (8, 8)")
    pair.copy(pair.old)
    pair.new.execute("CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'nowhere.invalid'")
    pair.new.execute("CHANGE REPLICATION FILTER " + FILTERS[name][0].format(d=d))
    pair.new.execute("RESET REPLICA ALL")
    try:
        pair.refused(TerminalError, rf"leaves out changes of {d}.*\({name}\), or was one")
        user = pair.new.create_cdc_user("low", databases=[d])
        pair.cli.env["AIRFLOW_CONN_CDC_SOURCE"] = pair.new.uri(**user)
        grant = "GRANT SELECT ON performance_schema.replication_applier_global_filters TO"
        result = pair.cli.call("check")
        assert "a stream cannot continue on another server" in result.out and grant in result.out
        with pair.cli.opened() as (context, store), pytest.raises(NotReadyError, match="may not see") as denied:
            begin_epoch(context, store, catch_up=True)
        assert grant in denied.value.remedy
    finally:
        pair.new.execute("CHANGE REPLICATION FILTER " + FILTERS[name][1])
        pair.new.execute("DROP USER IF EXISTS low")
    pair.copy(pair.new)


def test_a_table_without_a_key_that_is_further_than_the_resume_point(pair: Pair) -> None:
    """A run that was killed between the commit of a table and that of the resume point: counting again is wrong."""
    d = pair.database
    pair.cli.snapshot()
    pair.run(f"INSERT INTO {d}.keyed VALUES (8, 8)")
    pair.copy(pair.old)
    progress = DeltaResumePoint(LocalStorage(pair.cli.sink / "_cdc_progress" / d), d)
    stand = progress.read_with_timeline()
    assert stand is not None
    table = DeltaSinkTable(LocalStorage(pair.cli.sink / d / "plain"), pair.cli.rows(d, "plain").schema)
    marker = stream_marker(d)
    with epoch(pair, pair.old) as found:
        table.commit(lambda _: PublishSlices([]), {marker: stand[1].seq(stand[0].at) + 1}, found.applier.fence)
    pair.refused(TerminalError, rf"{d}.plain has no usable key, and is ahead of the resume point")


def test_in_the_middle_of_an_epoch(pair: Pair) -> None:
    """Another server behind the same address: this epoch ends, the next one goes on."""
    d = pair.database
    pair.cli.snapshot()
    pair.run(f"INSERT INTO {d}.keyed VALUES (8, 8)")
    pair.copy(pair.old)
    pair.run(f"INSERT INTO {d}.keyed VALUES (9, 9)")
    with epoch(pair, pair.old) as found:
        found.job = replace(found.job, connect_args={**found.job.connect_args, "port": pair.new.port})
        found.job.connect_args["password"] = pair.new.password
        said = "the connection reaches server .*, but this pipeline began on"
        with pytest.raises(TransientError, match=said):
            run_epoch_in_process(found)
        with pytest.raises(TransientError, match=said):
            found.job.stage_range(
                found.section_start,
                found.section_start.replace(position=1 << 30),
                "0",
            )
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []


def test_a_ddl_at_a_new_server_that_does_not_lead_to_its_definition(pair: Pair) -> None:
    d = pair.database
    pair.cli.snapshot()
    pair.run(f"UPDATE {d}.keyed SET v = 2")
    pair.copy(pair.old)
    with contextlib.closing(pair.new.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute(f"ALTER TABLE {d}.keyed ADD more INT")
    pair.run(f"ALTER TABLE {d}.keyed ADD INDEX (v)", on=[pair.new])
    pair.refused(TerminalError, rf"{d}.keyed has another definition")


def test_ddl_at_both_servers_there_and_back(pair: Pair) -> None:
    d = pair.database
    pair.cli.snapshot()
    for number, server in enumerate((pair.old, pair.new, pair.old), 1):
        pair.run(f"ALTER TABLE {d}.keyed ADD c{number} INT FIRST")
        pair.run(f"UPDATE {d}.keyed SET c{number} = id, v = {number} WHERE id < 3")
        pair.run(f"ALTER TABLE {d}.plain ADD c{number} INT")
        pair.run(f"INSERT INTO {d}.plain (c{number}) VALUES ({number}), ({number})")
        pair.copy(server)
        assert pair.differences(server) == []
    assert all(v.is_equal for v in verify_tables(pair.cli.context))
