"""The demo in Airflow: an example DAG copies a database that is written to all the time, and the copy is proved equal.

Everything in it is real: a MySQL server, writers in processes of their own, and Airflow's api-server, scheduler,
dag-processor and triggerer, with a UI to look at. Only the proof is independent of the project: it reads both sides
whole and compares every value (``tests/support/oracle.py``).

With ``--stay`` the writers begin again after the proof and the stream goes on, until Ctrl-C; then both sides are
compared once more.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import httpx

from airflow_provider_cdc.system.processes import end_session, session_members
from bench.lake import opened
from bench.screen import PATIENCE, PAUSE, DemoFailed, Screen, catch_signals, ignore_signals, parser, perform
from bench.shop import Shop, lag
from tests.support.airflow_client import ENDED, ApiError, Client, TaskInstance
from tests.support.airflow_processes import Airflow, AirflowError
from tests.support.processes import members as members_and_children

ROOT = Path(__file__).resolve().parent.parent
#: The example, its DAG, the name of the pipeline in it, its connection, and the tasks of interest.
EXAMPLE, DAG, NAME, CONN_ID = "whole_database.py", "cdc_whole_database", "shop", "cdc_source"
PLAN, STREAM = f"{NAME}.plan_chunks", f"{NAME}.stream"
#: States that are worth a line, and seconds between two lines about chunks and batches.
SHOWN, OFTEN, SELDOM = ENDED | {"running", "deferred", "up_for_retry"}, 3.0, 30.0
_PR_SET_CHILD_SUBREAPER = 36
#: Where the page is, in Airflow and below its address.
_PAGE, _ROUTE = "Browse > CDC pipelines", "plugin/cdc"


@contextmanager
def orphans_ended(patience: float = 10) -> Iterator[None]:
    """End, with the block, the processes in it whose own parents have ended.

    The drivers of Spark are such: they lead sessions of their own, and the stream's outlives its task and Airflow.
    Linux makes this process their next parent, so that none is missed, however young.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    mine = os.getpid()
    others = {mine, *members_and_children(mine, True)}
    try:
        yield
    finally:
        while orphans := set(members_and_children(mine, True)) - others:
            for pid in sorted(orphans):
                end_session(pid, patience)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class Run:
    """A run of the DAG, as one follows it in the UI: what becomes of its tasks, chunks that are read, batches."""

    def __init__(self, shop: Shop, client: Client) -> None:
        self._shop, self._client = shop, client
        self._states: dict[tuple[str, int], str | None] = {}
        self._chunks, self._batch, self._said = 0, (0, -1), 0.0
        self._id = client.trigger(DAG)

    def look(self, seconds: float = OFTEN) -> None:
        """Say what is new.

        :param seconds: how long it takes at least from one line about chunks or batches to the next.
        """
        with suppress(ApiError, httpx.TransportError):  # it may be slow now and then
            for task in self._client.task_instances(DAG, self._id):
                key = (task.task_id, task.map_index)
                if task.state != self._states.get(key) and task.state in SHOWN:
                    self._say(f"{_label(task)}: {task.state}")
                self._states[key] = task.state
        if self.state(PLAN) == "success" and time.monotonic() - self._said > seconds:
            self._look_at_books()

    def state(self, task: str) -> str | None:
        """State of a task that is not mapped, when it was looked at last."""
        return self._states.get((task, -1))

    def wait(self, reached: Callable[[], bool]) -> None:
        """Look until something is reached.

        :raises DemoFailed: when a task fails, the stream's ends before, or nothing comes of it.
        """
        deadline = time.monotonic() + PATIENCE
        while not reached():
            self.look()
            for (task, index), state in self._states.items():
                if state in ("failed", "upstream_failed"):
                    log = self._client.log(DAG, self._id, task, map_index=index)
                    raise DemoFailed(f"task {task} is {state}; the end of its log:\n{log[-3000:]}")
            if self.state(STREAM) in ENDED:
                raise DemoFailed(f"the stream's task is {self.state(STREAM)}: somebody has stopped it")
            if time.monotonic() > deadline:
                raise DemoFailed(f"nothing came of it in {PATIENCE:g} s; the tasks are {self._states}")
            time.sleep(PAUSE)

    def follow(self, seconds: float) -> None:
        """Look for a while."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > until)

    def catch_up(self) -> None:
        """Wait until the lake has everything that the server has now."""
        end = self._shop.end()
        self.wait(lambda: self._shop.applied(end))

    def stop(self) -> None:
        """Mark the stream's task as successful, as one does in the UI, and wait until the stream has ended.

        :raises AssertionError: if the run does not end well.
        """
        self._client.pause(DAG)  # a run that somebody has queued meanwhile would go on with the stream
        self._client.mark(DAG, self._id, STREAM, "success")
        deadline, asked = time.monotonic() + PATIENCE, False
        while (run := self._stream()).state == "running" or session_members(run.pid):
            self.look()
            if run.desired_state == "stop" and not asked:
                asked = True
                self._say("the trigger has seen it and asks the stream to stop")
            if time.monotonic() > deadline:
                raise DemoFailed(f"the stream did not end: process {run.pid} on {run.host} is {run.state}")
            time.sleep(PAUSE)
        self._say(f"the stream has {run.state}, and its process has ended")
        if run.state != "stopped":
            raise DemoFailed(f"the stream ended as {run.state}: {run.error}")
        self._client.wait_run(DAG, self._id)

    def _stream(self) -> Any:
        with closing(self._shop.store()) as store:
            run = store.newest_epoch(NAME)
        if run is None:
            raise DemoFailed("there is no stream")
        return run

    def _look_at_books(self) -> None:
        with closing(self._shop.store()) as store:
            snapshot = store.snapshot(NAME)
            tables = store.table_progress(NAME, snapshot.generation) if snapshot else []
            new = [b for b in store.last_batches(NAME, 1000) if (b.epoch, b.batch_id) > self._batch]
        done = sum(table.done for table in tables)
        if done != self._chunks:
            self._chunks = done
            total, rows = sum(table.chunks for table in tables), sum(table.rows for table in tables)
            self._say(f"snapshot: {done} of {total} chunks, {rows:,} rows")
        if changes := sum(batch.changes for batch in new):
            self._batch = (new[0].epoch, new[0].batch_id)
            self._say(f"stream: {changes:,} changes in {len(new)} batches, lag {lag([b for b in new if b.changes])}")

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self._shop.screen.say(f"| {text}", "dim")


class Demo:
    """One run of the demo.

    :param seconds: how long the stream goes on after it has caught up with the writers.
    :param stay: whether all goes on after the proof, until Ctrl-C.
    """

    def __init__(self, shop: Shop, folder: Path, seconds: float, stay: bool) -> None:
        self.shop, self.screen, self.folder, self.seconds, self.stay = shop, shop.screen, folder, seconds, stay

    def run(self) -> bool:
        """All of it; whether the copy is equal.

        :raises DemoFailed: when Airflow or one of its tasks fails.
        """
        with ExitStack() as stack:
            try:
                return self._run(stack)
            except (AirflowError, ApiError, AssertionError, httpx.HTTPError) as error:
                raise DemoFailed(str(error)) from error
            finally:
                ignore_signals()
                self.screen.say("Ending Airflow and the server", "dim")

    def _run(self, stack: ExitStack) -> bool:
        shop, phase = self.shop, self.screen.phase
        airflow = self._airflow(stack, shop.open(stack))
        with phase("snapshot", f"Two writers begin ({shop.rate:g} transactions/s), and the DAG {DAG} is triggered"):
            writers = stack.enter_context(shop.writers())
            run = Run(shop, airflow.client)
            run.wait(lambda: run.state(STREAM) == "deferred")
        with phase("catch-up", "The snapshot is complete; the stream takes what was written meanwhile"):
            for _ in range(2):  # the second time for what came during the first
                run.catch_up()
        steady = shop.end()
        with phase("stream", f"The stream has caught up; it follows the writers for {self.seconds:g} s"):
            run.follow(self.seconds / 2)
            shop.alter()
            run.follow(self.seconds / 2)
        with phase("end", "The writers stop, the stream takes the last changes"):
            done = writers.stop()
            run.catch_up()
        if not self.stay:
            self._stop(run)
        equal = self._prove()
        if not self.stay:  # with it the stream goes on, and old files go
            with phase("readers", "Comparing what other programs read of it"):
                equal &= shop.prove_for_others()
        shop.tell(done, steady)
        if not self.stay:
            where = f"a page in Airflow ({_PAGE}), as long as that runs: STAY=1 make demo"
            self.screen.say(f"Phases, chunks, lag and tables are on {where}", "bold cyan")
        if self.stay:
            self.screen.verdict(equal)
            with shop.writers() as writers:
                self._hold(run, airflow)
                self.screen.say(
                    "The writers stop, the stream takes the last changes (Ctrl-C again: end at once)", "bold"
                )
                writers.stop()
                run.catch_up()
            self._stop(run)
            equal &= self._prove()
        return equal

    def _airflow(self, stack: ExitStack, user: dict[str, str]) -> Airflow:
        """Airflow with the example and its connection."""
        dags, temporary, lake = self.folder / "dags", self.folder / "tmp", self.shop.lake
        dags.mkdir()
        temporary.mkdir()
        shutil.copy(ROOT / "dags" / EXAMPLE, dags)
        self._login = ("admin", secrets.token_hex(6))
        with self.screen.phase("Airflow", "Starting Airflow: api-server, scheduler, dag-processor, triggerer"):
            stack.enter_context(orphans_ended())
            airflow = stack.enter_context(
                Airflow(
                    dags,
                    env={
                        **{k: v for k, v in lake.environment.items() if not k.startswith("AIRFLOW_CONN_")},
                        "CDC_LAKE": lake.path,
                        "CDC_LAKE_CONN_ID": lake.conn_id or "",
                        "TMPDIR": str(temporary),
                        "SPARK_LOCAL_DIRS": str(temporary),
                    },
                    config={"core": {"parallelism": max(2, os.cpu_count() or 1)}},  # a driver of Spark needs a core
                    login=self._login,
                )
            )
            server = self.shop.server
            airflow.client.set_connection(
                CONN_ID, "cdc_mysql", host=server.host, port=server.port, login=user["user"], password=user["password"]
            )
            if lake.conn_id:
                fields = {**lake.connection, "extra": json.dumps(lake.connection["extra"])}
                airflow.client.set_connection(lake.conn_id, **fields)
        self._show_address(airflow)
        return airflow

    def _show_address(self, airflow: Airflow) -> None:
        name, password = self._login
        self.screen.say(f"Airflow: {airflow.url}/dags/{DAG}", "bold cyan")
        self.screen.say(f"Page:    {airflow.url}/{_ROUTE} ({_PAGE})", "bold cyan")
        self.screen.say(f"Login:   {name}, password {password}", "bold cyan")

    def _prove(self) -> bool:
        with self.screen.phase("proof", "Comparing every value of every row in source and sink"):
            return self.shop.prove()

    def _stop(self, run: Run) -> None:
        with self.screen.phase("stop", "The stream's task is marked as successful, as in the UI: the stream stops"):
            run.stop()

    def _hold(self, run: Run, airflow: Airflow) -> None:
        """Let everything go on until Ctrl-C."""
        asked = Event()
        signal.signal(signal.SIGINT, lambda *_: asked.set())
        self.screen.say("The writers have begun again, and the stream follows them until you press Ctrl-C", "bold")
        self._show_address(airflow)
        while not asked.wait(PAUSE):
            run.look(SELDOM)
        catch_signals()


def _label(task: TaskInstance) -> str:
    if task.map_index < 0:
        return task.task_id
    return f"{task.task_id} [{task.rendered_map_index or task.map_index}]"


def main() -> int:
    what = "Let an example DAG copy a live MySQL database in a real Airflow, and prove the copy equal."
    made = parser(what, customers=200_000, rate=50)
    made.add_argument("--stay", action="store_true", help="let writers, stream and UI go on until Ctrl-C")

    def demo(screen: Screen, folder: Path, options: argparse.Namespace) -> bool:
        with ExitStack() as stack:
            shop = Shop(screen, opened(options.sink, screen, folder, stack), NAME, options.customers, options.rate)
            return Demo(shop, folder, options.seconds, options.stay).run()

    return perform(made, demo)


if __name__ == "__main__":
    sys.exit(main())
