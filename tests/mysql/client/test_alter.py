"""Definitions that are computed from a statement's text are those that the catalog shows behind it."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from airflow_provider_cdc.ddl.alter_table import Alteration, DdlNotFollowed, ServerTraits, apply_ddl
from airflow_provider_cdc.model.definition_history import NO_CHANGES, ColumnChanges, default_array
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.query import QueryEvent, parse_query_event
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.identity import binlog_end
from airflow_provider_cdc.mysql.client.server_traits import read_server_traits
from airflow_provider_cdc.mysql.client.session import connect
from tests.support.binlog.reading import events_since
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer

_QUERY = 2
_TABLE = """CREATE TABLE t (
    id INT NOT NULL PRIMARY KEY, a VARCHAR(20) COMMENT 'one', n VARCHAR(60) NOT NULL, e ENUM('x','y') NOT NULL,
    s SET('p','q'), d DECIMAL(10,2), `Odd ``Name` INT, ts TIMESTAMP NULL, b VARBINARY(10), g POINT NOT NULL,
    l VARCHAR(9) CHARACTER SET latin1, u INT, KEY ka (a), UNIQUE KEY ku (u), KEY kn (n))"""


class Altered:
    """A table, a session that changes it, and what is computed of that."""

    def __init__(self, server: MySQLServer) -> None:
        self.server, self.mariadb = server, isinstance(server, MariaDBServer)
        self.session = server.connect(database="alter_d")
        self.reader = connect(server.connect_args())
        self.flavour: ServerTraits = read_server_traits(self.reader)
        self.changes: ColumnChanges = NO_CHANGES

    def run(self, *statements: str) -> None:
        with self.session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def begin(self, *statements: str) -> None:
        self.run("SET SESSION sql_mode = DEFAULT", "DROP TABLE IF EXISTS t")
        self.run(*(statements or (_TABLE,)))

    def schema(self) -> TableSchema:
        return read_schema(self.reader, "alter_d", "t")

    def compare(self, sql: str, *, in_place: bool = False) -> str:
        """Execute a statement, and hold what is computed against the catalog; why it is not followed, or nothing."""
        before, at = self.schema(), binlog_end(self.reader)
        self.run(sql)
        queries = [q for q in self.queries((at.file, at.position)) if q.sql.strip().upper() != "COMMIT"]
        assert len(queries) == 1, queries
        return self.hold(before, queries[0], in_place=in_place)

    def hold(self, before: TableSchema, query: QueryEvent, *, in_place: bool = False) -> str:
        try:
            found = apply_ddl(before, query.sql, query.database, query.session, self.flavour, in_place=in_place)
        except DdlNotFollowed as refused:
            return refused.reason or "?"
        self.equal(found, before, query.sql)
        self.changes = found.columns
        return ""

    def rows(self) -> list[dict[str, Any]]:
        with self.session.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute("SELECT * FROM t ORDER BY 1")
            return list(cursor.fetchall())

    def equal(self, found: Alteration, before: TableSchema, sql: str) -> None:
        after, made = self.schema(), found.definition
        assert made.columns == after.columns, sql
        assert (made, made.comments, made.collation) == (after, after.comments, after.collation), sql
        assert made.fingerprint() == after.fingerprint() and made.key_index == after.key_index, sql
        known = {c.name for c in before.columns}
        known = {dict(found.columns.renamed).get(name, name) for name in known}
        assert sorted(found.added) == sorted(c.name for c in after.columns if c.name not in known), sql

    def queries(self, start: tuple[str, int]) -> list[QueryEvent]:
        return [parse_query_event(event) for event in events_since(self.server, start) if event.type == _QUERY]


@pytest.fixture(scope="module")
def altered(server: MySQLServer) -> Iterator[Altered]:
    server.execute("CREATE OR REPLACE DATABASE alter_d") if isinstance(server, MariaDBServer) else None
    server.execute("CREATE DATABASE IF NOT EXISTS alter_d")
    found = Altered(server)
    with contextlib.closing(found.session), contextlib.closing(found.reader):
        yield found
    server.execute("DROP DATABASE IF EXISTS alter_d")


#: Statements that are followed, on every server.
FOLLOWED = [
    *(
        f"ALTER TABLE t ADD COLUMN c {text}"
        for text in (
            "INT",
            "INT(5) ZEROFILL",
            "INTEGER UNSIGNED NULL",
            "INT SIGNED",
            "INT ZEROFILL",
            "INT1",
            "INT8 UNSIGNED",
            "TINYINT(1)",
            "TINYINT(1) UNSIGNED",
            "TINYINT(3)",
            "SMALLINT UNSIGNED DEFAULT NULL",
            "MEDIUMINT",
            "BIGINT(5)",
            "BOOL",
            "BOOLEAN",
            "DEC",
            "DEC(7)",
            "NUMERIC(12,3) UNSIGNED",
            "DECIMAL(65,30)",
            "FIXED(5,0) ZEROFILL",
            "FLOAT",
            "FLOAT(24)",
            "FLOAT(30)",
            "FLOAT(7,3)",
            "DOUBLE",
            "DOUBLE PRECISION",
            "DOUBLE(9,2)",
            "REAL",
            "BIT",
            "BIT(17)",
            "YEAR",
            "YEAR(4)",
            "DATE",
            "TIME",
            "TIME(3)",
            "DATETIME(6)",
            "DATETIME ON UPDATE CURRENT_TIMESTAMP",
            "TIMESTAMP NULL",
            "TIMESTAMP(2) NULL DEFAULT NULL",
            "CHAR",
            "CHAR(0)",
            "CHAR(255)",
            "VARCHAR(10)",
            "VARCHAR(2000)",
            "VARCHAR(12) CHARACTER SET latin1",
            "VARCHAR(12) CHARSET latin1 COLLATE latin1_bin",
            "VARCHAR(12) COLLATE latin1_german1_ci",
            "VARCHAR(7) CHARACTER SET utf16",
            "CHAR(3) CHARACTER SET ucs2",
            "TINYTEXT",
            "TEXT",
            "MEDIUMTEXT CHARACTER SET latin1",
            "LONGTEXT CHARACTER SET utf32",
            "TEXT CHARACTER SET utf16",
            "BINARY",
            "BINARY(17)",
            "VARBINARY(300)",
            "TINYBLOB",
            "BLOB",
            "MEDIUMBLOB",
            "LONGBLOB",
            "JSON",
            "ENUM('a','b')",
            "ENUM('it''s','back\\\\slash','quote\\\"','ends   ')",
            "ENUM('ä','€')",
            'ENUM("double","dou""ble")',
            "SET('a','bc','def')",
            "ENUM('a') CHARACTER SET latin1",
            "GEOMETRY",
            "INT COMMENT 'it''s; -- no \\n comment /* */'",
            'INT COMMENT "ä €"',
            "INT COMMENT ''",
            "INT INVISIBLE",
            "VARCHAR(3) NULL COMMENT 'c' AFTER a",
            "INT FIRST",
            "int after ID",
        )
    ),
    "ALTER TABLE alter_d.t ADD c INT",
    "alter table `alter_d` . `t` add `c d` int, add `e``f` text first;",
    "ALTER TABLE t ADD (c INT, f VARCHAR(10), h DECIMAL(5,2) COMMENT 'x, y)')",
    "ALTER TABLE t ADD c INT AFTER a, ADD f INT AFTER c, ADD h INT FIRST",
    "ALTER TABLE t ADD `select` INT, ADD first INT FIRST, ADD comment INT AFTER first",
    "ALTER /* a, comment */ TABLE t -- more\n ADD # and more\n c INT",
    "ALTER TABLE t /*!80000 ADD c INT */",
    "ALTER TABLE t ADD c INT, ALGORITHM=INPLACE, LOCK=NONE",
    "ALTER TABLE t ADD INDEX (a), ADD KEY k2 (a(3) DESC, id), ADD INDEX k3 USING BTREE (a) COMMENT 'x'",
    "ALTER TABLE t ADD FULLTEXT KEY f (a)",
    "ALTER TABLE t DROP INDEX ka",
    "ALTER TABLE t DROP KEY ku",
    "ALTER TABLE t RENAME INDEX ka TO kb",
    "ALTER TABLE t ADD CONSTRAINT con CHECK (u > 0 OR u IS NULL)",
    "ALTER TABLE t ADD CONSTRAINT fk FOREIGN KEY (u) REFERENCES p (id)",
    "ALTER TABLE t ADD FOREIGN KEY fi (u) REFERENCES alter_d.p (id) ON DELETE RESTRICT ON UPDATE NO ACTION",
    "ALTER TABLE t ALTER COLUMN a SET DEFAULT 'v'",
    "ALTER TABLE t ALTER a DROP DEFAULT",
    "ALTER TABLE t COMMENT='what, a; table'",
    "ALTER TABLE t ENGINE=InnoDB ROW_FORMAT=DYNAMIC, STATS_PERSISTENT=1",
    "ALTER TABLE t FORCE",
    "ALTER TABLE t AUTO_INCREMENT 7",
    "ALTER TABLE t DEFAULT CHARACTER SET latin1 COLLATE latin1_bin",
    "ALTER TABLE t CHARSET = latin1",
    "ALTER TABLE t COLLATE utf8mb4_bin",
    "ALTER TABLE t MODIFY a VARCHAR(20) DEFAULT 'x' COMMENT 'two'",
    "ALTER TABLE t MODIFY COLUMN a VARCHAR(20)",
    "ALTER TABLE t MODIFY a VARCHAR(300)",
    "ALTER TABLE t CHANGE n n VARCHAR(60) NULL",
    "ALTER TABLE t MODIFY n VARCHAR(70) NOT NULL DEFAULT 'x'",
    "ALTER TABLE t MODIFY e ENUM('x','y','z') NOT NULL",
    "ALTER TABLE t MODIFY s SET('p','q','r')",
    "ALTER TABLE t MODIFY b VARBINARY(11)",
    "ALTER TABLE t MODIFY ts TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP",
    "ALTER TABLE t MODIFY id INT NOT NULL COMMENT 'k'",
    "ALTER TABLE t MODIFY `Odd ``Name` INT DEFAULT -5",
    "ALTER TABLE t MODIFY l VARCHAR(10) CHARACTER SET latin1",
    "CREATE INDEX i ON t (a(10) DESC, id) COMMENT 'x' ALGORITHM=INPLACE LOCK=NONE",
    "CREATE FULLTEXT INDEX i ON alter_d.t (a)",
    "CREATE INDEX i USING BTREE ON t (a)",
    "DROP INDEX ku ON t",
    "DROP INDEX ka ON alter_d.t",
    "ALTER TABLE t DROP COLUMN a",
    "ALTER TABLE t DROP a",
    "ALTER TABLE t DROP COLUMN u",
    "ALTER TABLE t DROP `Odd ``Name`, DROP COLUMN E",
    "ALTER TABLE t DROP COLUMN l, ADD COLUMN c INT FIRST, ADD COLUMN d2 INT AFTER n",
    "ALTER TABLE t DROP COLUMN a, DROP INDEX ku, COMMENT 'x', ALGORITHM=INPLACE",
    "ALTER TABLE t DROP COLUMN g, ALGORITHM=COPY",
]
#: What may stop, but must not be wrong.
ANYTHING = [
    *(
        f"ALTER TABLE t ADD COLUMN c {text}"
        for text in (
            "INT NOT NULL",
            "MIDDLEINT",
            "INT DEFAULT 3",
            "NATIONAL VARCHAR(10)",
            "NCHAR(3)",
            "NVARCHAR(3)",
            "LONG VARCHAR",
            "LONG",
            "LONG VARBINARY",
            "CHAR BYTE",
            "VARCHAR(3) CHARACTER SET binary",
            "TEXT CHARACTER SET binary",
            "CHAR(3) ASCII",
            "CHAR(3) UNICODE",
            "CHAR(3) BINARY",
            "VARCHAR(3) BINARY CHARACTER SET latin1",
            "CHARACTER VARYING(5)",
            "CHARACTER(5)",
            "TEXT(100)",
            "BLOB(70000)",
            "POINT",
            "GEOMETRYCOLLECTION",
            "MULTIPOLYGON",
            "FLOAT UNSIGNED",
            "DOUBLE(7,2) UNSIGNED ZEROFILL",
            "FLOAT4",
            "FLOAT8",
            "TIMESTAMP",
            "TIMESTAMP DEFAULT CURRENT_TIMESTAMP",
            "VARCHAR(3) CHARACTER SET utf8",
            "VARCHAR(3) CHARACTER SET utf8mb3",
            "VARCHAR(3) CHARACTER SET utf8mb4",
            "VARCHAR(3) COLLATE utf8_bin",
            "VARCHAR(3) COLLATE utf8mb4_unicode_ci",
            "INT AS (u + 1)",
            "INT GENERATED ALWAYS AS (u + 1) STORED",
            "INT UNIQUE",
            "INT CHECK (c > 0)",
            "INT REFERENCES p (id)",
            "SERIAL",
            "ENUM('ä','?')",
            "ENUM('a','A ') COLLATE utf8mb4_bin",
            "ENUM('tab\\t','nul')",
            "SET('x\\\\y')",
            "ENUM(x'61','b')",
            "DECIMAL(0)",
            "INT COMMENT 'zero \\0 byte'",
            "INT COMMENT 'bell \\Z'",
            "VARCHAR(3) CHARACTER SET sjis",
        )
    ),
    "ALTER TABLE t MODIFY a VARCHAR(10)",
    "ALTER TABLE t MODIFY A VARCHAR(20)",
    "ALTER TABLE t MODIFY a TEXT",
    "ALTER TABLE t MODIFY a VARCHAR(20) CHARACTER SET latin1",
    "ALTER TABLE t MODIFY l VARCHAR(9)",
    "ALTER TABLE t MODIFY id INT",
    "ALTER TABLE t MODIFY id BIGINT NOT NULL",
    "ALTER TABLE t MODIFY id INT NOT NULL AUTO_INCREMENT",
    "ALTER TABLE t MODIFY e ENUM('y','x') NOT NULL",
    "ALTER TABLE t MODIFY n VARCHAR(60) FIRST",
    "ALTER TABLE t MODIFY ts TIMESTAMP",
    "ALTER TABLE t CHANGE a a2 VARCHAR(20)",
    "ALTER TABLE t DROP COLUMN a RESTRICT",
    "ALTER TABLE t DROP COLUMN a, ADD COLUMN a INT",
    "ALTER TABLE t ADD COLUMN c INT AFTER a, DROP COLUMN a",
    "ALTER TABLE t MODIFY a VARCHAR(30), DROP COLUMN n",
    "ALTER TABLE t DROP COLUMN id, ADD COLUMN id2 INT",
    "ALTER TABLE t RENAME COLUMN a TO a2",
    "ALTER TABLE t CONVERT TO CHARACTER SET latin1",
    "ALTER TABLE t DROP PRIMARY KEY",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)",
    "ALTER TABLE t ADD UNIQUE (n)",
    "ALTER TABLE t ADD CONSTRAINT uu UNIQUE KEY (a)",
    "ALTER TABLE t ADD CHECK (u > 0 OR u IS NULL)",
    "ALTER TABLE t ADD SPATIAL INDEX sp (g)",
    "ALTER TABLE t ADD FOREIGN KEY (u) REFERENCES p (id) ON DELETE CASCADE",
    "ALTER TABLE t ADD c VARCHAR(3), DEFAULT CHARSET latin1",
    "ALTER TABLE t DEFAULT CHARSET utf8mb4",
    "ALTER TABLE t DEFAULT CHARSET latin1, COLLATE latin1_bin",
    "ALTER TABLE t ORDER BY u",
    "ALTER TABLE t DISABLE KEYS",
    "ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 2",
    "CREATE UNIQUE INDEX i ON t (n)",
]
MYSQL_ONLY = [
    "DROP INDEX ka ON alter_d.t ALGORITHM=INPLACE",
    "ALTER TABLE t ALTER INDEX ka INVISIBLE",
    "ALTER TABLE t ALTER COLUMN a SET INVISIBLE",
    "ALTER TABLE t ADD c VECTOR(3)",
    "ALTER TABLE t ADD c POINT SRID 4326",
    "ALTER TABLE t ADD INDEX fx ((u + 1))",
    "ALTER TABLE t ADD CONSTRAINT con CHECK (u > 0 OR u IS NULL) NOT ENFORCED",
    "ALTER TABLE t /*!99999 ADD x INT, */ ADD c INT",
]
MARIADB_ONLY = [
    "ALTER TABLE t ADD COLUMN IF NOT EXISTS a INT, ADD COLUMN IF NOT EXISTS c INT",
    "ALTER TABLE t ADD IF NOT EXISTS c INT",
    "ALTER TABLE IF EXISTS t ADD c INT",
    "ALTER ONLINE TABLE t WAIT 5 ADD c INT",
    "ALTER TABLE t NOWAIT ADD c INT",
    "ALTER IGNORE TABLE t ADD c INT",
    "ALTER TABLE t MODIFY COLUMN IF EXISTS nothing INT, ADD c INT",
    "ALTER TABLE t ADD c UUID",
    "ALTER TABLE t ADD c INET4",
    "ALTER TABLE t ADD c INET6",
    "ALTER TABLE t /*M!100000 ADD c INT */",
    "ALTER TABLE t /*!50701 ADD x INT, */ ADD c INT",
    "ALTER TABLE t /*!100000 ADD c INT */",
    "ALTER TABLE t DROP INDEX IF EXISTS ka",
    "ALTER TABLE t DROP COLUMN IF EXISTS nothing, ADD c INT",
    "ALTER TABLE t DROP IF EXISTS a, DROP COLUMN IF EXISTS a",
    "ALTER TABLE t ADD c TEXT COMPRESSED",
    "ALTER TABLE t ADD SYSTEM VERSIONING, ADD c INT",
    "ALTER TABLE t MODIFY a VARCHAR(20) COMPRESSED",
    "CREATE OR REPLACE INDEX ka ON t (n)",
    "CREATE INDEX IF NOT EXISTS i ON t (a)",
    "DROP INDEX IF EXISTS ka ON t",
    "SET STATEMENT lock_wait_timeout=1 FOR ALTER TABLE t ADD c INT",
]


def _prepare(altered: Altered) -> None:
    altered.run("DROP TABLE IF EXISTS t")
    altered.run("CREATE TABLE IF NOT EXISTS p (id INT PRIMARY KEY)")
    altered.begin()


@pytest.mark.parametrize("sql", FOLLOWED)
def test_what_is_followed(altered: Altered, sql: str) -> None:
    if altered.mariadb and "/*!80000" in sql:
        pytest.skip("a comment for MySQL")
    _prepare(altered)
    refused = altered.compare(sql)
    if altered.mariadb and altered.flavour.version >= (11, 2) and "character_set_collations" in refused:
        return
    assert refused == ""


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("sql", [*ANYTHING, *MYSQL_ONLY, *MARIADB_ONLY])
def test_what_is_followed_is_right(altered: Altered, sql: str, in_place: bool) -> None:
    _prepare(altered)
    if sql in (MYSQL_ONLY if altered.mariadb else MARIADB_ONLY):
        pytest.skip("of the other server")
    altered.run("SET SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION'")
    try:
        print(altered.compare(sql, in_place=in_place) or "followed")
    except pymysql.MySQLError as error:
        pytest.skip(f"not on this server: {error.args[0]}")
    except NotReadyError as error:
        pytest.skip(f"such a table is not captured: {error.message}")


_NUMBERS = """CREATE TABLE t (
    id INT PRIMARY KEY, a VARCHAR(20), b VARCHAR(20), s SMALLINT, u TINYINT UNSIGNED, f FLOAT, d DECIMAL(5,2)
) DEFAULT CHARSET utf8mb4"""
_ROWS = "INSERT INTO t VALUES (1, 'a1', 'b1', -32768, 255, 0.1, -999.99), (2, 'a2', NULL, NULL, 0, 0.7, 0)"
#: Changes in place, and what is not followed even then.
IN_PLACE = [
    "ALTER TABLE t RENAME COLUMN a TO c",
    "ALTER TABLE t RENAME COLUMN a TO `c d`, RENAME COLUMN s TO e",
    "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a",
    "ALTER TABLE t RENAME COLUMN a TO c, RENAME COLUMN b TO a",
    "ALTER TABLE t CHANGE a c VARCHAR(30) COMMENT 'x'",
    "ALTER TABLE t CHANGE COLUMN a b VARCHAR(20), CHANGE b a VARCHAR(20)",
    "ALTER TABLE t CHANGE s n BIGINT, ADD COLUMN x INT FIRST",
    "ALTER TABLE t RENAME COLUMN a TO c, DROP COLUMN b, ADD COLUMN e INT",
    "ALTER TABLE t MODIFY id BIGINT NOT NULL",
    "ALTER TABLE t MODIFY s MEDIUMINT, MODIFY u INT UNSIGNED, MODIFY f DOUBLE, MODIFY d DECIMAL(12,2)",
    *(
        f"ALTER TABLE t ADD COLUMN c {text}"
        for text in (
            "INT NOT NULL",
            "INT NOT NULL DEFAULT 0",
            "INT DEFAULT +7",
            "INT NOT NULL DEFAULT '-12'",
            "TINYINT(1) NOT NULL DEFAULT FALSE",
            "BIGINT UNSIGNED DEFAULT '18446744073709551615'",
            "DECIMAL(10,4) NOT NULL DEFAULT 1.0500",
            "DECIMAL(10,4) NOT NULL",
            "DECIMAL(3,3) DEFAULT '-0.125'",
            "VARCHAR(5) NOT NULL",
            "VARCHAR(5) NOT NULL DEFAULT ''",
            "VARCHAR(5) DEFAULT 'a\\'b '",
            "VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin DEFAULT 'x\\\\y'",
            "CHAR(5) NOT NULL DEFAULT 'ab'",
            "ENUM('x','y') NOT NULL DEFAULT 'y'",
            "DATE DEFAULT '0999-12-31'",
            "DATETIME NOT NULL DEFAULT '2026-02-28 00:00:01'",
            "DATETIME(6) DEFAULT '2026-02-28 00:00:01.5'",
        )
    ),
]
NOT_IN_PLACE = [
    "ALTER TABLE t RENAME COLUMN id TO c",
    "ALTER TABLE t RENAME COLUMN a TO A",
    "ALTER TABLE t RENAME COLUMN a TO c, ADD COLUMN a INT",
    "ALTER TABLE t ADD COLUMN x INT AFTER a, RENAME COLUMN a TO c",
    "ALTER TABLE t DROP COLUMN b, RENAME COLUMN a TO b",
    "ALTER TABLE t MODIFY s INT UNSIGNED",
    "ALTER TABLE t MODIFY d DECIMAL(12,3)",
    "ALTER TABLE t MODIFY s DOUBLE",
    "ALTER TABLE t MODIFY f FLOAT(20,3)",
    "ALTER TABLE t MODIFY s INT ZEROFILL",
    "ALTER TABLE t CHANGE a c VARCHAR(20) FIRST",
    *(
        f"ALTER TABLE t ADD COLUMN c {text}"
        for text in (
            "INT DEFAULT 1.5",
            "INT DEFAULT ' 1'",
            "TINYINT DEFAULT '1e1'",
            "DECIMAL(4,1) DEFAULT 1.25",
            "DECIMAL(40,1) DEFAULT 1",
            "VARCHAR(9) DEFAULT 007",
            "VARCHAR(9) DEFAULT 'é'",
            "CHAR(5) DEFAULT 'ab '",
            "ENUM('x','y') DEFAULT 'Y'",
            "ENUM('x','y') NOT NULL",
            "FLOAT DEFAULT 0.1",
            "DOUBLE NOT NULL",
            "DATE DEFAULT '2026-2-3'",
            "DATE NOT NULL",
            "DATETIME DEFAULT '2026-02-28 00:00:01.5'",
            "DATETIME DEFAULT CURRENT_TIMESTAMP",
            "TIMESTAMP NOT NULL DEFAULT '2026-02-28 00:00:01'",
            "TIME DEFAULT '10:00:00'",
            "VARBINARY(3) DEFAULT 'a'",
            "BIT(3) DEFAULT 1",
            "YEAR DEFAULT 2026",
            "SET('x','y') DEFAULT 'x'",
            "TEXT NOT NULL",
        )
    ),
]


@pytest.mark.parametrize("sql", IN_PLACE)
def test_changes_in_place(altered: Altered, sql: str) -> None:
    """The rows are those of before, under the new names, with the computed values in new columns."""
    altered.begin(_NUMBERS, _ROWS)
    before = altered.rows()
    assert altered.compare(sql, in_place=True) == ""
    renamed, defaults, after = dict(altered.changes.renamed), dict(altered.changes.defaults), altered.rows()
    types = {column.name: column.arrow_type for column in altered.schema().columns}
    values = {name: default_array(text, types[name])[0].as_py() for name, text in defaults.items()}
    for old, new in zip(before, after, strict=True):
        kept = {renamed.get(name, name): value for name, value in old.items()}
        for name, value in new.items():
            expected = kept[name] if name in kept else values.get(name)
            if types[name] == pa.float64():
                expected = pa.scalar(expected, pa.float32()).cast(pa.float64()).as_py()
            assert value == expected, name
    unchanged = {renamed.get(name, name) for name in before[0]} - {"b"}
    assert unchanged <= {*after[0]} | {"b"}


@pytest.mark.parametrize("sql", NOT_IN_PLACE)
def test_what_is_not_certain_is_not_followed_in_place(altered: Altered, sql: str) -> None:
    altered.begin(_NUMBERS, _ROWS)
    altered.run("SET SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION'")
    try:
        assert altered.compare(sql, in_place=True) != ""
    except pymysql.MySQLError as error:
        pytest.skip(f"the server refuses it: {error.args[1]}")


@pytest.mark.parametrize("mode", ["REAL_AS_FLOAT", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ANSI", "ORACLE"])
@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE t ADD c REAL",
        "ALTER TABLE t ADD c DATE",
        "ALTER TABLE t ADD c ENUM('a\\\\b','c''d') COMMENT 'x\\\\y'",
        'ALTER TABLE t ADD "c" INT',
        "ALTER TABLE t ADD c INT COMMENT 'a\\'",
    ],
)
def test_sessions_of_other_modes(altered: Altered, mode: str, sql: str) -> None:
    _prepare(altered)
    try:
        altered.run(f"SET SESSION sql_mode = '{mode}'")
        refused = altered.compare(sql)
    except pymysql.MySQLError as error:
        pytest.skip(f"not on this server, or in this mode: {error.args[0]}")
    assert refused == "" or mode == "ORACLE"


def test_timestamps_without_explicit_defaults(altered: Altered) -> None:
    _prepare(altered)
    altered.run("SET SESSION explicit_defaults_for_timestamp = OFF, sql_mode = ''")
    try:
        assert altered.compare("ALTER TABLE t ADD c TIMESTAMP")
        assert altered.compare("ALTER TABLE t ADD c2 TIMESTAMP NULL") == ""
    finally:
        altered.run("SET SESSION explicit_defaults_for_timestamp = ON")


def test_the_default_collation_of_a_session(altered: Altered) -> None:
    """MySQL: of utf8mb4 each session may have another one, which the binlog tells."""
    _prepare(altered)
    if altered.mariadb:
        pytest.skip("MariaDB has character_set_collations")
    altered.run("SET SESSION default_collation_for_utf8mb4 = utf8mb4_general_ci")
    try:
        assert altered.compare("ALTER TABLE t ADD c VARCHAR(3) CHARACTER SET utf8mb4") == ""
        assert altered.compare("ALTER TABLE t DEFAULT CHARACTER SET utf8mb4") == ""
    finally:
        altered.run("SET SESSION default_collation_for_utf8mb4 = utf8mb4_0900_ai_ci")
    assert altered.compare("ALTER TABLE t ADD c2 VARCHAR(3) CHARACTER SET utf8mb4") == ""


@pytest.mark.parametrize(
    ("table", "sql"),
    [
        ("a INT NOT NULL, b INT, UNIQUE KEY zz (a), UNIQUE KEY yy (b)", "ALTER TABLE t DROP INDEX zz"),
        ("a INT NOT NULL, b INT NOT NULL, UNIQUE KEY z (a), UNIQUE KEY y (b)", "ALTER TABLE t RENAME INDEX z TO a"),
        ("a INT NOT NULL, f FLOAT NOT NULL, PRIMARY KEY (f), UNIQUE KEY y (a)", "ALTER TABLE t MODIFY f FLOAT NULL"),
        ("a INT NOT NULL, f FLOAT NOT NULL, PRIMARY KEY (f), UNIQUE KEY y (a)", "ALTER TABLE t MODIFY f FLOAT"),
        ("a INT, b INT NOT NULL, UNIQUE KEY y (a), UNIQUE KEY z (b)", "ALTER TABLE t MODIFY a INT NOT NULL"),
        ("a INT, b INT NOT NULL, UNIQUE KEY y (a), UNIQUE KEY z (b)", "ALTER TABLE t DROP INDEX y"),
        ("a INT NOT NULL, b INT, UNIQUE KEY y (a)", "ALTER TABLE t MODIFY a INT"),
        ("a INT NOT NULL, b INT, UNIQUE KEY y (a)", "ALTER TABLE t ADD PRIMARY KEY (a)"),
        ("a VARCHAR(9) NOT NULL, b INT, UNIQUE KEY y (a)", "ALTER TABLE t MODIFY a VARCHAR(10) NOT NULL"),
        ("a ENUM('x') NOT NULL, b INT, UNIQUE KEY y (a)", "ALTER TABLE t MODIFY a ENUM('x','y') NOT NULL"),
        ("a INT NOT NULL, b INT, UNIQUE KEY y (a, b)", "ALTER TABLE t DROP COLUMN b"),
        ("a INT NOT NULL, b INT, c INT, UNIQUE KEY y (a), UNIQUE KEY x (b)", "ALTER TABLE t DROP COLUMN b"),
        ("a INT NOT NULL, b INT, PRIMARY KEY (a, b)", "ALTER TABLE t DROP COLUMN b"),
        ("a INT NOT NULL PRIMARY KEY, b INT NOT NULL, c INT, UNIQUE KEY x (b, c)", "ALTER TABLE t DROP COLUMN c"),
        ("a VARCHAR(9) NOT NULL, b INT, UNIQUE KEY y (a(9))", "ALTER TABLE t MODIFY a VARCHAR(10) NOT NULL"),
        ("a VARCHAR(9) NOT NULL, UNIQUE KEY y (a(3)), b INT", "ALTER TABLE t MODIFY a VARCHAR(10) NOT NULL"),
    ],
)
def test_which_index_is_the_key(altered: Altered, table: str, sql: str) -> None:
    altered.begin(f"CREATE TABLE t ({table})")
    with contextlib.suppress(pymysql.MySQLError):
        altered.compare(sql)


def test_of_a_unique_index_of_hashes(altered: Altered) -> None:
    """MariaDB: such an index has a column in row events, which goes with it, and new columns stand before it."""
    if not altered.mariadb:
        pytest.skip("MySQL has none")
    altered.begin("CREATE TABLE t (id INT PRIMARY KEY, a TEXT, UNIQUE KEY h (a))")
    assert altered.compare("ALTER TABLE t ADD c INT") == ""
    assert altered.compare("ALTER TABLE t DROP INDEX h") != ""


# ---------------------------------------------------------------- at random


def _random_type(chance: random.Random) -> str:
    size = chance.choice([1, 3, 20, 63, 64, 255, 300])
    charsets = ["", "", " CHARACTER SET latin1", " COLLATE utf8mb4_bin", " CHARSET ascii COLLATE ascii_bin"]
    charset = chance.choice(charsets)
    members = ",".join(f"'{m}'" for m in chance.sample(["a", "b b", "it''s", "ä", "x ", "z\\\\"], chance.randint(1, 5)))
    sign = chance.choice(["", " UNSIGNED", " ZEROFILL", " UNSIGNED ZEROFILL"])
    number = chance.choice(["TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "INT(7)", "TINYINT(1)"])
    text = chance.choice(["TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"])
    return chance.choice(
        [
            number + sign,
            f"DECIMAL({chance.randint(5, 65)},{chance.randint(0, 5)})",
            chance.choice(["FLOAT", "DOUBLE", "REAL", "FLOAT(20)", "FLOAT(50)", "DOUBLE(8,2)"]),
            f"CHAR({min(size, 255)}){charset}",
            f"VARCHAR({size}){charset}",
            f"VARBINARY({size})",
            f"BINARY({min(size, 255)})",
            text + charset,
            chance.choice(
                ["TINYBLOB", "BLOB", "LONGBLOB", "JSON", "DATE", "YEAR", "GEOMETRY", f"BIT({min(size, 64)})"]
            ),
            f"{chance.choice(['DATETIME', 'TIME'])}({chance.randint(0, 6)})",
            "TIMESTAMP(3) NULL",
            f"ENUM({members})" + (charset if "ä" not in members else ""),
            f"SET({members})",
        ]
    )


def _random_clauses(chance: random.Random, names: list[str], fresh: Iterator[str]) -> list[str]:
    found, modified = [], set[str]()
    gone = [name for name in names if name[0] == "n" and name != "n"]
    for _ in range(chance.choice([1, 1, 2, 3])):
        name = next(fresh)
        place = chance.choice(["", "", " FIRST", f" AFTER `{chance.choice(names)}`"])
        extra = chance.choice(["", " NULL", " DEFAULT NULL", f" COMMENT 'c {name}'", " INVISIBLE"])
        if "TIMESTAMP" in (kind := _random_type(chance)) and extra == " NULL":
            extra = ""
        longer = chance.choice(["a", "n"])
        comment = chance.choice(["", "NULL", "COMMENT 'm'"])
        modify = {
            "a": f"MODIFY a VARCHAR({chance.randint(20, 400)}) {comment}",
            "n": f"CHANGE COLUMN n n VARCHAR({chance.randint(60, 300)}) {chance.choice(['NOT NULL', 'NULL'])}",
        }[longer]
        clause = chance.choice(
            [
                f"ADD COLUMN `{name}` {kind}{extra}{place}",
                f"ADD {name} {kind}{extra}{place}",
                f"ADD ({name} {kind}{extra}, {next(fresh)} INT)",
                f"ADD INDEX {name} (u, id)",
                f"DROP COLUMN `{chance.choice(gone)}`" if gone else "FORCE",
                modify,
                f"ALTER COLUMN u SET DEFAULT {chance.randint(-5, 5)}",
                f"COMMENT = '{name}'",
                "FORCE",
            ]
        )
        if clause is modify:
            if longer in modified:
                continue
            modified.add(longer)
        if clause == "FORCE" and clause in found:
            continue
        found.append(clause)
    return found or ["FORCE"]


@pytest.mark.parametrize("seed", range(3))
def test_random_changes(altered: Altered, seed: int) -> None:
    chance, fresh = random.Random(seed), (f"n{i}" for i in range(10000))
    outcome: Counter[str] = Counter()
    for _ in range(10):
        _prepare(altered)
        for _ in range(8):
            names = [c.name.replace("`", "``") for c in altered.schema().columns]
            sql = f"ALTER TABLE t {', '.join(_random_clauses(chance, names, fresh))}"
            try:
                outcome[altered.compare(sql) or "followed"] += 1
            except pymysql.MySQLError:
                outcome["error"] += 1
    tried = outcome.total() - outcome["error"]
    assert tried >= 50, outcome
    assert outcome["followed"] >= 0.8 * tried, outcome


def test_the_newest_mariadb(newest_mariadb_server: MySQLServer) -> None:
    """Its default collation is one of several character sets; and sessions say which one a character set comes with."""
    newest_mariadb_server.execute("CREATE OR REPLACE DATABASE alter_d")
    found = Altered(newest_mariadb_server)
    with contextlib.closing(found.session), contextlib.closing(found.reader):
        _prepare(found)
        for text in (
            "VARCHAR(20)",
            "TEXT COLLATE utf8mb4_uca1400_as_cs",
            "ENUM('a')",
            "JSON",
            "INT",
            "VECTOR(3)",
            "UUID",
        ):
            name = text.split("(")[0].split()[0]
            assert found.compare(f"ALTER TABLE t ADD c_{name} {text}") == "" or name == "VECTOR"
        for name, text in (("v1", "COLLATE uca1400_as_cs"), ("v2", "CHARACTER SET utf8mb4")):
            found.compare(f"ALTER TABLE t ADD {name} VARCHAR(3) {text}")
        found.run("SET SESSION character_set_collations = 'utf8mb4=utf8mb4_bin'")
        assert "character_set_collations" in found.compare("ALTER TABLE t ADD v3 TEXT CHARACTER SET utf8mb4")
    newest_mariadb_server.execute("DROP DATABASE alter_d")


def test_dates_of_the_old_format(altered: Altered) -> None:
    """MariaDB: new columns get it, and old ones may lose it by any change."""
    if not altered.mariadb:
        pytest.skip("MySQL has none")
    altered.run("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        altered.begin("CREATE TABLE t (id INT PRIMARY KEY)")
        altered.flavour = read_server_traits(altered.reader)
        assert "mysql56_temporal_format" in altered.compare("ALTER TABLE t ADD c DATETIME")
        assert "old format" in altered.compare("ALTER TABLE t FORCE")
    finally:
        altered.run("SET GLOBAL mysql56_temporal_format = ON")
        altered.flavour = read_server_traits(altered.reader)


def test_what_a_server_tells(altered: Altered) -> None:
    """A server's flavour has the collations that a statement can name."""
    assert altered.flavour.mariadb == altered.mariadb
    assert (
        altered.flavour.charset_by_collation["latin1_bin"] == "latin1"
        and altered.flavour.max_char_bytes["utf8mb4"] == 4
    )
    assert altered.flavour.default_collations["latin1"] == "latin1_swedish_ci"
