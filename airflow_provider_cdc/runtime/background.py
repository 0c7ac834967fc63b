"""Background threads, which work alongside the thread that starts them."""

from __future__ import annotations

import threading
from typing import Self

from airflow_provider_cdc.sinks.storage.request_counts import with_current_counts


class BackgroundLoop:
    """A thread that takes a step again and again. A context manager: the thread runs while it is entered.

    Its requests to an object store are counted with those of the thread that makes it.

    :param name: name of the thread.
    :param interval: seconds before each step.
    :param max_end_seconds: seconds that the end waits for the current step; ``None`` for as long as it takes.
    """

    def __init__(self, name: str, interval: float, max_end_seconds: float | None = None) -> None:
        self._interval, self._max_end_seconds = interval, max_end_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=with_current_counts(self._run), name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(self._max_end_seconds)

    def _run(self) -> None:
        """Take steps until the end."""
        while not self._stopping.wait(self._interval):
            self._step()

    def _step(self) -> None:
        """Do what is due."""
