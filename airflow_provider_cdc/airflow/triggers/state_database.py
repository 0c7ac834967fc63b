"""Code shared by the triggers: their serialization, and non-blocking access to the state database and to Airflow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

from airflow_provider_cdc.model.errors import CdcError, TransientError

if TYPE_CHECKING:
    from airflow_provider_cdc.state import StateDatabase

T = TypeVar("T")

#: Seconds that a query may take.
_TIMEOUT_SECONDS = 20.0
#: Concurrent queries to one database.
_THREADS = 4


@dataclass(kw_only=True, eq=False, repr=False)
class SerializedFields:
    """Serializes a trigger that is a dataclass: its fields are the arguments of its class."""

    def __post_init__(self) -> None:
        super().__init__()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        arguments = {field.name: getattr(self, field.name) for field in fields(self)}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments


async def run_in_thread(function: Callable[..., T], *args: Any, executor: ThreadPoolExecutor | None = None) -> T:
    """Run a blocking function in a thread.

    This uses asgiref rather than asyncio: before Airflow 3.3, a thread finds the triggerer, through which it queries
    Airflow, only with asgiref. The call is shielded from cancellation because asgiref replaces a cancellation by one
    without a message, and Airflow 3.3 uses the message to distinguish a user's action from the end of a triggerer.
    """
    from asgiref.sync import sync_to_async

    future = asyncio.ensure_future(sync_to_async(function, thread_sensitive=False, executor=executor)(*args))
    return await asyncio.shield(future)


class SharedStateDatabase:
    """A state database that is queried from an event loop.

    It has a few threads of its own, so that queries that hang do not pile up elsewhere or delay other work.

    :param conn_id: its connection, or ``None`` for the SQLite file ``path``.
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
        """Return the instance that all triggers of this process share."""
        key = conn_id, "" if conn_id else path
        return cls._instances.get(key) or cls._instances.setdefault(key, cls(conn_id, path))

    async def query_or_none(self, read: Callable[[StateDatabase], T]) -> T | None:
        """Run a query in a thread.

        :returns: the answer, or ``None`` if there was none in time because the database is unavailable or being
            recreated.
        """
        try:
            return await self.query(read)
        except CdcError:
            return None

    async def query(self, read: Callable[[StateDatabase], T]) -> T:
        """Run a query in a thread, as :meth:`query_or_none`, but raise errors.

        :raises CdcError: the reason why there was no answer.
        """
        try:
            # Not wait_for(): before Python 3.12 it loses a cancellation that coincides with the answer.
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                return await run_in_thread(self._run_query, read, executor=self._threads)
        except TimeoutError:
            what = f"connection {self._conn_id}" if self._conn_id else self._path
            raise TransientError(f"state database ({what}): no answer within {_TIMEOUT_SECONDS:g} s") from None

    def _run_query(self, read: Callable[[StateDatabase], T]) -> T:
        from sqlalchemy.exc import SQLAlchemyError

        store = self._open_store()
        try:
            return read(store)
        except (CdcError, SQLAlchemyError) as error:
            with self._open_lock:  # the next query resolves the connection again
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
                # After an upgrade the triggerer may be the first to open it. It never creates a missing database.
                self._store = StateDatabase.open(url, migrate=True, create=False)
            return self._store
