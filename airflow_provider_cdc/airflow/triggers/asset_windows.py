"""The trigger of a table's asset: emits events for the changes that a continuous stream applies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_cdc.airflow.triggers.state_database import SerializedFields, SharedStateDatabase
from airflow_provider_cdc.observe.asset_windows import WATCHER, is_window_empty, window_between, window_mark

#: Key in the asset's store of the mark up to which events were emitted.
STORE_KEY = "cdc_told"
#: Seconds between two checks, and seconds that Airflow has to record an event before it counts as emitted.
_POLL_SECONDS, _WRITE_SECONDS = 15.0, 4.0


@dataclass(kw_only=True, eq=False, repr=False)
class CdcTableTrigger(SerializedFields, BaseEventTrigger):
    """Fires when there is new data in the copy of a table, and never ends.

    The mark up to which events were emitted is kept in the asset's store, or before Airflow 3.3 in the state database.
    Each window therefore begins where the previous one ended, whichever triggerer runs the trigger. If the triggerer is
    killed before Airflow is sure to have recorded an event, the event is emitted again.

    :param pipeline: name of the pipeline.
    :param database: database of the table.
    :param table: name of the table.
    :param state_conn_id: connection of the state database, or ``None`` for the SQLite file in the sink's folder.
    :param sink_path: ``sink.path``.
    :param min_seconds: seconds between two events.
    """

    pipeline: str
    database: str
    table: str
    state_conn_id: str | None
    sink_path: str
    min_seconds: float = 60.0

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll forever, and fire for each new window."""
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
        """Return the mark up to which events were emitted. Wait until it is known, so that none is emitted twice."""
        while True:
            try:
                if (asset_store := self._asset_store()) is not None:
                    return await asset_store.aget(STORE_KEY)  # type: ignore[no-any-return]
                # A list, so that "nothing emitted yet" differs from "no answer".
                answer = lambda store: [store.window_end(self.pipeline, WATCHER, (self.database, self.table))]  # noqa: E731
                if (answers := await state_db.query_or_none(answer)) is not None:
                    return answers[0]  # type: ignore[no-any-return]
            except Exception as error:
                self.log.warning("could not read up to where events of %s were emitted: %s", self.table, error)
            await asyncio.sleep(_POLL_SECONDS)

    async def _write_mark(self, state_db: SharedStateDatabase, mark: dict[str, Any]) -> None:
        try:
            if (asset_store := self._asset_store()) is not None:
                await asset_store.aset(STORE_KEY, mark)
                return
        except Exception as error:
            self.log.warning(
                "could not record up to where events of %s were emitted; the next window will: %s", self.table, error
            )
            return
        table = self.database, self.table
        await state_db.query_or_none(
            lambda store: store.advance_windows(self.pipeline, WATCHER, {table: mark}, WATCHER)
        )

    def _asset_store(self) -> Any:
        """Return the asset's own store, or ``None`` before Airflow 3.3."""
        return getattr(self, "asset_state_store", None)
