"""One Airflow for all tests of this folder: starting it takes half a minute."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc.system.processes import kill_session, session_members
from tests import ROOT
from tests.in_airflow.site import Site, lake_events
from tests.support.airflow_processes import Airflow
from tests.support.mailbox import Mailbox
from tests.support.otlp import Collector
from tests.support.postgres import Postgres
from tests.support.proxy import Proxy
from tests.support.servers import MySQLServer
from tests.support.transforms import HASH_CONNECTION, HASH_ENV
from tests.support.workload_tables import make_shop


@pytest.fixture(scope="package")
def site(
    mysql_server: MySQLServer, cdc_user: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    lake = folder / "lake"
    transport = {"type": "file", "log_file_path": str(lake_events(lake)), "append": False}
    with contextlib.closing(mysql_server.connect()) as connection:
        make_shop(connection, customers=20_000, addresses=3_000, orders=15_000)
    # Two servers: one may be away while the other is not.
    with contextlib.ExitStack() as stack:
        stack.callback(mysql_server.execute, "DROP DATABASE IF EXISTS shop")
        metadata = stack.enter_context(Postgres(["airflow"]))
        books = stack.enter_context(Postgres(["bookkeeping"]))
        flaky = stack.enter_context(Proxy(mysql_server.port))
        collector = stack.enter_context(Collector())
        mailbox = stack.enter_context(Mailbox())
        airflow = Airflow(
            [ROOT / "dags", Path(__file__).parent / "dags"],
            database_url=metadata.sqlalchemy_url(),
            connections={
                "cdc_source": mysql_server.uri(**cdc_user),
                "cdc_source_flaky": mysql_server.uri(**cdc_user).replace(f":{mysql_server.port}", f":{flaky.port}"),
                "cdc_state": books.uri(),
                "cdc_file": f"sqlite:///{lake}-file.db",
                "cdc_nobody": mysql_server.uri(user="nobody", password="wrong"),
                "cdc_away": "mysql://u:p@127.0.0.1:1/",
                "smtp_default": mailbox.uri,
                HASH_CONNECTION: HASH_ENV[f"AIRFLOW_CONN_{HASH_CONNECTION.upper()}"],
            },
            env={"CDC_LAKE": str(lake), "CDC_SHARDS": "cdc_source cdc_source", "CDC_DEADLINE_MINUTES": "0.05"},
            config={
                "core": {"parallelism": 3},  # a Spark driver needs a core to start in reasonable time
                "cdc": {"report_seconds": 3},
                "triggerer": {"triggerer_health_check_threshold": 6},
                # For its provider, which only the environments of tests.versions have.
                "openlineage": {"transport": json.dumps(transport)},
                "metrics": {
                    "otel_on": True,
                    "otel_host": "127.0.0.1",
                    "otel_port": collector.port,
                    "otel_interval_milliseconds": 3000,
                },
            },
        )
        site = Site(stack.enter_context(airflow), mysql_server, metadata, books, lake, flaky, collector, mailbox)
        stack.callback(_end_streams, site)  # they outlive the tasks that started them
        yield site


def _end_streams(site: Site) -> None:
    for name in site.names:
        with contextlib.suppress(Exception):
            run = site.stream(name)
            if session_members(run.pid):
                kill_session(run.pid)
