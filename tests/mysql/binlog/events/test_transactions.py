"""Whole transactions from a real server's binlog, and everything that must stop the stream."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
import zstandard

from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import DdlError, TerminalError
from airflow_provider_cdc.model.gtid import GtidSet
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.events.event_types import QUERY, TABLE_MAP, TRANSACTION_PAYLOAD, WRITE_ROWS, XID
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction, read_transactions
from airflow_provider_cdc.mysql.binlog.events.xa import PreparedXaRows
from tests.support.binlog.reading import (
    Captured,
    capture,
    changes,
    collations,
    events_since,
    everything,
    here,
    lasting,
    read,
    transactions,
)
from tests.support.binlog.row_decoder import decode_rows
from tests.support.servers import MySQLServer

OTHER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


class Table:
    """Table ``t`` (captured) and ``other`` (not) in a fresh database, and a session to change them in."""

    def __init__(self, server: MySQLServer, database: str, cursor: pymysql.cursors.Cursor) -> None:
        self.server, self.database, self.cursor = server, database, cursor
        self.run("CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(20), j JSON)", "CREATE TABLE other (a INT PRIMARY KEY)")
        self.captured: Captured = capture(server, database, "t")
        self.start = here(server)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.cursor.execute(statement)

    def events(self) -> list[BinlogEvent]:
        return events_since(self.server, self.start)

    def read(self) -> list[Transaction]:
        return transactions(self.server, self.start, self.captured)

    def keys(self) -> list[int | None]:
        """Key of every inserted row."""
        return [after[0] if after else None for _, after in changes(self.read())]


@pytest.fixture
def table(mysql_server: MySQLServer, database: str) -> Iterator[Table]:
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        yield Table(mysql_server, database, cursor)


def test_a_transaction_is_whole(table: Table) -> None:
    begin = here(table.server)
    table.run("BEGIN", "INSERT INTO t (a) VALUES (1)", "INSERT INTO other VALUES (1)", "UPDATE t SET b = 'x'", "COMMIT")
    table.run("INSERT INTO other VALUES (2)")
    one, two = table.read()
    assert [rows.operation for rows in one.rows] == ["insert", "update"]
    assert (one.file, one.start_position) == begin
    assert two.rows == () and (two.file, two.position) == here(table.server)
    assert one.position == two.start_position
    (executed,) = table.server.execute("SELECT GTID_SUBSET(%s, @@global.gtid_executed)", [f"{one.gtid},{two.gtid}"])
    assert executed == (1,) and one.gtid != two.gtid
    ((now,),) = table.server.execute("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)")
    assert now - 60_000_000 < one.commit_us <= two.commit_us <= now


def text_instead(event: BinlogEvent, old: bytes, new: bytes) -> BinlogEvent:
    """A QUERY event with another statement."""
    body = memoryview(bytes(event.body).replace(old, new))
    return BinlogEvent(2, event.timestamp, body, event.file, event.position, event.start)


def test_rolled_back_rows_are_dropped(table: Table) -> None:
    """With GTIDs no rolled-back rows reach the binlog; older servers wrote them with a ROLLBACK at the end."""
    table.run("BEGIN", "INSERT INTO t (a) VALUES (1)", "ROLLBACK", "INSERT INTO t (a) VALUES (2)")
    assert table.keys() == [2]
    events = table.events()
    (begin,) = (e for e in events if e.type == QUERY)
    undone = [text_instead(begin, b"BEGIN", b"ROLLBACK") if e.type == XID else e for e in events]
    (found,) = read(undone, table.captured)
    assert found.rows == ()


def test_savepoints(table: Table) -> None:
    table.run("BEGIN", "INSERT INTO t (a) VALUES (1)", "SAVEPOINT `s;p`", "INSERT INTO t (a) VALUES (2)")
    table.run("ROLLBACK TO `s;p`", "INSERT INTO t (a) VALUES (3)", "COMMIT")
    assert table.keys() == [1, 3]


def test_rollback_to_in_the_binlog_stops(table: Table) -> None:
    """The server writes ROLLBACK TO only for mixed engines; here it is put where the server would write it."""
    table.run("BEGIN", "INSERT INTO t (a) VALUES (1)", "SAVEPOINT s", "INSERT INTO t (a) VALUES (2)", "COMMIT")
    events = table.events()
    (savepoint,) = (e for e in events if e.type == QUERY and bytes(e.body).endswith(b"SAVEPOINT `s`"))
    back = text_instead(savepoint, b"SAVEPOINT `s`", b"ROLLBACK TO `s`")
    with pytest.raises(TerminalError, match=f"ROLLBACK TO a savepoint .*{table.database}.t"):
        read([back if e is savepoint else e for e in events], table.captured)


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_compressed_transactions(table: Table, compression: str) -> None:
    table.run("SET SESSION binlog_transaction_compression = ON")
    table.run("BEGIN", *(f"INSERT INTO t VALUES ({i}, 'x', '{{}}')" for i in range(300)), "COMMIT")
    events = table.events()
    (outer,) = (e for e in events if e.type == TRANSACTION_PAYLOAD)
    if compression == "none":
        body = bytes(outer.body)
        at = body.index(b"\x28\xb5\x2f\xfd")
        plain = zstandard.ZstdDecompressor().decompressobj().decompress(body[at:])
        # compression type 255 (a packed number of three bytes), then the end of the list
        body = b"\x02\x03\xfc\xff\x00" + b"\x00" + plain
        new = BinlogEvent(40, outer.timestamp, memoryview(body), outer.file, outer.position, outer.start)
        events = [new if e is outer else e for e in events]
    (found,) = read(events, table.captured)
    assert len(changes([found])) == 300
    assert found.position == outer.position == here(table.server)[1]
    assert found.start_position == table.start[1]


def test_damaged_compression_stops(table: Table) -> None:
    table.run("SET SESSION binlog_transaction_compression = ON")
    table.run("BEGIN", *(f"INSERT INTO t VALUES ({i}, 'x', '{{}}')" for i in range(300)), "COMMIT")
    events = table.events()
    (outer,) = (e for e in events if e.type == TRANSACTION_PAYLOAD)
    for size in range(1, len(outer.body), 7):
        bad = BinlogEvent(40, outer.timestamp, outer.body[:size], outer.file, outer.position, outer.start)
        with pytest.raises(TerminalError):
            read([bad if e is outer else e for e in events], table.captured)


def test_places_between_transactions(table: Table) -> None:
    """Rotation moves what has been reached, with no transaction there at all."""
    table.run("INSERT INTO t (a) VALUES (1)", "FLUSH BINARY LOGS")
    empty = here(table.server)
    table.run("INSERT INTO t (a) VALUES (2)")
    items = everything(table.events(), table.captured)
    reached = [(item.file, item.position) for item in items if isinstance(item, Position)]
    assert reached[0] == table.start
    assert empty in reached
    assert [after[0] for _, after in changes(t for t in items if isinstance(t, Transaction)) if after] == [1, 2]


def test_table_of_select(table: Table) -> None:
    table.run("INSERT INTO t (a) VALUES (1)", "CREATE TABLE copy AS SELECT * FROM t")
    assert len(table.read()) == 2


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("ALTER TABLE t ADD COLUMN secret VARCHAR(20) DEFAULT 'hunter2'", "ALTER TABLE"),
        ("ALTER TABLE other RENAME TO x, ALGORITHM=INPLACE; ALTER TABLE t ADD c INT, ALGORITHM=INSTANT", "ALTER TABLE"),
        ("ALTER TABLE t ALTER b SET DEFAULT 'hunter2'", "ALTER TABLE"),
        ("ALTER TABLE t RENAME x", "ALTER TABLE"),
        ("RENAME TABLE t TO x", "RENAME TABLE"),
        ("RENAME TABLE t TO x, other TO t", "RENAME TABLE"),
        ("DROP TABLE other, t", "DROP TABLE"),
        ("/* c */ DROP TABLE IF EXISTS t", "DROP TABLE"),
        ("SET sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES'); ALTER TABLE \"t\" ADD x INT", "ALTER TABLE"),
    ],
)
def test_ddl_on_a_captured_table_stops(table: Table, sql: str, what: str) -> None:
    table.run("INSERT INTO t (a) VALUES (1)", *sql.split("; "))
    seen: list[Any] = []
    with pytest.raises(
        DdlError, match=rf"{what} on captured table {table.database}\.t, at .*fresh sink\.path"
    ) as error:
        seen.extend(read_transactions(table.events(), lasting(table.captured), collations()))
    assert "hunter2" not in str(error.value)


def test_drop_database_stops(table: Table) -> None:
    table.run(f"DROP DATABASE {table.database}")
    with pytest.raises(DdlError, match=rf"DROP DATABASE on captured table {table.database}\.t"):
        table.read()


def test_statements_on_other_things_do_not_stop(table: Table) -> None:
    table.run(
        "CREATE TABLE x (a INT PRIMARY KEY, t INT, FOREIGN KEY (t) REFERENCES t (a))",
        "ALTER TABLE other ADD COLUMN t INT, ADD CONSTRAINT FOREIGN KEY (t) REFERENCES t (a)",
        "CREATE INDEX i ON t (b)",
        "DROP INDEX i ON t",
        "CREATE TABLE IF NOT EXISTS t (a INT)",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET NEW.b = 'g'",
        "CREATE TEMPORARY TABLE t (x INT)",
        "INSERT INTO t VALUES (1)",
        "DROP TEMPORARY TABLE t",
        "ANALYZE TABLE t",
        "OPTIMIZE TABLE t",
        "DROP VIEW v",
        "DROP TABLE x",
        f"CREATE USER '{table.database}'@'%' IDENTIFIED BY 'hunter2'",
        f"GRANT SELECT ON t TO '{table.database}'@'%'",
        f"DROP USER '{table.database}'@'%'",
        "INSERT INTO t (a) VALUES (7)",
    )
    assert table.keys() == [7]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t (a, b) VALUES (1, 'hunter2')",
        "UPDATE LOW_PRIORITY t SET b = 'hunter2'",
        "DELETE FROM t WHERE a=RAND()",
    ],
)
def test_dml_by_statement_stops(table: Table, sql: str) -> None:
    table.run("INSERT INTO t (a) VALUES (5)", "SET SESSION binlog_format = STATEMENT", "SET @x = 1", sql)
    with pytest.raises(DdlError, match=rf"by statement may change captured table {table.database}\.t") as error:
        table.read()
    assert "hunter2" not in str(error.value)


def test_dml_by_statement_on_another_table(table: Table) -> None:
    table.run("CREATE TABLE auto (a INT AUTO_INCREMENT PRIMARY KEY, b DOUBLE)", "SET SESSION binlog_format = STATEMENT")
    table.run("SET @v = 3", "INSERT INTO auto (b) VALUES (RAND())", "INSERT INTO other VALUES (@v)")
    table.run("SET SESSION binlog_format = ROW", "INSERT INTO t (a) VALUES (1)")
    assert {5, 13, 14} <= {event.type for event in table.events()}
    assert table.keys() == [1]


def test_function_called_by_statement_stops(table: Table) -> None:
    table.server.execute("SET GLOBAL log_bin_trust_function_creators = ON")
    table.run(
        "CREATE FUNCTION f() RETURNS INT BEGIN UPDATE t SET b = 'f'; RETURN 1; END", "INSERT INTO t (a) VALUES (1)"
    )
    table.run("SET SESSION binlog_format = STATEMENT", "SELECT f()")
    with pytest.raises(DdlError, match="SELECT logged by statement"):
        table.read()


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
@pytest.mark.parametrize("sql", ["UPDATE w SET b = 'x'", "DELETE FROM w"])
def test_row_images_that_are_not_full_stop(table: Table, image: str, sql: str) -> None:
    table.run("CREATE TABLE w (a INT PRIMARY KEY, b VARCHAR(9), c TEXT)", "INSERT INTO w VALUES (1, 'b', 'c')")
    captured, start = capture(table.server, table.database, "w"), here(table.server)
    captured = {name: schema.replace(full_before_images=True) for name, schema in captured.items()}
    table.run(f"SET SESSION binlog_row_image = {image}", sql)
    with pytest.raises(TerminalError, match=rf"row images of {table.database}\.w are not full.*binlog_row_image=FULL"):
        transactions(table.server, start, captured)


def test_partial_json_stops(table: Table) -> None:
    table.run("CREATE TABLE pj (a INT PRIMARY KEY, j JSON)")
    table.run(
        "SET SESSION binlog_row_value_options = PARTIAL_JSON",
        'INSERT INTO pj VALUES (1, \'{"a": 1, "b": "xxxxxxxx"}\')',
    )
    table.run("UPDATE pj SET j = JSON_SET(j, '$.a', 2)")
    assert 39 in {event.type for event in table.events()}
    assert len(table.read()) == 3  # of a table that is not captured
    table.run(
        'INSERT INTO t VALUES (1, \'x\', \'{"a": 1, "b": "xxxxxxxx"}\')', "UPDATE t SET j = JSON_SET(j, '$.a', 2)"
    )
    with pytest.raises(TerminalError, match=rf"partial JSON update of {table.database}\.t"):
        table.read()


def test_xa_on_other_tables(table: Table) -> None:
    table.run(
        "XA START 'a;b', 'q', 5", "INSERT INTO other VALUES (1)", "XA END 'a;b', 'q', 5", "XA PREPARE 'a;b', 'q', 5"
    )
    table.run("XA COMMIT 'a;b', 'q', 5")
    prepared, finished = table.read()
    assert prepared.xa_prepared == finished.xa_finished == "X'613b62',X'71',5"
    assert prepared.rows == finished.rows == () and prepared.xa_finished is None and finished.xa_prepared is None


def test_xa_rolled_back(table: Table) -> None:
    table.run("XA START 'r'", "INSERT INTO other VALUES (1)", "XA END 'r'", "XA PREPARE 'r'", "XA ROLLBACK 'r'")
    prepared, finished = table.read()
    assert prepared.xa_prepared == finished.xa_finished == "X'72',X'',1"


def test_xa_on_a_captured_table(table: Table) -> None:
    """Its rows stand at the prepare, and are nobody's before the commit."""
    table.run("XA START 'c'", "INSERT INTO t (a) VALUES (1)", "XA END 'c'", "XA PREPARE 'c'", "XA COMMIT 'c'")
    table.run("XA START 'd'", "INSERT INTO t (a) VALUES (2)", "XA END 'd'", "XA PREPARE 'd'", "XA ROLLBACK 'd'")
    found = table.read()
    assert [(len(t.rows), len(t.prepared_rows), t.xa_committed) for t in found] == [
        (0, 1, False),
        (0, 0, True),
        (0, 1, False),
        (0, 0, False),
    ]
    unknown: list[Transaction] = []

    def look_back(end: Transaction) -> tuple[RowsEvent, ...]:
        unknown.append(end)
        return found[0].prepared_rows

    prepared = PreparedXaRows({}, look_back, lasting(table.captured))
    visible = [prepared.visible_rows(t) for t in found]
    assert [decode_rows(event) for events in visible for event in events] == [[(None, (1, None, None))]]
    assert unknown == []
    prepared = PreparedXaRows({}, look_back, lasting(table.captured))
    assert [len(prepared.visible_rows(t)) for t in (found[1], found[3])] == [1, 0] and unknown == [found[1]]


