"""Statements of real binlogs, MySQL's and MariaDB's: which of them change a captured table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from airflow_provider_cdc.ddl.affected_tables import classify_statement
from airflow_provider_cdc.model.errors import DdlError, TerminalError
from airflow_provider_cdc.model.offset import Timeline
from airflow_provider_cdc.model.table_names import fold_name, may_match
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.events.query import parse_query_event
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction
from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
from airflow_provider_cdc.mysql.client.identity import binlog_end
from airflow_provider_cdc.mysql.client.indirect_writes import query_indirect_writes
from airflow_provider_cdc.mysql.client.session import connect
from tests.support.binlog.reading import capture, events_since, lasting, open_stream, read
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer


class Log:
    """A fresh database ``d`` with tables, one of them captured, a session, and all that reads its binlog."""

    def __init__(self, server: MySQLServer, cursor: pymysql.cursors.Cursor) -> None:
        self.server, self.cursor = server, cursor

    def run(self, *statements: str | bytes) -> None:
        for statement in statements:
            self.cursor.execute(statement)  # type: ignore[arg-type]

    def begin(self, *setup: str, table: str = "t", database: str = "d") -> None:
        """Make things, capture a table, and read from here on."""
        self.run(*setup)
        self.captured = capture(self.server, database, table)
        with contextlib.closing(connect(self.server.connect_args())) as connection:
            self.start = binlog_end(connection)

    def read(self) -> list[Transaction]:
        """What the plain reader makes of it."""
        return read(events_since(self.server, (self.start.file, self.start.position)), self.captured)

    def walk(self, user: dict[str, str] | None = None, tell: bool = False) -> list[Transaction]:
        """What the planner sees, with all that it may look up: what is more than rows."""
        found = []
        with contextlib.closing(connect(self.server.connect_args(**(user or {})))) as connection:

            def open_at(at: Any) -> Any:
                return open_stream(self.server, (at.file, at.position), blocking=True, heartbeat_seconds=1)

            binlog = BinlogReader(
                open_at,
                lasting(self.captured),
                Timeline("", self.start.file),
                count_only=True,
                yield_ddl=tell,
                indirect_writes=lambda: query_indirect_writes(connection, self.captured),
            )
            with contextlib.closing(binlog):
                for step in binlog.steps(self.start, binlog_end(connection)):
                    if step.transaction is not None:
                        found.append(step.transaction)
        return found

    def stops(self, match: str) -> None:
        """Both stop, and tell what it was, where, and what to do."""
        for reader in (self.read, self.walk):
            with pytest.raises(TerminalError, match=match) as caught:
                reader()
            assert self.start.file in str(caught.value) and caught.value.remedy


@pytest.fixture
def log(server: MySQLServer) -> Iterator[Log]:
    server.execute("DROP DATABASE IF EXISTS d")  # a run that was killed may have left it
    server.execute("CREATE DATABASE d")
    with contextlib.closing(server.connect(database="d")) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(20))")
        cursor.execute("CREATE TABLE other (a INT PRIMARY KEY, c VARCHAR(20))")
        yield Log(server, cursor)
    server.execute("DROP DATABASE IF EXISTS d")


# ---------------------------------------------------------------- the key


@pytest.mark.parametrize(
    "sql", ["DROP INDEX `PRIMARY` ON t", "ALTER TABLE t DROP KEY `PRIMARY`", "DROP INDEX `primary` ON d.t"]
)
def test_without_its_key_rows_would_collapse(log: Log, sql: str) -> None:
    log.begin()
    log.run(sql)
    log.stops(r"(DROP INDEX|ALTER TABLE) on captured table d\.t")


def test_which_index_is_the_key(log: Log) -> None:
    """A unique key that stands in for a primary one; other indexes may go."""
    log.begin("CREATE TABLE u (a INT NOT NULL, b INT, UNIQUE KEY `One On` (a), UNIQUE KEY two (b))", table="u")
    log.run("DROP INDEX two ON u", "CREATE INDEX three ON u (b)", "DROP INDEX three ON u")
    assert log.walk() == [] and len(log.read()) == 3
    log.run("DROP INDEX `one on` ON u")
    log.stops(r"DROP INDEX on captured table d\.u")


def test_a_key_that_is_replaced_by_another_index(log: Log) -> None:
    """In MariaDB CREATE INDEX drops the index that has the name: rows with one value of the key may follow."""
    if not isinstance(log.server, MariaDBServer):
        pytest.skip("MySQL has no CREATE OR REPLACE INDEX")
    log.begin("CREATE TABLE u (a INT NOT NULL, b INT, UNIQUE KEY `One On` (a), KEY two (b))", table="u")
    log.run("CREATE OR REPLACE INDEX two ON u (b, a)")
    assert log.walk() == [] and len(log.read()) == 1
    log.run("CREATE OR REPLACE INDEX `one on` USING BTREE ON u (b)", "INSERT INTO u VALUES (1, 1), (1, 2)")
    log.stops(r"CREATE INDEX on captured table d\.u")


def test_a_table_that_is_replaced_by_a_sequence(log: Log) -> None:
    """MariaDB's sequences are tables; of the one that is dropped nothing else tells."""
    if not isinstance(log.server, MariaDBServer):
        pytest.skip("MySQL has no sequences")
    log.begin()
    log.run("CREATE OR REPLACE SEQUENCE t", "DROP SEQUENCE t", "CREATE TABLE IF NOT EXISTS t (a INT PRIMARY KEY)")
    log.stops(r"CREATE SEQUENCE on captured table d\.t")


