"""The stream's query on a real Spark: one batch is applied while the next one is read."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.apply.task import merge_manifests
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.spark.session import start_session
from airflow_provider_cdc.stream.epoch import Epoch
from airflow_provider_cdc.stream.run import run_epoch_on_spark
from airflow_provider_cdc.stream.spark_query import StreamQuery
from tests import ROOT
from tests.support.cli import Cli
from tests.support.jvm import own_java
from tests.support.oracle import compare_database
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer

pytestmark = pytest.mark.spark


#: A Python that takes longer to come up than Spark waits for a source's worker, while there is a file of this name.
SLOW = """#!/bin/sh
case "$*" in *python_streaming_source_runner*) test -e {slow} && rm {slow} && sleep 12;; esac
exec {python} "$@"
"""


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("python") / "slow"


@pytest.fixture(scope="module")
def spark(slow: Path) -> Iterator[SparkSession]:
    python = slow.with_name("python")
    python.write_text(SLOW.format(slow=slow, python=sys.executable))
    python.chmod(0o755)
    with own_java({"PYTHONPATH": str(ROOT)}):
        # As on YARN, a path without a scheme lies in HDFS: none of the stream's may.
        conf = {"spark.pyspark.python": str(python), "spark.hadoop.fs.defaultFS": "hdfs://127.0.0.1:1"}
        yield start_session("query", "local[2]", conf)


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
        self.epoch.apply_batch(merge_manifests(manifests))
        self._at_once -= 1

    def _staged(self) -> int:
        return sum(1 for _ in self.cli.sink.rglob(f"changes/epoch-{self.epoch.number}/*.parquet"))


def test_the_next_batch_is_read_meanwhile(
    spark: SparkSession, cli: Cli, mysql_server: MySQLServer, database: str, tmp_path: Path
) -> None:
    mysql_server.execute(f"UPDATE `{database}`.t SET v = 2")
    with cli.epoch() as epoch:
        apply = Applied(cli, mysql_server, epoch, lambda: None)
        with StreamQuery(
            spark, apply, on_tick=lambda: None, is_section_over=lambda: apply.count == 2 and query.is_idle()
        ) as query:
            query.run_section(epoch.job, epoch.section_start, checkpoint=tmp_path / "checkpoint", seconds=0)
        assert apply.most == 1
    assert compare_database(mysql_server, database, cli.sink) == []


def test_what_a_section_has_read_ahead_is_not_applied_in_the_next(
    spark: SparkSession,
    cli: Cli,
    mysql_server: MySQLServer,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was read by other definitions: the next section reads it again."""
    mysql_server.execute(f"UPDATE `{database}`.t SET v = 2")
    on_batch, sections = StreamQuery._on_batch, list[int]()

    def late(self: StreamQuery, token: object, frame: Any, number: int) -> None:
        end = time.monotonic() + 60
        while number == 1 and self._section != 1 and time.monotonic() < end:
            time.sleep(0.05)
        on_batch(self, token, frame, number)

    monkeypatch.setattr(StreamQuery, "_on_batch", late)
    with cli.epoch() as epoch:
        applied = Applied(cli, mysql_server, epoch, lambda: None)

        def apply(manifests: list[dict[str, Any]]) -> None:
            applied(manifests)
            sections.append(manifests[0]["section"])

        with StreamQuery(spark, apply, on_tick=lambda: None, is_section_over=lambda: len(sections) > wanted) as query:
            for wanted in range(2):
                job = replace(epoch.job, section=wanted)
                query.run_section(job, epoch.applier.offset, checkpoint=tmp_path / str(wanted), seconds=0)
    assert sections == [0, 1]
    assert compare_database(mysql_server, database, cli.sink) == []