def test_truncate_is_told(table: Table) -> None:
    """But not of a table that is another one for a server that tells upper case from lower case."""
    table.run("INSERT INTO t (a) VALUES (1)", "TRUNCATE t", "TRUNCATE TABLE `t`", f"TRUNCATE {table.database} . `t`")
    assert [t.emptied_table for t in table.read()] == [None, *[(table.database, "t")] * 3]
    table.run("CREATE TABLE T LIKE t")
    start = here(table.server)
    table.run("TRUNCATE T")
    with pytest.raises(DdlError, match=r"TRUNCATE TABLE on captured table"):
        transactions(table.server, start, table.captured)


def test_xa_in_one_phase_is_a_plain_commit(table: Table) -> None:
    table.run("XA START 'o'", "INSERT INTO t (a) VALUES (1)", "XA END 'o'", "XA COMMIT 'o' ONE PHASE")
    (found,) = table.read()
    assert changes([found]) == [(None, (1, None, None))] and found.xa_prepared is None


def test_tagged_gtids(table: Table) -> None:
    """Each is named as the server names it, with the time that it was committed."""
    uuid, before, began = table.server.execute("SELECT @@server_uuid, @@global.gtid_executed, UNIX_TIMESTAMP(NOW(6))")[
        0
    ]
    tag, long = "t" + secrets.token_hex(4), "_" + "a1" * 11 + secrets.token_hex(4) + "b"
    names = [(f"AUTOMATIC:{tag}", f"{uuid}:{tag}:{n}") for n in (1, 2)] + [(f"AUTOMATIC:{long}", "")]
    names += [(gtid, gtid) for gtid in (f"{uuid}:{tag}:{n}" for n in (64, 1 << 20, (1 << 62) + 5))]
    names += [(f"{OTHER}:t:77", f"{OTHER}:t:77"), (f"{OTHER}:8", f"{OTHER}:8")]
    table.run("SET SESSION original_commit_timestamp = 1234567890123456")
    for number, (name, _) in enumerate(names):
        table.run(f"SET gtid_next = '{name}'", f"INSERT INTO t (a) VALUES ({number})")
    table.run("SET SESSION binlog_transaction_compression = ON")
    table.run(f"SET gtid_next = 'AUTOMATIC:{tag}'", "INSERT INTO t (a) VALUES (99)", "SET gtid_next = 'AUTOMATIC'")
    found = table.read()
    assert [t.gtid for t in found] == [*(gtid or f"{uuid}:{long}:1" for _, gtid in names), f"{uuid}:{tag}:3"]
    assert [after[0] if after else None for _, after in changes(found)] == [*range(len(names)), 99]
    ((ended, more),) = table.server.execute(
        f"SELECT UNIX_TIMESTAMP(NOW(6)), GTID_SUBTRACT(@@global.gtid_executed, '{before}')"
    )
    assert all(float(began) * 1e6 - 1e6 < t.commit_us < float(ended) * 1e6 + 1e6 for t in found)
    assert GtidSet().with_all(t.gtid for t in found) == GtidSet.parse(str(more))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "cut off"),
        ("04", "cut off"),
        ("047c00", "of another version"),
        ("021400", "of another version"),
        ("02061c", "of another version"),  # a field that must be known, and is not
        ("02080000", "cut off"),
        ("020e0000020002", "fields out of order"),
        ("020a000002", "without a GTID"),
    ],
)
def test_a_tagged_gtid_event_that_makes_no_sense(table: Table, body: str, reason: str) -> None:
    """Its parts: version, size, what must be known; then pairs of a field and its value, here the flags."""
    event = BinlogEvent(42, 0, memoryview(bytes.fromhex(body)), "binlog.000001", 200, 100)
    with pytest.raises(TerminalError, match=rf"a GTID event that cannot be read \({reason}\)"):
        read([event], table.captured)