def test_a_table_without_a_key_has_none_to_lose(log: Log) -> None:
    log.begin("CREATE TABLE k (a INT, KEY i (a))", table="k")
    log.run("DROP INDEX i ON k")
    assert log.walk() == [] and len(log.read()) == 1


# ---------------------------------------------------------------- the tables of the text


def test_a_database_that_is_replaced_is_dropped(log: Log) -> None:
    log.begin()
    if not isinstance(log.server, MariaDBServer):
        pytest.skip("MySQL has no CREATE OR REPLACE DATABASE")
    log.run("CREATE OR REPLACE DATABASE d")
    log.stops(r"CREATE DATABASE on captured table d\.t")


@pytest.mark.parametrize("sql", ["ANALYZE UPDATE t SET b = 'x'", "ANALYZE FORMAT=JSON DELETE FROM t"])
def test_statements_that_are_analyzed_are_executed(log: Log, sql: str) -> None:
    log.begin()
    log.run("SET SESSION binlog_format = STATEMENT")
    if isinstance(log.server, MariaDBServer):
        log.run(sql)
    else:
        log.run("EXPLAIN ANALYZE UPDATE t JOIN other SET t.b = 'x'")
    log.stops(r"(ANALYZE|EXPLAIN) logged by statement may change captured table d\.t")


def test_a_table_that_is_filled_by_statement_is_not_empty(log: Log) -> None:
    """As TRUNCATE a CREATE TABLE is followed; its rows would be nowhere."""
    log.begin()
    log.run("DROP TABLE t")
    with contextlib.closing(connect(log.server.connect_args())) as connection:
        log.start = binlog_end(connection)
    log.run("SET SESSION binlog_format = STATEMENT")
    log.run("CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(20)) SELECT 1 AS a, 'x' AS b")
    log.stops(r"CREATE TABLE on captured table d\.t")


def test_quotes_of_the_session(log: Log) -> None:
    log.begin()
    log.run("SET SESSION binlog_format = STATEMENT, sql_mode = 'NO_BACKSLASH_ESCAPES'")
    log.run(r"UPDATE other, (SELECT '\' AS x) AS q, t SET c = 'y', t.b = '\'")
    log.stops(r"UPDATE logged by statement may change captured table d\.t")


# ---------------------------------------------------------------- temporary tables


@pytest.mark.parametrize("hides", [True, False])
def test_a_truncate_that_may_be_of_a_temporary_table(log: Log, hides: bool) -> None:
    """The flag of the event does not tell: in a procedure it stays set for a base table."""
    log.begin("CREATE PROCEDURE p() BEGIN CREATE TEMPORARY TABLE x (a INT); INSERT INTO x VALUES (1); TRUNCATE t; END")
    log.run("SET SESSION binlog_format = STATEMENT")
    if hides:
        log.run("CREATE TEMPORARY TABLE t (a INT)", "TRUNCATE t")
    else:
        log.run("CALL p()")
    version = log.server.execute("SELECT VERSION()")[0][0]
    if not hides and isinstance(log.server, MariaDBServer) and not version.startswith("10."):
        assert [item.emptied_table for item in log.walk()] == [("d", "t")]  # newer ones set it for each statement anew
    else:
        log.stops(r"TRUNCATE TABLE by a session that uses temporary tables.*d\.t")


