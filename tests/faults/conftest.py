"""Time limits that are short enough to be reached, and servers that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.client import session
from airflow_provider_cdc.sinks.iceberg.catalogs import rest_client, sql_tables
from airflow_provider_cdc.sinks.storage import object_storage, store_client
from airflow_provider_cdc.state import engine
from tests.support.iceberg_rest import IcebergRest, running_rest_catalog
from tests.support.postgres import Postgres


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes half a minute, or ten, takes seconds."""
    monkeypatch.setattr(session, "_LOGIN_SECONDS", 3)
    monkeypatch.setattr(session, "_ANSWER_SECONDS", 3)
    monkeypatch.setitem(cast("dict[str, Any]", BinlogStream.__init__.__kwdefaults__), "read_timeout", 3)
    monkeypatch.setattr(engine, "SILENCE_SECONDS", 2.0)
    monkeypatch.setattr(engine, "CONNECT_SECONDS", 2)
    monkeypatch.setattr(sql_tables, "SILENCE_SECONDS", 2.0)
    monkeypatch.setattr(sql_tables, "_CONNECT_SECONDS", 2)
    monkeypatch.setattr(rest_client, "SILENCE_SECONDS", 2.0)
    monkeypatch.setattr(rest_client, "CONNECT_SECONDS", 2.0)
    short = {"connect_timeout": timedelta(seconds=2), "timeout": timedelta(seconds=2)}
    monkeypatch.setattr(store_client, "_CLIENT_OPTIONS", {**store_client._CLIENT_OPTIONS, **short})
    retries = {**store_client.RETRY_CONFIG, "max_retries": 1, "retry_timeout": timedelta(seconds=6)}
    monkeypatch.setattr(store_client, "RETRY_CONFIG", retries)
    monkeypatch.setattr(object_storage, "_WRITE_ONCE_TRIES", 2)
    store_client.open_bucket.cache_clear()


@pytest.fixture(scope="package")
def iceberg_rest() -> Iterator[IcebergRest]:
    with running_rest_catalog() as server:
        yield server


@pytest.fixture(scope="package")
def postgres() -> Iterator[Postgres]:
    """For the bookkeeping, and for a catalog."""
    with Postgres(["bookkeeping", "iceberg"]) as server:
        yield server
