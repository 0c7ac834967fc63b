"""Proposals for cuts: between the two ends, whatever the type. That the server judges them is in test_bounds.py."""

from __future__ import annotations

from datetime import date, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.model.plan import KeyValue
from airflow_provider_cdc.model.schema import Column
from airflow_provider_cdc.mysql.client.key_sql import format_time
from airflow_provider_cdc.mysql.keys.midpoints import _halfway_digits, _middle_value, _to_number


def column(kind: str, scale: int | None = None) -> Column:
    return Column("k", kind, kind, False, scale=scale)


def decimal(number: int, scale: int) -> str:
    sign, digits = ("-" if number < 0 else ""), str(abs(number)).rjust(scale + 1, "0")
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"


VALUES: dict[str, st.SearchStrategy[KeyValue]] = {
    "bigint": st.integers(-(2**63), 2**64 - 1),
    "decimal": st.integers(-(10**65), 10**65).map(lambda n: decimal(n, 30)),
    "date": st.dates(date(1000, 1, 1)).map(str),
    "datetime": st.datetimes(datetime(1000, 1, 1)).map(lambda d: d.isoformat(" ", "microseconds")),
    "time": st.integers(-(3600 * 839 * 10**6), 3600 * 839 * 10**6).map(format_time),
    "enum": st.integers(0, 65535),
}


@settings(deadline=None)
@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_a_number_between_two(kind: str, data: st.DataObject) -> None:
    about = column(kind, 30 if kind == "decimal" else None)
    low, high = sorted((data.draw(VALUES[kind]), data.draw(VALUES[kind])), key=lambda v: _to_number(about, v))
    middle = _middle_value(about, low, high)
    a, b = _to_number(about, low), _to_number(about, high)
    if a == b:
        assert middle is None
    else:
        assert middle is not None
        assert a < _to_number(about, middle) <= b
        assert abs(2 * _to_number(about, middle) - a - b) <= 1


@settings(deadline=None)
@example(b"", b"\0")
@example(b"a", b"a\0\0")
@given(st.binary(max_size=20), st.binary(max_size=20))
def test_bytes_between_two(one: bytes, other: bytes) -> None:
    low, high = sorted((one, other))
    middle = _middle_value(column("varbinary"), low.hex(), high.hex())
    if middle is not None:
        assert low < bytes.fromhex(str(middle)) <= high
    else:  # equal, or different only behind many zeros
        assert low == high or high[len(low) :].startswith(b"\0" * 10) or low[:10] == high[:10]


def test_halves_of_texts() -> None:
    assert _halfway_digits([3], [7], 0, 10) == [5]
    assert _halfway_digits([3], [4], 0, 10) == [3, 5]
    assert _halfway_digits([4], [3], 0, 10) is None
    assert _halfway_digits([], [1], 0, 11) == _halfway_digits([0], [1], 0, 11)


@pytest.mark.parametrize(("kind", "value"), [("date", "0000-00-00"), ("datetime", "2000-00-01 00:00:00")])
def test_a_date_that_is_none(kind: str, value: str) -> None:
    assert _middle_value(column(kind), value, "2020-02-02") is None
