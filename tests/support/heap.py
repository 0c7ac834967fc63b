"""A table without a key, and a writer of equal rows that come, change and go."""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import Any, Self

import pymysql

HEAP = "CREATE TABLE `{}`.heap (a INT, v VARCHAR(9), f DOUBLE, twice INT AS (a * 2) VIRTUAL)"
_VALUES = ("(1, 'x', 0e0)", "(1, 'x', -0e0)", "(1, 'X', NULL)", "(2, 'x', 1.5)", "(NULL, NULL, NULL)")
_STATEMENTS = (
    "INSERT INTO heap (a, v, f) VALUES {one}, {two}, {two}",
    "INSERT INTO heap (a, v, f) SELECT a, v, f FROM heap LIMIT 5",
    "UPDATE heap SET a = 3 - a WHERE v = 'x' LIMIT {n}",
    "UPDATE heap SET f = -f LIMIT {n}",
    "DELETE FROM heap WHERE a = {n} LIMIT 2",
    "DELETE FROM heap WHERE a <=> NULL LIMIT 1",
    "DELETE FROM heap LIMIT {n}",
)


class HeapWriter:
    """Writes to ``heap`` in a thread of its own, one to four statements a transaction. A context manager.

    :param args: how to connect.
    :param seed: of what is written.
    """

    def __init__(self, args: dict[str, Any], database: str, seed: int = 0, pause: float = 0.05) -> None:
        self._args, self._draw, self._pause = {**args, "database": database}, random.Random(seed), pause
        self._stop, self._failed = threading.Event(), list[BaseException]()
        self.transactions = 0
        self._thread = threading.Thread(target=self._run, name="heap writer", daemon=True)

    def __enter__(self) -> Self:
        with pymysql.connect(**self._args, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(HEAP.format(self._args["database"]))
            cursor.execute(f"INSERT INTO heap (a, v, f) VALUES {', '.join(_VALUES * 4)}")
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
        draw = self._draw
        try:
            with pymysql.connect(**self._args, autocommit=False) as connection, connection.cursor() as cursor:
                while not self._stop.wait(self._pause * draw.random()):
                    for _ in range(draw.randint(1, 4)):
                        one, two = draw.choice(_VALUES), draw.choice(_VALUES)
                        cursor.execute(draw.choice(_STATEMENTS).format(one=one, two=two, n=draw.randint(1, 3)))
                    connection.rollback() if draw.random() < 0.1 else connection.commit()
                    self.transactions += 1
        except BaseException as error:
            self._failed.append(error)
