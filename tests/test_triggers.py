"""Triggers: what Airflow asks of them must not be lost."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path

from airflow_provider_cdc.store import Store
from airflow_provider_cdc.triggers.cdc import _Bookkeeping


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
