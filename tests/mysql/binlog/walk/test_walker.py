"""The walker against the plain code, on streams of a real server: the same changes, places, GTIDs and errors."""

from __future__ import annotations

import contextlib
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from airflow_provider_cdc.model.errors import DamageError, TerminalError, TransientError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.mysql.binlog.kernels import walk_state
from airflow_provider_cdc.mysql.binlog.walk.walker import BinlogWalker
from tests import ROOT
from tests.mysql.binlog.plain.test_row_decoder import NAMES, ROW, TYPES, insert
from tests.support.binlog.plain import by_plain, by_walker, gtids_of, seq_of
from tests.support.binlog.reading import Captured, capture, here, lasting, open_stream, read, rows_of
from tests.support.binlog.replay import Recording, Replay, record, sealed
from tests.support.servers import MySQLServer

MIXED = (
    "BEGIN",
    "INSERT INTO t VALUES (1, 'a', 1.5, NOW(6))",
    "INSERT INTO other VALUES (1)",
    "UPDATE t SET a = 2 WHERE a = 1",  # another key
    "UPDATE t SET b = 'x'",
    "COMMIT",
    "BEGIN",
    "INSERT INTO t (a) VALUES (20), (21), (22)",
    "SAVEPOINT s",
    "INSERT INTO t (a) VALUES (23)",
    "ROLLBACK TO s",
    "INSERT INTO second VALUES (1, 'é🎁', '{\"a\": 1}')",
    "COMMIT",
    "BEGIN",
    "INSERT INTO t (a) VALUES (30)",
    "ROLLBACK",
    "SET SESSION binlog_transaction_compression = ON",
    "INSERT INTO t (a, b) VALUES (40, 'y'), (41, NULL)",
    "UPDATE second, t SET second.b = 'z', t.b = 'z' WHERE t.a = 40",
    "SET SESSION binlog_transaction_compression = OFF",
    "CREATE TABLE u (a INT PRIMARY KEY)",
    "INSERT INTO u VALUES (1)",
    "FLUSH BINARY LOGS",
    "SET SESSION binlog_rows_query_log_events = ON",
    "INSERT INTO t (a) VALUES (50)",
    "INSERT INTO mine VALUES (1)",
    "DELETE FROM t WHERE a < 40",
    "XA START 'x'",
    "INSERT INTO other VALUES (2)",
    "XA END 'x'",
    "XA PREPARE 'x'",
    "XA COMMIT 'x'",
    "INSERT INTO t (a) VALUES (60)",
    "XA START 'y'",
    "INSERT INTO t (a) VALUES (70), (71)",
    "UPDATE t SET b = 'xa' WHERE a = 70",
    "XA END 'y'",
    "XA PREPARE 'y'",
    "XA COMMIT 'y'",
    "XA START 'z'",
    "INSERT INTO t (a) VALUES (80)",
    "XA END 'z'",
    "XA COMMIT 'z' ONE PHASE",
    "SET gtid_next = 'AUTOMATIC:tag'",
    "INSERT INTO t (a) VALUES (90)",
    "UPDATE t SET a = 91, b = 'tagged' WHERE a = 90",
    "INSERT INTO other VALUES (3)",
    "SET gtid_next = 'AUTOMATIC:a_tag_that_is_as_long_as_any_is1'",
    "INSERT INTO t (a) VALUES (92)",
    "XA START 'tagged'",
    "INSERT INTO t (a) VALUES (93)",
    "XA END 'tagged'",
    "XA PREPARE 'tagged'",
    "XA COMMIT 'tagged'",
    "DELETE FROM t WHERE a = 92",
    "SET gtid_next = 'AUTOMATIC'",
    "TRUNCATE second",
    "INSERT INTO second VALUES (9, 'after', '[]')",
)


