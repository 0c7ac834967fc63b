"""Divide the chunk groups of a plan among the tasks of a scheduler: one task reads several groups, one after the other.

Starting a driver and its workers costs more than reading a group, so a snapshot of many groups should have few tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from airflow_provider_cdc.model.plan import Plan

#: Maximum number of tasks of a snapshot, unless the number of groups per task is given.
DEFAULT_MAX_TASKS = 64


def divide_into_tasks(
    plan: Plan, chunk_rows: int, groups_per_task: int | None = None, *, include_superseded: bool = False
) -> list[dict[str, Any]]:
    """Return the groups of each task, in order, for display and scheduling.

    Which groups share a task depends only on their numbers, so that it stays the same when some of them have nothing
    left to read. A task without groups is omitted.

    :param chunk_rows: expected rows per chunk.
    :param groups_per_task: groups per task, at least 1; ``None`` for as few as give at most :data:`DEFAULT_MAX_TASKS`
        tasks.
    :param include_superseded: whether to include groups that have nothing left to read.
    :returns: for each task ``groups`` (their numbers), ``label``, ``tables``, ``chunks``, ``rows`` (estimated).
    """
    superseded = plan.superseded_groups()
    size = groups_per_task or math.ceil((len(plan.groups()) + len(superseded)) / DEFAULT_MAX_TASKS)
    groups = plan.groups() | (superseded if include_superseded else {})
    tasks = []
    for _, task_groups in groupby(sorted(groups), lambda number: number // size):
        numbers = list(task_groups)
        chunks = [chunk for number in numbers for chunk in groups[number]]
        tables = [plan.tables[index].label for index in sorted({chunk.table for chunk in chunks})]
        more = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
        label = f"{format_numbers(numbers)}: {tables[0]}{more}"
        rows = len(chunks) * chunk_rows
        tasks.append({"groups": numbers, "label": label, "tables": tables, "chunks": len(chunks), "rows": rows})
    return tasks


def format_numbers(numbers: Iterable[int]) -> str:
    """Return numbers as text, consecutive ones as a range: ``0-3, 7``."""
    runs = [[run[0], run[-1]] for run in _consecutive_runs(sorted(numbers))]
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _consecutive_runs(numbers: Sequence[int]) -> list[list[int]]:
    return [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda item: item[1] - item[0])]
