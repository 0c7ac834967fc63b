"""Tables get ready for the changes of a stream while it begins, so that its first batches need not wait.

Nothing rests on it: what a batch needs and what is not there yet, it reads itself, and first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.sinks.protocol import Prefetchable, SinkTable
from airflow_provider_cdc.sinks.storage.request_counts import with_current_counts


class PrefetchWorker:
    """Reads ahead for tables, one after the other, in a thread of its own. A context manager, which ends it.

    :param tables: as the stream begins with them.
    :param budget: bytes of memory for what nothing speaks for, of all tables together.
    :param log_line: gets a line for each problem.
    """

    def __init__(self, tables: Sequence[SinkTable], budget: int, log_line: Callable[[str], None]) -> None:
        self._prefetches = [(table.name, table.prefetcher()) for table in tables if isinstance(table, Prefetchable)]
        self._budget, self._log_line = budget, log_line
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=with_current_counts(self._loop), name="reading-ahead", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _loop(self) -> None:
        for name, prefetch in self._prefetches:
            try:
                self._budget -= prefetch(self._budget, self._stopping.is_set)
            except Exception as error:  # whatever it is: a batch that needs the same will say so
                text = str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}"
                self._log_line(f"the {name} could not be read ahead: {text}")
            if self._stopping.is_set():
                return
