"""An Airflow with a live shop and a lake, and what a test asks of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.connections import _parse_uri, mysql_connect_args
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.layout import LocalFiles
from airflow_provider_cdc.state import ChunkGroupRow, EpochRow, StateDatabase
from airflow_provider_cdc.stream.run import begin_epoch
from tests.support.airflow_client import PATIENCE, Client
from tests.support.airflow_processes import Airflow
from tests.support.epochs import run_epoch_in_process
from tests.support.mailbox import Mailbox
from tests.support.oracle import compare_database
from tests.support.otlp import Collector
from tests.support.postgres import Postgres
from tests.support.processes import tail
from tests.support.proxy import Proxy
from tests.support.servers import MySQLServer
from tests.support.workload import Writers


def lake_events(lake: Path) -> Path:
    """What the files begin with that OpenLineage's events are written to, one each."""
    folder = lake.with_name("lineage-events")
    folder.mkdir(exist_ok=True)
    return folder / "event"


@dataclasses.dataclass
class Site:
    """An Airflow, a shop that is written to, and a lake.

    :param metadata: PostgreSQL with Airflow's own tables.
    :param books: PostgreSQL with the bookkeeping of the pipelines in ``tests/in_airflow/dags``; those of the examples
        keep theirs in the lake.
    :param flaky: what the connection ``cdc_source_flaky`` leads through.
    :param collector: gets Airflow's own stats.
    :param mailbox: gets the mails that Airflow sends.
    """

    airflow: Airflow
    server: MySQLServer
    metadata: Postgres
    books: Postgres
    lake: Path
    flaky: Proxy
    collector: Collector
    mailbox: Mailbox
    names: set[str] = dataclasses.field(default_factory=set)

    @property
    def client(self) -> Client:
        return self.airflow.client

    def store(self, name: str) -> StateDatabase:
        self.names.add(name)
        file = LocalFiles.for_pipeline(self.lake, name).state_database
        return StateDatabase.open(f"sqlite:///{file}" if file.exists() else self.bookkeeping, migrate=False)

    @property
    def bookkeeping(self) -> str:
        """URL of the shared bookkeeping."""
        return self.books.sqlalchemy_url("bookkeeping")

    def stream(self, name: str) -> EpochRow:
        with contextlib.closing(self.store(name)) as store:
            found = store.newest_epoch(name)
            assert found is not None
            return found

    def group(self, name: str, number: int) -> ChunkGroupRow:
        with contextlib.closing(self.store(name)) as store:
            return store.group(name, 1, number)

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s\n{self._story()}"
            time.sleep(0.5)
        return found

    def wait_numbers(self, name: str) -> None:
        """Until Airflow's own stats have the numbers of a stream that has applied something."""

        def told() -> bool:
            found = self.collector.of(pipeline=name)
            return found.get("airflow.cdc.running") == 1 and found.get("airflow.cdc.changes", 0) > 0

        self.wait(f"the numbers of {name}", told)

    def _story(self) -> str:
        """What is known when a wait was in vain: CI shows nothing else of it."""
        try:
            streams = "\n".join(f"{name}: {vars(self.stream(name))}" for name in sorted(self.names))
        except Exception as error:  # a test may have stopped the bookkeeping
            streams = f"streams: {error}"
        triggerer = tail(self.airflow.process("triggerer").log, 30)
        return f"{streams}\n{self.client.stories()}\n--- triggerer\n{triggerer}"

    def wait_epoch(self, name: str, after: int) -> EpochRow:
        """Until a stream is in a newer epoch. On a busy machine that may be the second one after it."""
        self.wait(f"an epoch of {name} after {after}", lambda: self.stream(name).epoch > after)
        return self.stream(name)

    def wait_batch(self, name: str, epoch: int) -> None:
        """Until a stream has applied one more batch with changes, in this epoch or a newer one."""

        def newest() -> int:
            with contextlib.closing(self.store(name)) as store:
                found = [b.batch_id for b in store.last_batches(name, 20) if b.epoch >= epoch and b.changes]
                return max(found, default=-1)

        before = newest()
        self.wait(f"a batch of epoch {epoch} of {name}", lambda: newest() > before)

    def wait_supervised(self, name: str) -> None:
        """Until the triggerer has looked at a stream after now: a trigger that has not begun cannot stop it."""
        now = time.time()
        self.wait(
            f"somebody who looks after {name}",
            lambda: (at := self.stream(name).supervised_at) and at.timestamp() > now,
        )

    def stop(self, name: str) -> None:
        """As `airflow-cdc stop` does."""
        with contextlib.closing(self.store(name)) as store:
            assert store.request_stop(name)

    def catch_up(self, pipeline: Pipeline) -> None:
        """Apply what was written after the stream's end, in this process."""
        args = mysql_connect_args(_parse_uri("cdc_source", self.server.uri()))
        context = RunContext(pipeline, {**args}, self.bookkeeping if pipeline.state.conn_id else None)
        with contextlib.closing(context.open_state_database()) as store:
            run_epoch_in_process(begin_epoch(context, store, catch_up=True))

    def lineage(self) -> list[dict[str, Any]]:
        """What OpenLineage was told, in order."""
        files = lake_events(self.lake).parent.glob("*.json")
        return [json.loads(file.read_text()) for file in sorted(files)]

    def equal(self, *tables: str, lake: Path | None = None) -> None:
        """Whether the tables, that nobody writes to now, are the same in the lake."""
        found = [str(d) for d in compare_database(self.server, "shop", lake or self.lake, tables)]
        assert not found, found

    @contextlib.contextmanager
    def written(self, *only: str) -> Iterator[None]:
        """Writers at work on some of the tables, or on all of them."""
        with Writers(self.server.connect_args(), rate=15, only=only):
            yield
