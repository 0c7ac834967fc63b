"""A server that dies and comes back, in each phase: the source, and the one of the state database."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.chunk_groups.task import SnapshotJob, run_in_threads
from airflow_provider_cdc.model import supervision
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.runtime import liveness
from airflow_provider_cdc.snapshot import claims
from airflow_provider_cdc.snapshot.run import run_group
from tests.support.mariadb import MariaDBServer
from tests.support.phases import Fault, World, failed
from tests.support.postgres import Postgres
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer

#: Seconds after which a heartbeat that stands still is lost; other limits are in conftest.py.
LOST_AFTER = 2.0


def carry(kind: type[MySQLServer], folder: Path, make: Callable[[MySQLServer], Fault]) -> None:
    """Let a source fail, in each phase; a run that begins meanwhile, or reads a chunk, ends with a transient error."""
    with kind() as server:
        server.execute("CREATE DATABASE d")
        world = World(server, "d", folder)
        said = world.carry(make(server))
    assert {place for place in said if place.endswith("the start")} <= failed(said), said
    assert "snapshot at chunk.after_select:2" in failed(said), said


@pytest.mark.one_of("kind")
@pytest.mark.parametrize("kind", [MySQLServer, MariaDBServer], ids=["MySQL", "MariaDB"])
def test_the_source_is_killed(kind: type[MySQLServer], tmp_path: Path) -> None:
    carry(kind, tmp_path, lambda server: Fault(server.kill, server.start))


@pytest.mark.one_of("kind")
@pytest.mark.parametrize("kind", [MySQLServer, MariaDBServer], ids=["MySQL", "MariaDB"])
def test_the_source_stands_still(kind: type[MySQLServer], tmp_path: Path) -> None:
    """It takes connections, and answers nothing."""

    def make(server: MySQLServer) -> Fault:
        pid = server.pid
        if pid is None:
            pytest.skip("only a process can be stopped")
        return Fault(lambda: os.kill(pid, signal.SIGSTOP), lambda: os.kill(pid, signal.SIGCONT))

    carry(kind, tmp_path, make)


class Away:
    """A server that is stopped for longer than any time limit."""

    def __init__(self, kind: str) -> None:
        self.server: Any = Postgres(["bookkeeping"]) if kind == "postgres" else MySQLServer()

    def __enter__(self) -> Away:
        self.server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.__exit__(*error)

    def uri(self) -> str:
        if isinstance(self.server, Postgres):
            return self.server.uri("bookkeeping")
        self.server.execute("CREATE DATABASE IF NOT EXISTS books")
        return f"{self.server.uri().partition('?')[0]}books"

    def leave(self) -> None:
        self.server.kill()

    def come_back(self) -> None:
        self.server.start()


@pytest.fixture(params=["postgres", "mysql"])
def away(request: pytest.FixtureRequest) -> Iterator[Away]:
    with Away(request.param) as found:
        yield found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute takes seconds for those who wait for a heartbeat, too."""
    for module in (claims, liveness, supervision):
        monkeypatch.setattr(module, "LOST_AFTER_SECONDS", LOST_AFTER)


@pytest.mark.one_of("away")
def test_the_state_database_is_away_for_longer_than_all_limits(
    mysql_server: MySQLServer, database: str, away: Away, tmp_path: Path, impatient: None
) -> None:
    """A stream goes on; what is wanted of it is done when the state database is back."""
    env = {"AIRFLOW_CONN_BOOKS": away.uri()}
    world = World(mysql_server, database, tmp_path, env, state={"conn_id": "books"})
    world.run("snapshot")
    world.write(1)  # the copies are equal only behind the first batch
    with world.cli.streaming() as epoch:
        wait_for("the first batch", lambda: world.differences() == [], 60)
        name, number = world.cli.value["name"], epoch.number
        away.leave()
        began = time.monotonic()
        while time.monotonic() - began < 20:  # all limits are 2 s
            world.write(2)
            wait_for("the copies to follow", lambda: world.differences() == [], 60)
            time.sleep(1)
        assert not epoch.stop.is_set()
        away.come_back()
        with closing(world.cli.context.open_state_database()) as store:

            def heartbeat() -> Any:
                row = store.newest_epoch(name)
                assert row is not None and (row.epoch, row.state) == (number, "running")
                return row.heartbeat_at

            before = heartbeat()
            wait_for("a heartbeat", lambda: heartbeat() != before, 30)
            asked = store.add_request(name, "suspend", f"{database}.plain", "ann")
            wait_for("the request", lambda: store.request(name, asked).state == "done", 60)  # type: ignore[union-attr]
            batches = store.batch_totals(name).batches
            world.write(1)
            wait_for("a batch that is written down", lambda: store.batch_totals(name).batches > batches, 60)


@pytest.mark.one_of("away")
def test_it_is_away_while_a_group_is_read(
    mysql_server: MySQLServer, database: str, away: Away, tmp_path: Path, impatient: None
) -> None:
    """What was read and published stands; the next try adopts it, and nobody reads the group meanwhile."""
    world = World(mysql_server, database, tmp_path, {"AIRFLOW_CONN_BOOKS": away.uri()}, state={"conn_id": "books"})
    with world.cli.opened() as (context, store):
        plan = context.plans.ensure(store)

        def run(job: SnapshotJob) -> list[dict[str, Any]]:
            away.leave()
            time.sleep(LOST_AFTER + 3)
            return run_in_threads(job)

        with pytest.raises(TransientError, match="state database .*Try again when it is reachable"):
            run_group(context, store, plan, 0, run, holder="me")
        with pytest.raises(TransientError, match="state database"):
            run_group(context, store, plan, 0, run_in_threads, holder="another")
        away.come_back()
        assert run_group(context, store, plan, 0, run_in_threads, holder="another").outcome == "adopted"
    world.run("snapshot")
    world.run("handover")
    assert world.differences() == []
