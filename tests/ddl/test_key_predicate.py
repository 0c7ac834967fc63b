"""What a condition on a key means, and what is no range of the key."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.ddl.key_predicate import (
    InvalidKeyPredicate,
    KeyBound,
    KeyRange,
    PredicateValue,
    parse_key_predicate,
)

KEY = ("tenant", "id")


def span(lower: tuple[PredicateValue, ...], upper: tuple[PredicateValue, ...], ends: str = "[]") -> KeyRange:
    return KeyRange(KeyBound(lower, ends[0] == "["), KeyBound(upper, ends[1] == "]"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tenant = 3", [span(("3",), ("3",))]),
        ("TENANT > -3 AND tenant<=5", [span(("-3",), ("5",), "(]")]),
        ("5 > tenant", [span((), ("5",), "[)")]),
        ("`tenant` = 1 AND (id >= 10 and (id < 20))", [span(("1", "10"), ("1", "20"), "[)")]),
        ("id BETWEEN 1 AND 9 AND tenant IN (4)", [span(("4", "1"), ("4", "9"))]),
        ("tenant = 1 AND id >= 10", [span(("1", "10"), ("1",))]),
        (
            "tenant IN ('a''b', x'00ff', DATE '2024-01-31')",
            [span((v,), (v,)) for v in ("a'b", b"\0\xff", "2024-01-31")],
        ),
        ("id = 2 AND tenant = 1", [span(("1", "2"), ("1", "2"))]),
        ("t.tenant = 1.50", [span(("1.50",), ("1.50",))]),
    ],
)
def test_ranges(text: str, found: list[KeyRange]) -> None:
    assert parse_key_predicate(text, KEY) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "parse"),
        ("tenant", "comparison"),
        ("tenant =", "parse"),
        ("tenant = 1; DROP TABLE t", "not a condition"),
        ("tenant = 1 LIMIT 1", "not a condition"),
        ("tenant = 1 UNION SELECT 2 FROM u WHERE 1 = 1", "not a condition"),
        ("tenant = 1 OR tenant = 2", "comparison"),
        ("NOT tenant = 1", "comparison"),
        ("tenant <> 1", "comparison"),
        ("tenant LIKE 'a%'", "comparison"),
        ("tenant IN (SELECT 1)", "comparison"),
        ("tenant = NULL", "not a value"),
        ("tenant = 1 + 1", "not a value"),
        ("tenant = id", "not a value"),
        ("1 = 1", "not the name of a column"),
        ("(tenant, id) >= (1, 2)", "not the name of a column"),
        ("v = 1", "v is not a column of the key (tenant, id)"),
        ("id = 1", "a condition on id needs one value of tenant"),
        ("tenant > 1 AND id = 1", "a condition on id needs one value of tenant"),
        ("tenant IN (1, 2) AND id = 1", "a condition on id needs one value of tenant"),
        ("tenant = 1 AND tenant = 1", "do not form one range"),
        ("tenant >= 1 AND tenant > 2", "do not form one range"),
        ("tenant < 1 AND tenant IN (1, 2)", "do not form one range"),
        ("tenant = x'abc'", "parse|whole bytes"),
    ],
)
def test_what_is_no_range(text: str, said: str) -> None:
    with pytest.raises(InvalidKeyPredicate, match=said.replace("(", r"\(").replace(")", r"\)")):
        parse_key_predicate(text, KEY)
