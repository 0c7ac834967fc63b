"""The connection: positions, checksums, heartbeats, and what happens when it breaks."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from itertools import islice
from typing import Any
from uuid import uuid4

import pytest

from airflow_provider_cdc.model.errors import DamageError, NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.model.offset import Position, Timeline
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.events.transactions import read_transactions
from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
from tests.support.binlog.reading import (
    capture,
    changes,
    events_since,
    everything,
    here,
    lasting,
    open_stream,
    transactions,
)
from tests.support.servers import MySQLServer


def test_positions_and_rotation(mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY)")
    captured = capture(mysql_server, database, "t")
    start = here(mysql_server)
    for i in range(6):
        mysql_server.execute(f"INSERT INTO {database}.t VALUES ({i})")
        if i % 2:
            mysql_server.execute("FLUSH BINARY LOGS")
    events = events_since(mysql_server, start)
    assert len({event.file for event in events}) == 4
    assert (events[-1].file, events[-1].position) == here(mysql_server)
    found = transactions(mysql_server, start, captured)
    assert [after for _, after in changes(found)] == [(i,) for i in range(6)]
    # Starting at the end of any transaction yields exactly those behind it.
    for n, item in enumerate(found, 1):
        assert len(transactions(mysql_server, (item.file, item.position), captured)) == 6 - n


def test_positions_count_on_above_four_gib(mysql_server: MySQLServer, database: str) -> None:
    """Headers wrap at 4 GiB. The stream is told that it stands just below, and events are moved there."""
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY)")
    start = here(mysql_server)
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1)")
    with open_stream(mysql_server, start) as stream:
        packets = []
        while (packet := stream._read_packet()) is not None:
            packets.append(packet)
    offset = (1 << 32) - 50 - start[1]
    stream._closed = False
    stream.has_checksums = False
    stream.position = start[1] + offset
    ends: list[int] = []
    for packet in packets[2:]:
        end = int.from_bytes(packet[13:17], "little") + offset
        # without a checksum, which the moved position would make wrong
        moved = packet[:9] + (len(packet) - 4).to_bytes(4, "little")
        moved += ((end - 4 * (len(ends) + 1)) & 0xFFFFFFFF).to_bytes(4, "little") + packet[17:-4]
        ends.append(stream._parse_event(moved).position)
    assert ends[-1] > 1 << 32 and ends == sorted(ends)


def test_a_start_that_the_protocol_cannot_say(
    mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above 4 GiB: the file is read from its beginning, and nothing before the position is seen."""
    mysql_server.execute("FLUSH BINARY LOGS")
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY)")
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1)")
    start = here(mysql_server)
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (2)")
    end = here(mysql_server)
    captured = capture(mysql_server, database, "t")
    expected = [(t.gtid, t.position) for t in transactions(mysql_server, start, captured)]
    assert len(expected) == 1 and expected[0][1] == end[1]
    monkeypatch.setattr("airflow_provider_cdc.mysql.binlog.events.binlog_stream._FARTHEST_START", start[1] - 1)
    assert [(t.gtid, t.position) for t in transactions(mysql_server, start, captured)] == expected
    at = [Position(*start), Position(*end)]
    lineage = Timeline("here", at[0].file)
    with closing(
        BinlogReader(lambda at: open_stream(mysql_server, (at.file, at.position)), lasting(captured), lineage)
    ) as binlog:
        assert sum(step.ended_transactions for step in binlog.steps(at[0], at[1])) == 1
        assert [batch["a"].to_pylist() for _, batch in binlog.take_changes()] == [[2]]
    for place in (start[0], start[1] + 1), (start[0], end[1] + 1000):
        with pytest.raises(TerminalError, match=rf"there is no binlog event at {place[0]}:{place[1]}"):
            open_stream(mysql_server, place)


def test_checksum_changes_in_mid_stream(mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY)")
    captured = capture(mysql_server, database, "t")
    start = here(mysql_server)
    try:
        mysql_server.execute(f"INSERT INTO {database}.t VALUES (1)")
        mysql_server.execute("SET GLOBAL binlog_checksum = NONE")
        mysql_server.execute(f"INSERT INTO {database}.t VALUES (2)")
        without = here(mysql_server)
        mysql_server.execute(f"INSERT INTO {database}.t VALUES (3)")
        both = transactions(mysql_server, start, captured)
        late = transactions(mysql_server, without, captured)
        mysql_server.execute("SET GLOBAL binlog_checksum = CRC32")
        mysql_server.execute(f"INSERT INTO {database}.t VALUES (4)")
    finally:
        mysql_server.execute("SET GLOBAL binlog_checksum = CRC32")
    assert [after for _, after in changes(both)] == [(1,), (2,), (3,)]
    assert [after for _, after in changes(late)] == [(3,)]
    assert [after for _, after in changes(transactions(mysql_server, start, captured))] == [(1,), (2,), (3,), (4,)]


