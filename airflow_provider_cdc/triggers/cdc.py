"""Triggers: they look at the bookkeeping database now and then, in a thread, and never block the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_cdc.core.supervision import Verdict, Watch, next_try
from airflow_provider_cdc.exceptions import CdcError

if TYPE_CHECKING:
    from airflow_provider_cdc.store import Store

T = TypeVar("T")

#: Seconds that a question to the bookkeeping may take, and between two lines about a stream that runs well.
_PATIENCE, _LINE_SECONDS = 20.0, 60.0
#: Seconds between two attempts to ask for a stop.
_RETRY_SECONDS = 1.0
#: Seconds from a trigger's start to the first event it may fire. A task that is resumed while its worker's process is
#: still ending (5 s were seen) is taken by Airflow's scheduler for one that has ended in a wrong state, and fails.
_SETTLE_SECONDS = 10.0


class _Bookkeeping:
    """The bookkeeping database, asked from an event loop.

    :param conn_id: its connection; ``None`` for the SQLite file ``path``.
    """

    def __init__(self, conn_id: str | None, path: str) -> None:
        self._conn_id, self._path = conn_id, path
        self._store: Store | None = None

    async def ask(self, question: Callable[[Store], T]) -> T | None:
        """Ask in a thread.

        :returns: the answer; ``None`` if there was none in time: the database is away, or is being made anew.
        """
        try:
            # Not wait_for(): before Python 3.12 it loses a cancellation that meets the answer.
            async with asyncio.timeout(_PATIENCE):
                return await asyncio.to_thread(self._answer, question)
        except (CdcError, TimeoutError):
            return None

    def _answer(self, question: Callable[[Store], T]) -> T:
        from sqlalchemy.exc import SQLAlchemyError

        from airflow_provider_cdc.exceptions import TransientError
        from airflow_provider_cdc.store import Store

        if self._store is None:
            self._store = Store.open(self._url(), migrate=False)
        try:
            return question(self._store)
        except (CdcError, SQLAlchemyError) as error:
            self._store.close()
            self._store = None
            raise TransientError(str(error)) from None

    def _url(self) -> Any:
        from airflow_provider_cdc.connections import database_url
        from airflow_provider_cdc.hooks.connections import resolve

        return database_url(resolve(self._conn_id)) if self._conn_id else f"sqlite:///{self._path}"


class _CdcTrigger(BaseTrigger):
    """A trigger that looks at the bookkeeping.

    :param kwargs: arguments of the class, among them ``state_conn_id`` and ``state_path``.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kwargs = kwargs
        self._books = _Bookkeeping(kwargs["state_conn_id"], kwargs["state_path"])

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class and arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._kwargs

    async def _event(self, payload: dict[str, Any], began: float) -> TriggerEvent:
        """The event to fire, not too soon after the start."""
        await asyncio.sleep(max(0.0, began + _SETTLE_SECONDS - time.monotonic()))
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]


