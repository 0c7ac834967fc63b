"""A thread that writes to a database until it is stopped."""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import Any, Self

import pymysql


class WritingThread:
    """One transaction after the other; some are rolled back. A context manager.

    :param args: how to connect.
    :param seed: of what is written.
    :param pause: seconds between two transactions, at most.
    """

    def __init__(self, args: dict[str, Any], database: str, seed: int, pause: float) -> None:
        self._args, self._draw, self._pause = {**args, "database": database}, random.Random(seed), pause
        self._stop, self._failed = threading.Event(), list[BaseException]()
        self.transactions = 0
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, and say so if it has failed."""
        self._stop.set()
        self._thread.join(60)
        if self._failed:
            raise self._failed[0]

    def _run(self) -> None:
        try:
            with pymysql.connect(**self._args, autocommit=False) as connection, connection.cursor() as cursor:
                while not self._stop.wait(self._pause * self._draw.random()):
                    self._write(connection, cursor)
                    connection.rollback() if self._draw.random() < 0.1 else connection.commit()
                    self.transactions += 1
        except BaseException as error:
            self._failed.append(error)

    def _write(self, connection: Any, cursor: Any) -> None:
        """The statements of one transaction."""
        raise NotImplementedError