def test_one_query_carries_all_sections(
    spark: SparkSession,
    cli: Cli,
    mysql_server: MySQLServer,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A DDL that is followed; one after which a table is suspended, read again, and rejoins; what was read ahead of
    that by the definitions before. The others do not wait until Spark has begun another query.
    """
    mysql_server.session(
        database,
        "CREATE TABLE u (id INT PRIMARY KEY, v INT)",
        "INSERT INTO u VALUES (1, 1)",
        "UPDATE t SET v = 2",
        "ALTER TABLE t ADD COLUMN w INT",
        "UPDATE t SET w = 3",
        "ALTER TABLE t DROP COLUMN v, ADD COLUMN x INT NOT NULL DEFAULT 5",
        "UPDATE t SET x = 4 WHERE id = 1",
        "INSERT INTO u VALUES (2, 2)",
    )
    begun, begin = [], StreamQuery._start_query

    def count(self: StreamQuery, *args: Any) -> None:
        begun.append(args[0].section)
        begin(self, *args)

    monkeypatch.setattr(StreamQuery, "_start_query", count)
    cli.value["stream"] = {"on_table_error": "suspend"}
    cli.write()

    def go_on() -> None:
        """Both have rejoined: what comes then is read by the next section, and the last change ends it all."""
        end = time.monotonic() + 90
        while len(cli.context.plans.require().active_tables) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        mysql_server.session(database, "UPDATE t SET x = 9 WHERE id = 2", "DELETE FROM u WHERE id = 1")
        while 9 not in cli.rows(database, "t").column("x").to_pylist() and time.monotonic() < end:
            time.sleep(0.1)
        epoch.stop.set()

    with cli.epoch() as epoch:
        epoch.job, epoch.target = replace(epoch.job, max_batch_bytes=300, min_range_bytes=100), None
        thread = threading.Thread(target=go_on)
        thread.start()
        run_epoch_on_spark(epoch, spark)
        thread.join()
        assert epoch.job.section >= 3 and begun == [0], "followed, suspended, rejoined"
    cli.catch_up()
    assert compare_database(mysql_server, database, cli.sink) == []


def test_what_suspends_a_table_does_not_end_the_query(
    spark: SparkSession,
    cli: Cli,
    mysql_server: MySQLServer,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither what is found where the next batch is planned, nor what is found where it is read: for the others, to
    begin another query would take seconds.
    """
    for name in ("planned", "staged"):
        mysql_server.execute(f"CREATE TABLE `{database}`.{name} (id INT PRIMARY KEY, d DATE)")
        mysql_server.execute(f"INSERT INTO `{database}`.{name} VALUES (1, NULL)")
    cli = Cli(tmp_path / "other", mysql_server, rf"{database}\..*", name=database)
    cli.value["stream"] = {"on_table_error": "suspend", "fail_on_suspended": False}
    cli.write()
    cli.snapshot()
    by_statement = ("SET SESSION binlog_format = STATEMENT", "UPDATE planned SET d = '2020-01-01'")
    mysql_server.session(database, "UPDATE t SET v = 2", "SET SESSION sql_mode = ''", "UPDATE staged SET d = 0")
    mysql_server.session(database, "UPDATE t SET v = 3 WHERE id = 1", *by_statement)
    mysql_server.session(database, "INSERT INTO t VALUES (3, 3)")
    begun, begin, stopped, stop = [], StreamQuery._start_query, [], StreamQuery._stop

    def count(self: StreamQuery, *args: Any) -> None:
        begun.append(args[0].section)
        begin(self, *args)

    def count_too(self: StreamQuery) -> None:
        stopped.append(self._section)
        stop(self)

    monkeypatch.setattr(StreamQuery, "_start_query", count)
    monkeypatch.setattr(StreamQuery, "_stop", count_too)
    with cli.epoch() as epoch:
        run_epoch_on_spark(epoch, spark)
        assert begun == [0] and stopped == [None], "at the end"
        found = {epoch.plan.tables[step.table].name: step.message for step in epoch.plan.suspensions}
    assert sorted(found) == ["planned", "staged"]
    assert "0000-00-00" in found["staged"] and "statement" in found["planned"]
    assert cli.rows(database, "t").sort_by("id").column("v").to_pylist() == [3, 2, 3]


def test_a_worker_that_comes_up_too_slowly_is_started_again(
    spark: SparkSession, slow: Path, cli: Cli, mysql_server: MySQLServer, database: str, tmp_path: Path
) -> None:
    """On a busy host: Spark gives it ten seconds, whatever is set."""
    mysql_server.execute(f"UPDATE `{database}`.t SET v = 2")
    slow.touch()
    with cli.epoch() as epoch:
        with StreamQuery(
            spark,
            lambda manifests: epoch.apply_batch(merge_manifests(manifests)),
            on_tick=lambda: None,
            is_section_over=epoch.is_section_over,
        ) as query:
            query.run_section(epoch.job, epoch.section_start, checkpoint=tmp_path / "checkpoint", seconds=0)
    assert not slow.exists()
    assert compare_database(mysql_server, database, cli.sink) == []


def test_what_was_read_behind_a_failure_is_not_applied(
    spark: SparkSession, cli: Cli, mysql_server: MySQLServer, database: str, tmp_path: Path
) -> None:
    mysql_server.execute(f"UPDATE `{database}`.t SET v = 2")

    def fail() -> None:
        raise TransientError("the storage is away", "Wait")

    with cli.epoch() as epoch:
        apply = Applied(cli, mysql_server, epoch, fail)
        with (
            StreamQuery(spark, apply, on_tick=lambda: None, is_section_over=lambda: False) as query,
            pytest.raises(TransientError, match="the storage is away"),
        ):
            query.run_section(epoch.job, epoch.section_start, checkpoint=tmp_path / "checkpoint", seconds=0)
        assert apply.count == 1 and epoch.applier.offset == epoch.section_start
    cli.catch_up()
    assert compare_database(mysql_server, database, cli.sink) == []


def test_a_pause_lets_go_of_the_source(
    spark: SparkSession, cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No query runs while the stream is paused; the next one begins where it stood, also after the shortest pause."""
    begun, begin = [], StreamQuery._start_query

    def count(self: StreamQuery, *args: Any) -> None:
        begun.append(args[0].section)
        begin(self, *args)

    monkeypatch.setattr(StreamQuery, "_start_query", count)
    sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"

    def dumps() -> int:
        return int(mysql_server.execute(sql)[0][0])

    def is_equal() -> bool:
        return compare_database(mysql_server, database, cli.sink) == []

    def go_on(epoch: Epoch) -> None:
        try:
            mysql_server.execute(f"UPDATE `{database}`.t SET v = 2")
            wait_for("the first change", is_equal)
            before = dumps()
            epoch.inbox.paused_by = "ann"
            wait_for("nobody to read", lambda: dumps() < before)
            mysql_server.execute(f"UPDATE `{database}`.t SET v = 3")
            time.sleep(2)
            assert begun == [0] and not is_equal()
            epoch.inbox.paused_by = None
            wait_for("the next query", is_equal)
            epoch.inbox.paused_by = "ann"
            wait_for("somebody to see it", lambda: epoch.needs_new_section)
            epoch.inbox.paused_by = None
            mysql_server.execute(f"UPDATE `{database}`.t SET v = 4")
            wait_for("the rest", is_equal)
        except BaseException as error:
            failed.append(error)
        epoch.stop.set()

    failed: list[BaseException] = []
    with cli.epoch() as epoch:
        epoch.target = None
        monkeypatch.setattr(epoch.inbox, "receive_reply", lambda _: None)
        thread = threading.Thread(target=go_on, args=(epoch,))
        thread.start()
        run_epoch_on_spark(epoch, spark)
        thread.join()
    assert not failed and len(begun) >= 2, failed
