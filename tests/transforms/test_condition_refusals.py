"""What a condition on rows cannot have is refused by name: what it is, where it is, and what to write instead."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import Column, TableSchema
from airflow_provider_cdc.transforms.condition import parse_condition

_COLUMNS = (
    Column("n", "int", "int", True),
    Column("m", "int", "int", True),
    Column("w", "varchar", "varchar(9)", True, charset="utf8mb4", collation="utf8mb4_0900_ai_ci"),
    Column("price", "decimal", "decimal(9,2)", True, precision=9, scale=2),
    Column("long_price", "decimal", "decimal(39,2)", True, precision=39, scale=2),
    Column("day", "date", "date", True),
    Column("moment", "datetime", "datetime", True),
    Column("e", "enum", "enum('x','y')", True, members=("x", "y")),
    Column("s", "set", "set('x','y')", True, members=("x", "y")),
    Column("ratio", "double", "double", True),
    Column("bytes", "varbinary", "varbinary(9)", True),
    Column("y", "year", "year", True),
    Column("y2", "year", "year(2)", True),
    Column("cast", "int", "int", True),
    Column("time", "time", "time", True),
    Column("limit", "int", "int", True),
    Column("binary", "int", "int", True),
    Column("b", "bit", "bit(8)", True),
    Column("doc", "json", "json", True),
    Column("place", "point", "point", True),
    Column("v", "vector", "vector(3)", True),
    Column("address", "inet6", "inet6", True),
    Column("secret", "int", "int", True),
    Column("hidden", "int", "int /* hidden */", True),
)
TABLE = TableSchema("shop", "orders", _COLUMNS, (), excluded=("secret",))

#: Conditions, each with what is refused: the character where it begins, what it is, and a part of the remedy.
REFUSED: dict[str, tuple[int, str, str]] = {
    # texts that are no condition
    "": (1, "it cannot be parsed", "Examples: "),
    "n = 1 AND": (1, "it cannot be parsed", "Examples: "),
    "(n = 1": (1, "it cannot be parsed", "Examples: "),
    "n = 1)": (1, "it cannot be parsed", "Examples: "),
    "n = 1 limit 5": (1, "it cannot be parsed", "Examples: "),
    "n = 1; DROP TABLE t": (6, "the end of a statement", "one condition"),
    "n = 1 -- x": (7, "a comment", "Leave the comment out"),
    "n = 1 --1": (7, "a comment", "Leave the comment out"),
    "n = 1 # x": (7, "a comment", "Leave the comment out"),
    "n = 1 /*! OR n = 2 */": (7, "a comment", "Leave the comment out"),
    "w = 'x": (5, "without an end", "Close the quotes"),
    "n == 1": (3, "not an operator", "Write one of"),
    "n = = 1": (3, "not an operator", "Write one of"),
    "n IS IS NULL": (1, "it cannot be parsed", "Examples: "),
    "n NOT NULL": (1, "it cannot be parsed", "Examples: "),
    "n NOT IS NULL": (1, "it cannot be parsed", "Examples: "),
    "n IN (, 1)": (1, "it cannot be parsed", "Examples: "),
    "(n) = 1": (1, "it cannot be parsed", "Examples: "),
    "n IN (1,)": (8, "a value is missing", "after each comma"),
    "n IN ()": (1, "not a comparison", "Examples: "),
    "n": (1, "not a comparison", "Examples: "),
    "TRUE": (1, "not a comparison", "Examples: "),
    "n IS TRUE": (1, "not a comparison", "Examples: "),
    "n = 1 = 1": (9, "not the name of a column", "Examples: "),
    "1 = 1": (5, "not the name of a column", "Examples: "),
    "(n, m) = (1, 2)": (11, "not the name of a column", "Examples: "),
    "n IN ((1, 2))": (8, "not a literal", "Examples: "),
    # what it cannot use
    "x = 1": (1, "not a column of the table", "name of a column"),
    "w = draft": (5, "not a column of the table", "in single quotes"),
    "hidden = 1": (1, "not a column of the table", "name of a column"),
    "n = 1abc": (5, "not a column of the table", "name of a column"),
    "n = 0x41": (5, "not a column of the table", "name of a column"),
    "t.n = 1": (2, "name of a table", "only the name of the column"),
    "n = .5": (5, "a number without its zero", "0.5"),
    "n = m": (1, "compares two columns", "with a literal"),
    "n IN (1, m)": (10, "not a literal", "Examples: "),
    "day < NOW()": (7, "a function", "with literals"),
    "day < CURRENT_DATE": (7, "a function", "with literals"),
    "LOWER(w) = 'x'": (1, "a function", "with literals"),
    "`n` (1) = 1": (1, "a function", "with literals"),
    "cast('2024-01-01' AS DATE) = day": (1, "a function", "with literals"),
    "DATE('2024-01-01') = day": (1, "a function", "with literals"),
    "binary 'x' = n": (1, "it cannot be parsed", "Examples: "),
    "time = TIME '10:00:00'": (1, "it cannot be parsed", "Examples: "),
    "n = DATETIME '2024-01-01'": (5, "a literal that is not supported", "DATE '...'"),
    "CASE n WHEN 1 THEN 1 END": (1, "a function", "with literals"),
    "n = (SELECT 1)": (6, "a subquery", "with literals"),
    "EXISTS (SELECT 1)": (1, "a function", "with literals"),
    "n = @x": (5, "a variable", "with literals"),
    "n + 1 = 2": (3, "arithmetic", "AND, OR and NOT"),
    "n = 5 -3": (7, "arithmetic", "AND, OR and NOT"),
    "n = -m": (5, "arithmetic", "AND, OR and NOT"),
    "n = 5 * 3": (7, "arithmetic", "AND, OR and NOT"),
    "n DIV 2 = 1": (3, "arithmetic", "AND, OR and NOT"),
    "n = 1 && m = 1": (7, "an operator of MySQL", "Write AND, OR or NOT"),
    "n = 1 || m = 1": (7, "an operator of MySQL", "Write AND, OR or NOT"),
    "!n": (1, "an operator of MySQL", "Write AND, OR or NOT"),
    "n = 1 XOR m = 1": (7, "an operator", "Write AND, OR or NOT"),
    "w REGEXP 'x'": (3, "a regular expression", "LIKE"),
    "w COLLATE utf8mb4_bin = 'x'": (3, "a collation", "same characters"),
    "w LIKE 'x' ESCAPE '!'": (12, "another escape character", "backslash"),
    "n IS UNKNOWN": (6, "a test that is not supported", "IS NULL"),
    'w = "x"': (5, "double quotes", "single quotes"),
    "w = 'x' 'y'": (1, "it cannot be parsed", "Examples: "),
    "w = _latin1'x'": (5, "not a column", "in single quotes"),
    "n = n'1'": (1, "it cannot be parsed", "Examples: "),
    "b = b'1'": (1, "it cannot be parsed", "Examples: "),
    "n BETWEEN NULL AND 5": (1, "a bound of BETWEEN is NULL", "a value"),
    "n BETWEEN 1 AND NULL": (1, "a bound of BETWEEN is NULL", "a value"),
    "n = ?": (5, "not understood", "AND, OR and NOT"),
    "n\u00a0= 1": (1, "not a column", "name of a column"),
    f"n = {'1' * 101}": (5, "the number is too long", "100 digits"),
    "w = '\ud800'": (5, "not Unicode", "whole characters"),
    # literals that do not fit the column
    "n = '1'": (1, "column n is int, and '1' is not a value of it", "a number, without quotes"),
    "n = '1abc'": (1, "column n is int, and '1abc' is not a value of it", "a number, without quotes"),
    "n IN (1, 'x')": (10, "column n is int, and 'x' is not a value of it", "a number, without quotes"),
    "n BETWEEN 1 AND '5'": (1, "column n is int, and '5' is not a value of it", "a number, without quotes"),
    "m = 1 OR n = x'31'": (10, "column n is int, and x'31' is not a value of it", "a number, without quotes"),
    "n = 1e3": (1, "1e3 is a floating-point number", "without an exponent"),
    "price = '1.50'": (1, "column price is decimal(9,2), and '1.50' is not", "a number, without quotes"),
    "price = TRUE": (1, "and TRUE is not a value of it", "a number, without quotes"),
    "long_price = 1": (1, "more than 38 digits", "IS NULL"),
    "w = 1": (1, "column w is varchar(9), and 1 is not a value of it", "a text in single quotes"),
    "w > x'41'": (1, "x'41' is not a value of it", "a text in single quotes"),
    "w = FALSE": (1, "FALSE is not a value of it", "a text in single quotes"),
    "n LIKE '1%'": (1, "column n is no text", "only text"),
    "w LIKE 1": (1, "a pattern is a text", "in single quotes"),
    "w LIKE NULL": (1, "a pattern is a text", "in single quotes"),
    "w LIKE w": (8, "not a literal", "Examples: "),
    "bytes = 'x'": (1, "'x' is not a value of it", "x'0a1b'"),
    "bytes = x'1'": (9, "not a column", "name of a column"),
    "day = 20240101": (1, "20240101 is not a value of it", "DATE '2024-12-31'"),
    "day = '2024-1-1'": (1, "'2024-1-1' is not a date", "DATE '2024-12-31'"),
    "day = '2024-02-30'": (1, "'2024-02-30' is not a date", "DATE '2024-12-31'"),
    "day = DATE '0000-00-00'": (1, "'0000-00-00' is not a date", "DATE '2024-12-31'"),
    "day = '2024-01-01 00:00:00'": (1, "is not a date", "DATE '2024-12-31'"),
    "day = TIMESTAMP '2024-01-01 00:00:00'": (1, "is not a value of it", "DATE '2024-12-31'"),
    "moment = '2024-01-01 24:00:00'": (1, "is not a date and time", "TIMESTAMP '2024-12-31 23:59:59'"),
    "moment = '0000-00-00'": (1, "is not a date and time", "TIMESTAMP '2024-12-31 23:59:59'"),
    "moment = TIMESTAMP '2024-01-01'": (1, "is not a date and time", "TIMESTAMP '2024-12-31 23:59:59'"),
    "moment = DATE '2024-01-01 00:00:00'": (1, "is not a date and time", "TIMESTAMP '2024-12-31 23:59:59'"),
    "moment = '2024-01-01 00:00:00.1234567'": (1, "is not a date and time", "TIMESTAMP '2024-12-31 23:59:59'"),
    "moment = '2024-01-01 00:00:00+01:00'": (1, "is not a date and time", "TIMESTAMP '2024-12-31 23:59:59'"),
    "e = 'X'": (1, "'X' is not a member of the ENUM", "'x', 'y'"),
    "e = 1": (1, "1 is not a value of it", "a member in single quotes"),
    "e > 'x'": (1, "the order of the values of an ENUM", "List the values"),
    "e BETWEEN 'x' AND 'y'": (1, "the order of the values of an ENUM", "List the values"),
    "ratio = '0.5'": (1, "'0.5' is not a value of it", "a number, without quotes"),
    "ratio < 1e400": (1, "1e400 is too large", "a DOUBLE can have"),
    "y = 24": (1, "24 is not a year", "from 1901 to 2155"),
    "y > 2000.5": (1, "2000.5 is not a year", "from 1901 to 2155"),
    "y = '2024'": (1, "'2024' is not a value of it", "a number, without quotes"),
}
#: Conditions on columns of types that are not compared.
REFUSED |= {
    f"{name} = {literal}": (1, "are not compared", "Only IS NULL and IS NOT NULL")
    for name, literal in {
        "s": "'x'",
        "time": "'10:00:00'",
        "b": "1",
        "doc": "'{}'",
        "place": "x'00'",
        "v": "'[1]'",
        "address": "'::1'",
        "y2": "24",
    }.items()
}


@pytest.mark.parametrize("text", REFUSED)
def test_it_is_refused_by_name(text: str) -> None:
    at, reason, remedy = REFUSED[text]
    with pytest.raises(NotReadyError) as caught:
        parse_condition(text, TABLE)
    message = caught.value.message
    assert message.startswith("condition on the rows of shop.orders: ") and caught.value.table == "shop.orders"
    assert reason in message and remedy in caught.value.remedy, str(caught.value)
    place = f", at character {at}: {text[at - 1]}" if text else ", at character 1"
    assert place in message, message


def test_what_is_refused_in_a_long_text_is_shown_in_part() -> None:
    with pytest.raises(NotReadyError) as caught:
        parse_condition("n = 1 OR " * 50 + "day = '2024-02-30'", TABLE)
    assert caught.value.message.endswith("at character 451: day = '2024-02-30'")
    with pytest.raises(NotReadyError) as caught:
        parse_condition(f"w LIKE '{'_' * 100_000}'", TABLE)
    assert "the pattern is too long" in caught.value.message and len(caught.value.message) < 250
    with pytest.raises(NotReadyError):
        parse_condition("(" * 3000 + "n = 1" + ")" * 3000, TABLE)


@pytest.mark.parametrize("name", ["s", "time", "b", "doc", "place", "v", "address", "long_price"])
def test_every_column_may_be_null(name: str) -> None:
    assert parse_condition(f"{name} IS NULL OR NOT {name} IS NOT NULL", TABLE).columns == (name,)


def test_a_column_that_is_not_copied_can_be_read() -> None:
    condition = parse_condition("secret = 1", TABLE)
    assert condition.columns == ("secret",) and "secret" in TABLE.excluded
