"""How triggers ask what blocks: the bookkeeping database, and Airflow itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

from airflow_provider_cdc.model.errors import CdcError, TransientError

if TYPE_CHECKING:
    from airflow_provider_cdc.state import StateDatabase

T = TypeVar("T")

#: Seconds that a question to the bookkeeping may take.
_TIMEOUT_SECONDS = 20.0
#: Questions to one database that are asked at the same time.
_THREADS = 4


async def run_in_thread(function: Callable[..., T], *args: Any, executor: ThreadPoolExecutor | None = None) -> T:
    """Call what blocks in a thread.

    Not by asyncio: before Airflow 3.3 a thread finds the triggerer, through which it asks Airflow, only by asgiref. And
    shielded from that: it replaces a cancellation by one without a message, by which Airflow 3.3 tells a person's wish
    from the end of a triggerer.
    """
    from asgiref.sync import sync_to_async

    future = asyncio.ensure_future(sync_to_async(function, thread_sensitive=False, executor=executor)(*args))
    return await asyncio.shield(future)


class SharedStateDatabase:
    """A bookkeeping database, asked from an event loop.

    It has a few threads of its own: questions that hang pile up nowhere, and hold up nobody who asks something else.

    :param conn_id: its connection; ``None`` for the SQLite file ``path``.
    """

    _instances: ClassVar[WeakValueDictionary[tuple[str | None, str], SharedStateDatabase]] = WeakValueDictionary()

    def __init__(self, conn_id: str | None, path: str) -> None:
        self._conn_id, self._path = conn_id, path
        self._threads = ThreadPoolExecutor(_THREADS, "bookkeeping")
        self._store: StateDatabase | None = None
        self._open_lock = threading.Lock()

    def __del__(self) -> None:
        self._threads.shutdown(wait=False)
        if self._store is not None:
            self._store.close()

    @classmethod
    def shared(cls, conn_id: str | None, path: str) -> SharedStateDatabase:
        """The one that all triggers of this process share which need it."""
        key = conn_id, "" if conn_id else path
        return cls._instances.get(key) or cls._instances.setdefault(key, cls(conn_id, path))

    async def query_or_none(self, read: Callable[[StateDatabase], T]) -> T | None:
        """Ask in a thread.

        :returns: the answer; ``None`` if there was none in time: the database is away, or is being made anew.
        """
        try:
            return await self.query(read)
        except CdcError:
            return None

    async def query(self, read: Callable[[StateDatabase], T]) -> T:
        """As :meth:`ask`.

        :raises CdcError: why there was no answer.
        """
        try:
            # Not wait_for(): before Python 3.12 it loses a cancellation that meets the answer.
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                return await run_in_thread(self._run_query, read, executor=self._threads)
        except TimeoutError:
            what = f"connection {self._conn_id}" if self._conn_id else self._path
            raise TransientError(f"bookkeeping database ({what}): no answer within {_TIMEOUT_SECONDS:g} s") from None

    def _run_query(self, read: Callable[[StateDatabase], T]) -> T:
        from sqlalchemy.exc import SQLAlchemyError

        store = self._open_store()
        try:
            return read(store)
        except (CdcError, SQLAlchemyError) as error:
            with self._open_lock:  # the next question begins with the connection as Airflow has it then
                if self._store is store:
                    self._store = None
            store.close()
            raise error if isinstance(error, CdcError) else TransientError(str(error)) from None

    def _open_store(self) -> StateDatabase:
        from airflow_provider_cdc.airflow.hooks.connections import resolve_connection
        from airflow_provider_cdc.config.connections import database_url
        from airflow_provider_cdc.state import StateDatabase

        with self._open_lock:
            if self._store is None:
                url = database_url(resolve_connection(self._conn_id)) if self._conn_id else f"sqlite:///{self._path}"
                # After an upgrade the triggerer may be the first to look; what is not there, it does not make.
                self._store = StateDatabase.open(url, migrate=True, create=False)
            return self._store
