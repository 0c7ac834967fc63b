"""Compressed transactions: unpacked many at a time, or bit by bit, they read as the plain code reads them."""

from __future__ import annotations

import collections
import contextlib
import random
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from airflow_provider_cdc.model.errors import CdcError, TerminalError
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.walk.payload_unpacker import PayloadUnpacker
from airflow_provider_cdc.mysql.binlog.walk.walker import BinlogWalker
from tests.mysql.binlog.walk.test_walker import agree
from tests.support.binlog.fuzz import packed, stored, unpacked, with_body
from tests.support.binlog.plain import by_plain, by_walker, seq_of
from tests.support.binlog.reading import Captured, capture, here, lasting, rows_of
from tests.support.binlog.replay import Recording, Replay, record
from tests.support.servers import MySQLServer

PAYLOAD = 40


@pytest.fixture
def roads(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """How often transactions were unpacked ahead ("ahead": calls, "together": transactions), and bit by bit."""
    found, ahead, enter = collections.Counter[str](), PayloadUnpacker.unpack_ahead, PayloadUnpacker.begin_streaming

    def counted_ahead(self: PayloadUnpacker) -> bool:
        done = ahead(self)
        found["ahead"] += done
        return done

    def counted_enter(self: PayloadUnpacker, event: BinlogEvent) -> None:
        found["bit by bit"] += 1
        enter(self, event)

    monkeypatch.setattr(PayloadUnpacker, "unpack_ahead", counted_ahead)
    monkeypatch.setattr(PayloadUnpacker, "begin_streaming", counted_enter)
    return found


@pytest.fixture
def run(mysql_server: MySQLServer, database: str) -> tuple[Recording, Captured]:
    """Twenty compressed transactions of one row; every fourth stands between two that are not compressed."""
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(99))")
        captured, start = capture(mysql_server, database, "t"), here(mysql_server)
        for n in range(30):
            cursor.execute(f"SET SESSION binlog_transaction_compression = {'OFF' if n % 3 == 2 else 'ON'}")
            cursor.execute(f"INSERT INTO t VALUES ({n}, REPEAT('{n} ', 9))")
        recording = record(mysql_server, start)
    assert len(payloads(recording)) == 20
    return recording, captured


def payloads(recording: Recording) -> list[int]:
    """Numbers of the packets with compressed transactions."""
    return [n for n, packet in enumerate(recording.packets()) if packet[5:6] == bytes([PAYLOAD])]


def inside(recording: Recording, number: int) -> bytes:
    """The events inside of one."""
    return unpacked(list(recording.packets())[number][20:-4])


def frames(*parts: bytes, **how: Any) -> bytes:
    """Compressed parts, each by itself."""
    return b"".join(zstandard.ZstdCompressor(**how).compress(part) for part in parts)


def told(read: Callable[[Recording, Captured], Any], recording: Recording, captured: Captured) -> Any:
    """What becomes of a reading: its rows, GTIDs and end, or the message of the error."""
    try:
        tables, *rest = read(recording, captured)
    except CdcError as error:
        return error.message
    return {name: repr(rows_of(table)) for name, table in tables.items()}, rest


def test_a_large_compressed_transaction(mysql_server: MySQLServer, database: str) -> None:
    """It comes in steps, each of which has about as much as it may: its rows are never held all at once."""
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a INT AUTO_INCREMENT PRIMARY KEY, b VARCHAR(200))")
        captured, start = capture(mysql_server, database, "t"), here(mysql_server)
        cursor.execute("SET SESSION binlog_transaction_compression = ON")
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO t (b) VALUES (REPEAT('x', 200))")
        for _ in range(14):
            cursor.execute("INSERT INTO t (b) SELECT b FROM t")
        cursor.execute("COMMIT")
        recording = record(mysql_server, start)
    rows, budget = 1 << 14, 1 << 17
    assert len(recording.data) < rows * 20, "it is compressed"
    walker, most, found = BinlogWalker(Replay(recording), lasting(captured), seq_of, byte_budget=budget), 0, list[int]()
    steps = 0
    for step in walker.steps():
        assert walker.can_take
        most = max(most, walker.held_bytes)
        found += [a for _, batch in walker.take_changes() for a in batch["a"].to_pylist()]
        steps += step.has_open_transaction
    assert len(found) == len(set(found)) == rows
    assert most < 2 * budget and steps > 10
    agree(recording, captured, budget=budget)


