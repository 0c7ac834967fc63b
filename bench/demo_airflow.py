"""The demo in Airflow: a DAG copies a database that is written to all the time, and the copy is proved equal.

A row that cannot be copied makes one chunk group fail; it is corrected, and the group is retried on the page. While the
stream follows the writers, a table gets a column.

Everything in it is real: a MySQL server, writers in processes of their own, and Airflow's api-server, scheduler,
dag-processor and triggerer, with a UI to look at. Only the proof is independent of the project: it reads both sides
whole and compares every value (``tests/support/oracle.py``).

With ``--stay`` the writers begin again after the proof and the stream goes on, until Ctrl-C; then both sides are
compared again.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx

from airflow_provider_cdc.system.processes import end_session
from bench.dag_run import DAG, NAME, STREAM, Run
from bench.lake import CONN_ID as LAKE_CONN_ID
from bench.lake import opened
from bench.screen import DemoFailed, Screen, ignore_signals, parser, perform, wait_for_interrupt
from bench.shop import Shop
from tests.support.airflow_client import ApiError
from tests.support.airflow_processes import Airflow, AirflowError
from tests.support.processes import members as members_and_children

DAG_FILE, CONN_ID = Path(__file__).with_name("demo_dag.py"), "cdc_source"
#: How many chunks the largest table has, and how many of them are a chunk group: fewer than the orders have, so that
#: the group that fails is not the only one of its task.
CHUNKS, GROUP_CHUNKS = 100, 15
#: Seconds between two lines about chunks and batches while the demo stays.
SELDOM = 30.0
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
        user = shop.open(stack)
        shop.add_invalid_date()
        airflow = self._airflow(stack, user)
        with phase("snapshot", f"Two writers begin ({shop.rate:g} transactions/s), and the DAG {DAG} is triggered"):
            writers = stack.enter_context(shop.writers())
            run = Run(shop, airflow)
            run.show_plan()
            failed = run.wait_failed_group()
        with phase(
            "retry", f"All chunk groups but {failed.group_no} are published. As the error says, the row is corrected"
        ):
            shop.correct_date()
            run.retry(failed)
            run.wait(lambda: run.state(STREAM) == "deferred")
        with phase("catch-up", "The snapshot is complete; the stream takes what was written meanwhile"):
            for _ in range(2):  # the second time for what came during the first
                run.catch_up()
        steady = shop.end()
        with phase("stream", f"The stream has caught up; it follows the writers for {self.seconds:g} s"):
            run.follow(self.seconds / 2)
            shop.alter()
            run.catch_up()
            shop.show_new_column()
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
        shop.show_reader_commands(stays=self.stay)
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
        """Airflow with the DAG and its connection."""
        dags, temporary, lake = self.folder / "dags", self.folder / "tmp", self.shop.lake
        chunk_rows = max(1, self.shop.customers // CHUNKS)
        dags.mkdir()
        temporary.mkdir()
        shutil.copy(DAG_FILE, dags)
        self._login = ("admin", secrets.token_hex(6))
        with self.screen.phase("Airflow", "Starting Airflow: api-server, scheduler, dag-processor, triggerer"):
            stack.enter_context(orphans_ended())
            airflow = stack.enter_context(
                Airflow(
                    dags,
                    env={
                        **{k: v for k, v in lake.environment.items() if not k.startswith("AIRFLOW_CONN_")},
                        "CDC_SINK": json.dumps(lake.settings),
                        "CDC_CHUNK_ROWS": str(chunk_rows),
                        "CDC_GROUP_ROWS": str(chunk_rows * GROUP_CHUNKS),
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
            if lake.connection:
                fields = {**lake.connection, "extra": json.dumps(lake.connection["extra"])}
                airflow.client.set_connection(LAKE_CONN_ID, **fields)
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
        self.screen.say("The writers have begun again, and the stream follows them until you press Ctrl-C", "bold")
        self._show_address(airflow)
        wait_for_interrupt(lambda: run.look(SELDOM))


def main() -> int:
    what = "Let a DAG copy a live MySQL database in a real Airflow, and prove the copy equal."
    made = parser(what, customers=200_000, rate=50)

    def demo(screen: Screen, folder: Path, options: argparse.Namespace) -> bool:
        with ExitStack() as stack:
            shop = Shop(screen, opened(options.sink, screen, folder, stack), NAME, options.customers, options.rate)
            return Demo(shop, folder, options.seconds, options.stay).run()

    return perform(made, demo)


if __name__ == "__main__":
    sys.exit(main())
