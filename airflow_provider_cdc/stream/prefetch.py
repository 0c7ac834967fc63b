"""Prefetch what tables need to apply changes while a stream starts, so that its first batches need not wait.

This is only an optimization: a batch reads whatever it needs that has not been prefetched yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.runtime.background import BackgroundLoop
from airflow_provider_cdc.sinks.protocol import Prefetchable, SinkTable


class PrefetchWorker(BackgroundLoop):
    """Prefetches for one table after another.

    :param tables: the tables that the stream starts with.
    :param budget: bytes of memory, for all tables together, for files that no change has touched yet.
    :param log_line: receives a line for each problem.
    """

    def __init__(self, tables: Sequence[SinkTable], budget: int, log_line: Callable[[str], None]) -> None:
        super().__init__("prefetch", 0)
        self._prefetches = [(table.name, table.prefetcher()) for table in tables if isinstance(table, Prefetchable)]
        self._budget, self._log_line = budget, log_line

    def _run(self) -> None:
        for name, prefetch in self._prefetches:
            try:
                self._budget -= prefetch(self._budget, self._stopping.is_set)
            except Exception as error:  # a batch that needs the same data will raise the error
                text = str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}"
                self._log_line(f"the {name} could not be prefetched: {text}")
            if self._stopping.is_set():
                return