@pytest.fixture
def mixed(mysql_server: MySQLServer, database: str) -> Iterator[tuple[Recording, Captured]]:
    """Transactions of all sorts: ``t`` and ``second`` are captured, ``mine`` is not: it ends with COMMIT."""
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        for sql in (
            "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(20), c DECIMAL(9,3), d DATETIME(6))",
            "CREATE TABLE second (a INT PRIMARY KEY, b VARCHAR(9), j JSON)",
            "CREATE TABLE mine (a INT PRIMARY KEY) ENGINE=MyISAM",
            "CREATE TABLE other (a INT PRIMARY KEY)",
        ):
            cursor.execute(sql)
        captured = capture(mysql_server, database, "t", "second")
        start = here(mysql_server)
        for sql in MIXED:
            cursor.execute(sql)
        yield record(mysql_server, start), captured


def agree(recording: Recording, captured: Captured, replay: Replay | None = None, **options: int) -> int:
    """Both roads give the same; the number of changes."""
    made, expected = by_walker(recording, captured, replay, **options), by_plain(recording, captured)  # type: ignore[arg-type]
    assert made[1:] == expected[1:]
    for name, table in expected[0].items():
        assert repr(rows_of(made[0][name])) == repr(rows_of(table)), name
    changes = [op for table in by_plain(recording, captured, True)[0].values() for op in table["_cdc_op"].to_pylist()]
    counting = BinlogWalker(Replay(recording), lasting(captured), seq_of, count_only=True)
    assert sum(step.counted_rows for step in counting.steps()) == len(changes) - changes.count("b")
    return sum(table.num_rows for table in expected[0].values())


def test_transactions_of_all_sorts(mixed: tuple[Recording, Captured]) -> None:
    recording, captured = mixed
    assert agree(recording, captured) > 15
    # In pieces of any size, with changes taken as often as that is possible.
    pick = random.Random(5)
    for sizes in ((1,), (2, 3), (1, 100), (1, 4000)):
        agree(recording, captured, Replay(recording, lambda sizes=sizes: pick.randint(sizes[0], sizes[-1])), budget=1)  # type: ignore[misc]


def test_layouts_that_alternate(mysql_server: MySQLServer, database: str) -> None:
    """The server may describe a table shortly, then at length, then shortly again: the order of changes stays."""
    (given_by_default,) = mysql_server.execute("SELECT @@global.binlog_row_metadata")[0]
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(20), e ENUM ('x'))"
        )  # members are told at length only
        captured, start = capture(mysql_server, database, "t"), here(mysql_server)
        try:
            for n, metadata in enumerate(("MINIMAL", "FULL", "MINIMAL", "FULL")):
                cursor.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
                cursor.execute("REPLACE INTO t (a, b) VALUES (1, %s), (2, %s)", (f"{n}", f"{n}"))
            ordered = record(mysql_server, start)
            start = here(mysql_server)
            cursor.execute("BEGIN")
            for metadata in ("MINIMAL", "FULL"):
                cursor.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
                cursor.execute("REPLACE INTO t (a, b) VALUES (1, %s)", metadata)
            cursor.execute("COMMIT")
        finally:
            cursor.execute(f"SET GLOBAL binlog_row_metadata = {given_by_default}")
    assert agree(ordered, captured) == 8
    with pytest.raises(TerminalError, match="binlog_row_metadata was changed inside a transaction"):
        by_walker(record(mysql_server, start), captured)


