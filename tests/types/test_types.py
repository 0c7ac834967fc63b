"""One law for values: what the snapshot reads, what the stream decodes and what the server says are the same."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.oracle import compare
from tests.support.servers import MySQLServer

INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}
TEXTS = (
    "''",
    "'a'",
    "'A'",
    "'a '",
    "' '",
    "'á'",
    "_utf8mb4 x'61CC81'",
    "'ß'",
    "'日本語'",
    "'🎁'",
    "_utf8mb4 x'610062'",
    "'line\\nbreak\\r\\t'",
    "'q\\'\"\\\\%_'",
)
PLAIN = ("''", "'a'", "'A'", "'a '", "' '", "_ascii x'610062'", "'q\\'\"\\\\%_'")
BYTES = ("''", "x'00'", "x'0000'", "x'61'", "x'6120'", "x'2020'", "x'FF'", "x'80FE0061'")
DAYS = ("'1000-01-01'", "'9999-12-31'", "'1582-10-10'", "'1969-12-31'", "'1970-01-01'", "'2024-02-29'", "'0001-01-01'")
CLOCKS = ("'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'", "'23:59:59'", "'100:00:01'")
FINE_CLOCKS = ("'-00:00:00.000001'", "'-01:00:00.5'", "'00:00:01.000001'", "'-838:59:58.999999'", "'00:00:00.999999'")
FLOATS = ("0e0", "-0e0", "1e0", "-1e0", "0.1e0", "1e-45", "3.402823e38", "-3.402823e38", "16777217e0", "1.17549e-38")
DOUBLES = ("0e0", "-0e0", "0.1e0", "1.7976931348623157e308", "5e-324", "2.2250738585072014e-308", "1e22", "1/3e0")
JSONS = (
    "'null'",
    "'true'",
    "'\"\"'",
    "'0'",
    "'-1'",
    "'18446744073709551615'",
    "'-9223372036854775808'",
    "'1.10'",
    "'1e300'",
    "'[]'",
    "'{}'",
    '\'{"b": 1, "aa": [null, "é 🎁 \\\\u0001 \\\\\\\\"], "": {}}\'',
    "JSON_OBJECT('d', CAST(1.10 AS DECIMAL(9,4)), 't', CAST('10:11:12.5' AS TIME(3)))",
    "JSON_ARRAY(CAST('2020-01-02' AS DATE), TIMESTAMP'2020-01-02 03:04:05.000006')",
    "JSON_ARRAY(x'00FF', REPEAT('x', 70000))",
)


def moments(fsp: int) -> tuple[str, ...]:
    fraction = f".{'9' * fsp}" if fsp else ""
    return ("'1000-01-01 00:00:00'", f"'9999-12-31 23:59:59{fraction}'", f"'1969-12-31 23:59:59{fraction}'") + (
        ("'2020-01-02 03:04:05.000001'", "'2020-01-02 03:04:05.100000'") if fsp == 6 else ()
    )


def instants(fsp: int) -> tuple[str, ...]:
    """Instants that mean the same in every time zone."""
    fraction = f".{'9' * fsp}" if fsp else ""
    return ("FROM_UNIXTIME(1)", f"FROM_UNIXTIME(2147483647{fraction})", "FROM_UNIXTIME(1711848600)") + (
        ("FROM_UNIXTIME(1.000001)",) if fsp == 6 else ()
    )


#: (type, values): every supported type with its edges. NULL comes on top where it is allowed.
TYPES: list[tuple[str, tuple[str, ...]]] = [
    *((kind, (str(-(2 ** (n - 1))), str(2 ** (n - 1) - 1), "0", "-1")) for kind, n in INTEGERS.items()),
    *((f"{kind} UNSIGNED", (str(2**n - 1), str(2 ** (n - 1)), "0")) for kind, n in INTEGERS.items()),
    ("INT(5) UNSIGNED ZEROFILL", ("7", "4294967295")),
    ("BOOLEAN", ("TRUE", "FALSE", "-128")),
    ("DECIMAL(1,0)", ("-9", "0", "9")),
    ("DECIMAL(10,10)", ("-0.9999999999", "0.0000000001", "0")),
    ("DECIMAL(38,19)", (f"-{'9' * 19}.{'9' * 19}", "0.1", f"{'1' * 19}.{'2' * 19}")),
    ("DECIMAL(65,30)", (f"-{'9' * 35}.{'9' * 30}", "0", "-0.5", f"{'9' * 35}.{'1' * 30}")),
    ("DECIMAL(40,0)", ("9" * 40, f"-{'9' * 40}", "0")),
    ("DECIMAL(9,2) UNSIGNED ZEROFILL", ("1.5", "0", "9999999.99")),
    ("FLOAT", FLOATS),
    ("FLOAT(7,3)", ("0.1", "-9999.999")),
    ("DOUBLE", DOUBLES),
    ("DOUBLE(12,4)", ("0.1", "-99999999.9999")),
    ("CHAR(20)", TEXTS),
    ("CHAR(0)", ("''",)),
    ("CHAR(255)", (*TEXTS, "REPEAT('日', 255)")),
    ("VARCHAR(20)", TEXTS),
    ("VARCHAR(300)", (*TEXTS, "REPEAT('🎁', 300)")),
    ("VARCHAR(20) COLLATE utf8mb4_bin", TEXTS),
    ("VARCHAR(20) CHARACTER SET utf8mb3", ("''", "'á'", "'日本語'", "'a '")),
    ("VARCHAR(20) CHARACTER SET ascii", PLAIN),
    ("TINYTEXT", TEXTS),
    ("TEXT", (*TEXTS, "REPEAT('é', 30000)")),
    ("MEDIUMTEXT", (*TEXTS, "REPEAT('x', 70000)")),
    ("LONGTEXT", TEXTS),
    ("BINARY(4)", BYTES),
    ("BINARY(255)", BYTES),
    ("VARBINARY(20)", BYTES),
    ("VARBINARY(300)", (*BYTES, "REPEAT(x'00', 300)")),
    ("TINYBLOB", BYTES),
    ("BLOB", (*BYTES, "REPEAT(x'FF', 60000)")),
    ("MEDIUMBLOB", BYTES),
    ("LONGBLOB", BYTES),
    ("DATE", DAYS),
    *((f"DATETIME({fsp})", moments(fsp)) for fsp in range(7)),
    *((f"TIMESTAMP({fsp}) NULL", instants(fsp)) for fsp in range(7)),
    *((f"TIME({fsp})", CLOCKS + (FINE_CLOCKS if fsp == 6 else ())) for fsp in range(7)),
    ("YEAR", ("0", "1901", "2155", "1970")),
    ("ENUM('a', 'B', '', 'it''s, \\\\ ünï 🎁')", ("'a'", "'b'", "''", "'it''s, \\\\ ünï 🎁'")),
    (f"ENUM({', '.join(repr(f'm{i}') for i in range(300))})", ("'m0'", "'m255'", "'m299'")),
    ("JSON", JSONS),
    ("SET('a', 'B', 'it''s', '🎁', 'ü')", ("''", "'a'", "'b,a'", "'it''s,ü,🎁'", "31")),
    *(
        (f"SET({', '.join(repr(f'm{i}') for i in range(n))})", ("1", f"{2**n - 1}", "'m0,m7'"))
        for n in (8, 9, 24, 33, 64)
    ),
    *((f"BIT({n})", ("0", "1", f"{2**n - 1}", f"{2 ** (n - 1)}")) for n in (1, 7, 8, 9, 33, 64)),
    ("GEOMETRY", ("ST_GeomFromText('POINT(1 -0.5)', 4326)", "ST_GeomFromText('LINESTRING(0 0, 1 1)')")),
    ("POINT", ("POINT(1, 2)", "POINT(-0.0, 1e-300)")),
    ("POLYGON", ("ST_GeomFromText('POLYGON((0 0, 0 3, 3 3, 0 0), (1 1, 1 2, 2 2, 1 1))')",)),
    ("GEOMETRYCOLLECTION", ("ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))')",)),
    ("VECTOR(3)", ("TO_VECTOR('[1, -0.0, 3.402823e38]')", "x'0100000000000080'", "TO_VECTOR('[0.1, 0.2]')")),
]
ROWS = max(len(values) for _, values in TYPES) + 1


def statements(database: str, first: int) -> list[str]:
    """INSERTs that bring every value of every type, one row each for the n-th value of all types, then NULLs."""
    found = []
    for n in range(ROWS):
        listed = [
            values[n % (len(values) + 1)] if n % (len(values) + 1) < len(values) else "NULL" for _, values in TYPES
        ]
        found.append(f"INSERT INTO `{database}`.t VALUES ({first + n}, {', '.join(listed)})")
    return found


def test_snapshot_and_stream_and_server_agree(
    mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]
) -> None:
    columns = ", ".join(f"c{i} {kind}" for i, (kind, _) in enumerate(TYPES))
    with contextlib.closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
        # sql_mode '' for the year 1; the session is not in UTC, so that a mistake about zones shows.
        cursor.execute("SET SESSION sql_mode = '', time_zone = '+05:30'")
        cursor.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
        for sql in statements(database, 1):
            cursor.execute(sql)
        cli = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database, user=cdc_user)
        cli.snapshot()
        for sql in statements(database, 1001):
            cursor.execute(sql)
        for sql in statements(database, 2001):
            cursor.execute(sql.replace("INSERT", "REPLACE"))
        # Values that come by an update, and an update that changes nothing but one column.
        cursor.execute(f"UPDATE `{database}`.t SET id = id + 1000 WHERE id > 2000")
        cursor.execute(f"UPDATE `{database}`.t SET c0 = 5 WHERE id > 3000")
        cli.catch_up()
        difference = compare(connection, database, "t", cli.sink / database / "t")
    assert difference is None, difference

    sink = cli.rows(database, "t").sort_by("id")
    read, streamed = (sink.filter(pc.equal(pc.divide(sink["id"], 1000), k)) for k in (0, 1))
    assert read.num_rows == streamed.num_rows == ROWS
    assert set(read["_cdc_op"].to_pylist()) == {"r"} and set(streamed["_cdc_op"].to_pylist()) == {"c"}
    for i, (kind, values) in enumerate(TYPES):
        a, b = (side[f"c{i}"].combine_chunks() for side in (read, streamed))
        if pa.types.is_floating(a.type):
            bits = pa.int32() if a.type == pa.float32() else pa.int64()
            a, b = a.view(bits), b.view(bits)
        assert a.equals(b), (kind, values)
        assert a.null_count < len(a), kind
    assert all(v.is_equal for v in verify_tables(cli.context))


def test_columns_that_select_star_leaves_out(
    mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]
) -> None:
    """Invisible and generated columns, among them one that is the key because the table has none."""
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, hidden VARCHAR(9) INVISIBLE, a INT, "
            "twice INT AS (a * 2) STORED, half INT AS (a DIV 2) VIRTUAL)"
        )
        cursor.execute("SET SESSION sql_generate_invisible_primary_key = ON")
        cursor.execute("CREATE TABLE keyless (v INT)")
        cursor.execute("INSERT INTO t (id, hidden, a) VALUES (1, 'x', 5)")
        cursor.execute("INSERT INTO keyless VALUES (5), (5)")
        cli = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database, user=cdc_user)
        cli.snapshot()
        cursor.execute("INSERT INTO t (id, hidden, a) VALUES (2, 'y', 6)")
        cursor.execute("UPDATE t SET a = 7 WHERE id = 1")
        cursor.execute("DELETE FROM keyless LIMIT 1")
        cli.catch_up()
        for table in ("t", "keyless"):
            assert compare(connection, database, table, cli.sink / database / table) is None
    assert cli.rows(database, "t").column_names[:5] == ["id", "hidden", "a", "twice", "half"]


#: Generated columns, and whether their values are other ones in another time zone.
ZONED = {
    "DATE AS (DATE(ts)) VIRTUAL": True,
    "DATETIME AS (before_it + INTERVAL 1 DAY) VIRTUAL": True,
    "DATETIME AS (FROM_UNIXTIME(n)) VIRTUAL": True,
    "TIMESTAMP AS (dt) VIRTUAL": True,
    "DATE AS (DATE(ts)) STORED": False,
    "DATE AS (DATE(dt)) VIRTUAL": False,
    "DATETIME AS (CAST(ts AT TIME ZONE '+00:00' AS DATETIME)) VIRTUAL": False,
}


@pytest.mark.parametrize("generated", ZONED)
def test_a_column_that_each_session_computes_in_its_time_zone(
    mysql_server: MySQLServer, database: str, tmp_path: Path, generated: str
) -> None:
    """A snapshot, in UTC, and a writer's session would give two values to a row that nobody has changed."""
    mysql_server.execute(
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, ts TIMESTAMP, dt DATETIME, n INT, "
        f"before_it DATETIME AS (ts) VIRTUAL, g {generated}, at_noon DATE AS (DATE(dt)) VIRTUAL)"
    )
    insert = "INSERT INTO t (id, ts, dt, n) VALUES ({}, '2020-01-01 00:30:00', '2020-01-01 00:30:00', 86400)"
    there = "SET time_zone = '+08:00'"
    mysql_server.session(database, there, insert.format(1))
    cli = Cli(tmp_path, mysql_server, rf"{database}\.t", source={"exclude_columns": [rf"{database}\.t\.before_it"]})
    if ZONED[generated]:
        result = cli.call("snapshot")
        assert result.code == 2 and "column g: it is VIRTUAL" in result.problem
        cli.value["source"]["exclude_columns"].append(rf"{database}\.t\.g")
        cli.write()
    cli.snapshot()
    mysql_server.session(database, there, insert.format(2), "UPDATE t SET n = 7 WHERE id = 1")
    cli.catch_up()
    without = ["before_it"] + ["g"] * ZONED[generated]
    with contextlib.closing(mysql_server.connect()) as connection:
        assert compare(connection, database, "t", cli.sink / database / "t", without) is None


