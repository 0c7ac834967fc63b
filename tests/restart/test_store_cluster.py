"""A Spark cluster of two workers that share nothing but the store, one of which dies in the middle of the work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import TransientError
from tests import ROOT
from tests.support.harness import kill_session
from tests.support.oracle import check_ledger, compare_database
from tests.support.processes import wait_for
from tests.support.s3 import s3_server
from tests.support.servers import MySQLServer
from tests.support.spark_cluster import SparkCluster
from tests.support.store_lake import StoreLake
from tests.support.store_proxy import StoreProxy, What
from tests.support.workload import Writers, make_shop

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

#: Python workers of Spark that start too slowly, and what the loss of a worker breaks in the driver, is worth a retry.
TRIES = 5


@pytest.fixture
def proxy() -> Iterator[StoreProxy]:
    with s3_server("versitygw") as place, StoreProxy(place.under("lake")) as proxy:
        yield proxy


class Command:
    """The command line, with a folder of its own that no worker knows."""

    def __init__(self, lake: StoreLake, file: Path, source: str) -> None:
        self._file = file
        self.log = lake.folder / "log"
        (lake.folder / "tmp").mkdir(exist_ok=True)
        self._environment = {
            **os.environ,
            **lake.connections,
            "AIRFLOW_CONN_CDC_SOURCE": source,
            "TMPDIR": str(lake.folder / "tmp"),
        }

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow_provider_cdc", *arguments, "-f", str(self._file)],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                kill_session(process.pid)
            process.wait()

    def run(self, *arguments: str) -> None:
        self.carry_out(lambda _: None, *arguments)

    def carry_out(self, meanwhile: Callable[[subprocess.Popen[bytes]], None], *arguments: str) -> None:
        """Run a command to its good end; what is worth a retry is tried again, as Airflow does."""
        for _ in range(TRIES):
            with self.running(*arguments) as process:
                with suppress(Ended):
                    meanwhile(process)
                code = process.wait(600)
            if code == 0:
                return
            assert code == TransientError.exit_code, self.log.read_text()
        raise AssertionError(self.log.read_text())


class Ended(Exception):
    """A command has ended, and was to be disturbed before."""


def test_snapshot_stream_and_compaction_survive_the_loss_of_a_worker(
    proxy: StoreProxy, mysql_server: MySQLServer, cdc_user: dict[str, str], database: str, tmp_path: Path
) -> None:
    lake = StoreLake(proxy.place.at(proxy.behind), proxy.place, "apart", tmp_path / "host", {"compaction": False})
    with mysql_server.connect() as admin:
        make_shop(admin, database, 20_000, addresses=3000, orders=5000)

    with (
        SparkCluster(workers=2, apart=True) as cluster,
        Writers(mysql_server.connect_args(), "shop", database=database, rate=25, seed=1) as writers,
    ):
        file = lake.write_pipeline(database, master=cluster.uri, chunk_rows=500, parallelism=2)
        command = Command(lake, file, mysql_server.uri(**cdc_user))

        lost: list[str] = []

        def asked(process: subprocess.Popen[bytes], what: What, key: str, times: int) -> None:
            """Wait until the store was asked so often."""
            with_key = re.compile(key)

            def seen() -> bool:
                if process.poll() is not None:
                    raise Ended
                return sum(r.what == what and bool(with_key.search(r.key)) for r in list(proxy.requests)) >= times

            wait_for(f"{what} of {key}", seen, 600, pause=0.01)

        def lose(process: subprocess.Popen[bytes], worker: int, what: What, key: str, times: int) -> None:
            """Kill a worker when the store was asked so often, and start it again."""
            asked(process, what, key, times)
            cluster.kill_worker(worker)
            cluster.start_worker(worker)
            lost.append(key)
            proxy.requests.clear()

        def in_snapshot(process: subprocess.Popen[bytes]) -> None:
            lose(process, 0, "put", r"/snapshot/.*\.parquet$", 2)

        def in_stream(process: subprocess.Popen[bytes]) -> None:
            lose(process, 1, "put", r"/changes/.*\.parquet$", 6)
            cluster.wait_ready()
            asked(process, "put", "/ledger/changes/", 40)  # so many small files are worth a compaction
            writers.stop()
            command.run("stop")

        def in_compaction(process: subprocess.Popen[bytes]) -> None:
            lose(process, 0, "get", r"/(changes|snapshot)/.*\.parquet$", 1)

        command.carry_out(in_snapshot, "snapshot")
        cluster.wait_ready()
        command.carry_out(in_stream, "stream")
        command.run("stream", "--catch-up")
        proxy.requests.clear()
        command.carry_out(in_compaction, "maintain")
        assert len(lost) >= 3, f"workers were lost only in {lost}"
        assert any(r.what == "put" and "/part-" in r.key for r in proxy.requests), "nothing was compacted"

    differences = compare_database(mysql_server, database, lake.place)
    assert not differences, "\n".join(map(str, differences))
    assert not check_ledger(lake.place, database)