def test_changed_behind_the_binlogs_back(table: Table) -> None:
    table.run("SET sql_log_bin = 0", "ALTER TABLE t MODIFY b VARCHAR(30)", "SET sql_log_bin = 1")
    table.run("INSERT INTO t (a) VALUES (1)")
    with pytest.raises(TerminalError, match=rf"{table.database}\.t has column b with size 120 .*resnapshot --table"):
        table.read()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("MODIFY b TEXT", "column b as text or blob"),
        ("ADD c INT", "has 4 columns"),
        ("RENAME COLUMN b TO c", "column b under the name c"),
        ("MODIFY a INT UNSIGNED", "column a as unsigned"),
        ("MODIFY a BIGINT", "column a as bigint"),
        ("MODIFY b ENUM('x')", "column b as enum"),
        ("MODIFY b BIT(3)", "column b as bit"),
        ("MODIFY b VECTOR(3)", "column b as vector"),
    ],
)
def test_layout_must_agree(table: Table, change: str, message: str) -> None:
    table.run("SET sql_log_bin = 0", f"ALTER TABLE t {change}", "SET sql_log_bin = 1", "INSERT INTO t (a) VALUES (1)")
    with pytest.raises(TerminalError, match=message):
        table.read()


def test_one_table_map_under_two_definitions(table: Table) -> None:
    """Without metadata it has the same bytes: what a number of an ENUM means, only the definition says."""
    table.run("CREATE TABLE e (a INT PRIMARY KEY, e ENUM('x', 'y'))")
    (before,) = capture(table.server, table.database, "e").values()
    start = here(table.server)
    table.run("INSERT INTO e VALUES (1, 'x')")
    middle = Position(*here(table.server))
    table.run("INSERT INTO e VALUES (2, 'x')")
    column = before.columns[1].replace(nullable=False)  # what no table map of these rows contradicts
    after = before.replace(columns=(before.columns[0], column))
    over_time = DefinitionHistory.from_single(before).with_change(middle, after)
    found = read_transactions(events_since(table.server, start), {before.id: over_time}, collations())
    rows = [row for t in found if isinstance(t, Transaction) for row in t.rows]
    assert [row.table.schema for row in rows] == [before, after]


