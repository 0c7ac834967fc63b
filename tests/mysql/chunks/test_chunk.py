"""A chunk is read exactly as of its high watermark, whatever is written while it is read."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import CdcError, TerminalError
from airflow_provider_cdc.model.offset import Position, Timeline
from airflow_provider_cdc.model.plan import Chunk
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource
from airflow_provider_cdc.mysql.binlog.walk import changes
from airflow_provider_cdc.mysql.chunks import chunk as module
from airflow_provider_cdc.mysql.chunks.chunk import ChunkRead, read_chunk, select_rows
from airflow_provider_cdc.mysql.chunks.planner import plan_table
from airflow_provider_cdc.mysql.chunks.window_reader import WindowReader
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.charsets import load_decoders
from airflow_provider_cdc.mysql.client.identity import binlog_end, server_identity
from airflow_provider_cdc.mysql.client.key_sql import chunk_condition
from airflow_provider_cdc.mysql.client.session import connect, query_value
from airflow_provider_cdc.mysql.positions.watermarks import make_watermarks
from tests.support.servers import MySQLServer

#: The two moments at which others write: between LW and SELECT, between SELECT and HW.
MOMENTS = ("chunk.after_lw", "chunk.after_select")


class Reading:
    """Reads chunks of a table ``t`` while statements are run at given moments of the reading.

    :param meanwhile: (name of a failpoint -> what happens there). Failpoints do nothing by themselves; they stand
        where a test wants to come in between, so nothing of the code under test is replaced.
    """

    def __init__(self, server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.database = server, database
        self.connection = connect(server.connect_args())
        self.writer = server.connect(database=database)
        self.meanwhile: dict[str, Callable[[], None]] = {}
        monkeypatch.setattr(module, "failpoint", lambda name: self.meanwhile.get(name, lambda: None)())
        self.lineage = Timeline(server_identity(self.connection), binlog_end(self.connection).file)
        self.marks = make_watermarks(self.connection, self.lineage.server)

    def close(self) -> None:
        self.connection.close()
        self.writer.close()

    def write(self, *statements: str) -> None:
        with self.writer.cursor() as cursor:
            for sql in statements:
                cursor.execute(sql)

    def make(self, definition: str, *values: str) -> TableSchema:
        self.write(f"CREATE TABLE t ({definition})", *(f"INSERT INTO t VALUES {v}" for v in values))
        return read_schema(self.connection, self.database, "t")

    def reader(self, table: TableSchema) -> WindowReader:
        source = BinlogSource(self.server.connect_args(), self.lineage.server)
        texts = load_decoders(lambda: contextlib.nullcontext(self.connection), [table])
        return WindowReader(source, DefinitionHistory.from_single(table), self.lineage, texts)

    def read(self, table: TableSchema, chunk: Chunk, **meanwhile: Callable[[], None] | list[str]) -> ChunkRead:
        """Read a chunk; keywords ``after_lw`` and ``after_select`` say what is written there."""
        self.meanwhile = {
            f"chunk.{name}": what if callable(what) else partial(self.write, *what) for name, what in meanwhile.items()
        }
        with contextlib.closing(self.reader(table)) as reader:
            found = read_chunk(reader, table, chunk, self.marks)
        self.meanwhile = {}
        return found

    def exact(self, table: TableSchema, chunk: Chunk, found: ChunkRead) -> None:
        """Nothing was written after the chunk's HW, so it must be what the table holds now."""
        now = select_rows(self.connection, table, chunk_condition(table, chunk))
        names = [c.name for c in table.columns]
        assert as_set(found.rows.select(names)) == as_set(pa.table(now, names=names))
        assert set(found.rows[SEQ_COLUMN].to_pylist()) <= {self.lineage.seq(found.high)}
        assert set(found.rows[OP_COLUMN].to_pylist()) <= {"r"}
        assert found.low <= found.high


def as_set(rows: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows.to_pylist())


