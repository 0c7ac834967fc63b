"""What the tables of one process that share a copy know of each other's commits.

Each source table has its own log. Without this module, each would lose its first try of a commit to another one,
and would read from the storage what the others have written: with n tables in a batch, n * n files.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary


class _Turn:
    """A lock that can be referenced weakly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


_turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
_turns_lock = threading.Lock()


def commit_turn(table_uri: str) -> _Turn:
    """Return the lock under which one table after the other commits to a shared copy: of tries at once, one succeeds.

    :param table_uri: address of the copy.
    """
    with _turns_lock:
        if (turn := _turns.get(table_uri)) is None:
            _turns[table_uri] = turn = _Turn()
        return turn


class RecentCommits:
    """The newest commits that this process has written or read, of all tables. Thread-safe.

    :param max_actions: number of actions that are remembered at most.
    """

    def __init__(self, max_actions: int = 100_000) -> None:
        self._max_actions, self._count, self._lock = max_actions, 0, threading.Lock()
        self._commits = OrderedDict[tuple[str, int], Sequence[dict[str, Any]]]()

    def get(self, table_id: str, version: int) -> Sequence[dict[str, Any]] | None:
        """Return the actions of a commit if it is known; callers must not modify them.

        :param table_id: number of the table, which a table in the same folder that replaces it does not have.
        """
        with self._lock:
            return self._commits.get((table_id, version))

    def add(self, table_id: str, version: int, actions: Sequence[dict[str, Any]]) -> None:
        """Remember a commit that certainly was made."""
        with self._lock:
            if (table_id, version) in self._commits:
                return
            self._commits[table_id, version] = actions
            self._count += len(actions)
            while self._count > self._max_actions:
                self._count -= len(self._commits.popitem(last=False)[1])

    def forget(self, table_id: str) -> None:
        """Forget the commits of a table whose log is not the one that was read before, as after a restored backup."""
        with self._lock:
            for key in [key for key in self._commits if key[0] == table_id]:
                self._count -= len(self._commits.pop(key))
