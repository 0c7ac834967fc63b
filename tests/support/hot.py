"""Tables with few keys, whose rows come, change, move between partitions and go all the time, also by TRUNCATE."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.support.gone import Gone
from tests.support.writing_thread import WritingThread

#: Their names; one has letters of both cases.
HOT = ("Hot", "warm", "mild")
_CREATE = (
    "CREATE TABLE `{}`.`{}` (k VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, n INT, part VARCHAR(9), "
    "at DATETIME(6), v INT, PRIMARY KEY (k, n))"
)
#: Some are one key to the server, and two to the copy.
_KEYS = ("'a'", "'A'", "'á'", "'b'", "'b '", "'c'")
_NUMBERS = range(-1, 2)
_PARTS = ("NULL", "'x'", "'é/% z'")
_MOMENTS = ("NULL", "'2024-02-29 23:59:59.999999'", "'1969-12-31 23:00:00'")
_HERE = "k = {k} AND n = {n}"
_STATEMENTS = (
    "INSERT INTO {t} VALUES ({k}, {n}, {row}) ON DUPLICATE KEY UPDATE v = v + 1",
    "REPLACE INTO {t} VALUES ({k}, {n}, {row})",
    "REPLACE INTO {t} VALUES ({k}, {n}, {row}), ({k}, {n}, {other})",
    f"UPDATE {{t}} SET part = {{part}}, at = {{at}}, v = {{v}} WHERE {_HERE}",
    "UPDATE {t} SET part = {part}, v = {v} WHERE n = {n}",
    f"UPDATE IGNORE {{t}} SET k = {{other_k}}, part = {{part}} WHERE {_HERE}",
    f"DELETE FROM {{t}} WHERE {_HERE}",
    "DELETE FROM {t} ORDER BY v LIMIT 2",
    # In one transaction with each other, and often with what comes next.
    f"DELETE FROM {{t}} WHERE {_HERE}; INSERT INTO {{t}} VALUES ({{k}}, {{n}}, {{row}})",
    f"UPDATE {{t}} SET at = {{at}} WHERE {_HERE}; DELETE FROM {{t}} WHERE {_HERE}",
)


def make_hot(connection: Any, database: str) -> None:
    """Make the tables, with a row for most of the keys."""
    with connection.cursor() as cursor:
        for number, table in enumerate(HOT):
            cursor.execute(_CREATE.format(database, table))
            rows = [
                f"({k}, {n}, {_PARTS[(i + n) % 3]}, {_MOMENTS[(i + number) % 3]}, 0)"
                for i, k in enumerate(("'a'", "'á '", "'b'", "'c'", "'d'"))
                for n in _NUMBERS
            ]
            cursor.execute(f"INSERT IGNORE INTO `{database}`.`{table}` VALUES {', '.join(rows)}")
    connection.commit()


class HotWriter(WritingThread):
    """Writes to the tables.

    :param gone: writes down what is deleted; told of each TRUNCATE.
    """

    def __init__(self, args: dict[str, Any], database: str, gone: Gone, seed: int = 0, pause: float = 0.2) -> None:
        super().__init__(args, database, seed, pause)
        self._gone = gone

    def _write(self, connection: Any, cursor: Any) -> None:
        if self._draw.random() < 0.02:
            self._gone.truncate(connection, self._draw.choice(HOT))
        for statement in transaction(self._draw, HOT):
            cursor.execute(statement)


def transaction(draw: random.Random, tables: Sequence[str]) -> list[str]:
    """Statements of a transaction, often several for the same key."""
    found, keys = [], draw.sample([(k, n) for k in _KEYS for n in _NUMBERS], 2)
    for _ in range(draw.randint(1, 4)):
        (k, n), part, at, v = draw.choice(keys), draw.choice(_PARTS), draw.choice(_MOMENTS), draw.randrange(1000)
        filled = draw.choice(_STATEMENTS).format(
            t=f"`{draw.choice(tables)}`",
            k=k,
            n=n,
            other_k=draw.choice(_KEYS),
            part=part,
            at=at,
            v=v,
            row=f"{part}, {at}, {v}",
            other=f"{draw.choice(_PARTS)}, {at}, {v + 1}",
        )
        found += filled.split("; ")
    return found