class CdcSnapshotTrigger(_CdcTrigger):
    """Fires when the snapshot of a pipeline is complete, and when the bookkeeping does not know it any more.

    :param pipeline: name of the pipeline.
    :param generation: number of the snapshot.
    :param state_conn_id: connection of the bookkeeping database, ``None`` for the SQLite file ``state_path``.
    :param state_path: that file.
    :param poll_seconds: seconds between two looks.
    """

    def __init__(
        self, *, pipeline: str, generation: int, state_conn_id: str | None, state_path: str, poll_seconds: float
    ) -> None:
        super().__init__(
            pipeline=pipeline,
            generation=generation,
            state_conn_id=state_conn_id,
            state_path=state_path,
            poll_seconds=poll_seconds,
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is something to say."""
        k = self._kwargs
        began = said = time.monotonic()
        while True:
            # A list, so that no snapshot (the bookkeeping was lost) differs from no answer (it is away).
            found = await self._books.ask(lambda store: [store.snapshot(k["pipeline"], k["generation"])])
            if found is not None and (found[0] is None or found[0].state == "done"):
                yield await self._event({"complete": found[0] is not None}, began)
                return
            if time.monotonic() - said > _LINE_SECONDS:
                said = time.monotonic()
                tables = await self._books.ask(lambda store: store.progress(k["pipeline"], k["generation"])) or []
                done, total = sum(t.done for t in tables), sum(t.chunks for t in tables)
                self.log.info("%s of %s chunks, %s rows", done, total, sum(t.rows for t in tables))
            await asyncio.sleep(k["poll_seconds"])


class CdcStreamTrigger(_CdcTrigger):
    """Watches one epoch of a stream; fires when it has ended, was lost, or was taken over.

    :param pipeline: name of the pipeline.
    :param epoch: the epoch.
    :param found: whether the task found it running, rather than started it.
    :param state_conn_id: connection of the bookkeeping database, ``None`` for the SQLite file ``state_path``.
    :param state_path: that file.
    :param supervisor: the task, as people know it.
    :param poll_seconds: seconds between two looks.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        epoch: int,
        found: bool,
        state_conn_id: str | None,
        state_path: str,
        supervisor: str,
        poll_seconds: float,
    ) -> None:
        super().__init__(
            pipeline=pipeline,
            epoch=epoch,
            found=found,
            state_conn_id=state_conn_id,
            state_path=state_path,
            supervisor=supervisor,
            poll_seconds=poll_seconds,
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch until the epoch is over."""
        k = self._kwargs
        watch, away = Watch(k["epoch"]), False
        began = said = time.monotonic()
        while True:
            row = await self._books.ask(lambda store: store.current_stream(k["pipeline"]))
            verdict: Verdict | None = watch.see(row, time.monotonic())
            if verdict is not None:
                event = {"epoch": k["epoch"], "found": k["found"], "verdict": str(verdict)}
                yield await self._event(event, began)
                return
            if away != (row is None):
                away = row is None
                text = "the bookkeeping cannot be asked; the stream goes on" if away else "the bookkeeping is back"
                self.log.warning("%s", text)
            await self._books.ask(lambda store: store.supervise(k["pipeline"], k["epoch"], k["supervisor"]))
            if row is not None and time.monotonic() - said > _LINE_SECONDS:
                said = time.monotonic()
                await self._say()
            await asyncio.sleep(k["poll_seconds"])

    async def on_kill(self) -> None:
        """Stop the epoch at a transaction boundary, if the task really is no longer deferred.

        It is also called when this triggerer merely lost the trigger to another one.
        """
        k = self._kwargs
        try:
            state = await asyncio.to_thread(task_state, self.task_instance)
            if state == "deferred" and not await self._followed():
                self.log.info("the task is still deferred: another triggerer looks after the stream")
                return
            # A list, so that none to be stopped differs from no answer.
            while (asked := await self._books.ask(self._request_stop)) is None:
                text = "the task is %s, and the bookkeeping cannot be asked to stop epoch %s: trying again"
                self.log.error(text, state, k["epoch"])
                await asyncio.sleep(_RETRY_SECONDS)
        except asyncio.CancelledError:  # Airflow waits for so long and no longer
            self.log.error(
                "epoch %s could not be asked to stop within [triggerer] on_kill_timeout: it runs on. If its task was "
                "marked or cleared, run `airflow-cdc stop` when the bookkeeping is back; with lease_seconds it ends by "
                "itself",
                k["epoch"],
            )
            raise
        self.log.info(
            "the task is %s: epoch %s %s", state, k["epoch"], "was asked to stop" if asked[0] else "has ended"
        )

    def _request_stop(self, store: Store) -> list[int | None]:
        k = self._kwargs
        return [store.request_stop(k["pipeline"], k["epoch"], by=k["supervisor"])]

    async def _followed(self) -> bool:
        """Whether the task was cleared, and its next try has deferred already."""
        k = self._kwargs
        run = await self._books.ask(lambda store: store.current_stream(k["pipeline"]))
        return run is not None and next_try(k["supervisor"], run.supervisor)

    async def _say(self) -> None:
        k = self._kwargs
        batches = await self._books.ask(lambda store: store.recent_batches(k["pipeline"], 1))
        if batches:
            end = batches[0].end_offset or {}
            self.log.info(
                "epoch %s runs; last batch to %s:%s at %s",
                k["epoch"],
                end.get("file"),
                end.get("position"),
                batches[0].committed_at,
            )


class CdcPauseTrigger(BaseTrigger):
    """Fires after a while: a stream that is to be started again waits without a worker, and by one clock.

    :param seconds: how long.
    """

    def __init__(self, *, seconds: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seconds = seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class and arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"seconds": self._seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait."""
        await asyncio.sleep(max(self._seconds, _SETTLE_SECONDS))
        yield TriggerEvent({})  # type: ignore[no-untyped-call]


def task_state(ti: Any) -> str | None:
    """State of a task instance as Airflow sees it now. It blocks: a trigger calls it in a thread."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    if ti is None:
        return None
    index = ti.map_index if ti.map_index is not None and ti.map_index >= 0 else None
    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=index
    )
    found = [state for of_run in states.values() for state in of_run.values()]
    return str(found[0]) if found and found[0] is not None else None
