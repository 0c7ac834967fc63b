"""A Spark cluster of two workers that share nothing but the store, one of which dies in the middle of the work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.harness import kill_session
from tests.support.oracle import check_ledger, compare_all
from tests.support.processes import wait_for
from tests.support.s3 import s3_server
from tests.support.servers import MySQLServer
from tests.support.spark_cluster import SparkCluster
from tests.support.store_lake import StoreLake
from tests.support.store_proxy import StoreProxy, What
from tests.support.workload import Writers, make_shop

pytestmark = [pytest.mark.spark, pytest.mark.long]


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
        with self.running(*arguments) as process:
            assert process.wait(600) == 0, self.log.read_text()


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

        def lose(process: subprocess.Popen[bytes], worker: int, what: What, key: str, times: int = 1) -> None:
            """Kill a worker when the store has been asked so often, and start it again."""
            with_key = re.compile(key)

            def seen() -> bool:
                assert process.poll() is None, command.log.read_text()
                return sum(r.what == what and bool(with_key.search(r.key)) for r in proxy.requests) >= times

            wait_for(f"{what} of {key}", seen, 300, pause=0.01)
            cluster.kill_worker(worker)
            cluster.start_worker(worker)
            proxy.requests.clear()

        with command.running("snapshot") as process:
            lose(process, 0, "put", r"/snapshot/.*\.parquet$", times=2)
            assert process.wait(600) == 0, command.log.read_text()
        cluster.wait_ready()

        with command.running("stream") as process:
            lose(process, 1, "put", r"/changes/.*\.parquet$", times=6)
            cluster.wait_ready()
            wait_for("more batches", lambda: sum("/changes/" in r.key for r in proxy.requests) > 20, 300)
            writers.stop()
            command.run("stop")
            assert process.wait(300) == 0, command.log.read_text()
        command.run("stream", "--catch-up")
        proxy.requests.clear()
        with command.running("maintain") as process:
            lose(process, 0, "get", r"/(changes|snapshot)/.*\.parquet$")
            assert process.wait(600) == 0, command.log.read_text()
        assert any(r.what == "put" and "/part-" in r.key for r in proxy.requests), "nothing was compacted"

    with mysql_server.connect() as admin:
        differences = compare_all(admin, database, lake.place)
    assert not differences, "\n".join(map(str, differences))
    assert not check_ledger(lake.place, database)