def test_small_compressed_transactions(
    mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ordinary in them is for the machine code: only what is there for the first time is taken by the plain."""
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(9))")
        cursor.execute("CREATE TABLE other (a INT PRIMARY KEY)")
        captured, start = capture(mysql_server, database, "t"), here(mysql_server)
        cursor.execute("SET SESSION binlog_transaction_compression = ON")
        for n in range(30):
            cursor.execute(f"INSERT INTO t VALUES ({n}, 'x')")
            cursor.execute("INSERT INTO other VALUES (%s)", (n,))
            cursor.execute(f"UPDATE t SET a = a + 1000, b = {n} WHERE a = {n}")
        recording = record(mysql_server, start)
    assert agree(recording, captured) == 90
    agree(recording, captured, Replay(recording, lambda: 7), budget=1)
    taken = list[int]()
    take = PayloadUnpacker.next_event

    def counted(payload: PayloadUnpacker) -> BinlogEvent:
        taken.append((event := take(payload)).type)
        return event

    monkeypatch.setattr(PayloadUnpacker, "next_event", counted)
    assert agree(recording, captured) == 90
    assert sorted(taken) == [19, 19] * 2, taken  # a table map each, in each of the two walks


def test_the_machine_code_goes_from_one_to_the_next(
    run: tuple[Recording, Captured], roads: collections.Counter[str]
) -> None:
    recording, captured = run
    taken, walk = list[int](), BinlogWalker._run_kernel

    def counted(walker: BinlogWalker) -> int:
        taken.append(why := walk(walker))
        return why

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BinlogWalker, "_run_kernel", counted)
        assert by_walker(recording, captured)[0] == by_plain(recording, captured)[0]
    assert roads == {"ahead": 1}, "all of a block at once"
    assert len(taken) < 20, "the machine code stops for none of them"
    agree(recording, captured)


def test_sizes_of_all_kinds(mysql_server: MySQLServer, database: str, roads: collections.Counter[str]) -> None:
    """From one byte to some megabytes, of several tables and kinds, among others that are not compressed."""
    pick = random.Random(7)
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a INT PRIMARY KEY, b LONGTEXT)")
        cursor.execute("CREATE TABLE second (a INT PRIMARY KEY, b JSON, c DECIMAL(9, 2))")
        cursor.execute("CREATE TABLE other (a INT PRIMARY KEY)")
        captured, start = capture(mysql_server, database, "t", "second"), here(mysql_server)
        for n, size in enumerate((1, 0, 300, 5_000, 1_000_000, 40, 300_000, 9, 1_100_000, 2_500_000, 70, 20_000, 3, 8)):
            for m, text in enumerate((pick.randbytes(size // 2).hex(), "x" * size)):
                cursor.execute(f"SET SESSION binlog_transaction_compression = {pick.choice(('ON', 'ON', 'OFF'))}")
                key = 2 * n + m
                cursor.execute("INSERT INTO t VALUES (%s, %s)", (key, text))
                cursor.execute("BEGIN")
                cursor.execute("INSERT INTO second VALUES (%s, %s, %s)", (key, f'{{"a": {key}}}', key))
                cursor.execute("INSERT INTO other VALUES (%s)", (key,))
                cursor.execute("UPDATE t, second SET t.b = LEFT(t.b, 50), c = c + 1 WHERE t.a = second.a")
                cursor.execute("COMMIT")
        cursor.execute("SET SESSION binlog_transaction_compression = ON")
        for end in ("XA COMMIT 'x'", "XA ROLLBACK 'x'"):
            for sql in ("XA START 'x'", "DELETE FROM t WHERE a < 5", "XA END 'x'", "XA PREPARE 'x'", end):
                cursor.execute(sql)
            cursor.execute("INSERT INTO t VALUES (%s, 'after')", (1000 + len(end),))
        recording = record(mysql_server, start)
    assert agree(recording, captured) > 400
    assert roads["ahead"] > 3 and roads["bit by bit"] > 3, roads
    for most in (5_000, 200_000, 3 << 20):
        sizes = random.Random(most)
        agree(recording, captured, Replay(recording, lambda sizes=sizes, most=most: sizes.randint(1, most)), budget=1)  # type: ignore[misc]


def test_what_a_server_does_not_write_is_read_too(
    run: tuple[Recording, Captured], roads: collections.Counter[str]
) -> None:
    """Other ways to pack the same events."""
    recording, captured = run
    number = payloads(recording)[7]
    events = inside(recording, number)
    half, expected = len(events) // 2, told(by_plain, recording, captured)[0]
    loose, sealed_up = {"write_content_size": False}, {"write_checksum": True}
    ways = {
        "ahead": [
            packed(events),
            packed(events, frames(events, level=19)),
            packed(events, frames(events, **loose)),
            packed(events, frames(events, **sealed_up)),
            b"\x01\x01\x07\x4d\x02\x09\x09" + packed(events),  # fields in another order, and an unknown one
        ],
        "bit by bit": [
            stored(events),
            packed(events, frames(events[:half], events[half:])),
            packed(events, frames(events[:half], events[half:], **loose)),
            packed(events, frames(b"", events)),
            packed(events, b"\x50\x2a\x4d\x18\x03\0\0\0abc" + frames(events)),  # a frame to be skipped
            b"\x02\x01\x00\x00" + frames(events),  # does not say how large it is
        ],
    }
    for way, bodies in ways.items():
        for body in bodies:
            other = with_body(recording, number, body)
            roads.clear()
            assert told(by_walker, other, captured) == (made := told(by_plain, other, captured)), (way, body)
            assert len(made[0]) == len(expected) and repr(made[0]).count("'c'") == 30
            assert roads["bit by bit"] == (way == "bit by bit"), (way, body)


def test_damage_in_the_middle(run: tuple[Recording, Captured]) -> None:
    """It is named by its place, what stands before it counts, and memory is never taken by a claim."""
    recording, captured = run
    numbers = payloads(recording)
    number, vast = numbers[11], 1 << 40
    events, following = inside(recording, number), inside(recording, numbers[12])
    frame = frames(events)
    assert frame[4] >> 5 == 1 and frame[5] == len(events), "a frame with its size in one byte"
    single, rest = frame[:4] + bytes([frame[4] | 0xE0]), frame[6:]  # with eight
    bodies = [
        packed(events, claimed=len(events) - 1),
        packed(events, claimed=len(events) + 1),
        packed(events, frames(events, write_content_size=False), claimed=len(events) - 1),
        packed(events, frames(events, write_content_size=False), claimed=len(events) + 1),
        packed(events, frames(events, write_content_size=False), claimed=len(events) + len(following)),
        packed(events, claimed=vast),
        packed(events, single + vast.to_bytes(8, "little") + rest),
        packed(events, single + vast.to_bytes(8, "little") + rest, claimed=vast),
        packed(events, single + (len(events) + 1).to_bytes(8, "little") + rest, claimed=len(events) + 1),
        packed(events, frame[:-1]),
        packed(events, frame[:6]),
        packed(events, frame[:4]),
        packed(events, b""),
        packed(events, frame + b"rubbish"),
        packed(events, frame + frame),
        packed(events, bytes(len(frame))),
        packed(events)[:5],
        packed(events[:-20]),
        packed(events + bytes(5)),
        *(packed(events[:6] + struct.pack("<IBIIIH", 0, 29, 1, size, 0, 0) + events[6:]) for size in (0, 5, 18)),
    ]
    for n, body in enumerate(bodies):
        broken = with_body(recording, number, body)
        (event,) = (e for e in broken.events() if e.type == PAYLOAD and e.body == body)
        message = told(by_plain, broken, captured)
        assert isinstance(message, str) and re.search(rf" at {re.escape(event.location)}\b", message), n
        walker = BinlogWalker(Replay(broken), lasting(captured), seq_of)
        with pytest.raises(TerminalError, match=re.escape(message) + r"\."):
            list(walker.steps())
        ((_, batch),) = walker.take_complete()
        # Its own row, too, where only behind its last event something is wrong.
        assert batch["a"].to_pylist() in (list(range(16)), list(range(17))), n


def test_a_compressed_transaction_without_its_end(run: tuple[Recording, Captured]) -> None:
    recording, captured = run
    number = payloads(recording)[11]
    short = inside(recording, number)[:-27]  # an XID has 27 bytes
    for body in packed(short), stored(short):
        broken = with_body(recording, number, body)
        (event,) = (e for e in broken.events() if e.type == PAYLOAD and e.body == body)
        with pytest.raises(TerminalError, match="a compressed transaction without its end"):
            by_plain(broken, captured)
        end = f"{event.file}:{event.position}"
        with pytest.raises(
            TerminalError, match=f"a compressed transaction without its end, before {re.escape(end)}\\."
        ):
            by_walker(broken, captured)


@pytest.mark.parametrize("seed", [1])
def test_flipped_bits(run: tuple[Recording, Captured], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In what is packed, with a checksum that is right: both ways to unpack agree, and never read other rows."""
    recording, captured = run
    pick, ends = random.Random(seed), collections.Counter[str]()
    for _ in range(100):
        number = pick.choice(payloads(recording))
        body = bytearray(list(recording.packets())[number][20:-4])
        for _ in range(pick.randrange(1, 3)):
            body[pick.randrange(len(body))] ^= 1 << pick.randrange(8)
        broken = with_body(recording, number, bytes(body))
        made, expected = (told(road, broken, captured) for road in (by_walker, by_plain))
        with monkeypatch.context() as patch:
            patch.setattr(PayloadUnpacker, "unpack_ahead", lambda self: False)
            assert told(by_walker, broken, captured) == made, (number, body)
        # The plain code may notice that a frame lacks its end where all that it claims to hold has been read.
        assert made == expected or isinstance(made, str) or "damaged" in expected, (number, body)
        ends[type(made).__name__] += 1
    assert ends["str"] > 20, ends
