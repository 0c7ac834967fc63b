"""Which tables a comparison takes."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_cdc.config.load_limits import LoadLimits
from airflow_provider_cdc.config.selection import TableSelection
from airflow_provider_cdc.model.errors import NotReadyError

TABLES = [("shop", f"t{n}") for n in range(100)]


def test_each_table_once_in_as_many_days_whatever_others_there_are() -> None:
    days = [TableSelection.from_options(sample="1/7", today=739_000 + day) for day in range(7)]
    taken = [[table for table in TABLES if day.includes(*table)] for day in days]
    assert sorted(table for some in taken for table in some) == sorted(TABLES) and all(taken)
    again = TableSelection.from_options(sample="1/7", today=739_007)
    assert [table for table in TABLES[::2] if again.includes(*table)] == [t for t in taken[0] if t in TABLES[::2]]
    seeded = TableSelection.from_options(sample="1/7", seed=739_000 % 7, today=1)
    assert [table for table in TABLES if seeded.includes(*table)] == taken[0]


def test_patterns() -> None:
    chosen = TableSelection.from_options(["shop.t1.*", "shop.t7"], today=1)
    assert [name for _, name in TABLES if chosen.includes("shop", name)] == ["t1", "t7", *(f"t1{n}" for n in range(10))]


def test_the_lower_limit_counts() -> None:
    chosen = TableSelection.from_options(max_rows_per_second=500, today=1)
    assert chosen.apply_to_limits(LoadLimits()).rows_per_second == 500
    assert chosen.apply_to_limits(LoadLimits(200, 7)) == LoadLimits(200, 7)
    assert chosen.apply_to_limits(LoadLimits(800, threads_running=9)) == LoadLimits(500, threads_running=9)
    assert TableSelection().apply_to_limits(LoadLimits(800)) == LoadLimits(800)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tables": ["shop"]},
        {"tables": ["shop.("]},
        {"sample": "0.5"},
        {"sample": "1/0"},
        {"sample": "2/7"},
        {"seed": 3},
        {"sample": "1/7", "seed": -1},
        {"max_rows_per_second": 0},
        {"max_rows_per_second": True},
    ],
)
def test_what_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(NotReadyError, match=next(reversed(wrong))):
        TableSelection.from_options(**wrong, today=1)