def test_a_key_that_each_session_computes_in_its_time_zone(
    mysql_server: MySQLServer, database: str, tmp_path: Path
) -> None:
    """A row would be deleted in the copy under another key than that under which it was put in."""
    mysql_server.execute(
        f"CREATE TABLE {database}.t (id INT, ts TIMESTAMP NOT NULL, h DATETIME AS (ts) VIRTUAL NOT NULL, UNIQUE (h))"
    )
    there, here = "SET time_zone = '+08:00'", "SET time_zone = '-03:00'"
    mysql_server.session(database, there, "INSERT INTO t (id, ts) VALUES (1, '2020-01-01 00:30:00')")
    cli = Cli(tmp_path, mysql_server, rf"{database}\.t", source={"exclude_columns": [rf"{database}\.t\.h"]})
    assert "h is computed in the time zone of each session" in cli.call("check").out
    cli.snapshot()
    mysql_server.session(database, there, "INSERT INTO t (id, ts) VALUES (2, '2020-01-02'), (3, '2020-01-03')")
    mysql_server.session(database, here, "DELETE FROM t WHERE id < 3")
    cli.catch_up()
    assert cli.rows(database, "t")["id"].to_pylist() == [3]


def test_enum_members_that_only_the_binlog_can_tell(
    mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]
) -> None:
    """The catalog prints a question mark for a character beyond U+FFFF; without the binlog's own word it stops."""
    mysql_server.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, e ENUM('🎁', 'b'))")
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (1, '🎁')")
    cli = Cli(tmp_path, mysql_server, rf"{database}\.t", name=database, user=cdc_user)
    cli.snapshot()
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (2, '🎁')")
    cli.catch_up()
    assert cli.rows(database, "t")["e"].to_pylist() == ["🎁", "🎁"]
    mysql_server.execute("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    try:
        mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (3, '🎁')")
    finally:
        mysql_server.execute("SET GLOBAL binlog_row_metadata = 'FULL'")
    with pytest.raises(TerminalError, match="binlog_row_metadata"):
        cli.catch_up()


ZEROS = {
    "DATE": ("'0000-00-00'", "'2020-00-10'", "'2020-10-00'", "'0000-01-05'"),
    "DATETIME": ("'0000-00-00 00:00:00'", "'2020-00-10 01:02:03'", "'0000-01-05 00:00:00'"),
    "DATETIME(6)": ("'0000-00-00 00:00:00'",),
    "TIMESTAMP": ("'0000-00-00 00:00:00'",),
}


@pytest.mark.parametrize(("kind", "zero"), [(kind, zero) for kind, zeros in ZEROS.items() for zero in zeros])
def test_zero_dates_stop(
    mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str], kind: str, zero: str
) -> None:
    """Never NULL, never another date, never skipped: neither in the snapshot nor in the stream."""
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, v {kind} NULL)")
        cursor.execute("INSERT INTO t VALUES (1, '2020-01-02')")
        late = Cli(tmp_path / "late", mysql_server, rf"{database}\.t", name=database, user=cdc_user)
        late.snapshot()
        cursor.execute(f"INSERT INTO t VALUES (2, {zero})")
        early = Cli(tmp_path / "early", mysql_server, rf"{database}\.t", name=f"{database}.2", user=cdc_user)
        for stage in (early.snapshot, late.catch_up):
            with pytest.raises(TerminalError) as caught:
                stage()
            assert f"{database}.t" in caught.value.message and "column v" in caught.value.message
            assert caught.value.remedy
        assert late.rows(database, "t").num_rows == 1