def test_enum_members_must_agree(table: Table) -> None:
    table.run("CREATE TABLE e (a INT PRIMARY KEY, e ENUM('x', 'y'))")
    captured = capture(table.server, table.database, "e")
    table.run("SET sql_log_bin = 0", "ALTER TABLE e MODIFY e ENUM('y', 'x')", "SET sql_log_bin = 1")
    start = here(table.server)
    table.run("INSERT INTO e VALUES (1, 'x')")
    with pytest.raises(TerminalError, match=r"other ENUM members .* column e"):
        changes(transactions(table.server, start, captured))


def test_odd_names(table: Table) -> None:
    name = "a`b.c;d'e\"f%ü "[:-1]
    quoted = "`" + name.replace("`", "``") + "`"
    table.run(f"CREATE TABLE {quoted} ({quoted} INT PRIMARY KEY)")
    captured = capture(table.server, table.database, name)
    start = here(table.server)
    table.run(f"INSERT INTO {quoted} VALUES (1)")
    assert changes(transactions(table.server, start, captured)) == [(None, (1,))]
    table.run(f"TRUNCATE {quoted}", f"DROP TABLE {quoted}")
    with pytest.raises(DdlError):
        transactions(table.server, start, captured)
    told = read_transactions(events_since(table.server, start), lasting(captured), collations(), yield_ddl=True)
    found = [(t.emptied_table, set(t.altered_tables)) for t in told if isinstance(t, Transaction)]
    assert found == [(None, set()), ((table.database, name), set()), (None, {(table.database, name)})]


