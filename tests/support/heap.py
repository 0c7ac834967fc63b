"""A table without a key, and a writer of equal rows that come, change and go."""

from __future__ import annotations

from typing import Any, Self

import pymysql

from tests.support.writing_thread import WritingThread

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


class HeapWriter(WritingThread):
    """Makes ``heap`` and writes to it, one to four statements a transaction."""

    def __init__(self, args: dict[str, Any], database: str, seed: int = 0, pause: float = 0.05) -> None:
        super().__init__(args, database, seed, pause)

    def __enter__(self) -> Self:
        with pymysql.connect(**self._args, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(HEAP.format(self._args["database"]))
            cursor.execute(f"INSERT INTO heap (a, v, f) VALUES {', '.join(_VALUES * 4)}")
        return super().__enter__()

    def _write(self, connection: Any, cursor: Any) -> None:
        draw = self._draw
        for _ in range(draw.randint(1, 4)):
            one, two = draw.choice(_VALUES), draw.choice(_VALUES)
            cursor.execute(draw.choice(_STATEMENTS).format(one=one, two=two, n=draw.randint(1, 3)))