def test_a_flipped_bit_is_found(mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY, b VARCHAR(50))")
    start = here(mysql_server)
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, 'some text')")
    with open_stream(mysql_server, start) as stream:
        while (packet := stream._read_packet()) is not None:
            for bit in range(0, len(packet) * 8, 5):
                damaged = bytearray(packet)
                damaged[bit // 8] ^= 1 << bit % 8
                if damaged[17] == packet[17]:  # the flag "in use" is not part of the checksum
                    place = stream.file, stream.position, stream.has_checksums
                    with pytest.raises(DamageError, match=f"{stream.file}:{stream.position}") as found:
                        stream._parse_event(bytes(damaged))
                    assert found.value.place == f"{place[0]}:{place[1]}"
                    stream.file, stream.position, stream.has_checksums = place
            stream._parse_event(packet)


def test_idle_server_shows_its_position(mysql_server: MySQLServer) -> None:
    end = here(mysql_server)
    with open_stream(mysql_server, end, blocking=True, heartbeat_seconds=0.2) as stream:
        reached = list(islice(read_transactions(stream, {}), 5))
    assert reached == [Position(*end)] * 5


def test_events_come_as_they_are_written(mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY)")
    captured = capture(mysql_server, database, "t")
    with open_stream(mysql_server, here(mysql_server), blocking=True) as stream:
        items = (item for item in read_transactions(stream, lasting(captured)) if not isinstance(item, Position))
        for i in range(3):
            mysql_server.execute(f"INSERT INTO {database}.t VALUES ({i})")
            assert changes([next(items)]) == [(None, (i,))]


def test_closing_wakes_a_waiting_reader(mysql_server: MySQLServer) -> None:
    stream = open_stream(mysql_server, here(mysql_server), blocking=True, heartbeat_seconds=20)
    seen: list[BinlogEvent] = []
    reader = threading.Thread(target=lambda: seen.extend(stream))
    reader.start()
    time.sleep(0.3)
    stream.close()
    stream.close()
    reader.join(5)
    assert not reader.is_alive() and len(seen) <= 2


def test_killed_dump_is_transient(mysql_server: MySQLServer) -> None:
    with open_stream(mysql_server, here(mysql_server), blocking=True) as stream:
        events = iter(stream)
        next(events)
        thread = stream._connection.thread_id()
        mysql_server.execute(f"KILL {thread}")
        with pytest.raises(TransientError, match="no binlog stream at"):
            list(events)


def test_silence_is_transient(mysql_server: MySQLServer) -> None:
    stream = open_stream(mysql_server, here(mysql_server), blocking=True, heartbeat_seconds=0, read_timeout=1)
    with stream, pytest.raises(TransientError, match="timed out"):
        list(stream)


def test_the_same_replica_twice(mysql_server: MySQLServer) -> None:
    same: dict[str, Any] = {"server_id": 987_654, "replica_uuid": str(uuid4()), "blocking": True}
    with open_stream(mysql_server, here(mysql_server), **same) as first:
        events = iter(first)
        next(events)
        with open_stream(mysql_server, here(mysql_server), **same) as second:
            next(iter(second))
            with pytest.raises(
                TerminalError,
                match="Another reader has the same replica server id or UUID, such as another pipeline with the same",
            ):
                list(events)


@pytest.mark.parametrize(
    ("file", "position", "message"),
    [
        ("binlog.999999", 4, "Could not find first log file.*fresh sink.path"),
        ("", 99_999_999, "refuses the binlog.*fresh sink.path"),
        ("", 130, "fresh sink.path"),  # in the middle of an event
    ],
)
def test_places_that_do_not_exist(mysql_server: MySQLServer, file: str, position: int, message: str) -> None:
    place = file or here(mysql_server)[0], position
    with pytest.raises(TerminalError, match=message), open_stream(mysql_server, place) as stream:
        everything(stream, {})


def test_purged_file(mysql_server: MySQLServer) -> None:
    file, _ = here(mysql_server)
    mysql_server.purge()
    with pytest.raises(TerminalError, match="has removed this part of its binlog"):
        events_since(mysql_server, (file, 4))


def test_server_away_and_wrong_password(mysql_server: MySQLServer) -> None:
    secret = "unique-5eCr3t"
    options: dict[str, Any] = {"server_id": 5, "replica_uuid": str(uuid4()), "file": "binlog.000001", "position": 4}
    with pytest.raises(TransientError) as away:
        BinlogStream({"host": "127.0.0.1", "port": 1, "user": "root", "password": secret}, **options)
    with pytest.raises(NotReadyError) as denied:
        BinlogStream({**mysql_server.connect_args(), "user": "nobody", "password": secret}, **options)
    assert secret not in f"{away.value!r}{denied.value!r}"


def test_missing_grant(mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"CREATE USER '{database}'@'%' IDENTIFIED BY 'x'")
    place = here(mysql_server)
    args = {**mysql_server.connect_args(), "user": database, "password": "x"}
    with pytest.raises(NotReadyError, match="REPLICATION SLAVE"):
        list(
            BinlogStream(args, server_id=6, replica_uuid=str(uuid4()), file=place[0], position=place[1], blocking=False)
        )
    mysql_server.execute(f"DROP USER '{database}'@'%'")