def test_a_truncate_by_a_session_that_has_temporary_tables(log: Log) -> None:
    log.begin()
    log.run("SET SESSION binlog_format = STATEMENT", "CREATE TEMPORARY TABLE x (a INT)", "INSERT INTO x VALUES (1)")
    log.run("TRUNCATE t", "DROP TEMPORARY TABLE x")
    assert [item.emptied_table for item in log.walk()] == [("d", "t")]


def test_an_alter_that_may_be_of_a_temporary_table(log: Log) -> None:
    log.begin()
    log.run("ALTER TABLE t ADD c INT")
    log.run("SET SESSION binlog_format = STATEMENT", "CREATE TEMPORARY TABLE t (a INT)", "ALTER TABLE t ADD d INT")
    told = log.walk(tell=True)
    assert [item.altered_tables for item in told] == [{("d", "t")}] * 2
    assert [item.may_be_temporary for item in told] == [False, True]


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("charset", "name"),
    [
        *[(charset, "ÄÖ") for charset in ("dec8", "hp8", "macce", "keybcs2", "latin1", "cp850", "macroman")],
        *[(charset, "表ソ能") for charset in ("sjis", "cp932", "eucjpms", "ujis")],
        *[(charset, "許功") for charset in ("big5", "gbk")],
        ("geostd8", "აბ"),
        ("armscii8", "ԱԲ"),
        ("greek", "ΟΔΟΣ"),
    ],
)
def test_names_in_the_clients_character_set(log: Log, charset: str, name: str) -> None:
    """Some have a quote or a backslash as the second byte of a character."""
    log.run(f"CREATE TABLE `{name}` (a INT PRIMARY KEY)")
    sent = log.server.execute(f"SELECT CONVERT(CONVERT(_utf8mb4'{name}' USING {charset}) USING binary)")[0][0]
    log.begin(table=name)
    try:
        log.run(f"SET character_set_client = {charset}", b"TRUNCATE `" + sent + b"`", "TRUNCATE other")
        try:
            found = [item.emptied_table for item in log.walk()]
        except DdlError as error:
            assert f"d.{name}" in error.message
        else:
            assert found == [("d", name)]
    finally:
        log.run("SET character_set_client = utf8mb4", f"DROP TABLE `{name}`")


def test_what_is_equal_to_the_server_is_equal_here(server: MySQLServer) -> None:
    """Every character: in lower case by the server, it is the same name."""
    codes = [chr(c) for c in range(0x80, 0x10000) if not 0xD800 <= c < 0xE000]
    seen = 0
    for at in range(0, len(codes), 8000):
        listed = " UNION ALL SELECT ".join(
            f"_utf8mb3 x'{c.encode().hex()}' COLLATE utf8mb3_general_ci AS n" for c in codes[at : at + 8000]
        )
        for one, lower in server.execute(f"SELECT HEX(n), HEX(LOWER(n)) FROM (SELECT {listed}) AS q"):
            name, lowered = bytes.fromhex(one).decode(), bytes.fromhex(lower).decode()
            assert fold_name(name) == fold_name(lowered), (name, lowered)
            seen += name != lowered
    assert seen > 500


# ---------------------------------------------------------------- ways around


