"""Triggers: what Airflow asks of them must not be lost."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_cdc.store import Store
from airflow_provider_cdc.triggers.cdc import CdcSnapshotTrigger, _Bookkeeping


def test_a_cancellation_is_never_lost(tmp_path: Path) -> None:
    """Somebody marks the task at the moment when an answer has come: the trigger would watch on for ever."""
    path = tmp_path / "bookkeeping.db"
    with closing(Store.open(f"sqlite:///{path}", migrate=True)):
        pass

    async def watch() -> None:
        books = _Bookkeeping(None, str(path))
        try:
            while True:
                await books.ask(lambda _: time.sleep(0.002))
        finally:
            if books._store is not None:
                books._store.close()

    async def main() -> list[tuple[str, ...]]:
        found = []
        for _ in range(30):
            task = asyncio.create_task(watch())
            await asyncio.sleep(0.05)
            time.sleep(0.02)  # a loop that is busy: the answer comes meanwhile
            task.cancel("by a user")
            await asyncio.wait({task}, timeout=1)
            try:
                task.result()
            except asyncio.CancelledError as error:
                found.append(error.args)
            except asyncio.InvalidStateError:
                while not task.done():
                    task.cancel()
                    await asyncio.wait({task}, timeout=0.05)
        return found

    assert asyncio.run(main()) == [("by a user",)] * 30


def test_no_event_right_after_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow takes a task that is resumed while its worker still ends for one that has ended in a wrong state."""
    monkeypatch.setattr("airflow_provider_cdc.triggers.cdc._SETTLE_SECONDS", 2.0)
    path = tmp_path / "bookkeeping.db"
    with closing(Store.open(f"sqlite:///{path}", migrate=True)):
        pass
    trigger = CdcSnapshotTrigger(pipeline="p", generation=1, state_conn_id=None, state_path=str(path), poll_seconds=0.1)

    async def first() -> object:
        async for event in trigger.run():
            return event.payload
        return None

    began = time.monotonic()
    assert asyncio.run(first()) == {"complete": False}
    assert time.monotonic() - began >= 2.0
