"""Compactions of the sink's tables, which tasks run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.protocol import Compaction
from airflow_provider_cdc.sinks.storage.request_counts import Traffic, carried, counting, current

#: Runs compactions wherever there is room; the results are in their order.
Runner = Callable[[Sequence[Compaction]], Sequence[Sequence[DataFile]]]


def run_in_threads(compactions: Sequence[Compaction]) -> Sequence[Sequence[DataFile]]:
    """Runner for this process."""

    def run(compaction: Compaction) -> Sequence[DataFile]:
        return compaction.run()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(carried(run), compactions))


def run_for_json(compaction: Compaction) -> str:
    """Run one, and say what it has written and asked as JSON: so it travels from a task."""
    with counting(Traffic()) as requests:
        files = [file.to_json() for file in compaction.run()]
    return json.dumps({"files": files, "asked": requests.to_json()})


def from_json(text: str) -> list[DataFile]:
    """The files that :func:`run_for_json` has told of; what it has asked is counted here."""
    result = json.loads(text)
    current().add(result["asked"])
    return [DataFile(**value) for value in result["files"]]