@pytest.mark.parametrize(
    ("setup", "sql", "way"),
    [
        (["CREATE VIEW v AS SELECT * FROM t"], "INSERT INTO v VALUES (1, 'x')", "d.v"),
        (["CREATE VIEW v AS SELECT * FROM t", "CREATE VIEW w AS SELECT * FROM v"], "UPDATE w SET b = 'x'", "d.w"),
        (["CREATE TRIGGER g AFTER INSERT ON other FOR EACH ROW INSERT INTO t VALUES (NEW.a, 'g')"],
         "INSERT INTO other VALUES (1, 'x')", "d.other"),
        (["CREATE FUNCTION f() RETURNS INT DETERMINISTIC BEGIN UPDATE t SET b = 'f'; RETURN 1; END"],
         "INSERT INTO other VALUES (f(), 'x')", "d.f"),
        (["CREATE FUNCTION f() RETURNS INT DETERMINISTIC BEGIN UPDATE t SET b = 'f'; RETURN 1; END",
          "CREATE VIEW v AS SELECT f() AS a"], "INSERT INTO other SELECT a, 'x' FROM v", "d.v"),
        (["CREATE FUNCTION f() RETURNS INT DETERMINISTIC BEGIN UPDATE t SET b = 'f'; RETURN 1; END"],
         "CREATE TABLE new SELECT f() AS a", "d.f"),
        (["CREATE TABLE up (a INT PRIMARY KEY)", "INSERT INTO up VALUES (1)",
          "ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES up (a) ON DELETE CASCADE"], "DELETE FROM up", "d.up"),
    ],
)  # fmt: skip
def test_ways_to_a_captured_table(log: Log, setup: list[str], sql: str, way: str) -> None:
    if sql.startswith("CREATE TABLE") and not isinstance(log.server, MariaDBServer):
        pytest.skip("MySQL refuses such a statement")
    log.server.execute("SET GLOBAL log_bin_trust_function_creators = ON")
    log.begin(*setup, f"INSERT INTO t VALUES ({1 if way == 'd.up' else 7}, 'b')")
    log.run("SET SESSION binlog_format = STATEMENT", sql)
    with pytest.raises(DdlError, match=rf"logged by statement may change .*through {way} .*binlog\.\d+:\d+"):
        log.walk()


def test_a_way_that_is_made_while_the_log_is_read(log: Log) -> None:
    """What was looked up counts until the next statement that may change the catalog."""
    log.begin()
    log.run("SET SESSION binlog_format = STATEMENT", "INSERT INTO other VALUES (1, 'x')")
    looked: list[int] = []
    with contextlib.closing(connect(log.server.connect_args())) as connection:

        def open_at(at: Any) -> Any:
            return open_stream(log.server, (at.file, at.position), blocking=True, heartbeat_seconds=1)

        def look() -> Any:
            looked.append(1)
            return query_indirect_writes(connection, log.captured)

        with contextlib.closing(
            BinlogReader(open_at, lasting(log.captured), Timeline("", log.start.file), indirect_writes=look)
        ) as binlog:
            at = binlog_end(connection)
            list(binlog.steps(log.start, at))
            log.run("INSERT INTO other VALUES (2, 'x')")
            list(binlog.steps(at, at := binlog_end(connection)))
            assert len(looked) == 1
            log.run("CREATE VIEW v AS SELECT * FROM t", "UPDATE v SET b = 'x'")
            with pytest.raises(DdlError, match=r"through d\.v"):
                list(binlog.steps(at, binlog_end(connection)))
            assert len(looked) == 2


def test_statements_that_lead_nowhere_do_not_stop(log: Log) -> None:
    log.begin(
        "CREATE TABLE audit (a INT, n INT)",
        "CREATE VIEW mine AS SELECT * FROM audit",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE TRIGGER g AFTER INSERT ON other FOR EACH ROW INSERT INTO audit VALUES (NEW.a, 1)",
        "CREATE FUNCTION f() RETURNS INT DETERMINISTIC RETURN 1",
        "CREATE TRIGGER h AFTER INSERT ON t FOR EACH ROW SET @x = 1",
    )
    log.run(
        "SET SESSION binlog_format = STATEMENT",
        "INSERT INTO other VALUES (f(), 'x')",
        "UPDATE mine SET n = 2",
        "REPLACE INTO audit SELECT COUNT(*), f() FROM t JOIN v USING (a)",
        "CREATE TEMPORARY TABLE x (a INT)",
        "INSERT INTO x VALUES (1)",
        "DELETE FROM audit WHERE a IN (SELECT a FROM x)",
        "CREATE TABLE gone SELECT 1 AS a",
        "UPDATE gone SET a = 2",
        "DROP TABLE gone, x",
    )
    assert log.walk() == []
    log.read()