@pytest.fixture
def reading(mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    with contextlib.closing(Reading(mysql_server, database, monkeypatch)) as opened:
        yield opened


TEXT = "k VARCHAR(9) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY, v INT"
MIDDLE = Chunk(1, 0, 0, (b"f".hex(),), (b"p".hex(),), False)
LAST = Chunk(2, 0, 0, (b"p".hex(),), (b"z".hex(),), True)


def test_a_quiet_chunk_needs_no_correction(reading: Reading) -> None:
    table = reading.make("id INT PRIMARY KEY, v INT", "(1, 1), (5, 5), (9, 9)")
    found = reading.read(table, Chunk(0, 0, 0, (1,), (9,), False))
    assert found.corrected == 0 and found.low == found.high
    assert found.rows["id"].to_pylist() == [1, 5]
    reading.exact(table, Chunk(0, 0, 0, (1,), (9,), False), found)


@pytest.mark.parametrize("moment", ["after_lw", "after_select"])
@pytest.mark.parametrize(
    ("sql", "corrected"),
    [
        pytest.param(["INSERT INTO t VALUES ('g', 9)"], 1, id="insert"),
        pytest.param(["UPDATE t SET v = 9 WHERE k = 'h'"], 1, id="update"),
        pytest.param(["DELETE FROM t WHERE k = 'h'"], 1, id="delete"),
        pytest.param(["UPDATE t SET k = 'i' WHERE k = 'h'"], 2, id="key change inside"),
        pytest.param(["UPDATE t SET k = 'H' WHERE k = 'h'"], 2, id="same key in another spelling"),
        pytest.param(["UPDATE t SET k = 'a1' WHERE k = 'h'"], 1, id="out of the chunk"),
        pytest.param(["UPDATE t SET k = 'Gg' WHERE k = 'b'"], 2, id="into the chunk"),
        pytest.param(["UPDATE t SET k = 'c' WHERE k = 'b'"], 1, id="outside of it"),
        pytest.param(["INSERT INTO t VALUES ('p', 9), ('F', 9), ('e~', 9)"], 1, id="at the borders"),
        pytest.param(["INSERT INTO t VALUES ('g', 1)", "DELETE FROM t WHERE k = 'g'"], 1, id="insert and delete"),
        pytest.param(["DELETE FROM t WHERE k = 'h'", "INSERT INTO t VALUES ('h', 7)"], 1, id="delete and insert"),
        pytest.param(["REPLACE INTO t VALUES ('H', 7)"], 2, id="replace"),
        pytest.param(["UPDATE t SET v = v + 1", "UPDATE t SET v = v + 1"], 3, id="all, twice"),
        pytest.param(["BEGIN", "UPDATE t SET v = 0", "DELETE FROM t", "ROLLBACK"], 0, id="rollback"),
        pytest.param(["BEGIN", "DELETE FROM t", "INSERT INTO t VALUES ('k', 1)", "COMMIT"], 5, id="one transaction"),
    ],
)
def test_what_is_written_meanwhile(reading: Reading, moment: str, sql: list[str], corrected: int) -> None:
    table = reading.make(TEXT, "('b', 1), ('g2', 2), ('h', 3), ('m', 4), ('q', 5), ('z', 6)")
    found = reading.read(table, MIDDLE, **{moment: sql})
    reading.exact(table, MIDDLE, found)
    assert (found.corrected > 0) == (corrected > 0)


@pytest.mark.parametrize("moment", ["after_lw", "after_select"])
def test_the_included_end_of_the_last_chunk(reading: Reading, moment: str) -> None:
    """Rows behind the largest planned key belong to the virtual chunk, but 'Z' is 'z'."""
    table = reading.make(TEXT, "('b', 1), ('q', 5), ('z', 6)")
    found = reading.read(
        table, LAST, **{moment: ["UPDATE t SET k = 'Z' WHERE k = 'z'", "INSERT INTO t VALUES ('zz', 1)"]}
    )
    reading.exact(table, LAST, found)
    assert sorted(found.rows["k"].to_pylist()) == ["Z", "q"]


@pytest.mark.parametrize("last", [False, True])
def test_changes_on_the_bounds_of_integers(reading: Reading, last: bool) -> None:
    """The lower bound belongs to the chunk; the upper one only to the last chunk, whose largest key it is."""
    table = reading.make("id INT PRIMARY KEY, v INT", "(9, 1), (10, 1), (15, 1)")
    chunk = Chunk(0, 0, 0, (10,), (20,), last)
    changes = ["UPDATE t SET v = 2", "INSERT INTO t VALUES (8, 2), (19, 2), (20, 2), (21, 2)"]
    found = reading.read(table, chunk, after_select=changes)
    reading.exact(table, chunk, found)
    assert sorted(found.rows["id"].to_pylist()) == [10, 15, 19, *[20] * last]


def test_windows_one_after_the_other(reading: Reading) -> None:
    """Over one connection: what lies between two windows is in neither, and none has what comes behind it."""
    table = reading.make("id INT PRIMARY KEY")
    ends = []
    for number in range(4):
        ends.append(binlog_end(reading.connection))
        reading.write(f"INSERT INTO t VALUES ({number})")
    with contextlib.closing(reading.reader(table)) as reader:
        windows = [reader.read_window(ends[0], ends[1]), reader.read_window(ends[2], ends[3])]
        assert [w.changes["id"].to_pylist() for w in windows] == [[0], [2]]
        assert reader.read_window(ends[1], ends[2]).changes["id"].to_pylist() == [1]  # backwards
        cut = Position(ends[2].file, ends[2].position - 1)
        assert reader.read_window(ends[1], cut).changes.num_rows == 0
        assert reader.read_window(ends[3], ends[3]).changes.num_rows == 0


@pytest.mark.parametrize("held", [0, 1 << 24], ids=["taken at once", "held back"])
def test_a_truncate_in_the_window(reading: Reading, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before it is no change of the window, whether it was decoded already or not."""
    monkeypatch.setattr(changes, "MAX_HELD_BYTES", held)
    table = reading.make("id INT PRIMARY KEY, v INT", "(1, 1), (2, 1)")
    low = binlog_end(reading.connection)
    xa = ("XA START 'x'", "INSERT INTO t VALUES (4, 4)", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")
    reading.write("UPDATE t SET v = 2", *xa, "TRUNCATE t", "INSERT INTO t VALUES (3, 3)")
    with contextlib.closing(reading.reader(table)) as log:
        window = log.read_window(low, binlog_end(reading.connection))
    assert window.changes["id"].to_pylist() == [3] and 0 < window.truncate_seq < window.changes[SEQ_COLUMN][0].as_py()


def test_changes_of_other_tables_and_rolled_back_ones_do_no_harm(reading: Reading) -> None:
    table = reading.make(TEXT, "('h', 1)")
    reading.write("CREATE TABLE other LIKE t")
    found = reading.read(table, MIDDLE, after_select=["INSERT INTO other VALUES ('h', 2)", "FLUSH BINARY LOGS"])
    reading.exact(table, MIDDLE, found)
    assert found.corrected == 0 and found.low.file < found.high.file


def test_a_chunk_whose_rows_all_go(reading: Reading) -> None:
    table = reading.make(TEXT, "('b', 1), ('h', 1), ('i', 2)")
    found = reading.read(table, MIDDLE, after_select=["DELETE FROM t"])
    assert found.rows.num_rows == 0 and found.rows.schema == table.sink_schema


def test_a_definition_that_changes_meanwhile_stops_by_name(reading: Reading) -> None:
    table = reading.make(TEXT, "('h', 1)")
    with pytest.raises(TerminalError, match=rf"{reading.database}\.t"):
        reading.read(table, MIDDLE, after_select=["ALTER TABLE t ADD COLUMN w INT"])


@pytest.mark.parametrize("level", ["READ-UNCOMMITTED", "SERIALIZABLE"])
def test_the_server_may_have_another_isolation_level(reading: Reading, level: str) -> None:
    """Rows of open transactions are not read, and nothing is locked: sessions have a level of their own."""
    table = reading.make("id INT PRIMARY KEY", "(1), (9)")
    before = reading.server.execute("SELECT @@global.transaction_isolation")[0][0]
    reading.server.execute(f"SET GLOBAL transaction_isolation = '{level}'")
    try:
        reading.connection.close()
        reading.connection = connect(reading.server.connect_args())
        reading.marks = make_watermarks(reading.connection)
        reading.write("BEGIN", "INSERT INTO t VALUES (5)", "DELETE FROM t WHERE id = 9")
        found = reading.read(table, Chunk(0, 0, 0, (1,), (9,), True))
        reading.write("ROLLBACK")
    finally:
        reading.server.execute(f"SET GLOBAL transaction_isolation = '{before}'")
    assert found.rows["id"].to_pylist() == [1, 9]


def test_time_and_position_of_the_rows(reading: Reading) -> None:
    table = reading.make("id INT PRIMARY KEY", "(1)")
    found = reading.read(table, Chunk(0, 0, 0, (1,), (1,), True), after_select=["UPDATE t SET id = 1"])
    row = found.rows.to_pylist()[0]
    now = reading.server.execute("SELECT UNIX_TIMESTAMP(NOW(6))")[0][0]
    assert row[SEQ_COLUMN] == reading.lineage.seq(found.high)
    assert 0 <= float(now) - row[TS_COLUMN].timestamp() < 60


@pytest.mark.parametrize("name", ["t", "other"])
def test_xa_that_ends_meanwhile_and_began_before(reading: Reading, name: str) -> None:
    """Its rows are read from before the window: the chunk is not read again."""
    table = reading.make("id INT PRIMARY KEY, v INT", "(1, 1), (3, 3), (9, 9)")
    reading.write("CREATE TABLE other LIKE t")
    reading.write("XA START 'x'", f"INSERT INTO {name} VALUES (5, 5)", "XA END 'x'", "XA PREPARE 'x'")
    chunk = Chunk(0, 0, 0, (1,), (9,), True)
    ends = iter(["XA COMMIT 'x'"])  # a second reading would find none
    found = reading.read(table, chunk, after_select=lambda: reading.write(next(ends)))
    assert found.corrected == (name == "t")
    reading.exact(table, chunk, found)


def test_xa_whose_rows_are_not_in_the_binlog_any_more(reading: Reading) -> None:
    """Only its end is. Behind that the rows are visible: the chunk is read again."""
    table = reading.make("id INT PRIMARY KEY, v INT", "(1, 1), (9, 9)")
    reading.write("XA START 'x'", "INSERT INTO t VALUES (5, 5)", "XA END 'x'", "XA PREPARE 'x'")
    reading.server.purge()
    chunk, ends = Chunk(0, 0, 0, (1,), (9,), True), iter([["XA COMMIT 'x'"]])
    found = reading.read(table, chunk, after_select=lambda: reading.write(*next(ends, [])))
    assert found.rows["id"].to_pylist() == [1, 5, 9] and not found.corrected
    reading.exact(table, chunk, found)


KEYS = {
    "int": ("a INT", lambda d: str(d.randrange(60))),
    "unsigned": ("a BIGINT UNSIGNED", lambda d: str(2**64 - 1 - d.randrange(60))),
    "ai_ci": (
        "a VARCHAR(5) COLLATE utf8mb4_0900_ai_ci",
        lambda d: "'" + "".join(d.choices("aAáÁbBßs ", k=d.randrange(1, 4))) + "'",
    ),
    "padded": (
        "a CHAR(5) COLLATE utf8mb4_general_ci",
        lambda d: "'" + "".join(d.choices("aAáÁbBßs ", k=d.randrange(1, 4))) + "'",
    ),
    "binary": ("a VARBINARY(5)", lambda d: f"x'{d.randbytes(d.randrange(3)).hex()}'"),
    "composite": (
        "a INT, b VARCHAR(3) COLLATE utf8mb4_0900_ai_ci",
        lambda d: f"{d.randrange(4)}, '{d.choice('aAáÁbBcCdDeEfF')}'",
    ),
}


def statement(draw: random.Random, names: list[str], key: Callable[[random.Random], str]) -> str:
    """One random statement on ``t``; those that meet a duplicate key do nothing."""
    here = f"({', '.join(names)}) >= ({key(draw)}) ORDER BY {', '.join(names)} LIMIT {draw.choice((1, 1, 2, 9))}"
    new = ", ".join(f"{n} = {v}" for n, v in zip(names, split(key(draw)), strict=True))
    return draw.choice(
        (
            f"INSERT IGNORE INTO t VALUES ({key(draw)}, {draw.randrange(99)})",
            f"REPLACE INTO t VALUES ({key(draw)}, {draw.randrange(99)})",
            f"UPDATE t SET v = {draw.randrange(99)} WHERE {here}",
            f"UPDATE IGNORE t SET {new} WHERE {here}",
            f"UPDATE IGNORE t SET {names[-1]} = IF(BINARY {names[-1]} = UPPER({names[-1]}), LOWER({names[-1]}), "
            f"UPPER({names[-1]})) WHERE {here}",
            f"DELETE FROM t WHERE {here}",
        )
    )


def split(values: str) -> list[str]:
    return values.split(", ")


@pytest.mark.parametrize("kind", KEYS)
def test_random_changes_while_all_chunks_are_read(reading: Reading, kind: str) -> None:
    """Every chunk of a table is read in turn among random changes, many of which cross its borders."""
    columns, key = KEYS[kind]
    names = [c.split()[0] for c in columns.split(", ")]
    draw = random.Random(kind)
    columns = ", ".join(f"{c} NOT NULL" for c in columns.split(", "))
    reading.write(f"CREATE TABLE t ({columns}, v INT, PRIMARY KEY ({', '.join(names)}))")
    reading.write("SET SESSION sql_mode = ''", *(f"INSERT IGNORE INTO t VALUES ({key(draw)}, 0)" for _ in range(40)))
    table = read_schema(reading.connection, reading.database, "t")
    corrected = 0
    for _ in range(3):
        for chunk in plan_table(reading.connection, 0, table, 6):
            plans = {m: [statement(draw, names, key) for _ in range(draw.randrange(4))] for m in MOMENTS}
            found = reading.read(table, chunk, after_lw=plans[MOMENTS[0]], after_select=plans[MOMENTS[1]])
            corrected += found.corrected
            reading.exact(table, chunk, found)
    assert corrected > 4


def test_a_chunk_is_stable_until_the_next_change(reading: Reading) -> None:
    """Two reads of the same chunk without changes between give the same rows under other watermarks."""
    table = reading.make(TEXT, "('h', 1), ('i', 2)")
    first = reading.read(table, MIDDLE, after_lw=["UPDATE t SET v = 5 WHERE k = 'h'"])
    second = reading.read(table, MIDDLE)
    assert first.high == second.low == second.high
    assert first.rows.drop([TS_COLUMN]).sort_by("k").equals(second.rows.drop([TS_COLUMN]).sort_by("k"))


def test_errors_are_the_projects_own(reading: Reading) -> None:
    table, number = reading.make("id INT PRIMARY KEY", "(1)"), query_value(reading.connection, "SELECT CONNECTION_ID()")
    with pytest.raises(CdcError):
        reading.read(table, Chunk(0, 0, 0, (1,), (1,), True), after_lw=[f"KILL {number}"])
