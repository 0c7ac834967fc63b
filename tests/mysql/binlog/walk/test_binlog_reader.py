"""Stretches of the binlog over connections that break: nothing lost, nothing twice."""

from __future__ import annotations

import collections
import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from airflow_provider_cdc.model.errors import TerminalError, TransientError
from airflow_provider_cdc.model.offset import Position, Timeline
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.walk import binlog_reader
from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
from airflow_provider_cdc.mysql.client.identity import binlog_end
from airflow_provider_cdc.mysql.client.session import connect
from tests.support.binlog.plain import LINEAGE, Tables, by_plain, gtids_of
from tests.support.binlog.reading import Captured, capture, here, lasting, rows_of
from tests.support.binlog.replay import Recording, Replay, record
from tests.support.proxy import Proxy
from tests.support.servers import MySQLServer


class Breaking(Replay):
    """A connection that is lost after so many bytes."""

    def __init__(self, recording: Recording, size: int) -> None:
        pick = random.Random(size)
        super().__init__(recording, lambda: pick.randint(1, 1500))
        self._left = size

    def receive(self, into: memoryview) -> int:
        if self._left <= 0:
            raise TransientError("lost", "Run again")
        got = super().receive(into[: self._left])
        self._left -= got
        return got


@pytest.fixture(scope="module")
def recorded(mysql_server: MySQLServer) -> Iterator[tuple[Recording, Captured, Position]]:
    mysql_server.execute("CREATE DATABASE follow")
    with contextlib.closing(mysql_server.connect(database="follow")) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(300))")
        cursor.execute("CREATE TABLE other (a INT PRIMARY KEY, b VARCHAR(300))")
        captured = capture(mysql_server, "follow", "t", "other")
        start = here(mysql_server)
        for n in range(30):
            cursor.execute("BEGIN")
            for i in range(n % 4 + 1):
                cursor.execute(f"INSERT INTO t VALUES ({10 * n + i}, REPEAT('x', {17 * n % 200}))")
                cursor.execute(f"REPLACE INTO other VALUES ({i}, '{n}')")
            cursor.execute("COMMIT")
            if n % 7 == 0:
                cursor.execute(f"UPDATE t SET a = a + 10000 WHERE a < {10 * n}")
    yield record(mysql_server, start), captured, Position(*here(mysql_server))
    mysql_server.execute("DROP DATABASE follow")


def read(recording: Recording, captured: Captured, end: Position, seed: int, hurry: bool) -> tuple[Tables, list[str]]:
    """The changes and GTIDs up to the end, with connections that break at places of the seed.

    :param hurry: whether changes are taken inside of transactions, too.
    """
    pick = random.Random(seed)
    sizes = [pick.randrange(1500, 15_000), 1 << 20] if hurry else [400, 3000, 9000, 1 << 20]

    def open_at(at: Position) -> Breaking:
        return Breaking(recording.since(at.position), pick.choice(sizes))

    binlog, low = BinlogReader(open_at, lasting(captured), LINEAGE), Position(recording.file, recording.position)
    taken: dict[tuple[str, str], list[pa.RecordBatch]] = {name: [] for name in captured}
    gtids: list[str] = []

    def take() -> None:
        for schema, batch in binlog.take_changes():
            taken[schema.id].append(batch)

    for step in binlog.steps(low, end):
        gtids += gtids_of(step)
        if pick.randrange(3) == 0 and (hurry or not step.has_open_transaction):
            take()
    take()
    binlog.close()
    return {n: pa.Table.from_batches(b, captured[n].sink_schema) for n, b in taken.items()}, gtids


def test_lost_connections(recorded: tuple[Recording, Captured, Position], monkeypatch: pytest.MonkeyPatch) -> None:
    recording, captured, end = recorded
    monkeypatch.setattr(binlog_reader, "_RECONNECT_DELAYS", (0.0,) * 200)
    expected, gtids, _ = by_plain(recording, captured)
    for seed in range(40):
        made, found = read(recording, captured, end, seed, hurry=False)
        assert found == gtids, seed
        for name, table in expected.items():
            assert repr(rows_of(made[name])) == repr(rows_of(table)), (seed, name)


