"""The same server with another ``--log-bin``: its files have another name, and their numbers begin at 1 again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import PurgedError, TransientError
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    kind = getattr(request, "param", "MySQL")
    without = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"} if "without" in kind else {}
    made: MySQLServer = MariaDBServer({"gtid_strict_mode": "ON"}) if kind == "MariaDB" else MySQLServer(without)
    with made:
        made.session(
            "",
            "CREATE DATABASE d",
            "CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(20))",
            "CREATE TABLE d.log (v INT)",
            "INSERT INTO d.t VALUES (1, 'a'), (2, 'a'), (3, 'a')",
            "INSERT INTO d.log VALUES (1), (1)",
            "FLUSH BINARY LOGS",
            "FLUSH BINARY LOGS",
        )
        yield made


def renamed(server: MySQLServer, name: str) -> None:
    server.variables["log_bin"] = name
    server.restart()


def change(server: MySQLServer, number: int) -> None:
    server.session("d", f"UPDATE t SET v = '{number}' WHERE id = 2", f"INSERT INTO t VALUES ({number}, 'new')")
    server.session("d", f"INSERT INTO log VALUES ({number})", "DELETE FROM log WHERE v = 1 LIMIT 1")


def exact(cli: Cli, server: MySQLServer, generation: int) -> None:
    cli.catch_up()
    assert compare_database(server, "d", cli.sink) == []
    assert all(found.is_equal for found in verify_tables(cli.context))
    assert cli.context.plans.require().generation == generation


@pytest.mark.parametrize("batches", [0, 1])
def test_gtids_tell_the_place(server: MySQLServer, tmp_path: Path, batches: int) -> None:
    """Everything that was purged with the old name was read: also where the stream has had no batch."""
    cli = Cli(tmp_path, server, r"d\..*", stream={"on_purged": "reread"})
    cli.snapshot()
    for number in range(batches):
        change(server, 10 + number)
        cli.catch_up()
    renamed(server, "other")
    change(server, 20)
    cli.snapshot()
    exact(cli, server, 1)
    renamed(server, "binlog")  # its numbers go on, and positions of before are not meant
    change(server, 30)
    exact(cli, server, 1)
    change(server, 31)
    exact(cli, server, 1)


@pytest.mark.parametrize("server", ["MySQL", "MySQL without GTIDs", "MariaDB"], indirect=True)
def test_what_was_not_read_is_purged(server: MySQLServer, tmp_path: Path) -> None:
    """Or nothing tells whether it was: ``stream.on_purged`` says what to do."""
    cli = Cli(tmp_path, server, r"d\..*")
    cli.snapshot()
    change(server, 10)
    cli.catch_up()
    server.session("d", "INSERT INTO t VALUES (11, 'unread')")
    renamed(server, "other")
    with pytest.raises(PurgedError, match="whose files have another name, and GTIDs do not determine") as purged:
        cli.catch_up()
    assert "on_purged" in purged.value.remedy
    cli.value["stream"] = {"on_purged": "reread"}
    cli.write()
    cli.snapshot()
    change(server, 20)
    exact(cli, server, 2)
    change(server, 21)
    exact(cli, server, 2)


def test_a_snapshot_that_the_stream_has_not_passed(server: MySQLServer, tmp_path: Path) -> None:
    """What its chunks hold is told by positions of the old name, also where no transaction lies in between."""
    cli = Cli(tmp_path, server, r"d\..*", stream={"on_purged": "reread"})
    with cli.opened() as (context, store):
        context.plans.ensure(store)
    server.execute("FLUSH BINARY LOGS")
    cli.snapshot()
    renamed(server, "other")
    with pytest.raises(PurgedError, match="had not passed the snapshot of"):
        cli.catch_up()
    cli.snapshot()
    exact(cli, server, 2)


def test_in_the_middle_of_an_epoch(server: MySQLServer, tmp_path: Path) -> None:
    cli = Cli(tmp_path, server, r"d\..*")
    cli.snapshot()
    change(server, 10)
    cli.catch_up()
    with cli.epoch() as run:
        renamed(server, "other")
        with pytest.raises(TransientError, match="have another name now"), closing(run.job.make_planner()) as planner:
            planner.find_batch_end(run.section_start, 1)
    change(server, 20)
    exact(cli, server, 1)
