"""The tables of the workload, and how they are filled.

A table is described once: every column is a name, a type and an SQL expression over ``n.i`` (the number of the row) and
``n.h`` (a hash that picks the values). Filling a table, inserting into it and changing it all use that one description.
The key depends on ``n.i`` alone, so the same number always names the same row, and all values are made by the server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Row numbers from here on get keys above all others in tables that name it as their ``top``.
TOP = 2_000_000_000


@dataclass(frozen=True)
class Table:
    """One table: ``columns`` are (name, type, expression over n.i and n.h), ``key`` names the primary key.

    :param step: distance between the row numbers of the first filling; the numbers between are gaps for new rows.
    :param top: first row number above all filled ones; 0: right behind the last one.
    :param weight: how often writers choose the table, against the others.
    """

    name: str
    columns: tuple[tuple[str, str, str], ...]
    key: tuple[str, ...]
    step: int = 3
    top: int = TOP
    weight: int = 10

    def create(self, database: str) -> str:
        body = ", ".join(f"`{name}` {kind}" for name, kind, _ in self.columns)
        key = ", ".join(f"`{name}`" for name in self.key)
        # The collation is spelled out: tests about keys must not depend on the server's default.
        return (
            f"CREATE TABLE `{database}`.`{self.name}` ({body}, PRIMARY KEY ({key})) "
            "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci"
        )

    def insert(self, database: str, source: str, verb: str = "INSERT", hint: str = "") -> str:
        """Statement that writes one row for each (i, h) of ``source``, a query or table expression called ``n``."""
        names = ", ".join(f"`{name}`" for name, _, _ in self.columns)
        values = ", ".join(expression for _, _, expression in self.columns)
        return f"{verb} {hint} INTO `{database}`.`{self.name}` ({names}) {source.replace('@', values)}"

    def expression(self, name: str) -> str:
        return next(e for n, _, e in self.columns if n == name)


def spoken(conn: Any, sql: str) -> str:
    """The statement as the server behind a connection says it: MariaDB has other collations, and JSON is text."""
    if "MariaDB" not in conn.get_server_info():
        return sql
    return re.sub(r"CAST\(('[^']*') AS JSON\)", r"\1", sql.replace("utf8mb4_0900_ai_ci", "utf8mb4_uca1400_ai_ci"))


def pick(salt: int, *values: str) -> str:
    """Expression that chooses one of some string literals or NULL."""
    words = ", ".join("NULL" if v == "NULL" else "'" + v.replace("\\", "\\\\").replace("'", "''") + "'" for v in values)
    return f"ELT(1 + (n.h DIV {salt}) MOD {len(values)}, {words})"


def edges(salt: int, ordinary: str, *special: str) -> str:
    """Expression that is now and then NULL or a special value, otherwise the ordinary one."""
    cases = " ".join(f"WHEN {i} THEN {value}" for i, value in enumerate(("NULL", *special)))
    return f"(CASE (n.h DIV {salt}) MOD 17 {cases} ELSE {ordinary} END)"


def number(salt: int, bits: int, unsigned: bool) -> str:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return edges(salt, f"n.h MOD {min(high, 1_000_003)}", str(low), str(high))


_WORD = (
    "ELT(1 + CRC32(n.i) MOD 16, 'apple', 'Apple', 'ÉCLAIR', 'éclair', 'straße', 'STRASSE', 'Ångström', 'ångstrom', "
    "'naïve', 'Zebra', 'zebra-', 'ñandú', '日本', '🎁gift', 'O''Brien', '(x) %')"
)
# Digits stand in no word, so the row's number keeps keys apart even where the collation sees equal words.
_WORD_KEY = (
    "CONCAT(IF(n.i < 1, '!', IF(n.i >= 2000000000, '龘', '')), "
    f"{_WORD}, ' ', ABS(n.i), ELT(1 + ABS(n.i) MOD 4, '', '.', '~ ', '🎉'))"
)
_MOMENT = "FROM_UNIXTIME(1 + n.h MOD 2147400000 + (n.h MOD 1000000) * 0.000001)"
_DATETIME = "TIMESTAMP'1970-01-01 00:00:00' + INTERVAL n.h SECOND + INTERVAL n.h MOD 1000000 MICROSECOND"
_CLOCK = (
    "CONCAT(IF(n.h MOD 2, '-', ''), n.h MOD 838, ':', LPAD(n.h MOD 60, 2, 0), ':', LPAD(n.h MOD 59, 2, 0), '.', "
    "LPAD(n.h MOD 1000000, 6, 0))"
)
_STATUS = ("new", "Paid, in full", "retürned", "🎁")
_ENUM = "enum(" + ", ".join(f"'{s}'" for s in _STATUS) + ")"

CUSTOMER = Table(
    "customer",
    (
        ("c_customer_sk", "int NOT NULL", "n.i"),
        ("c_customer_id", "char(16) NOT NULL", "CONCAT('AAAAAAAA', LPAD(HEX(ABS(n.i)), 8, '0'))"),
        ("c_current_cdemo_sk", "int", edges(3, "1 + n.h MOD 1920800")),
        ("c_current_hdemo_sk", "int", edges(5, "1 + n.h MOD 7200")),
        ("c_current_addr_sk", "int", "1 + n.h MOD 50000"),
        ("c_first_shipto_date_sk", "int", edges(7, "2449028 + n.h MOD 3650")),
        ("c_first_sales_date_sk", "int", edges(11, "2448998 + n.h MOD 3650")),
        ("c_salutation", "char(10)", pick(13, "Mr.", "Mrs.", "Ms.", "Dr.", "Sir", "NULL")),
        ("c_first_name", "char(20)", pick(17, "James", "María", "Łukasz", "Zoë", "Li", "Anne-Marie", "Olu", "NULL")),
        ("c_last_name", "char(30)", pick(19, "Smith", "O'Brien", "Müller", "García", "Nguyễn", "van der Berg", "NULL")),
        ("c_preferred_cust_flag", "char(1)", pick(23, "Y", "N", "Y", "N", "NULL")),
        ("c_birth_day", "int", edges(29, "1 + n.h MOD 28")),
        ("c_birth_month", "int", edges(31, "1 + n.h MOD 12")),
        ("c_birth_year", "int", edges(37, "1924 + n.h MOD 69")),
        ("c_birth_country", "varchar(20)", pick(41, "CHILE", "CÔTE D'IVOIRE", "JAPAN", "TOGO", "FIJI", "NULL", "")),
        ("c_login", "char(13)", "NULL"),
        ("c_email_address", "char(50)", edges(43, "CONCAT(LOWER(HEX(n.h)), '.', ABS(n.i), '@example.org')")),
        ("c_last_review_date_sk", "int", edges(47, "2452283 + n.h MOD 366")),
    ),
    ("c_customer_sk",),
    step=1,
    top=0,
    weight=20,
)
ADDRESS = Table(
    "customer_address",
    (
        ("ca_address_id", "varchar(60) NOT NULL", _WORD_KEY),
        ("ca_street", "varchar(60)", "CONCAT(1 + n.h MOD 999, ' ', " + pick(3, "Oak", "Élysée", "5th", "Main") + ")"),
        ("ca_city", "varchar(60)", pick(5, "Fairview", "São Paulo", "Zürich", "東京", "NULL")),
        ("ca_zip", "char(10)", "LPAD(n.h MOD 99999, 5, '0')"),
        ("ca_gmt_offset", "decimal(5,2)", edges(7, "(n.h MOD 48) * 0.5 - 12")),
        ("ca_note", "text", edges(11, "REPEAT('long note, ', n.h MOD 20)", "''")),
    ),
    ("ca_address_id",),
)
ORDERS = Table(
    "orders",
    (
        ("customer", "int NOT NULL", "(n.i DIV 6)"),
        ("line", "int NOT NULL", "(n.i MOD 6)"),
        ("quantity", "smallint unsigned", edges(3, "n.h MOD 100", "65535")),
        ("amount", "decimal(12,2)", edges(5, "(n.h MOD 10000000) * 0.01", "-9999999999.99", "9999999999.99")),
        ("ordered_at", "datetime(6)", edges(7, _DATETIME)),
        ("updated_at", "timestamp(3) NULL", edges(11, _MOMENT)),
        (
            "detail",
            "json",
            edges(13, "JSON_OBJECT('sku', n.h, 'tags', JSON_ARRAY('é', NULL, TRUE, n.h / 8), 'gift', '🎁')"),
        ),
        ("status", _ENUM, pick(17, *_STATUS, "NULL")),
    ),
    ("customer", "line"),
    top=0,
)
LEDGER = "CREATE TABLE `{}`.ledger (writer int NOT NULL, n bigint NOT NULL, note varchar(40), PRIMARY KEY (writer, n))"

_INTEGERS = (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64))
_NUMBERS = (
    *((f"{kind}_signed", kind, number(3 + k, bits, False)) for k, (kind, bits) in enumerate(_INTEGERS)),
    *((f"{kind}_unsigned", f"{kind} unsigned", number(13 + k, bits, True)) for k, (kind, bits) in enumerate(_INTEGERS)),
    (
        "decimal_20_6",
        "decimal(20,6)",
        edges(7, "(n.h * 1000003) * 0.000001", "-99999999999999.999999", "0.000001", "-0.000001"),
    ),
    ("float_", "float", edges(11, "n.h / 7e0", "-0e0", "0e0", "3.402823e38", "-1.17549e-38", "0.1e0")),
    ("double_", "double", edges(13, "n.h / 7e0", "-0e0", "0e0", "1.7976931348623157e308", "2.2250738585072014e-308")),
)
_STRINGS = (
    ("char_", "char(10)", pick(3, "a", "A", "", "zoë", "日本語", "🎁", "NULL")),
    ("varchar_", "varchar(40)", pick(5, "a", "a ", "A", "á", "", "back\\slash", "line\nbreak", "q'\"q", "NULL")),
    ("text_", "text", edges(7, "CONCAT(REPEAT('täxt, ', n.h MOD 9), n.h)", "''", "' '", "REPEAT('x', 5000)")),
    ("binary_", "binary(8)", edges(11, "UNHEX(LPAD(HEX(n.h), 8, '0'))", "x'00'", "x'2020'", "x'FFFFFFFFFFFFFFFF'")),
    ("varbinary_", "varbinary(40)", edges(13, "UNHEX(SHA2(n.h, 224))", "x''", "x'0000'", "x'61202000'")),
    ("blob_", "blob", edges(17, "UNHEX(SHA2(n.h, 512))", "x''", "x'00'")),
    ("enum_", _ENUM, pick(19, *_STATUS, "NULL")),
    (
        "json_",
        "json",
        edges(
            23,
            "JSON_OBJECT('b', n.h, 'aa', JSON_ARRAY(NULL, FALSE, n.h / 7e0, 'é \"q\" 🎁'), 'd', 1.10)",
            "CAST('null' AS JSON)",
            "CAST('18446744073709551615' AS JSON)",
            "CAST('\"\"' AS JSON)",
            "JSON_ARRAY()",
        ),
    ),
)
_DAYS = tuple(f"DATE'{day}'" for day in ("1000-01-01", "9999-12-31", "1582-10-10", "1969-12-31"))
_TIMES = (
    ("date_", "date", edges(3, "DATE'1900-01-01' + INTERVAL n.h MOD 90000 DAY", *_DAYS)),
    ("datetime_0", "datetime", edges(5, _DATETIME, "'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'")),
    ("datetime_3", "datetime(3)", edges(7, _DATETIME, "'1969-12-31 23:59:59.999'", "'2026-03-29 02:30:00'")),
    ("datetime_6", "datetime(6)", edges(11, _DATETIME, "'1000-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'")),
    ("timestamp_0", "timestamp NULL", edges(13, _MOMENT, "FROM_UNIXTIME(1)", "FROM_UNIXTIME(2147483647)")),
    ("timestamp_6", "timestamp(6) NULL", edges(17, _MOMENT, "FROM_UNIXTIME(1.000001)")),
    ("time_0", "time", edges(19, _CLOCK, "'-838:59:59'", "'838:59:59'", "'00:00:00'")),
    ("time_6", "time(6)", edges(23, _CLOCK, "'-00:00:00.000001'", "'-01:00:00.5'", "'838:59:59'", "'00:00:01.000001'")),
    ("year_", "year", edges(29, "1901 + n.h MOD 255", "0", "2155")),
)
_WIDE = (("decimal_65_30", "decimal(65,30)", edges(31, f"n.h * {'1' * 20}.{'3' * 30}", f"-{'9' * 35}.{'9' * 30}")),)
_ALL = _NUMBERS + _STRINGS + _TIMES + _WIDE

_BIG_KEY = (
    "(CASE WHEN n.i < 1 THEN 5000 + n.i WHEN n.i >= 2000000000 THEN 18446744073709500000 + (n.i - 2000000000) "
    "ELSE (CASE CRC32(n.i) MOD 3 WHEN 0 THEN 10000 + n.i WHEN 1 THEN 1000000000000 + n.i * n.i "
    "ELSE 9223372036854775808 + CAST(n.i AS UNSIGNED) * 9000000000001 END) END)"
)
BIG = Table("big", (("id", "bigint unsigned NOT NULL", _BIG_KEY), *_NUMBERS, _TIMES[3], _STRINGS[1]), ("id",))
WORDS = Table("words", (("word", "varchar(64) NOT NULL", _WORD_KEY), *_STRINGS), ("word",))
TRIO = Table(
    "trio",
    (
        (
            "a",
            "int NOT NULL",
            "(CASE WHEN n.i < 1 THEN -1 - ABS(n.i) MOD 9 WHEN n.i >= 2000000000 THEN 1000 + n.i MOD 9 "
            "WHEN CRC32(n.i) MOD 10 < 7 THEN 7 ELSE CRC32(n.i) MOD 100 END)",
        ),
        ("b", "varchar(20) NOT NULL", f"CONCAT({_WORD}, ABS(n.i) DIV 100)"),
        ("c", "date NOT NULL", "(DATE'2000-01-01' + INTERVAL (n.i MOD 100) DAY)"),
        *_ALL,
    ),
    ("a", "b", "c"),
)
NOTHING = Table("nothing", (("id", "int NOT NULL", "n.i"), *_ALL), ("id",), weight=1)
ONE = Table("one", (("id", "varchar(20) NOT NULL", "CONCAT('only ', n.i)"), *_ALL), ("id",), weight=1)

SETS = {"shop": (CUSTOMER, ADDRESS, ORDERS), "foreign": (BIG, WORDS, TRIO, NOTHING, ONE)}


def _fill(cursor: Any, database: str, table: Table, rows: int, seed: int, batch: int = 100_000) -> None:
    conn = cursor.connection
    cursor.execute(spoken(conn, table.create(database)))
    for start in range(0, rows, batch):
        first, last = (start + 1) * table.step, min(start + batch, rows) * table.step
        source = (
            "WITH RECURSIVE n (i, h) AS ("
            f"SELECT CAST({first} AS SIGNED), CAST(CRC32('{first}/{seed}') AS SIGNED) UNION ALL "
            f"SELECT i + {table.step}, CAST(CRC32(CONCAT(i + {table.step}, '/{seed}')) AS SIGNED) "
            f"FROM n WHERE i < {last}) SELECT @ FROM n"
        )
        hint = f"/*+ SET_VAR(cte_max_recursion_depth = {batch + 1}) */"
        cursor.execute(spoken(conn, table.insert(database, source, hint=hint)))


def _make(conn: Any, database: str, sizes: Sequence[tuple[Table, int]], seed: int) -> None:
    conn.autocommit(True)
    with conn.cursor() as cursor:
        cursor.execute("/*M! SET max_recursive_iterations = 4294967295 */")  # MariaDB's word for the hint below
        cursor.execute(f"DROP DATABASE IF EXISTS `{database}`")
        cursor.execute(f"CREATE DATABASE `{database}`")
        for table, rows in sizes:
            _fill(cursor, database, table, rows, seed)
            cursor.execute(f"ANALYZE TABLE `{database}`.`{table.name}`")


def make_shop(
    conn: Any,
    database: str = "shop",
    customers: int = 1_000_000,
    seed: int = 1,
    *,
    addresses: int = 50_000,
    orders: int = 200_000,
) -> None:
    """Make a shop database anew (dropping an old one): customer, customer_address, orders and an empty ledger."""
    _make(conn, database, ((CUSTOMER, customers), (ADDRESS, addresses), (ORDERS, orders)), seed)
    with conn.cursor() as cursor:
        cursor.execute(LEDGER.format(database))


def make_foreign(conn: Any, database: str, scale: float = 1.0, seed: int = 1) -> None:
    """Make a database of awkward tables anew: big, words, trio, nothing (empty) and one (a single row).

    :param scale: 1.0 gives 300,000, 60,000 and 20,000 rows; at most 1.0, beyond it keys would leave 64 bits.
    """
    if not 0 < scale <= 1:
        raise ValueError(f"scale must be in (0, 1], not {scale}")
    sizes = ((BIG, 300_000), (WORDS, 60_000), (TRIO, 20_000))
    _make(conn, database, (*((t, max(1, int(n * scale))) for t, n in sizes), (NOTHING, 0), (ONE, 1)), seed)