def test_lost_inside_of_a_transaction_that_was_taken_in_part(
    recorded: tuple[Recording, Captured, Position], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first rows are with the caller: read again they would be there twice, so all is to be read again."""
    recording, captured, end = recorded
    monkeypatch.setattr(binlog_reader, "_RECONNECT_DELAYS", (0.0,) * 200)
    expected, _, _ = by_plain(recording, captured)
    outcomes: list[Any] = []
    for seed in range(40):
        try:
            made, _ = read(recording, captured, end, seed, hurry=True)
        except TransientError as error:
            outcomes.append(error.message)
        else:
            outcomes.append(None)
            for name, table in expected.items():
                assert repr(rows_of(made[name])) == repr(rows_of(table)), (seed, name)
    assert "lost" in outcomes and None in outcomes, outcomes


def test_stretch_after_stretch(recorded: tuple[Recording, Captured, Position]) -> None:
    """Each ends where it is asked to, with the changes up to there and no others."""
    recording, captured, end = recorded
    opened: list[Position] = []

    def open_at(at: Position) -> Replay:
        opened.append(at)
        return Replay(recording.since(at.position))

    expected, _, _ = by_plain(recording, captured)
    seqs = sorted({s for table in expected.values() for s in table["_cdc_seq"].to_pylist()})
    ends = [LINEAGE.position(s) for s in seqs[:-1:3]] + [end]
    binlog, at = BinlogReader(open_at, lasting(captured), LINEAGE), Position(recording.file, recording.position)
    for high in ends:
        steps = list(binlog.steps(at, high))
        assert Position(steps[-1].file, steps[-1].position) == high
        low, at = LINEAGE.seq(at), high
        found = [s for _, batch in binlog.take_changes() for s in batch["_cdc_seq"].to_pylist()]
        assert set(found) == {s for s in seqs if low < s <= LINEAGE.seq(high)}
    assert len(opened) == 1
    assert not list(binlog.steps(end, end)) and not binlog.take_changes()


def test_so_many_rows(recorded: tuple[Recording, Captured, Position], monkeypatch: pytest.MonkeyPatch) -> None:
    """They end with the transaction that has the last of them, however often the connection breaks on the way."""
    recording, captured, end = recorded
    monkeypatch.setattr(binlog_reader, "_RECONNECT_DELAYS", (0.0,) * 200)
    changes = list(by_plain(recording, captured, both=True)[0].values())
    by_end = collections.Counter(
        seq
        for table in changes
        for seq, op in zip(table["_cdc_seq"].to_pylist(), table["_cdc_op"].to_pylist(), strict=True)
        if op != "b"
    )
    assert sum(by_end.values()) > 150
    for seed in range(60):
        pick = random.Random(seed)

        def open_at(at: Position, pick: random.Random = pick) -> Breaking:
            return Breaking(recording.since(at.position), pick.choice([400, 3000, 1 << 20]))

        binlog, at = (
            BinlogReader(open_at, lasting(captured), LINEAGE, count_only=True),
            Position(recording.file, recording.position),
        )
        while at < end:
            most, before, found = pick.choice([1, 3, 10, 60, 1000]), LINEAGE.seq(at), 0
            for step in binlog.steps(at, end, most):
                found, at = found + step.counted_rows, Position(step.file, step.position)
            inside = {seq: rows for seq, rows in by_end.items() if before < seq <= LINEAGE.seq(at)}
            assert found == sum(inside.values()), (seed, at)
            assert found - inside.get(LINEAGE.seq(at), 0) < most and (at == end or found >= most), (seed, at)
        binlog.close()


def test_rows_that_are_not_read(recorded: tuple[Recording, Captured, Position]) -> None:
    """The planner's way: the same places and GTIDs, no changes, and nobody asks for the character sets."""
    recording, captured, end = recorded
    latin = {
        name: schema.replace(columns=tuple(c.replace(charset=c.charset and "latin1") for c in schema.columns))
        for name, schema in captured.items()
    }
    known = recording.collations
    said = {number: charset if charset == "binary" else "latin1" for number, charset in known.charsets.items()}
    told = replace(recording, collations=replace(known, charsets=said))
    binlog = BinlogReader(lambda at: Replay(told.since(at.position)), lasting(latin), LINEAGE, count_only=True)
    steps = list(binlog.steps(Position(recording.file, recording.position), end))
    assert [g for step in steps for g in gtids_of(step)] == by_plain(recording, captured)[1]
    assert Position(steps[-1].file, steps[-1].position) == end and not binlog.take_changes()


@pytest.mark.parametrize("instead", [b"Needle", b"needleneedle"], ids=["a flipped bit", "bytes that come twice"])
def test_damage_on_the_way_is_read_again(server: MySQLServer, instead: bytes) -> None:
    """Once, and the rows before it, which came at the same time, are not read twice; damage that stays is terminal."""
    server.execute("CREATE DATABASE damage")
    try:
        server.execute("CREATE TABLE damage.t (a INT, b TEXT)")
        captured, start = capture(server, "damage", "t"), stands(server)
        for n in range(8):
            server.execute(f"INSERT INTO damage.t VALUES ({n}, '{'needle' if n == 4 else 'hay'}')")
        end = stands(server)
        with Proxy(server.port) as proxy:
            through = {**server.connect_args(), "port": proxy.port, "ssl_disabled": True}

            def open_at(at: Position) -> BinlogStream:
                return BinlogStream(
                    through, server_id=77_003, replica_uuid=str(uuid4()), file=at.file, position=at.position
                )

            def walk() -> list[int]:
                with contextlib.closing(
                    BinlogReader(open_at, lasting(captured), Timeline("here", start.file))
                ) as binlog:
                    for _ in binlog.steps(start, end):
                        pass
                    return [a for _, batch in binlog.take_changes() for a in batch["a"].to_pylist()]

            proxy.replace(b"needle", instead, 1)
            assert walk() == list(range(8))
            assert proxy.accepted == 2
            proxy.replace(b"needle", instead, 1000)
            with pytest.raises(TerminalError, match=rf" at {end.file}:\d+\. Run again\. If the error persists"):
                walk()
            assert proxy.accepted == 4, "once more, and no more than that"
            proxy.replace(b"needle", b"needle", 0)
            assert walk() == list(range(8))
    finally:
        server.execute("DROP DATABASE damage")


def stands(server: MySQLServer) -> Position:
    with contextlib.closing(connect(server.connect_args())) as connection:
        return binlog_end(connection)
