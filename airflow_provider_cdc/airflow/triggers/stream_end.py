"""The trigger that waits until a stopping stream has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from airflow.triggers.base import TriggerEvent

from airflow_provider_cdc.airflow.triggers.cdc import StateDatabaseTrigger
from airflow_provider_cdc.model.errors import CdcError, embed_error
from airflow_provider_cdc.model.supervision import EpochWatch


class CdcStreamEndTrigger(StateDatabaseTrigger):
    """Fires when an epoch is over, or when the time to wait for that is up.

    :param pipeline: name of the pipeline.
    :param epoch: the epoch.
    :param until: when to give up, in seconds since 1970.
    :param state_conn_id: connection of the state database, or ``None`` for the SQLite file ``state_path``.
    :param state_path: path of that file.
    :param poll_seconds: seconds between two checks.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        epoch: int,
        until: float,
        state_conn_id: str | None,
        state_path: str,
        poll_seconds: float,
    ) -> None:
        super().__init__(
            pipeline=pipeline,
            epoch=epoch,
            until=until,
            state_conn_id=state_conn_id,
            state_path=state_path,
            poll_seconds=poll_seconds,
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until there is an event to fire."""
        k = self._kwargs
        self._began = time.monotonic()
        watch, subject = EpochWatch(k["epoch"]), f"epoch {k['epoch']} of the stream of {k['pipeline']}"
        while True:
            try:
                row = await self._query(lambda store: store.probe_newest_epoch(k["pipeline"]), subject)
            except CdcError as error:
                yield await self._make_event({"epoch": k["epoch"], "unseen": embed_error(error)})
                return
            verdict = watch.observe(row, time.monotonic())
            if verdict is not None or time.time() > k["until"]:
                yield await self._make_event({"epoch": k["epoch"], "verdict": verdict and str(verdict)})
                return
            await asyncio.sleep(k["poll_seconds"])
