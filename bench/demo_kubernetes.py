"""The demo in Kubernetes: drivers run in pods, pods are killed, and the copy is proved equal, row by row.

The operators do in this process what they do in Airflow: they create pods, and try again. Where everything is, the
environment says (``bench/kubernetes_site.py``); without settings, a cluster and servers are started on this host.

Whatever the demo creates, it removes at the end: a database, its pipeline's rows in the state database, the folder in
the sink, and pods.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.storage.open_storage import open_storage
from airflow_provider_cdc.spark.kubernetes_pods import PIPELINE_LABEL
from airflow_provider_cdc.spark.pod_status import pod_name
from airflow_provider_cdc.state import EpochRow
from bench.kubernetes_site import SETTINGS, StorePlace, connect_cluster, make_pipeline, start_locally
from bench.screen import PATIENCE, PAUSE, DemoFailed, Screen, ignore_signals, perform
from bench.shop import TABLES
from tests.support.oracle import check_ledger, compare_all
from tests.support.servers import MySQLServer
from tests.support.workload import Writers, make_shop

#: Tries of a task.
TRIES = 4
#: The operators say to a task's log what they do; here it is said in fewer words.
QUIET = "airflow.task=CRITICAL airflow.sdk=CRITICAL py.warnings=CRITICAL"


class Demo:
    """One run of the demo.

    :param api: client of the cluster.
    """

    def __init__(self, screen: Screen, api: Any, stack: ExitStack, options: argparse.Namespace) -> None:
        name = f"cdc_demo_{secrets.token_hex(3)}"
        self.screen, self.api, self.options, self.name = screen, api, options, name
        self.namespace = os.environ["NAMESPACE"]
        self.pipeline = make_pipeline(name, options.customers)
        self.context = RunContext.for_pipeline(self.pipeline)
        self.server = stack.enter_context(MySQLServer())
        self.store = stack.enter_context(closing(self.context.open_state_database()))
        self._operators: list[Any] = []
        self._ending = False

    def run(self) -> bool:
        """All of it; whether the copy is equal."""
        try:
            n = self.options.customers
            self.screen.say(f"Making database {self.name}: {n:,} customers, addresses and orders", "bold")
            with closing(self.server.connect()) as connection:
                make_shop(connection, self.name, n, addresses=n // 20, orders=n // 5)
            with Writers(self.server.connect_args(), database=self.name, rate=self.options.rate) as writers:
                self._snapshot()
                self._stream(writers)
            return self._prove()
        finally:
            self._clean_up()

    def _snapshot(self) -> None:
        from airflow_provider_cdc import CdcPlanChunksOperator, CdcSnapshotOperator

        with self.screen.phase("snapshot", "Writers begin, and two tasks read the tables, each in a pod"):
            plan = CdcPlanChunksOperator(task_id="plan", pipeline=self.pipeline)
            groups = [n for task in plan.execute(task_context("plan")) for n in task["groups"]]
            with self._tasks() as pool:
                running = [
                    self._start(pool, CdcSnapshotOperator, f"read_{number}", groups=groups[number::2])
                    for number in (0, 1)
                ]
                self._wait("a chunk group is read", self._is_reading, running)
                self._kill_pod()
                rows = sum(future.result()["rows"] for future in running)
            self.screen.say(f"The snapshot is complete; after the kill, the tasks have read {rows:,} rows")

    def _stream(self, writers: Writers) -> None:
        from airflow_provider_cdc import CdcStreamOperator

        with self._tasks() as pool:
            with self.screen.phase("stream", "The stream begins, in a pod; it follows the writers"):
                stream = self._start(pool, CdcStreamOperator, "stream", deferrable=False, poll_seconds=2)
                first = self._wait_applied(0, stream)
                self._kill_pod()
                second = self._wait_applied(first.epoch, stream)
                self.screen.say(f"Another pod has gone on: epoch {second.epoch}, {second.changes:,} changes")
                time.sleep(self.options.seconds)
            with self.screen.phase("end", "The writers stop, the stream is asked to end, and one more catches up"):
                done = writers.stop()
                self.store.request_stop(self.name)
                stream.result()
                end = self._start(
                    pool, CdcStreamOperator, "end", deferrable=False, poll_seconds=2, catch_up=True, assets=False
                )
                self.screen.say(f"{done.rows:,} rows were written; the last epoch: {end.result()['state']}")

    def _prove(self) -> bool:
        sink, equal = self.pipeline.sink.path, True
        place = StorePlace(sink, self.context.access) if "://" in sink else Path(sink)
        with self.screen.phase("proof", "Comparing every value of every row"), closing(self.server.connect()) as conn:
            for table in TABLES:
                differences = compare_all(conn, self.name, place, [table])
                self.screen.say("".join(map(str, differences)) or f"{table}: all rows equal")
                equal &= not differences
        problems = check_ledger(place, self.name)
        self.screen.say("; ".join(problems) or "the ledger has every number of every writer once")
        return equal and not problems

    # -- tasks

    @contextmanager
    def _tasks(self) -> Iterator[ThreadPoolExecutor]:
        """Threads for tasks, which end with the block; with their drivers if it fails."""
        with ThreadPoolExecutor() as pool:
            try:
                yield pool
            except BaseException:
                self._ending = True
                for operator in self._operators:
                    operator.on_kill()
                raise

    def _start(self, pool: ThreadPoolExecutor, kind: Any, name: str, **arguments: Any) -> Future[Any]:
        return pool.submit(self._try, lambda: kind(task_id=name, pipeline=self.pipeline, **arguments), name)

    def _try(self, make: Callable[[], Any], name: str) -> Any:
        for number in range(1, TRIES + 1):
            operator = make()
            self._operators.append(operator)
            try:
                return operator.execute(task_context(name, number))
            except TransientError as error:
                if self._ending or number == TRIES:
                    raise
                self.screen.say(f"| task {name}, try {number}: {error.message}. The next try begins")
        raise AssertionError

    def _wait(self, what: str, condition: Callable[[], Any], running: list[Future[Any]]) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (result := condition()):
            for future in running:
                if future.done():
                    raise DemoFailed(f"a task ended too early: {future.exception() or future.result()}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"not within {PATIENCE:g} s: {what}")
            time.sleep(PAUSE)
        return result

    def _is_reading(self) -> bool:
        return any(group.state == "running" for group in self.store.groups(self.name, 1))

    def _wait_applied(self, after: int, stream: Future[Any]) -> EpochRow:
        def applied() -> EpochRow | None:
            row = self.store.newest_epoch(self.name)
            return row if row is not None and row.epoch > after and row.changes else None

        found: EpochRow = self._wait("the stream has applied changes", applied, [stream])
        return found

    def _kill_pod(self) -> None:
        """Kill the pod of a driver that works; nothing in it can notice that."""
        name = next(pod_name(row.id) for row in self.store.live_drivers(self.name) if row.state == "running")
        self.api.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)
        self.screen.say(f"kubectl delete pod {name} --grace-period=0 --force: the pod is killed")

    def _clean_up(self) -> None:
        ignore_signals()
        self.screen.say(
            "Removing what was created: pods, database, rows in the state database, folder in the sink", "dim"
        )
        pods = self.api.list_namespaced_pod(self.namespace, label_selector=f"{PIPELINE_LABEL}={self.name}").items
        for pod in pods:
            self.api.delete_namespaced_pod(pod.metadata.name, self.namespace, grace_period_seconds=0)
        self.server.execute(f"DROP DATABASE IF EXISTS {self.name}")
        open_storage(os.environ["SINK"], self.context.access).delete_folder(self.name)
        self.store.delete_pipeline(self.name)


def task_context(name: str, try_number: int = 1) -> Any:
    """Return what Airflow gives a try of a task."""
    ti = SimpleNamespace(
        dag_id="demo", run_id="demo", task_id=name, map_index=-1, max_tries=TRIES, try_number=try_number
    )
    ti.xcom_push = lambda key, value: None
    return {"ti": ti, "dag_run": SimpleNamespace(partition_key=None, logical_date="now", run_id="demo")}


def main() -> int:
    made = argparse.ArgumentParser(description="Copy a live MySQL database in pods of Kubernetes, and prove it equal.")
    made.add_argument("--customers", type=int, default=40_000, help="rows of the largest table (%(default)s)")
    made.add_argument("--seconds", type=float, default=10, help="how long to stream after the kill (%(default)s)")
    made.add_argument("--rate", type=float, default=20, help="transactions a second of the writers (%(default)s)")
    made.set_defaults(sink="s3", keep=False, out=None)  # the folder has nothing to keep

    def demo(screen: Screen, folder: Path, options: argparse.Namespace) -> bool:
        os.environ["AIRFLOW_HOME"] = str(folder / "airflow")
        os.environ["AIRFLOW__LOGGING__NAMESPACE_LEVELS"] = QUIET
        with ExitStack() as stack:
            if not any(os.environ.get(name) for name in SETTINGS):
                start_locally(screen, folder, stack)
            return Demo(screen, connect_cluster(), stack, options).run()

    return perform(made, demo)


if __name__ == "__main__":
    sys.exit(main())