def test_rows_that_become_visible_later(mixed: tuple[Recording, Captured]) -> None:
    """Rows of a prepared XA transaction are handed out as they are; a TRUNCATE is told."""
    recording, captured = mixed
    walker = BinlogWalker(Replay(recording), lasting(captured), seq_of)
    items = [step.transaction for step in walker.steps() if step.transaction is not None]
    plain = [
        t
        for t in read(recording.events(), captured, recording.collations)
        if t.xa_prepared is not None or t.xa_finished is not None or t.emptied_table is not None
    ]
    (at_once,) = (t for t in items if t.xa_prepared is None and t.xa_finished is None and t.emptied_table is None)
    assert at_once.rows and all(row.images for row in at_once.rows), "an XA transaction of one phase"
    items.remove(at_once)
    names = ("file", "position", "start_position", "gtid", "commit_us", "xa_prepared", "xa_finished", "emptied_table")
    assert [[getattr(t, n) for n in names] for t in items] == [[getattr(t, n) for n in names] for t in plain]
    prepared = [[(r.operation, bytes(r.images), r.schema.id) for r in t.prepared_rows] for t in items]
    assert prepared == [[(r.operation, bytes(r.images), r.schema.id) for r in t.prepared_rows] for t in plain]
    assert sorted(len(rows) for rows in prepared)[-2:] == [1, 2] and [t.emptied_table for t in items if t.emptied_table]
    walker.take_changes()
    for rows in next(t.prepared_rows for t in items if t.prepared_rows):
        walker.decode_rows(rows, 5, 6)
    ((_, batch),) = walker.take_changes()
    assert batch["a"].to_pylist() == [70, 71, 70] and batch["_cdc_op"].to_pylist() == ["c", "c", "u"]
    assert set(batch["_cdc_seq"].to_pylist()) == {5}


def test_the_live_stream(mixed: tuple[Recording, Captured], mysql_server: MySQLServer) -> None:
    """From the server itself: steps come as things happen, and end where they are asked to."""
    recording, captured = mixed
    ((database, _), *_) = captured
    place = recording.file, recording.position
    with open_stream(mysql_server, place, blocking=True, heartbeat_seconds=0.2) as stream:
        walker = BinlogWalker(stream, lasting(captured), seq_of)
        end = Position(*here(mysql_server))
        for step in walker.steps(end):
            last = step
            for rows in step.transaction.rows if step.transaction else ():
                walker.decode_rows(rows, 5, 6)
        assert (last.file, last.position, last.has_open_transaction) == (end.file, end.position, False)
        got = sum(batch.num_rows for _, batch in walker.take_changes())
        assert got == sum(t.num_rows for t in by_plain(recording, captured)[0].values())
        for i in range(3):
            mysql_server.execute(f"INSERT INTO {database}.t (a) VALUES ({100 + i})")
            end = Position(*here(mysql_server))
            for step in walker.steps(end):
                last = step
            ((_, batch),) = walker.take_changes()
            assert batch["a"].to_pylist() == [100 + i] and batch["_cdc_op"].to_pylist() == ["c"]
            assert batch["_cdc_seq"].to_pylist() == [seq_of(end.file) + end.position]
            assert len(gtids_of(last)) == 1
        thread = stream._connection.thread_id()
        mysql_server.execute(f"KILL {thread}")
        with pytest.raises(TransientError, match="no binlog stream at"):
            list(walker.steps())


