"""The stream's query on a real Spark: one batch is applied while the next one is read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.exceptions import TransientError
from airflow_provider_cdc.jobs.batches import together
from airflow_provider_cdc.phases.stream import Epoch
from airflow_provider_cdc.spark.session import start
from airflow_provider_cdc.spark.stream_query import StreamQuery
from tests import ROOT
from tests.support.cli import Cli
from tests.support.oracle import compare_all
from tests.support.servers import MySQLServer

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        session = start("query", "local[2]")
        yield session
        gateway: Any = session.sparkContext._gateway
        session.stop()
        # The JVM has this environment: nobody else shall use it.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
        type(session.sparkContext)._gateway = type(session.sparkContext)._jvm = None
    finally:
        os.environ.clear()
        os.environ |= before


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]) -> Cli:
    mysql_server.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, v INT)")
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (1, 1), (2, 1)")
    made = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database, user=cdc_user)
    made.snapshot()
    return made


class Applied:
    """Applies batches, and changes a row meanwhile: the batch with that change is waited for.

    :param then: what is done when it has been read.
    """

    def __init__(self, cli: Cli, server: MySQLServer, epoch: Epoch, then: Callable[[], None]) -> None:
        self.cli, self.server, self.epoch, self.then = cli, server, epoch, then
        self.count, self.most, self._at_once = 0, 0, 0

    def __call__(self, manifests: list[dict[str, Any]]) -> None:
        self.count, self._at_once = self.count + 1, self._at_once + 1
        self.most = max(self.most, self._at_once)
        if self.count == 1:
            before = self._staged()
            self.server.execute(f"UPDATE `{self.cli.value['name']}`.t SET v = 3 WHERE id = 2")
            deadline = time.monotonic() + 120
            while self._staged() == before:
                assert time.monotonic() < deadline, "the next batch is not read"
                time.sleep(0.05)
            self.then()
        self.epoch.apply(together(manifests))
        self._at_once -= 1

    def _staged(self) -> int:
        return sum(1 for _ in self.cli.sink.rglob(f"changes/epoch-{self.epoch.number}/*.parquet"))


def test_the_next_batch_is_read_meanwhile(
    spark: SparkSession, cli: Cli, mysql_server: MySQLServer, database: str, tmp_path: Path
) -> None:
    mysql_server.execute(f"UPDATE `{database}`.t SET v = 2")
    with cli.epoch() as epoch:
        apply = Applied(cli, mysql_server, epoch, lambda: None)
        query = StreamQuery(apply, each_second=lambda: None, over=lambda: apply.count == 2 and query.idle())
        query.run(spark, epoch.job, epoch.start, checkpoint=str(tmp_path / "checkpoint"), seconds=0)
        assert apply.most == 1
    with mysql_server.connect() as connection:
        assert compare_all(connection, database, cli.sink) == []


def test_what_was_read_behind_a_failure_is_not_applied(
    spark: SparkSession, cli: Cli, mysql_server: MySQLServer, database: str, tmp_path: Path
) -> None:
    mysql_server.execute(f"UPDATE `{database}`.t SET v = 2")

    def fail() -> None:
        raise TransientError("the storage is away", "Wait")

    with cli.epoch() as epoch:
        apply = Applied(cli, mysql_server, epoch, fail)
        query = StreamQuery(apply, each_second=lambda: None, over=lambda: False)
        with pytest.raises(TransientError, match="the storage is away"):
            query.run(spark, epoch.job, epoch.start, checkpoint=str(tmp_path / "checkpoint"), seconds=0)
        assert apply.count == 1 and epoch.applier.at == epoch.start
    cli.catch_up()
    with mysql_server.connect() as connection:
        assert compare_all(connection, database, cli.sink) == []
