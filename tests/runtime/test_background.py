"""A background loop takes steps while it is entered, and its end waits for the step that is under way."""

from __future__ import annotations

import threading
import time

from airflow_provider_cdc.runtime.background import BackgroundLoop


class Steps(BackgroundLoop):
    def __init__(self, max_end_seconds: float | None = None) -> None:
        super().__init__("steps", 0.001, max_end_seconds)
        self.names: list[str] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def _step(self) -> None:
        self.begun.set()
        assert self.go_on.wait(30)
        self.names.append(threading.current_thread().name)


def test_steps_until_the_end() -> None:
    with Steps() as steps:
        steps.go_on.set()
        end = time.monotonic() + 30
        while len(steps.names) < 3 and time.monotonic() < end:
            time.sleep(0.001)
    count = len(steps.names)
    time.sleep(0.05)
    assert len(steps.names) == count >= 3 and {*steps.names} == {"steps"}


def test_the_end_waits_only_so_long() -> None:
    steps = Steps(max_end_seconds=0.05)
    with steps:
        assert steps.begun.wait(30)
    assert steps.names == []
    steps.go_on.set()


def test_a_thread_that_was_never_started() -> None:
    Steps().__exit__()
