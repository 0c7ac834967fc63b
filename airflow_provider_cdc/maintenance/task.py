"""Run compactions of sink tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller

from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.protocol import Compaction
from airflow_provider_cdc.sinks.storage.request_counts import with_current_counts

#: Runs compactions in threads or Spark tasks; returns the results in the order of the compactions.
CompactionRunner = Callable[[Sequence[Compaction]], Sequence[Sequence[DataFile]]]


def run_compactions_in_threads(compactions: Sequence[Compaction]) -> Sequence[Sequence[DataFile]]:
    """Run compactions in threads of this process."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(with_current_counts(methodcaller("run")), compactions))
