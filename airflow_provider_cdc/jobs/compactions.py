"""Compactions of the sink's tables, which tasks run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_cdc.sinks.files import DataFile
from airflow_provider_cdc.sinks.protocol import Compaction

#: Runs compactions wherever there is room; the results are in their order.
Runner = Callable[[Sequence[Compaction]], Sequence[Sequence[DataFile]]]


def run_in_threads(work: Sequence[Compaction]) -> Sequence[Sequence[DataFile]]:
    """Runner for this process."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda compaction: compaction.run(), work))


def run_for_json(compaction: Compaction) -> str:
    """Run one, and say what it has written as JSON: so it travels from a task."""
    return json.dumps([file.to_json() for file in compaction.run()])


def from_json(text: str) -> list[DataFile]:
    """What :func:`run_for_json` has said."""
    return [DataFile(**value) for value in json.loads(text)]