def test_a_transaction_that_also_changes_an_aria_table(log: Log) -> None:
    """InnoDB commits it outside of the order of the binlog: a view may be told to be behind it, and not see it."""
    if not isinstance(log.server, MariaDBServer):
        pytest.skip("it has no such engine")
    log.begin("CREATE TABLE aria (k INT) ENGINE=Aria", "CREATE TABLE plain (k INT) ENGINE=Aria TRANSACTIONAL=0")
    log.run("BEGIN", "INSERT INTO plain VALUES (1)", "INSERT INTO t VALUES (1, 'x')", "COMMIT")
    log.run("BEGIN", "INSERT INTO aria VALUES (1)", "INSERT INTO other VALUES (1, 'x')", "COMMIT")
    assert log.walk() == [] and [len(found.rows) for found in log.read() if found.rows] == [1]
    log.run("BEGIN", "INSERT INTO aria VALUES (1)", "INSERT INTO t VALUES (2, 'x')", "COMMIT")
    log.stops(r"that changed d\.t ends with COMMIT instead of an XID.* such as Aria.*, at ")


def test_heartbeats_of_hosted_servers_do_not_stop(log: Log) -> None:
    """They are logged as statements, and the user needs no grant for what leads nowhere."""
    user = log.server.create_cdc_user("hosted", databases="d")
    log.begin("CREATE TABLE IF NOT EXISTS mysql.rds_heartbeat2 (id INT PRIMARY KEY, value BIGINT)")
    beat = "INSERT INTO mysql.rds_heartbeat2(id, value) VALUES (1, 7) ON DUPLICATE KEY UPDATE value = 7"
    try:
        log.run("SET SESSION binlog_format = STATEMENT", "USE mysql", beat)
        assert log.walk(user) == []
        log.run("USE d", beat)
        with pytest.raises(DdlError, match=r"INSERT logged by statement, at .* may not see"):
            log.walk(user)  # a name without a database could be a function of d
    finally:
        log.server.execute("DROP TABLE mysql.rds_heartbeat2")


def test_what_may_not_be_seen_is_not_passed(log: Log) -> None:
    user = log.server.create_cdc_user("blind", databases="d")
    log.begin()
    log.run("SET SESSION binlog_format = STATEMENT", "INSERT INTO other VALUES (1, 'x')")
    with pytest.raises(DdlError, match=r"INSERT logged by statement, at .* may not see") as caught:
        log.walk(user)
    assert "GRANT SELECT, SHOW VIEW, TRIGGER ON *.*" in caught.value.remedy
    log.server.execute("GRANT SELECT, SHOW VIEW, TRIGGER ON *.* TO blind")
    assert log.walk(user) == []


# ---------------------------------------------------------------- ALTER in two phases


def test_an_alter_that_fails_changes_nothing(log: Log) -> None:
    if not isinstance(log.server, MariaDBServer):
        pytest.skip("of MariaDB")
    log.begin("INSERT INTO t VALUES (1, 'x'), (2, 'x')")
    log.run("SET SESSION binlog_alter_two_phase = ON")
    with pytest.raises(pymysql.err.IntegrityError):
        log.run("ALTER TABLE t ADD UNIQUE (b)")
    assert log.walk() == [] and len(log.read()) == 2
    log.run("ALTER TABLE t ADD UNIQUE (a, b)")
    (item,) = log.walk(tell=True)
    # Tests of replication leave other domains in that position.
    assert item.altered_tables == {("d", "t")} and item.gtid in log.server.execute("SELECT @@gtid_binlog_pos")[0][
        0
    ].split(",")
    log.stops(r"ALTER TABLE on captured table d\.t")


# ---------------------------------------------------------------- without a server


def test_an_unknown_character_set_is_not_taken_for_utf8() -> None:
    """Bytes that happen to be UTF-8 are other characters in the client's set."""
    dec8 = 3
    status_of = bytes([4, dec8, 0, dec8, 0, dec8, 0])
    text = b"TRUNCATE `\xc3\xa9`"
    head = bytes(8) + bytes([1]) + bytes(2) + len(status_of).to_bytes(2, "little")
    query = parse_query_event(
        BinlogEvent(2, 0, memoryview(head + status_of + b"d\0" + text), "binlog.000001", 200, 100)
    )
    assert not may_match(classify_statement(query.sql, query.database).changed_tables, ("d", "e"))
    assert may_match(classify_statement(query.sql, query.database).changed_tables, ("d", fold_name("Ã©")))
