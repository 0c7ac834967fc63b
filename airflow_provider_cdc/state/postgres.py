"""A connection to PostgreSQL that ends when the server is silent for too long: libpq has no limit of that kind."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg


def connection_class_with_timeout(seconds: float) -> type[psycopg.Connection[Any]]:
    """A class of connections.

    :param seconds: for which the server may say nothing while it is waited for.
    """

    class Limited(psycopg.Connection[Any]):
        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            return super().wait(self._listen(gen), *args, **kwargs)

        def _listen(self, gen: Any) -> Generator[Any, Any, Any]:
            """Pass on what the connection waits for, and whether it came; psycopg asks ten times a second."""
            last_heard = time.monotonic()
            try:
                awaited = next(gen)
                while True:
                    ready = yield awaited
                    if ready:
                        last_heard = time.monotonic()
                    elif time.monotonic() - last_heard > seconds:
                        self.close()  # so that the pool throws it away
                        raise psycopg.OperationalError(f"the server has said nothing for {seconds:g} s")
                    awaited = gen.send(ready)
            except StopIteration as end:
                return end.value

    return Limited
