"""What the server leaves out for a condition is never a row for which the condition is true, in any collation."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import Column, TableSchema
from airflow_provider_cdc.mysql.chunks.chunk import select_rows
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.condition_sql import implied_sql
from airflow_provider_cdc.mysql.client.session import connect, query_bytes, query_dicts, query_rows
from airflow_provider_cdc.transforms.condition import parse_condition
from tests.support.conditions import KINDS, quoted, random_condition, random_rows
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer

#: Collations, each with what MariaDB has instead if it lacks it.
COLLATIONS = {
    "utf8mb4_0900_ai_ci": "utf8mb4_uca1400_ai_ci",
    "utf8mb4_de_pb_0900_ai_ci": "utf8mb4_german2_ci",
    "utf8mb4_ja_0900_as_cs_ks": "utf8mb4_nopad_bin",
    "utf8mb4_general_ci": "",
    "utf8mb4_unicode_ci": "",
    "utf8mb4_bin": "",
    "utf8mb3_general_ci": "",
    "utf16_unicode_ci": "",
    "latin1_swedish_ci": "",
    "latin1_german2_ci": "",
    "latin2_czech_cs": "",
    "ascii_general_ci": "",
    "sjis_japanese_ci": "",
    "gbk_chinese_ci": "",
}
_WORDS = ["", " ", "a", "A", "a ", "á", "Á", "ä", "ae", "ß", "ss", "?", "??", "\\", "'", "\0", "a\0", "č", "あ", "😀"]
#: A list of numbers of which some are beyond the column's range, or between its values: MySQL takes 2**63 for -2**63.
_MISREAD = re.compile(r"\b(big|huge)`? +(NOT +)?IN +\([^)]*(\.5|9223372036854775808|18446744073709551616|-1)", re.I)


#: Conditions, and what is implied; ``...`` for a text in the character set and the collation of its column.
IMPLIED: dict[str, str | None] = {
    "n = 5": "`n` = 5",
    "5 > n AND m <> -1.5": "(`n` < 5 AND `m` <> -1.50)",
    "n BETWEEN 1.5 AND 3": "(`n` >= 2 AND `n` <= 3)",
    "n <=> 5 OR n <=> NULL": "((`n` = 5 AND `n` IS NOT NULL) OR `n` IS NULL)",
    "n NOT IN (1, 2, 1, 2.5)": "(`n` NOT IN (1, 2) AND `n` IS NOT NULL)",
    "n IN (1, NULL)": "(`n` IN (1) OR FALSE)",
    "n < 99999999999": "`n` IS NOT NULL",
    "n > 99999999999 OR n = NULL": "(FALSE OR FALSE)",
    # A text that is equal byte by byte is equal in the collation, and no other comparison is implied.
    "w = 'x'": "`w` = ...",
    "NOT w <> 'x'": "`w` = ...",
    "w IN ('x', 'x')": "`w` IN (...)",
    "w <> 'x'": None,
    "NOT w = 'x'": None,
    "w NOT IN ('x')": None,
    "w < 'x'": None,
    "w LIKE 'x%'": None,
    "b = x'61' AND b <> x''": "(`b` = x'61')",
    "b = x''": "`b` = _binary ''",
    "e = 'x'": None,
    "r = 1.5": None,
    "r IS NOT NULL": "`r` IS NOT NULL",
    # What is left out leaves more rows in an AND, and all of them in an OR.
    "n = 5 AND w <> 'x'": "(`n` = 5)",
    "n = 5 OR w <> 'x'": None,
    "NOT (n = 5 OR w = 'x')": "(`n` <> 5)",
    "NOT (n = 5 AND w = 'x')": None,
    "n = 1 AND (n = 2 OR w <> 'x') AND (n = 3 OR n = 4)": "(`n` = 1 AND (`n` = 3 OR `n` = 4))",
    "d > '2024-01-01 00:00:00.5'": "`d` > TIMESTAMP'2024-01-01 00:00:00.500000'",
    "d > '2024-01-01 00:00:00.55'": None,
    "t < '2024-01-01'": "`t` < TIMESTAMP'2024-01-01 00:00:00.000000'",
    "t < '2038-01-20'": None,
    "t > '1969-12-31'": None,
    "day <> DATE '2024-01-01' AND y > 2000": "(`day` <> DATE'2024-01-01' AND `y` > 2000)",
}


@pytest.mark.parametrize("text", IMPLIED)
def test_what_is_implied(text: str) -> None:
    charset, collation = "latin1", "latin1_swedish_ci"
    columns = (
        Column("n", "int", "int", True),
        Column("m", "decimal", "decimal(9,2)", True, precision=9, scale=2),
        Column("w", "varchar", "varchar(9)", True, charset=charset, collation=collation),
        Column("e", "enum", "enum('x')", True, members=("x",), charset=charset, collation=collation),
        Column("b", "varbinary", "varbinary(9)", True),
        Column("r", "double", "double", True),
        Column("d", "datetime", "datetime(1)", True, fsp=1),
        Column("t", "timestamp", "timestamp", True),
        Column("day", "date", "date", True),
        Column("y", "year", "year", True),
    )
    expected, x = IMPLIED[text], "CONVERT(_utf8mb4 x'78' USING latin1) COLLATE latin1_swedish_ci"
    sql = implied_sql(parse_condition(text, TableSchema("d", "t", columns, ())))
    assert sql == (None if expected is None else expected.replace("...", x))


@pytest.fixture
def connection(server: MySQLServer) -> Iterator[Connection[Any]]:
    with server.fresh_database("conditions"), contextlib.closing(connect(server.connect_args())) as opened:
        yield opened


def make(server: MySQLServer, columns: Sequence[str], rows: Sequence[Sequence[Any]], options: str = "") -> None:
    """A table with a key and these rows; those that the server refuses are not in it."""
    with contextlib.closing(server.connect(charset="utf8mb4", autocommit=True)) as own, own.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        cursor.execute("DROP TABLE IF EXISTS conditions.t")
        cursor.execute(f"CREATE TABLE conditions.t (id INT PRIMARY KEY, {', '.join(columns)}) {options}")
        marks = ", ".join(["%s"] * (len(columns) + 1))
        cursor.executemany(f"INSERT INTO conditions.t VALUES ({marks})", [(n, *row) for n, row in enumerate(rows)])


def rows_of(connection: Connection[Any], table: TableSchema, condition: str = "TRUE") -> pa.Table:
    return pa.table(select_rows(connection, table, condition), schema=table.column_schema)


def satisfying(table: TableSchema, rows: pa.Table, text: str) -> set[int]:
    return set(rows.filter(parse_condition(text, table).mask(rows))["id"].to_pylist())


def implied(connection: Connection[Any], table: TableSchema, text: str) -> set[int] | None:
    """Keys of the rows that the server does not leave out; ``None`` if it leaves out none."""
    sql = implied_sql(parse_condition(text, table))
    return None if sql is None else set(rows_of(connection, table, sql)["id"].to_pylist())


def in_server(connection: Connection[Any], text: str) -> set[int]:
    return {int(str(key)) for (key,) in query_rows(connection, f"SELECT id FROM conditions.t WHERE {text}")}


def damaged(chance: random.Random, text: str) -> str:
    """A text with one of its tokens left out, doubled, or exchanged with another one."""
    tokens = re.findall(r"'(?:[^'\\]|\\.|'')*'|\w+|<=>|[<>!]=|<>|\s+|.", text, re.DOTALL)
    one, other = (chance.randrange(len(tokens)) for _ in range(2))
    match chance.randrange(3):
        case 0:
            del tokens[one]
        case 1:
            tokens.insert(one, " " + tokens[one])
        case _:
            tokens[one], tokens[other] = tokens[other], tokens[one]
    return "".join(tokens)


def test_the_server_says_the_same(server: MySQLServer, connection: Connection[Any]) -> None:
    """With a binary collation, the condition selects the same rows in the server; with or without what is implied."""
    chance = random.Random(7)
    collation = "utf8mb4_nopad_bin" if isinstance(server, MariaDBServer) else "utf8mb4_0900_bin"
    columns = [f"`{name}` {kind.declared}" for name, kind in KINDS.items()]
    values = [[*row.values()] for row in random_rows(chance, list(KINDS), 80)]
    make(server, columns, values, f"CHARACTER SET utf8mb4 COLLATE {collation}")
    table = read_schema(connection, "conditions", "t")
    rows = rows_of(connection, table)
    assert rows.num_rows == 80
    counts = {"accepted": 0, "damaged": 0, "implied": 0}
    for _ in range(500):
        text, _ = random_condition(chance, chance.sample(list(KINDS), 3), 2)
        is_damaged = chance.random() < 0.5
        if is_damaged:
            text = damaged(chance, text)
            try:
                parse_condition(text, table)
            except NotReadyError:
                continue
        counts["damaged" if is_damaged else "accepted"] += 1
        expected = satisfying(table, rows, text)
        assert in_server(connection, text) == expected or _MISREAD.search(text), text
        if (superset := implied(connection, table, text)) is not None:
            counts["implied"] += 1
            assert expected <= superset, text
    assert min(counts.values()) > 20, counts


@pytest.mark.parametrize("collation", COLLATIONS)
def test_a_collation_never_hides_a_row(server: MySQLServer, connection: Connection[Any], collation: str) -> None:
    if isinstance(server, MariaDBServer):
        collation = COLLATIONS[collation] or collation
    charset = collation.partition("_")[0]
    if not query_rows(connection, f"SHOW COLLATION WHERE Collation = '{collation}'"):
        collation = f"{charset}_unicode_ci"
    words = [*_WORDS, *{chr(n) for n in range(0x20, 0x180)}]
    make(
        server,
        [
            f"a VARCHAR(9) CHARACTER SET {charset} COLLATE {collation}, KEY (a)",
            "c CHAR(9) CHARACTER SET latin1",
            "n INT",
        ],
        [(word, word, n) for n, word in enumerate(words)] + [(None, None, None)],
    )
    with contextlib.suppress(Exception):  # codes that have no way back from Unicode, where the server takes them
        query_bytes(connection, "INSERT INTO conditions.t VALUES (5000, x'C3A9', 'x', 1), (5001, x'5C', 'x', 1)")
    table = read_schema(connection, "conditions", "t")
    rows, chance = rows_of(connection, table), random.Random(3)
    stored = sorted({str(word) for word in rows["a"].to_pylist()})
    tried = [*_WORDS, *chance.sample(stored, min(100, len(stored)))]
    texts = [f"{name} = {quoted(word)}" for word in tried for name in ("a", "c")]
    for _ in range(100):
        listed = ", ".join(quoted(word) for word in chance.sample(stored, 5))
        texts.append(f"a {chance.choice(['', 'NOT '])}IN ({listed}) {chance.choice(['AND', 'OR'])} n > 5")
        texts.append(f"NOT (a {chance.choice(['=', '<>', '<', '<=>'])} {quoted(chance.choice(stored))} OR n = 9)")
        texts.append(f"a {chance.choice(['>', '<='])} {quoted(chance.choice(stored))} AND n <> 9")
    pairs = [(text, sql) for text in texts if (sql := implied_sql(parse_condition(text, table))) is not None]
    assert len(pairs) > 50
    for at in range(0, len(pairs), 100):
        listed = ", ".join(sql for _, sql in pairs[at : at + 100])
        found = query_rows(connection, f"SELECT id, {listed} FROM conditions.t")
        for column, (text, _) in enumerate(pairs[at : at + 100], start=1):
            assert satisfying(table, rows, text) <= {int(str(row[0])) for row in found if row[column] == "1"}, text
    for text, _ in chance.sample(pairs, min(30, len(pairs))):  # perhaps with an index
        superset = implied(connection, table, text)
        assert superset is not None and satisfying(table, rows, text) <= superset, text


def test_an_index_is_used(server: MySQLServer, connection: Connection[Any]) -> None:
    columns = ["n INT, KEY (n)", "l VARCHAR(9) CHARACTER SET latin1, KEY (l)", "u VARCHAR(9), KEY (u)"]
    columns += ["d DATETIME, KEY (d)", "m DECIMAL(9,2), KEY (m)", "b VARBINARY(9), KEY (b)"]
    rows = [(n, f"w{n}", f"w{n}", f"2024-01-01 00:{n % 60}:00", n, b"%d" % n) for n in range(500)]
    make(server, columns, rows, "CHARACTER SET utf8mb4")
    query_rows(connection, "ANALYZE TABLE conditions.t")
    table = read_schema(connection, "conditions", "t")
    texts = ["n = 5", "l = 'w5'", "u = 'w5'", "u IN ('w5', 'w6')", "n BETWEEN 5 AND 7", "m = 7", "b = x'35'"]
    for text in [*texts, "d = '2024-01-01 00:05:00'", "n = 5 AND u <> 'x'"]:
        sql = implied_sql(parse_condition(text, table))
        explain = "EXPLAIN /*!80000 FORMAT=TRADITIONAL */"
        (plan,) = query_dicts(connection, f"{explain} SELECT * FROM conditions.t WHERE {sql}")
        assert plan["key"] and plan["type"] in ("ref", "range"), (sql, plan)


@pytest.mark.parametrize("policy", ["null", "error"])
def test_invalid_dates(server: MySQLServer, connection: Connection[Any], policy: str) -> None:
    """An invalid date that becomes NULL is NULL for the condition, and none to the server."""
    values = [("0000-00-00", "0000-00-00 00:00:00"), ("2024-01-01", "2024-01-01"), (None, None)]
    values += [("2024-00-00", "2024-05-00 01:00:00")] if policy == "null" else []
    make(server, ["d DATE", "t DATETIME", "n DATE NOT NULL"], [(*row, row[0] or "2024-01-01") for row in values])
    table = read_schema(connection, "conditions", "t").with_zero_dates(policy)
    texts = ["d IS NULL", "d <=> NULL", "NOT d IS NOT NULL", "d IS NOT NULL", "d = '2024-01-01'", "d < '2025-01-01'"]
    texts += ["d > '1000-01-01'", "n IS NULL", "n IS NOT NULL", "NOT d > '2023-01-01'", "t IS NULL", "NOT t <=> NULL"]
    texts += ["d IS NULL OR t IS NULL", "t NOT IN ('2024-01-02')"]
    rows = rows_of(connection, table, "TRUE" if policy == "null" else "id > 0")
    for text in texts:
        if policy == "error":
            text = f"id > 0 AND {text}"
        superset = implied(connection, table, text)
        assert superset is None or satisfying(table, rows, text) <= superset, text
    if policy == "null":
        assert satisfying(table, rows, "d IS NULL") == {0, 2, 3}
        assert implied_sql(parse_condition("d IS NULL", table)) is None
        assert implied_sql(parse_condition("d IS NOT NULL", table)) == "`d` IS NOT NULL"


def test_the_mode_of_the_session_changes_nothing(server: MySQLServer, connection: Connection[Any]) -> None:
    make(server, ['`a``"\\ b` VARCHAR(9) CHARACTER SET latin1'], [("\\",), ("'",), ('"',), ("x",), ("á",)])
    table = read_schema(connection, "conditions", "t")
    rows = rows_of(connection, table)
    query_rows(connection, "SET sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE'")
    for word in ("\\", "'", '"', "x", "á"):
        text = f'`a``"\\ b` = {quoted(word)} AND NOT (id = 99 OR id < 0)'
        assert implied(connection, table, text) == satisfying(table, rows, text) != set()


def test_values_that_are_the_same_text(server: MySQLServer, connection: Connection[Any]) -> None:
    """Codes that have no way back from Unicode are shown as another text than the server compares."""
    codes = {"cp932": "FA4A", "sjis": "5C", "swe7": "7F", "tis620": "A0"}
    codes |= {"ascii": "C3A9"} if isinstance(server, MariaDBServer) else {}
    for charset, code in codes.items():
        make(server, [f"w VARCHAR(9) CHARACTER SET {charset}"], [("x",)])
        query_rows(connection, f"INSERT INTO conditions.t VALUES (7, CONVERT(x'{code}' USING {charset}))")
        table = read_schema(connection, "conditions", "t")
        rows = rows_of(connection, table)
        text = f"w = {quoted(rows['w'][1].as_py())}"
        assert 7 in satisfying(table, rows, text), charset
        superset = implied(connection, table, text)
        assert superset is None or 7 in superset, charset
