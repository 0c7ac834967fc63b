"""A driver that does all that a driver does, but without Spark: no JVM, and the tasks of Spark as threads of its own.

Whether Airflow, a task and its driver find each other, and who ends whom, does not depend on Spark. A driver without it
begins in a few seconds. ``use()`` in a DAG file makes the tasks of that file start it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from airflow_provider_cdc.driver.launchers import local as launch

#: Seconds between two batches of a stream, and those that Spark would take to end: a test may kill a driver then.
_TRIGGER, _END = 1.0, 2.0
#: Seconds between two times that it writes down how the tables stand.
_OBSERVED = 5.0


def use() -> None:
    """Let the tasks of the calling process start this driver."""
    launch._COMMAND = [sys.executable, "-P", "-m", __name__]


class _NoSpark:
    def stop(self) -> None:
        """There is nothing to stop."""
        time.sleep(_END)


def _stream(epoch: Any, _: _NoSpark) -> None:
    from tests.support.epochs import run_epoch_in_process

    apply: Callable[[Any], Any] = epoch.apply_batch

    def apply_and_wait(manifest: Any) -> Any:
        applied = apply(manifest)
        time.sleep(_TRIGGER)
        return applied

    epoch.apply_batch = apply_and_wait
    run_epoch_in_process(epoch)


def main() -> int:
    """As the driver's own."""
    from airflow_provider_cdc.chunk_groups import spark_job as snapshot_job
    from airflow_provider_cdc.chunk_groups.task import run_in_threads
    from airflow_provider_cdc.driver import main as driver
    from airflow_provider_cdc.driver import phases, spark_session
    from airflow_provider_cdc.observe import observer as observing
    from airflow_provider_cdc.stream import run as stream

    for module in (phases, spark_session):
        module.start_spark = lambda *_, **__: (_NoSpark(), None)  # type: ignore[attr-defined]
    stream.run_epoch_on_spark = _stream  # type: ignore[assignment]
    observing._INTERVAL_SECONDS = _OBSERVED
    snapshot_job.spark_runner = lambda *_: run_in_threads
    return driver.main()


if __name__ == "__main__":
    sys.exit(main())
