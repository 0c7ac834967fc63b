"""Connections to servers that fall silent, or take no writes."""

from __future__ import annotations

from contextlib import ExitStack, closing

import pytest
from sqlalchemy import URL, event, make_url, text

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.state import StateDatabase, engine
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