def test_zero_dates_as_null(mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]) -> None:
    """In the snapshot, in both images of the stream and in ``verify``; after a stop, too. Never in a key."""
    kinds = [(kind, zero) for kind, zeros in ZEROS.items() for zero in zeros]
    columns = ", ".join(f"z{i} {kind} NOT NULL, n{i} {kind} NULL" for i, (kind, _) in enumerate(kinds))
    good = ", ".join("'2020-01-02', NULL" for _ in kinds)
    bad = ", ".join(f"{zero}, {zero}" for _, zero in kinds)
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = '', time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}, clock TIME, day DATE)")
        for n in range(6):
            cursor.execute(f"INSERT INTO t VALUES ({n}, {bad if n % 2 else good}, '00:00:00', '0001-01-01')")
        cli = Cli(tmp_path, mysql_server, rf"{database}\.t", name=database, user=cdc_user)
        with pytest.raises(TerminalError) as caught:
            cli.snapshot()
        assert "source.zero_dates: null" in caught.value.remedy
        cli.value["source"]["zero_dates"] = None  # what YAML makes of the bare word null
        cli.write()
        cli.snapshot()
        cursor.execute(f"INSERT INTO t VALUES (10, {bad}, '00:00:00', '0001-01-01')")
        cursor.execute("UPDATE t SET id = 11 WHERE id = 1")  # a before image
        cursor.execute("UPDATE t SET z0 = '2021-01-01', n1 = '2021-01-01' WHERE id = 3")
        cursor.execute("UPDATE t SET z0 = '0000-00-00' WHERE id = 2")
        cursor.execute("DELETE FROM t WHERE id = 5")
        cli.catch_up()
        assert all(v.is_equal for v in verify_tables(cli.context))
        rows = {row["id"]: row for row in cli.rows(database, "t").to_pylist()}
        assert sorted(rows) == [0, 2, 3, 4, 10, 11]
        for i in range(len(kinds)):
            assert [rows[n][f"z{i}"] is None for n in (0, 10, 11)] == [False, True, True], kinds[i]
            assert all(rows[n][f"n{i}"] is None for n in (0, 10, 11))
        assert rows[2]["z0"] is None and str(rows[3]["z0"]) == "2021-01-01" and str(rows[3]["n1"])[:10] == "2021-01-01"
        assert {(row["clock"], str(row["day"])) for row in rows.values()} == {(0, "0001-01-01")}

        cursor.execute("CREATE TABLE k (id DATE PRIMARY KEY)")
        cursor.execute("INSERT INTO k VALUES ('0000-00-00')")
        key = Cli(
            tmp_path / "key", mysql_server, rf"{database}\.k", name=f"{database}.k", source={"zero_dates": "null"}
        )
        with pytest.raises(TerminalError, match="column id"):
            key.snapshot()


