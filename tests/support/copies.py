"""A snapshot on a Spark cluster of which Spark makes several copies of one task: the driver of such a run.

``python -m tests.support.copies CASE PIPELINE MASTER FOLDER POINT`` reads group 0 of a pipeline, and prints how it
ended. The first copy of the first task does what the case says, in its second slice (number 2); all others do as
always.

- ``fails``: its Python process is killed. Spark starts the task again.
- ``speculative``: it stands still, and Spark starts a second copy beside it.
- ``zombie``: it stands still and is cut off from its executor, which the test kills; Spark starts the task again on
  another one.

In the last two the first copy goes on after the group has been published.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_cdc.chunk_groups import task as slices
from airflow_provider_cdc.chunk_groups.spark_job import spark_runner
from airflow_provider_cdc.chunk_groups.task import SnapshotJob
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.mysql.chunks import chunk
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.sinks.storage.storage import write_json
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.spark import session

CASES = ("fails", "speculative", "zombie")
#: What makes Spark start a second copy of a task that takes long, and leave the first one alone.
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.efficiency.enabled": "false",
    "spark.python.task.killTimeout": "300s",
}


@dataclass(frozen=True)
class OddJob(SnapshotJob):
    """A job whose first copy of the first task is odd.

    :param case: one of :data:`CASES`.
    :param point: failpoint at which it happens.
    :param folder: where the copies leave word.
    """

    case: str = ""
    point: str = ""
    folder: str = ""

    def read_slices(self, worker: int, copy: int = 0) -> Iterator[dict[str, Any]]:
        """Read as always, after having armed the first copy."""
        folder = Path(self.folder)
        (folder / f"copy-{worker}-{copy}").touch()
        odd = worker == 0 and copy == 0
        if self.case == "speculative" and not odd:
            # Spark starts second copies once half of the tasks have ended: not before the first copy stands still, or
            # the second one overtakes it.
            wait_for(folder / "odd")
        left = [2 if self.point.startswith("file") else 20]

        def failpoint(name: str) -> None:
            if odd and name == self.point:
                left[0] -= 1
                if left[0] == 0:
                    self._be_odd(folder)

        # A Python process may have run another task before this one.
        for module in (slices, chunk):
            setattr(module, "failpoint", failpoint)  # noqa: B010 (mypy knows it as a function)
        for manifest in super().read_slices(worker, copy):
            if odd:
                (folder / f"wrote-{manifest['slice']}").touch()
            yield manifest

    def _be_odd(self, folder: Path) -> None:
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        write_json(LocalStorage(folder), "odd", {"executor": int(daemon[1])})
        if self.case == "fails":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.case == "zombie":
            os.setpgid(0, 0)  # the end of the executor ends its group of processes
        wait_for(folder / "go")


def wait_for(path: Path, seconds: float = 60) -> None:
    """Wait until a file is there."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"no {path.name} came"
        time.sleep(0.05)


def run(case: str, file: str, master: str, folder: str, point: str) -> dict[str, Any]:
    """Read the group, let the first copy go on, and say what came of it."""
    words = Path(folder)
    context = RunContext.for_pipeline(Pipeline.load(file))
    real = session._session_settings

    def settings(*arguments: Any) -> dict[str, str]:
        return {**real(*arguments), **(_SPECULATION if case == "speculative" else {})}

    session._session_settings = settings  # type: ignore[assignment]
    spark = session.start_session("copies", master)
    try:

        def runner(job: SnapshotJob) -> list[dict[str, Any]]:
            return spark_runner(spark, print)(OddJob(**vars(job), case=case, point=point, folder=folder))

        with closing(context.open_state_database()) as store:
            plan = context.plans.ensure(store)
            result = run_group(context, store, plan, 0, runner, holder="a test")
        (words / "published").touch()
        (words / "go").touch()
        if case != "fails":
            wait_for(words / "wrote-2")
    finally:
        spark.stop()
    return {"outcome": result.outcome, "attempt": result.attempt, "rows": result.rows}


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
