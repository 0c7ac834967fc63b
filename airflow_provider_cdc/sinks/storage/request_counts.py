"""What is asked of object stores: counted where it is asked, for whatever it is asked for.

A batch, a chunk group or a run has a :class:`RequestCounts`; what is asked while it is counting (:func:`counting`) is
counted there. Tasks on other hosts count for themselves, and return the numbers with their results.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Names of the kinds of requests, in their order.
REQUEST_KINDS = ("get", "head", "put", "list", "delete")
_SENT, _RECEIVED = "bytes_sent", "bytes_received"


class RequestCounts:
    """How many requests were made, and how many bytes of files went there and back.

    What the library asks again, after an error or for want of an answer, counts once.

    :param parent: what it is a part of, where the same is counted as well.
    """

    def __init__(self, parent: RequestCounts | None = None) -> None:
        self._parent, self._lock = parent, threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, kind: str, *, sent: int = 0, received: int = 0, requests: int = 1) -> None:
        """Count requests.

        :param kind: one of :data:`KINDS`. An upload in parts is of the kind ``put``, whatever its requests are.
        """
        self.add({kind: requests, _SENT: sent, _RECEIVED: received})

    def add(self, counts: Mapping[str, int]) -> None:
        """Count what somebody else has counted: :meth:`to_json`."""
        with self._lock:
            self._counts.update({name: counts.get(name, 0) for name in (*REQUEST_KINDS, _SENT, _RECEIVED)})
        if self._parent is not None:
            self._parent.add(counts)

    def to_json(self) -> dict[str, int]:
        """Plain values: ``requests``, the same by kind, ``bytes_sent`` and ``bytes_received``."""
        with self._lock:
            kinds = {kind: self._counts[kind] for kind in REQUEST_KINDS if self._counts[kind]}
            return {"requests": sum(kinds.values()), **kinds, **{n: self._counts[n] for n in (_SENT, _RECEIVED)}}


def sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """One of several :meth:`RequestCounts.to_json`."""
    total = RequestCounts()
    for part in counts:
        total.add(part)
    return total.to_json()


def format_counts(counts: Mapping[str, int]) -> str:
    """A :meth:`RequestCounts.to_json` for people."""
    kinds = ", ".join(f"{counts[kind]:,} {kind.upper()}" for kind in REQUEST_KINDS if counts.get(kind))
    total = counts["requests"]
    text = f"{total:,} request{'' if total == 1 else 's'}" + (f" ({kinds})" if kinds else "")
    return f"{text}, {counts[_SENT]:,} bytes sent, {counts[_RECEIVED]:,} received"


_CURRENT: ContextVar[RequestCounts | None] = ContextVar("traffic", default=None)
#: Takes what nobody wants to know.
_DISCARDED = RequestCounts()


def current_counts() -> RequestCounts:
    """Where requests are counted now."""
    return _CURRENT.get() or _DISCARDED


@contextmanager
def count_requests_in(counts: RequestCounts) -> Iterator[RequestCounts]:
    """Count there what this thread asks in this block, and nowhere else."""
    token = _CURRENT.set(counts)
    try:
        yield counts
    finally:
        _CURRENT.reset(token)


def with_current_counts(function: Callable[P, T]) -> Callable[P, T]:
    """Work for another thread, whose requests are counted where they are counted now."""
    counts = current_counts()

    def counted(*args: P.args, **kwargs: P.kwargs) -> T:
        with count_requests_in(counts):
            return function(*args, **kwargs)

    return counted