@pytest.mark.parametrize("count", [600, 1016])
def test_wide_tables(
    mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str], count: int
) -> None:
    """Up to as many columns as InnoDB takes (1017 with the key), generated and invisible ones among them."""
    kinds = ["TINYINT", "BIT(3)", "YEAR", "DATE", "TIME", "DECIMAL(3,1)", "INT AS (id + 1)", "SMALLINT INVISIBLE"]
    listed = ", ".join(f"c{i} {kinds[i % len(kinds)]}" for i in range(count))
    plain = [i for i in range(count) if "AS" not in kinds[i % len(kinds)]]
    names = ", ".join(f"c{i}" for i in plain)
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {listed}) ROW_FORMAT=DYNAMIC CHARSET latin1")

        def fill(first: int) -> None:
            for n in range(first, first + 3):
                values = [("NULL" if (i + n) % 5 == 0 else "'2020-01-02'" if i % 8 == 3 else f"{i % 7}") for i in plain]
                cursor.execute(f"INSERT INTO t (id, {names}) VALUES ({n}, {', '.join(values)})")

        fill(0)
        cli = Cli(tmp_path, mysql_server, rf"{database}\.t", name=database, user=cdc_user)
        cli.snapshot()
        fill(10)
        cursor.execute("UPDATE t SET id = id + 100 WHERE id < 2")
        cli.catch_up()
        assert compare(connection, database, "t", cli.sink / database / "t") is None
    assert all(v.is_equal for v in verify_tables(cli.context))


