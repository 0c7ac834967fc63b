"""PostgreSQL connections that fail if the server is silent for too long, because libpq has no such timeout."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

#: libpq settings to detect a dead peer; the last one is in milliseconds.
KEEPALIVE = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}


def connection_class_with_timeout(seconds: float) -> type[psycopg.Connection[Any]]:
    """Return a connection class with a timeout.

    :param seconds: how long the server may stay silent while the connection waits for it.
    """
    import psycopg

    class Limited(psycopg.Connection[Any]):
        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            return super().wait(self._listen(gen), *args, **kwargs)

        def _listen(self, gen: Any) -> Generator[Any, Any, Any]:
            """Forward what the connection waits for, and whether it is ready. Psycopg polls ten times a second."""
            last_heard = time.monotonic()
            try:
                awaited = next(gen)
                while True:
                    ready = yield awaited
                    if ready:
                        last_heard = time.monotonic()
                    elif time.monotonic() - last_heard > seconds:
                        self.close()  # so that the pool discards it
                        raise psycopg.OperationalError(f"the server has not responded for {seconds:g} s")
                    awaited = gen.send(ready)
            except StopIteration as end:
                return end.value

    return Limited
