"""Connections to servers that fall silent, or take no writes; files that several connections use."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import URL, event, make_url, text

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.state import StateDatabase, engine
from tests import ROOT
from tests.support.postgres import Postgres
from tests.support.proxy import Proxy


@pytest.mark.timeout(60)
def test_a_connection_that_falls_silent(url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall that has forgotten it, for one: the next question takes a new one, and does not wait for ever."""
    monkeypatch.setattr(engine, "SILENCE_SECONDS", 1.0)
    assert url.port
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(url.port))
        store = stack.enter_context(closing(StateDatabase.open(url.set(port=proxy.port), migrate=True)))
        store.register_pipeline("p", "server")
        proxy.silence()
        assert store.pipeline_names() == ["p"]

        # In the middle of a transaction it is an outage.
        event.listen(store._engine, "after_cursor_execute", lambda *_: proxy.silence())
        with pytest.raises(TransientError, match="state database .*"):
            store.register_pipeline("q", "server")


@pytest.mark.timeout(60)
def test_a_statement_of_a_migration_may_take_its_time(url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SILENCE_SECONDS", 0.5)
    sleep = text("SELECT pg_sleep(1.5)" if url.get_backend_name() == "postgresql" else "SELECT SLEEP(1.5)")
    with closing(StateDatabase.open(url, migrate=True)) as store, pytest.raises(TransientError):
        with store._write_session() as session:
            session.execute(sleep)
    patient = engine.make_engine(url, for_migration=True)
    with patient.connect() as connection:
        connection.execute(sleep)
    patient.dispose()


def test_a_server_that_takes_no_writes(postgres: Postgres) -> None:
    """PostgreSQL calls that an internal error."""
    address = make_url(postgres.sqlalchemy_url("bookkeeping"))
    StateDatabase.open(address, migrate=True).close()
    standby = address.update_query_dict({"options": "-c default_transaction_read_only=on"})
    with closing(StateDatabase.open(standby, migrate=True)) as store:
        assert store.pipeline_names() == []
        with pytest.raises(TransientError, match="read-only transaction. Try again when it is .* writable"):
            store.register_pipeline("r", "server")


_OTHER_PROCESS = """
import sys
from contextlib import closing
from airflow_provider_cdc.state import StateDatabase
with closing(StateDatabase.open(sys.argv[1], migrate=True)) as store:
    store.register_pipeline(sys.argv[2], "server")
"""


def test_a_file_that_is_opened_twice_in_a_process(tmp_path: Path) -> None:
    """The first connection keeps its locks: it sees what other processes write, and nothing is lost when they leave."""
    address = f"sqlite:///{tmp_path}/bookkeeping.db"

    def write_elsewhere(pipeline: str) -> None:
        subprocess.run([sys.executable, "-c", _OTHER_PROCESS, address, pipeline], cwd=ROOT, check=True)

    with closing(StateDatabase.open(address, migrate=True)) as store:
        store.register_pipeline("a", "server")
        StateDatabase.open(address, migrate=True).close()
        write_elsewhere("b")
        assert sorted(store.pipeline_names()) == ["a", "b"]
        store.register_pipeline("c", "server")
        write_elsewhere("d")
        assert sorted(store.pipeline_names()) == ["a", "b", "c", "d"]
    with closing(StateDatabase.open(address, migrate=True)) as store:
        assert sorted(store.pipeline_names()) == ["a", "b", "c", "d"]
