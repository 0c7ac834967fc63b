"""Run compactions of sink tables, in threads or as tasks."""

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

#: Runs compactions in threads or Spark tasks; returns the results in the order of the compactions.
CompactionRunner = Callable[[Sequence[Compaction]], Sequence[Sequence[DataFile]]]


def run_compactions_in_threads(compactions: Sequence[Compaction]) -> Sequence[Sequence[DataFile]]:
    """Run compactions in threads of this process."""

    def run(compaction: Compaction) -> Sequence[DataFile]:
        return compaction.run()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(with_current_counts(run), compactions))


def run_to_json(compaction: Compaction) -> str:
    """Run a compaction in a task; return the files that it wrote and its object-store requests, as JSON."""
    with count_requests_in(RequestCounts()) as requests:
        files = [file.to_json() for file in compaction.run()]
    return json.dumps({"files": files, "asked": requests.to_json()})


def files_from_json(text: str) -> list[DataFile]:
    """Return the files from the result of :func:`run_to_json`, and count its object-store requests in this process."""
    result = json.loads(text)
    current_counts().add(result["asked"])
    return [DataFile.from_json(value) for value in result["files"]]
