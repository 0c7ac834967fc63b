"""Stopping a stream and asking for a status, without Airflow's processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_cdc import CdcStatusOperator, CdcStopOperator
from airflow_provider_cdc.airflow.triggers.cdc import CdcStreamEndTrigger
from airflow_provider_cdc.model.errors import NotReadyError, TransientError, embed_error
from airflow_provider_cdc.runtime.liveness import process_identity
from airflow_provider_cdc.state import StateDatabase
from tests.support.cli import Cli
from tests.support.servers import MySQLServer


class Ti(SimpleNamespace):
    """As much of a task instance as is asked."""

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed = {key: value}


TI = Ti(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
CONTEXT: Any = {"ti": TI}


@pytest.fixture
def cli(tmp_path: Path, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1)")
    cli = Cli(tmp_path, mysql_server, f"{database}.t")
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    with cli.opened() as (context, store):
        context.plans.ensure(store)
    return cli


def stop(cli: Cli, **kwargs: Any) -> CdcStopOperator:
    return CdcStopOperator(task_id="stop", pipeline=cli.value, poll_seconds=0.1, **kwargs)


@contextmanager
def streaming(store: StateDatabase, name: str, at_stop: Callable[[int], None]) -> Iterator[int]:
    """A stream as far as the bookkeeping knows: its heart beats until it is asked to stop."""
    store.allow_stream(name)
    epoch, over = store.begin_epoch(name, 0, *process_identity()), threading.Event()

    def beat() -> None:
        while not over.wait(0.1):
            row = store.record_heartbeat(name, epoch, True)
            if row is not None and store.newest_epoch(name).desired_state == "stop":  # type: ignore[union-attr]
                at_stop(epoch)
                return

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield epoch
    finally:
        over.set()
        thread.join()


def successor(store: StateDatabase, name: str) -> None:
    store.allow_stream(name)
    store.begin_epoch(name, 0, *process_identity())


def test_a_stream_is_stopped_as_a_person_stops_it(cli: Cli) -> None:
    nothing = {"epoch": None, "state": None, "end": None}
    assert stop(cli).execute(CONTEXT) == nothing
    with cli.opened() as (_, store):
        name = cli.value["name"]
        with streaming(store, name, lambda epoch: store.end_epoch(name, epoch, "stopped")) as epoch:
            found = stop(cli, deferrable=False).execute(CONTEXT)
            assert found == {"epoch": epoch, "state": "stopped", "end": None}
            run = store.newest_epoch(name)
            assert run is not None and run.stop_by is None
            asked = [event for event in reversed(store.last_events(name, 9)) if event.kind == "stream_stop"]
            assert {event.by for event in asked} == {"d.t, run r, try 1"}
            assert [event.detail for event in asked] == [
                "the stream was asked not to begin",
                f"the stream was asked to stop (epoch {epoch})",
            ]
    assert stop(cli).execute(CONTEXT) == nothing


def test_its_end_is_waited_for_in_the_triggerer(cli: Cli) -> None:
    with cli.opened() as (context, store):
        name = cli.value["name"]
        with streaming(store, name, lambda epoch: time.sleep(0)) as epoch, pytest.raises(TaskDeferred) as found:
            stop(cli).execute(CONTEXT)
        path, kwargs = found.value.trigger.serialize()
        assert path.endswith("triggers.cdc.CdcStreamEndTrigger") and kwargs["epoch"] == epoch
        assert kwargs["state_path"] == str(context.local_files.state_database)
        CdcStreamEndTrigger(**kwargs)
        until = found.value.kwargs["until"]  # type: ignore[index]
        store.end_epoch(name, epoch, "failed", "an error")
        ended = stop(cli).resume(CONTEXT, {"epoch": epoch, "verdict": "failed"}, until)
        assert ended["state"] == "failed"
        with pytest.raises(TransientError, match=f"epoch {epoch} of {name} was asked to stop, but has not ended"):
            stop(cli).resume(CONTEXT, {"epoch": epoch, "verdict": None}, until)
        unseen = embed_error(NotReadyError("the triggerer on far has looked in vain", "Name a database"))
        with pytest.raises(AirflowFailException, match="looked in vain"):
            stop(cli).resume(CONTEXT, {"epoch": epoch, "unseen": unseen}, until)


def test_what_does_not_end_or_begins_again(cli: Cli) -> None:
    with cli.opened() as (_, store):
        name = cli.value["name"]
        with (
            streaming(store, name, lambda epoch: time.sleep(3)),
            pytest.raises(TransientError, match="has not ended within 0:00:01"),
        ):
            stop(cli, deferrable=False, timeout=timedelta(seconds=1)).execute(CONTEXT)
        with (
            streaming(store, name, lambda epoch: successor(store, name)) as epoch,
            pytest.raises(TransientError, match=rf"epoch {epoch} .* epoch {epoch + 1} has begun since"),
        ):
            stop(cli, deferrable=False).execute(CONTEXT)


def test_what_a_status_fails_for(cli: Cli) -> None:
    def ask(*words: str, **alerts: float) -> dict[str, Any]:
        pipeline = {**cli.value, "alerts": alerts}
        found: dict[str, Any] = CdcStatusOperator(task_id="s", pipeline=pipeline, fail_on=words).execute(CONTEXT)
        return found

    found = ask()
    assert found["phase"] == "snapshot" and found["stream"] is None and "definitions" not in found["tables"][0]
    assert ask("suspended", "stopped", "lag", "purge_risk", lag_seconds=60, hours_to_purge=1) == found
    with pytest.raises(AirflowFailException, match="fail_on has lag, but alerts.lag_seconds of .* is not set"):
        ask("lag")
    with pytest.raises(AirflowFailException, match="the source may purge needed binlogs in .* h, less than 1e"):
        ask("purge_risk", hours_to_purge=1e6)
    assert TI.pushed["return_value"]["phase"] == "snapshot"
    for wrong in (["lags"], "lag"):
        with pytest.raises(ValueError, match="give a list of suspended, stopped, lag, purge_risk"):
            CdcStatusOperator(task_id="s", pipeline=cli.value, fail_on=wrong)
