"""Compactions of the sink's tables, which tasks run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.protocol import Compaction
from airflow_provider_cdc.sinks.storage.request_counts import (
    RequestCounts,
    count_requests_in,
    current_counts,
    with_current_counts,
)

#: Runs compactions wherever there is room; the results are in their order.
CompactionRunner = Callable[[Sequence[Compaction]], Sequence[Sequence[DataFile]]]


def run_compactions_in_threads(compactions: Sequence[Compaction]) -> Sequence[Sequence[DataFile]]:
    """Runner for this process."""

    def run(compaction: Compaction) -> Sequence[DataFile]:
        return compaction.run()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(with_current_counts(run), compactions))


def run_to_json(compaction: Compaction) -> str:
    """Run one, and say what it has written and asked as JSON: so it travels from a task."""
    with count_requests_in(RequestCounts()) as requests:
        files = [file.to_json() for file in compaction.run()]
    return json.dumps({"files": files, "asked": requests.to_json()})


def files_from_json(text: str) -> list[DataFile]:
    """The files that :func:`run_for_json` has told of; what it has asked is counted here."""
    result = json.loads(text)
    current_counts().add(result["asked"])
    return [DataFile(**value) for value in result["files"]]
