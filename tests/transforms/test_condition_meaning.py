"""What conditions on rows mean: Arrow's answer is that of plain Python, value by value, in three-valued logic."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import Column, TableSchema
from airflow_provider_cdc.transforms.condition import Condition, parse_condition
from tests.support.conditions import KINDS, column_of, compare, random_condition, random_rows

TABLE = TableSchema("d", "t", tuple(column_of(name) for name in KINDS), ())


def arrow(rows: list[dict[str, Any]], table: TableSchema = TABLE) -> pa.Table:
    return pa.table(
        {c.name: pa.array([row.get(c.name) for row in rows], c.arrow_type) for c in table.columns},
        schema=table.column_schema,
    )


def of(kind: str, condition: str, *values: Any) -> list[bool]:
    """Which of the values of a column, named by its kind, satisfy a condition."""
    return list(parse_condition(condition, TABLE).mask(arrow([{kind: value} for value in values])).to_pylist())


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**64))
def test_any_condition_on_any_rows(seed: int) -> None:
    chance = random.Random(seed)
    names = chance.sample(list(KINDS), chance.randint(1, 4))
    text, meaning = random_condition(chance, names)
    rows = random_rows(chance, list(KINDS), 40)
    condition = pickle.loads(pickle.dumps(parse_condition(text, TABLE)))
    data = arrow(rows)
    expected = [meaning(row) is True for row in rows]
    assert condition.mask(data).to_pylist() == expected, text
    pieces = pa.concat_tables([data.slice(0, 7), data.slice(7, 0), data.slice(7)])
    assert condition.mask(pieces).to_pylist() == expected, text
    batch = data.to_batches()[0]
    assert condition.mask(batch.slice(3)).to_pylist() == expected[3:], text
    assert condition.mask(data.slice(0, 0)).to_pylist() == []
    assert condition == parse_condition(text, TABLE) and hash(condition) == hash(parse_condition(text, TABLE))


@pytest.mark.parametrize("name", KINDS)
def test_each_literal_with_each_value(name: str) -> None:
    """In each comparison, and on either side of it."""
    kind = KINDS[name]
    values = [*kind.values, None]
    for text, value in kind.literals:
        for operator in kind.operators:
            expected = [compare(one, operator, value) is True for one in values]
            exchanged = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(operator, operator)
            assert of(name, f"{name} {operator} {text}", *values) == expected, (operator, text)
            assert of(name, f"{text} {exchanged} {name}", *values) == expected, (operator, text)


def test_unknown_is_not_true_and_stays_unknown() -> None:
    assert of("tiny", "tiny <> 1", 1, 2, None) == [False, True, False]
    assert of("tiny", "NOT (tiny = 1)", 1, 2, None) == [False, True, False]
    assert of("tiny", "tiny NOT IN (1)", 1, 2, None) == [False, True, False]
    assert of("tiny", "tiny NOT IN (1, NULL)", 1, 2, None) == [False, False, False]
    assert of("tiny", "NOT (tiny = NULL)", 1, None) == [False, False]
    assert of("tiny", "tiny = NULL OR tiny = 2", 1, 2, None) == [False, True, False]
    assert of("tiny", "NOT (tiny = 1 AND big = 1)", 1, 2, None) == [False, True, False]
    assert of("tiny", "tiny < 1000", 1, None) == [True, False]  # true of all values, but not of NULL
    assert of("tiny", "NOT tiny > 1000", 1, None) == [True, False]
    assert of("tiny", "tiny <=> NULL", 1, None) == [False, True]
    assert of("tiny", "NOT tiny <=> 1", 1, 2, None) == [False, True, True]
    assert of("word", "word NOT LIKE 'a%'", "ab", "b", None) == [False, True, False]


def test_what_there_is_no_value_for() -> None:
    """Numbers between those of the column, and beyond."""
    assert of("tiny", "tiny = 1.5 OR tiny = 1.0", 1, 2) == [True, False]
    assert of("tiny", "tiny < 1.5", 1, 2) == [True, False]
    assert of("tiny", "tiny > 1.5", 1, 2) == [False, True]
    assert of("tiny", "tiny BETWEEN -1.5 AND 1.5", -2, -1, 1, 2) == [False, True, True, False]
    assert of("tiny", "tiny = 200 OR tiny < -200", -128, 127) == [False, False]
    assert of("tiny", "tiny <= 127 AND tiny >= -128 AND tiny <> 9999999999999999999999", -128, 127) == [True, True]
    assert of("huge", "huge > 18446744073709551614", 2**64 - 2, 2**64 - 1) == [False, True]


def test_texts_are_equal_if_they_are_the_same_characters() -> None:
    texts = ["a", "A", "á", "a ", "a\u0301"]
    assert of("word", "word = 'a'", *texts) == [True, False, False, False, False]
    assert of("word", "word IN ('a ', 'á')", *texts) == [False, False, True, True, False]
    assert of("word", "word LIKE 'a'", *texts) == [True, False, False, False, False]
    assert of("word", "word < 'a'", "A", "Z", "a", "", "😀", "\uffff") == [True, True, False, True, False, False]
    assert of("word", "word > '\uffff'", "😀", "\uffff") == [True, False]
    assert of("word", r"word = '\%\_'", r"\%\_", "%_") == [True, False]  # as MySQL reads it
    assert of("word", r"word = '\0\b\n\r\t\Z\\\'\"\q' OR word = ''''", "\0\b\n\r\t\x1a\\'\"q", "'", "''") == [
        True,
        True,
        False,
    ]


def test_like() -> None:
    assert of("word", r"word LIKE 'a\%%'", "a%", "a%b", "ab", "a\\%") == [True, True, False, False]
    assert of("word", r"word LIKE 'a\_b'", "a_b", "axb") == [True, False]
    assert of("word", r"word LIKE '\\\\%'", "\\", "\\a", "a") == [True, True, False]
    assert of("word", r"word LIKE 'a\\'", "a\\", "a") == [True, False]  # a backslash at the end is itself
    assert of("word", "word LIKE 'a_c'", "abc", "a\nc", "a😀c", "ac", "abbc") == [True, True, True, False, False]
    assert of("word", "word LIKE '%'", "", "a\nb", None) == [True, True, False]
    assert of("word", "word LIKE 'a.c' OR word LIKE '^a$' OR word LIKE '(?i)b'", "abc", "a", "B") == [False] * 3
    assert of("word", r"word LIKE '%\0%'", "a\0b", "ab") == [True, False]
    assert of("status", "status LIKE 'dr%'", "draft", "paid") == [True, False]


def test_columns_are_in_the_tables_spelling_and_order() -> None:
    condition = parse_condition("WORD = 'x' OR `Big` = 1 AND word <> 'y' AND TINY = NULL", TABLE)
    assert condition.columns == ("tiny", "big", "word")
    assert condition.text.startswith("WORD = 'x'")


def test_names_that_are_also_keywords() -> None:
    names = ("date", "timestamp", "in", "a`b", "NULL", "cast", "über", "1st")
    table = TableSchema("d", "t", tuple(Column(name, "int", "int", True) for name in names), ())
    text = "date = 1 AND timestamp = 1 AND `in` = 1 AND `a``b` = 1 AND `NULL` = 1 AND cast = 1 AND Über = 1 AND 1st = 1"
    condition = parse_condition(text, table)
    assert condition.columns == names
    assert condition.mask(arrow([dict.fromkeys(names, 1), dict.fromkeys(names[1:], 1)], table)).to_pylist() == [
        True,
        False,
    ]


def test_many_terms() -> None:
    text = " OR ".join(f"(big = {n} AND tiny <> {n % 100})" for n in range(2000))
    assert of("big", text, 5, None) == [False, False]
    listed = ", ".join(map(str, range(10_000)))
    assert of("big", f"big IN ({listed})", 9_999, 10_000) == [True, False]


def test_char_is_compared_as_it_is_in_the_copy() -> None:
    """Without trailing spaces; and BINARY with its zero bytes."""
    columns = (Column("c", "char", "char(5)", True, charset="utf8mb4"), Column("b", "binary", "binary(3)", True))
    table = TableSchema("d", "t", columns, ())
    rows = arrow([{"c": "a", "b": b"a\0\0"}], table)
    assert parse_condition("c = 'a' AND b = x'610000'", table).mask(rows).to_pylist() == [True]
    assert parse_condition("c = 'a ' OR b = x'61'", table).mask(rows).to_pylist() == [False]


def test_rows_of_another_definition_are_refused() -> None:
    condition: Condition = parse_condition("tiny = 1", TABLE)
    for rows in (pa.table({"tiny": pa.array([1], pa.int32())}), pa.table({"big": pa.array([1], pa.int64())})):
        with pytest.raises(TerminalError, match="needs column tiny with type int8"):
            condition.mask(rows)
