"""Which chunk groups share a task."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from airflow_provider_cdc.model.plan import Chunk, Plan
from airflow_provider_cdc.snapshot.task_groups import divide_into_tasks, format_numbers
from tests.model.test_staged_read import PLAN


def plan_of(groups: int, superseded: Collection[int] = ()) -> Plan:
    """A plan with one chunk per group; nothing is left to read of some groups."""
    chunks = [Chunk(number, 0, number, (number,), (number + 1,), False) for number in range(groups)]
    left = tuple(chunk for chunk in chunks if chunk.group not in superseded)
    gone = tuple(chunk for chunk in chunks if chunk.group in superseded)
    return PLAN.replace(chunks=left, superseded_chunks=gone)


@pytest.mark.parametrize(("groups", "tasks"), [(0, 0), (1, 1), (64, 64), (65, 33), (128, 64), (1000, 63)])
def test_by_default_there_are_few_tasks(groups: int, tasks: int) -> None:
    found = divide_into_tasks(plan_of(groups), 10)
    assert len(found) == tasks
    assert [number for task in found for number in task["groups"]] == list(range(groups))


def test_a_group_stays_in_its_task_when_others_have_nothing_left() -> None:
    gone = {1, 4, 5}
    (first, third) = divide_into_tasks(plan_of(8, gone), 10, 3)[::2]
    assert (first["groups"], first["label"].partition(":")[0], first["rows"]) == ([0, 2], "0, 2", 20)
    assert third["groups"] == [6, 7]
    whole = divide_into_tasks(plan_of(8, gone), 10, 3, include_superseded=True)
    assert [task["groups"] for task in whole] == [task["groups"] for task in divide_into_tasks(plan_of(8), 10, 3)]
    half = set(range(0, 128, 2))
    assert [task["groups"] for task in divide_into_tasks(plan_of(128, half), 10)] == [[n] for n in range(1, 128, 2)]


def test_numbers_as_text() -> None:
    assert format_numbers([3, 1, 2, 7, 9, 10]) == "1-3, 7, 9-10"
    assert format_numbers([]) == ""