def test_names_in_another_character_set(table: Table) -> None:
    table.run("CREATE TABLE `bücher` (a INT PRIMARY KEY)")
    captured = capture(table.server, table.database, "bücher")
    start = here(table.server)
    with (
        contextlib.closing(table.server.connect(charset="latin1", database=table.database)) as latin,
        latin.cursor() as cursor,
    ):
        cursor.execute("ALTER TABLE bücher ADD b INT")
    with pytest.raises(DdlError, match="bücher"):
        transactions(table.server, start, captured)


def test_one_transaction_inside_another_is_cut_off(table: Table) -> None:
    table.run("INSERT INTO t (a) VALUES (1)", "INSERT INTO t (a) VALUES (2)")
    events = [event for event in table.events() if event.type != XID]
    with pytest.raises(TerminalError, match="is cut off"):
        read(events, table.captured)


@pytest.mark.parametrize("kind", [26, 99])
def test_events_that_are_not_understood_stop(table: Table, kind: int) -> None:
    strange = BinlogEvent(kind, 0, memoryview(bytes(40)), "binlog.000001", 200, 100)
    with pytest.raises(TerminalError, match=rf"binlog.000001:100 \(event type {kind}\)"):
        read([strange], table.captured)


def test_rows_in_the_middle_of_a_transaction(table: Table) -> None:
    table.run("INSERT INTO t (a) VALUES (1)")
    events = table.events()
    with pytest.raises(TerminalError, match="outside of a transaction"):
        read([event for event in events if event.type == WRITE_ROWS], table.captured)
    with pytest.raises(TerminalError, match="unannounced table id"):
        read([event for event in events if event.type != TABLE_MAP], table.captured)