def test_tagged_transactions_are_ordinary(
    mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine code reads them from end to end, and knows where each ends, so that large ones can be handed out."""
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a INT PRIMARY KEY)")
        captured = capture(mysql_server, database, "t")
        start = here(mysql_server)
        cursor.execute("SET gtid_next = 'AUTOMATIC:tag'")
        for n in range(10):
            for sql in ("BEGIN", *(f"INSERT INTO t VALUES ({10 * n + i})" for i in range(3)), "COMMIT"):
                cursor.execute(sql)
    recording = record(mysql_server, start)
    plain, taken = BinlogWalker._handle_event, list[int]()

    def event(self: BinlogWalker) -> Any:
        at = int(self._state[walk_state.BLOCK_AT])
        taken.extend(self._blocks.data[at + 9 : at + 10].tolist())
        return plain(self)

    monkeypatch.setattr(BinlogWalker, "_handle_event", event)
    assert agree(recording, captured) == 30
    assert 19 in taken and not {2, 16, 30, 42} & set(taken), taken
    walker = BinlogWalker(Replay(recording), lasting(captured), seq_of, byte_budget=1)
    assert [walker.can_take for step in walker.steps() if step.has_open_transaction] == [True] * 30


def test_rows_that_were_taken_back(mixed: tuple[Recording, Captured]) -> None:
    """Older servers wrote rolled-back rows with a ROLLBACK at the end."""
    recording, captured = mixed
    packets = list(recording.packets())
    first = next(n for n, p in enumerate(packets) if p[5:6] == b"\x10")  # an XID; GTID, BEGIN, ... stand before it
    begin = next(p for p in packets[:first][::-1] if p[5:6] == b"\x02")
    event = bytearray(begin[1:-4]).replace(b"BEGIN", b"ROLLBACK")
    event[9:13] = (len(event) + 4).to_bytes(4, "little")
    end, grown = int.from_bytes(packets[first][14:18], "little"), len(event) + 5 - len(packets[first])
    event[13:17] = (end + grown).to_bytes(4, "little")
    rest = recording.changed([*packets[:first], sealed(bytes(event))])
    assert agree(rest, captured) == 0
    with pytest.raises(TerminalError, match="does not end as expected"):
        by_walker(rest, captured, budget=1)


def test_damage_on_the_way_stops(mixed: tuple[Recording, Captured]) -> None:
    """A flipped bit anywhere, a packet lost or doubled: the same words as the plain code."""
    recording, captured = mixed
    packets = list(recording.packets())
    pick = random.Random(3)
    for n, packet in enumerate(packets[:-1]):
        for _ in range(3):
            at = pick.randrange(1, len(packet))
            if at in (18, 19) or packet[5] == 15:
                continue  # flags of the header; the first format event says whether there are checksums
            bad = bytearray(packet)
            bad[at] ^= 1 << pick.randrange(8)
            broken = recording.changed([*packets[:n], bytes(bad), *packets[n + 1 :]])
            with pytest.raises(DamageError) as plain:
                by_plain(broken, captured)
            with pytest.raises(DamageError, match=re.escape(plain.value.message)):
                by_walker(broken, captured)
    # Lost: all but those that say nothing of positions. Packet numbers are put right, so the events must tell.
    for n, packet in enumerate(packets[:-1]):
        if packet[5] not in (4, 15) and n + 2 < len(packets):
            with pytest.raises(DamageError):
                by_walker(recording.changed([*packets[:n], *packets[n + 1 :]]), captured)
    with pytest.raises(DamageError, match="packets out of order"):
        data = recording.data
        size = 4 + int.from_bytes(data[:3], "little")
        by_walker(replace(recording, mariadb=False, data=data[size:]), captured)


def test_every_type_mutated(mysql_server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Right values or a stop, never a crash, a hang or a wrong value."""
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(NAMES, TYPES, strict=True))
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT AUTO_INCREMENT PRIMARY KEY, {columns})")
    captured = capture(mysql_server, database, "t")
    start = here(mysql_server)
    rows = [tuple(None for _ in NAMES)]

    @settings(max_examples=12, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(ROW)
    def fill(row: tuple[Any, ...]) -> None:
        rows.append(row)

    fill()
    insert(mysql_server, database, rows)
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("SET gtid_next = 'AUTOMATIC:tag'")
        cursor.execute("UPDATE t SET id = id + 1000 LIMIT 3")
        cursor.execute("SET SESSION binlog_transaction_compression = ON")
        cursor.execute("DELETE FROM t LIMIT 3")
        cursor.execute("DELETE FROM t LIMIT 3")
    recording = record(mysql_server, start)
    assert agree(recording, captured) > 15
    (tmp_path / "recording").write_bytes(pickle.dumps((recording, captured)))
    seed = str(random.randrange(1 << 30))
    command = [sys.executable, "-m", "tests.support.binlog.fuzz", str(tmp_path / "recording"), seed, "300"]
    print("To repeat it:", *command)
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    print(out.stdout)
    assert out.returncode == 0, out.stderr[-2000:]
    assert "stopped" in out.stdout and "'read'" in out.stdout