def test_a_server_that_ignores_case(tmp_path: Path) -> None:
    """With lower_case_table_names=1 names are stored in lower case, however statements spell them."""
    with MySQLServer(variables={"lower_case_table_names": "1"}) as server:
        server.execute("CREATE DATABASE Shop")
        server.execute("CREATE TABLE SHOP.Customer (Id INT PRIMARY KEY, V VARCHAR(9))")
        server.execute("CREATE TABLE shop.other LIKE SHOP.CUSTOMER")
        server.execute("INSERT INTO ShOp.CuStOmEr VALUES (1, 'a'), (2, 'b')")
        cli = Cli(tmp_path, server, r"shop\..*", user=server.create_cdc_user())
        cli.snapshot()
        server.execute("UPDATE SHOP.CUSTOMER SET v = 'c' WHERE id = 2")
        server.execute("TRUNCATE shop.other")
        server.execute("INSERT INTO Shop.Other VALUES (7, 'x')")
        cli.catch_up()
        with contextlib.closing(server.connect()) as connection:
            for table in ("customer", "other"):
                assert compare(connection, "shop", table, cli.sink / "shop" / table) is None
        server.execute("ALTER TABLE SHOP.CUSTOMER ADD w INT")
        server.execute("UPDATE SHOP.CUSTOMER SET w = 3 WHERE id = 2")
        cli.catch_up()
        with contextlib.closing(server.connect()) as connection:
            assert compare(connection, "shop", "customer", cli.sink / "shop" / "customer") is None
        server.execute("ALTER TABLE SHOP.CUSTOMER DROP w")
        cli.catch_up()
        with contextlib.closing(server.connect()) as connection:
            assert compare(connection, "shop", "customer", cli.sink / "shop" / "customer") is None
        server.execute("ALTER TABLE SHOP.CUSTOMER ORDER BY Id")
        with pytest.raises(TerminalError, match=r"ALTER TABLE on captured table shop\.customer"):
            cli.catch_up()
