"""Writers that change the tables of :mod:`tests.support.workload_tables` while they are copied.

Writers are processes of their own (``python -m tests.support.workload write``), so that they never share an interpreter
with the test. They read their order, connection included, as one line of JSON from standard input and end when
that closes.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pymysql

from tests import ROOT
from tests.support.workload_tables import SETS, Table, make_foreign, make_shop, spoken

__all__ = ["Counters", "Writers", "make_foreign", "make_shop"]

#: How many row numbers below and above the filled range the writers use.
MARGIN = 5_000
#: Lock wait, deadlock, duplicate key: what any application must expect.
EXPECTED = {1205, 1213, 1062}
#: The server went away, is going, or is not there yet.
LOST = {0, 1053, 1927, 2003, 2006, 2013, 3169, 4031}


@dataclass
class Counters:
    """What writers did: committed transactions, rows they changed, transactions rolled back on purpose or after an
    error of locking or uniqueness, and connections that were lost and made again."""

    transactions: int = 0
    rows: int = 0
    rollbacks: int = 0
    errors: int = 0
    reconnects: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass
class Writer:
    """One writer: seeded random transactions over the tables of a set."""

    connection: dict[str, Any]
    tables: str
    database: str
    only: list[str]
    number: int
    seed: int
    rate: float
    done: Counters = field(default_factory=Counters)

    def run(self) -> Counters:
        """Write until standard input closes."""
        self.random = random.Random(f"{self.seed}/{self.number}")
        self.chosen = [t for t in SETS[self.tables] if not self.only or t.name in self.only]
        self.ledger = self.tables == "shop" and (not self.only or "ledger" in self.only)
        self._connect()
        due = time.monotonic()
        while True:
            # A writer that fell behind (a slow server, a lock) catches up one second at most.
            due = max(due + 1 / self.rate, time.monotonic() - 1)
            if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
                return self.done
            self._attempt()

    def _connect(self) -> None:
        for remaining in range(240, -1, -1):
            try:
                self.conn = pymysql.connect(**{**self.connection, "charset": "utf8mb4", "autocommit": True})
                self.cursor = self.conn.cursor()
                level = "READ COMMITTED" if self.number % 2 else "REPEATABLE READ"
                self.cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
                self.cursor.execute("SET SESSION innodb_lock_wait_timeout = 5, time_zone = '+00:00'")
                self.extent = {t.name: max(self._count(t), 1) * t.step for t in self.chosen}
                if self.ledger:
                    query = f"SELECT COALESCE(MAX(n), 0) FROM `{self.database}`.ledger WHERE writer = {self.number}"
                    self.last_n = int(self._scalar(query))
                return
            except (pymysql.OperationalError, pymysql.InterfaceError) as error:
                if error.args[0] not in LOST or not remaining or select.select([sys.stdin], [], [], 0.25)[0]:
                    raise

    def _scalar(self, query: str) -> Any:
        self.cursor.execute(query)
        return self.cursor.fetchone()[0]

    def _count(self, table: Table) -> int:
        return int(self._scalar(f"SELECT COUNT(*) FROM `{self.database}`.`{table.name}`"))

    def _attempt(self) -> None:
        try:
            rows, last_n, commit = self._transaction()
        except (pymysql.OperationalError, pymysql.IntegrityError, pymysql.InterfaceError) as error:
            if error.args[0] in EXPECTED:
                self.conn.rollback()
                self.done.errors += 1
            elif error.args[0] in LOST:
                # The fate of the transaction is unknown: connecting reads the ledger's last number again.
                self.done.reconnects += 1
                self._connect()
            else:
                raise
            return
        if not commit:
            self.done.rollbacks += 1
            return
        self.done.transactions += 1
        self.done.rows += rows
        self.last_n = last_n

    def _transaction(self) -> tuple[int, int, bool]:
        draw = self.random
        rows, last_n = 0, getattr(self, "last_n", 0)
        self.conn.begin()
        for _ in range(draw.choice((1, 1, 2, 3, 5)) if self.chosen else 0):
            table = draw.choices(self.chosen, [t.weight for t in self.chosen])[0]
            statement = spoken(self.conn, self._statement(table))
            if draw.random() < 0.15:
                self.cursor.execute("SAVEPOINT before_it")
                self.cursor.execute(statement)
                self.cursor.execute("ROLLBACK TO SAVEPOINT before_it")
            else:
                rows += self.cursor.execute(statement)
        if self.ledger and (not self.chosen or draw.random() < 0.6):
            for _ in range(draw.choice((1, 1, 1, 2, 3))):
                last_n += 1
                values = f"({self.number}, {last_n}, 'written by {self.number}')"
                rows += self.cursor.execute(f"INSERT INTO `{self.database}`.ledger VALUES {values}")
        commit = draw.random() >= 0.08
        self.conn.commit() if commit else self.conn.rollback()
        return rows, last_n, commit

    def _number(self, table: Table) -> int:
        """A row number: mostly of the filled range and its gaps, sometimes below or above all."""
        place = self.random.random()
        if place < 0.1:
            return -self.random.randrange(MARGIN)
        if place < 0.2:
            return (table.top or self.extent[table.name] + 1) + self.random.randrange(MARGIN)
        return self.random.randrange(1, self.extent[table.name] + 1)

    def _statement(self, table: Table) -> str:
        draw = self.random
        large = draw.random() < 0.005 and table.weight > 1
        many = draw.randrange(500, 2001) if large else draw.choice((1, 1, 1, 4, 20))
        row, fresh, h = self._number(table), self._number(table), draw.getrandbits(32)
        target = f"`{self.database}`.`{table.name}`"
        here = " AND ".join(f"`{k}` = {_at(table.expression(k), row, h)}" for k in table.key)
        leading = f"`{table.key[0]}` >= {_at(table.expression(table.key[0]), row, h)}"
        some = f"WHERE {leading} ORDER BY {', '.join(f'`{k}`' for k in table.key)} LIMIT {many}"
        others = [c for c in table.columns if c[0] not in table.key]
        chosen = draw.sample(others, draw.randrange(1, len(others) + 1))
        changes = ", ".join(f"`{name}` = {_at(expression, row, h)}" for name, _, expression in chosen)
        kind = draw.random()
        if kind < 0.30:
            # REPLACE is an insert, a delete with an insert, or an update; a plain INSERT may meet a duplicate.
            numbers = [[row + k * table.step, (h + k * 40503) % 2**32] for k in range(many)]
            source = (
                f"SELECT @ FROM JSON_TABLE('{json.dumps(numbers)}', "
                "'$[*]' COLUMNS (i BIGINT PATH '$[0]', h BIGINT PATH '$[1]')) AS n"
            )
            return table.insert(self.database, source, draw.choice(("INSERT", "INSERT IGNORE", "REPLACE", "REPLACE")))
        if kind < 0.50:
            return f"UPDATE {target} SET {changes} WHERE {here}"
        if kind < 0.65:
            return f"UPDATE {target} SET {changes} {some}"
        if kind < 0.75:
            moved = ", ".join(f"`{k}` = {_at(table.expression(k), fresh, h)}" for k in table.key)
            return f"UPDATE {target} SET {moved} WHERE {here}"
        texts = [name for name, type_, _ in table.columns if name in table.key and "char" in type_]
        if kind < 0.83 and texts:
            # Other bytes, the same key to the collation.
            k = texts[0]
            return f"UPDATE {target} SET `{k}` = IF(BINARY `{k}` = UPPER(`{k}`), LOWER(`{k}`), UPPER(`{k}`)) {some}"
        if kind < 0.93:
            return f"DELETE FROM {target} WHERE {here}"
        return f"DELETE FROM {target} {some}"


def _at(expression: str, i: int, h: int) -> str:
    """The expression for one row number and hash."""
    return re.sub(r"\bn\.([ih])\b", lambda m: f"({i if m[1] == 'i' else h})", expression)


class Writers:
    """Context manager: processes that write to a database made by :func:`make_shop` or :func:`make_foreign`.

    Start it in a thread that outlives it: the writers are killed when the thread that started them ends.

    :param connection: arguments for ``pymysql.connect`` without a database; handed over by standard input only.
    :param tables: ``shop`` or ``foreign``; ``database`` defaults to the same name.
    :param writers: number of processes; ``first`` is the number of the first one in the ledger.
    :param rate: transactions a second of all writers together.
    :param only: names of the tables to write to, ``ledger`` included; empty: all of the set.
    """

    def __init__(
        self,
        connection: dict[str, Any],
        tables: str = "shop",
        *,
        database: str | None = None,
        writers: int = 2,
        rate: float = 100.0,
        seed: int = 1,
        only: Sequence[str] = (),
        first: int = 1,
    ) -> None:
        numbers = range(first, first + writers)
        self._orders = [
            asdict(Writer(connection, tables, database or tables, list(only), n, seed, rate / writers)) for n in numbers
        ]
        self._processes: list[subprocess.Popen[str]] = []
        self.counters: Counters | None = None

    def __enter__(self) -> Writers:
        for order in self._orders:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.workload", "write"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._processes.append(process)
            assert process.stdin
            process.stdin.write(json.dumps({k: v for k, v in order.items() if k != "done"}) + "\n")
            process.stdin.flush()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def stop(self) -> Counters:
        """End all writers after their current transaction and add up what they did; may be called again.

        :raises RuntimeError: when a writer failed; its message went to standard error.
        """
        if self.counters is None:
            for process in self._processes:
                assert process.stdin
                process.stdin.close()
                process.stdin = None  # else communicate() would flush the closed pipe
            total, failed = Counters(), 0
            for process in self._processes:
                try:
                    text, _ = process.communicate(timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    text, _ = process.communicate()
                if process.returncode == 0:
                    total += Counters(**json.loads(text))
                else:
                    failed += 1
            self.counters = total
            if failed:
                raise RuntimeError(f"{failed} of {len(self._processes)} writers failed")
        return self.counters


def main(arguments: list[str]) -> None:
    """``write``: one writer, its order on standard input, its counters on standard output."""
    if arguments != ["write"]:
        raise SystemExit("usage: workload.py write  (the order, as one line of JSON, on standard input)")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides when to end
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with the parent
    # Unbuffered, so that select() sees what is still to come.
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            return
        line += part
    print(json.dumps(asdict(Writer(**json.loads(line)).run())))


if __name__ == "__main__":
    main(sys.argv[1:])
