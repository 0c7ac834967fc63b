"""What the names of supervisors say; how epochs are watched is tested with real streams."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.core.supervision import next_try

MINE = "shop.stream, run manual, try 1"


@pytest.mark.parametrize(
    ("newest", "followed"),
    [
        ("shop.stream, run manual, try 2", True),
        (MINE, False),  # the trigger moved to another triggerer
        ("shop.stream, run other, try 2", False),  # another run looks after the same stream
        ("shop.stream, run manual, try 1, try 2", False),  # a run with a strange name
        (None, False),
    ],
)
def test_next_try(newest: str | None, followed: bool) -> None:
    assert next_try(MINE, newest) == followed
