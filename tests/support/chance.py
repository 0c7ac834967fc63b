"""What schedules by chance share: threads that write and alter, and runs that are killed in the process of the test."""

from __future__ import annotations

import os
import random
import secrets
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from types import ModuleType
from typing import Any, Self

import pymysql
import pytest

from tests.support.servers import MySQLServer

Work = Callable[[random.Random, int, Any], None]


class Killed(BaseException):
    """Ends a run as a crash would, as far as that can be had in one process."""


class Threads:
    """Threads with a connection each, which do their work again and again. A context manager: they end with it.

    ``said`` is all DDL that the server has executed, in order.

    :param works: what each thread does: with its random numbers, its number and a cursor.
    :param modes: what each session sets first.
    """

    def __init__(self, server: MySQLServer, seed: int, database: str, works: Sequence[Work], modes: str) -> None:
        self.server, self.seed, self.database, self._modes = server, seed, database, modes
        self.said: list[str] = []
        self.done: Counter[str] = Counter()
        #: How many DDL may follow; so their number does not depend on how quick a machine is.
        self.alters = threading.Semaphore(0)
        self.over = threading.Event()
        self._locks = [threading.Lock() for _ in works]
        self._failed: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(n, work)) for n, work in enumerate(works)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()
        assert not self._failed, self._failed

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nobody writes or alters meanwhile, and no transaction is open."""
        with ExitStack() as stack:
            for lock in self._locks:
                stack.enter_context(lock)
            yield

    def executed(self, cursor: Any, statement: str, *, ddl: bool = False) -> bool:
        """Whether the server executes a statement; it is counted. DDL is written down, too."""
        try:
            cursor.execute(statement)
        except pymysql.MySQLError as error:
            self.done[f"error {'of DDL ' if ddl else ''}{error.args[0]}"] += 1
            return False
        self.done["DDL" if ddl else "statements"] += 1
        if ddl:
            self.said.append(statement)
        return True

    def _run(self, number: int, work: Work) -> None:
        draw = random.Random(f"{self.seed}/{number}")
        try:
            with closing(self.server.connect(database=self.database)) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 2, {self._modes}")
                while not self.over.wait(draw.choice((0.01, 0.04, 0.08))):
                    with self._locks[number]:
                        work(draw, number, cursor)
        except BaseException as error:
            self._failed.append(error)


def roll_back_xa(cursor: Any, xid: str) -> None:
    """Roll back an XA transaction of this session, however far it has come."""
    for sql in (f"XA END {xid}", f"XA ROLLBACK {xid}"):
        with suppress(pymysql.MySQLError):
            cursor.execute(sql)


def at_once(one: Callable[[], object], other: Callable[[], object]) -> None:
    """Both at a time. The one, in a thread of its own, may be killed; what it fails with counts."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            one()
        except Killed:
            pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        other()
    finally:
        thread.join()
    if failed:
        raise failed[0]


@contextmanager
def killed(
    modules: Iterable[ModuleType],
    name: str | None,
    at: int,
    done: Counter[str],
    *,
    dies: bool = True,
    died: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Whatever runs in here may be killed, once: from then on no thread gets past a failpoint.

    :param modules: those whose failpoints kill.
    :param name: at which failpoint; at any if ``None``.
    :param at: the how manieth time that it is reached.
    :param done: counts where it was killed.
    :param dies: whether it is to be killed at all.
    :param died: called when it is killed; the thread that is may not be the one that runs in here.
    """
    left, lock = [at], threading.Lock()

    def failpoint(reached: str) -> None:
        with lock:
            dead = left[0] <= 0
            left[0] -= reached == name or name is None
            now = left[0] == 0 and not dead
            if now:
                done[f"killed at {reached}"] += 1
        if now:
            died()
        if now or dead:
            raise Killed(reached)

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        for module in modules:
            if dies:
                patch.setattr(module, "failpoint", failpoint)
        yield


@contextmanager
def killed_at(name: str, *modules: ModuleType) -> Iterator[None]:
    """Whatever runs in here is killed the first time that it reaches a failpoint of these modules; it must reach it."""
    with killed(modules, name, 1, Counter()):
        yield
        pytest.fail(f"{name} was not reached")


#: A seed of which a schedule failed, to run it again; and for how many seconds fresh ones are tried.
_SEED, _SECONDS = "CDC_CHANCE_SEED", "CDC_CHANCE_SECONDS"


def seeds_asked_for() -> list[int]:
    """The seed in ``CDC_CHANCE_SEED``, if there is one."""
    return [int(os.environ[_SEED])] if _SEED in os.environ else []


def run_fresh(test: str, schedule: Callable[[int], object]) -> None:
    """Run schedules of fresh seeds for ``CDC_CHANCE_SECONDS``. In the end it says how many ran; where one fails, the
    command that repeats it.

    :param test: node id of the test that runs one seed, with ``{}`` in its place.
    :param schedule: runs the schedule of a seed.
    """
    end, ran = time.monotonic() + float(os.environ.get(_SECONDS, "0")), 0
    while time.monotonic() < end:
        seed = secrets.randbelow(1 << 31)
        try:
            schedule(seed)
        except BaseException:
            command = f".venv/bin/python -m pytest {shlex.quote(test.format(seed))}"
            print(f"{ran} schedules ran; to repeat the one that failed: {_SEED}={seed} {command}")
            raise
        ran += 1
    print(f"{ran} schedules ran")
