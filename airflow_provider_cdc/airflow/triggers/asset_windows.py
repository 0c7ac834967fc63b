"""The trigger behind a table's asset: it emits what a running stream applies, which no task does that never ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_cdc.airflow.triggers.state_database import SharedStateDatabase
from airflow_provider_cdc.observe.asset_windows import WATCHER, is_window_empty, window_between, window_mark

#: The name under which the asset's own store has the place up to which it was told.
STORE_KEY = "cdc_told"
#: Seconds between two looks; and those that Airflow gets to write an event down, before it counts as told.
_POLL_SECONDS, _WRITE_SECONDS = 15.0, 4.0


class CdcTableTrigger(BaseEventTrigger):
    """Fires when there is something new in the copy of a table, and never ends.

    The place up to which it was told is kept in the asset's store, before Airflow 3.3 in the bookkeeping: whichever
    triggerer runs it, each window begins where the one before ended. A window that Airflow may not have written down
    when the triggerer was killed is told again.

    :param pipeline: name of the pipeline.
    :param database: of the table, and ``table``: its name.
    :param state_conn_id: connection of the bookkeeping database, ``None`` for the SQLite file beside the sink.
    :param sink_path: ``sink.path``.
    :param min_seconds: seconds between two events.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        database: str,
        table: str,
        state_conn_id: str | None,
        sink_path: str,
        min_seconds: float = 60.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.database = database
        self.table = table
        self.state_conn_id = state_conn_id
        self.sink_path = sink_path
        self.min_seconds = min_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class and arguments."""
        names = ("pipeline", "database", "table", "state_conn_id", "sink_path", "min_seconds")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look now and then, for ever."""
        from airflow_provider_cdc.sinks.files.layout import LocalFiles

        state_db = SharedStateDatabase.shared(
            self.state_conn_id, str(LocalFiles.for_pipeline(self.sink_path, self.pipeline).state_database)
        )
        table = self.database, self.table
        last_mark = await self._read_mark(state_db)
        while True:
            counts = await state_db.query_or_none(lambda store: store.table_counts(self.pipeline, table))
            mark = window_mark(counts[0]) if counts else None
            new_window = window_between(last_mark, mark) if mark else None
            if mark is None or new_window is None or is_window_empty(new_window):
                await asyncio.sleep(_POLL_SECONDS)
                continue
            began = time.monotonic()
            event_extra = {"pipeline": self.pipeline, "table": ".".join(table)}
            yield TriggerEvent({**event_extra, "kind": "changes", **new_window})  # type: ignore[no-untyped-call]
            await asyncio.sleep(_WRITE_SECONDS)
            last_mark = mark
            await self._write_mark(state_db, mark)
            await asyncio.sleep(max(_POLL_SECONDS, began + self.min_seconds - time.monotonic()))

    async def _read_mark(self, state_db: SharedStateDatabase) -> dict[str, Any] | None:
        """Up to where it was told. It waits until that is known: what was told is not told again."""
        while True:
            try:
                if (asset_store := self._asset_store()) is not None:
                    return await asset_store.aget(STORE_KEY)  # type: ignore[no-any-return]
                # A list, so that nothing told yet differs from no answer.
                answer = lambda store: [store.window_end(self.pipeline, WATCHER, (self.database, self.table))]  # noqa: E731
                if (answers := await state_db.query_or_none(answer)) is not None:
                    return answers[0]  # type: ignore[no-any-return]
            except Exception as error:
                self.log.warning("could not find out up to where %s was told: %s", self.table, error)
            await asyncio.sleep(_POLL_SECONDS)

    async def _write_mark(self, state_db: SharedStateDatabase, mark: dict[str, Any]) -> None:
        try:
            if (asset_store := self._asset_store()) is not None:
                await asset_store.aset(STORE_KEY, mark)
                return
        except Exception as error:
            self.log.warning("could not note up to where %s was told; the next window notes it: %s", self.table, error)
            return
        table = self.database, self.table
        await state_db.query_or_none(
            lambda store: store.advance_windows(self.pipeline, WATCHER, {table: mark}, WATCHER)
        )

    def _asset_store(self) -> Any:
        """The asset's own store; ``None`` before Airflow 3.3."""
        return getattr(self, "asset_state_store", None)
