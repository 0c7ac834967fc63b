"""Counts the requests to object stores, per batch, chunk group or run.

Each of these has a :class:`RequestCounts`; requests made inside :func:`count_requests_in` are added to it. Tasks on
other hosts count their own requests and return the numbers with their results.
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

#: Kinds of requests, in display order.
REQUEST_KINDS = ("get", "head", "put", "list", "delete")
_SENT, _RECEIVED = "bytes_sent", "bytes_received"


class RequestCounts:
    """Number of requests, and of bytes of files sent and received.

    A request that the library retries, after an error or without a response, counts once.

    :param parent: counts of the enclosing work, which are updated as well.
    """

    def __init__(self, parent: RequestCounts | None = None) -> None:
        self._parent, self._lock = parent, threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, kind: str, *, sent: int = 0, received: int = 0, requests: int = 1) -> None:
        """Count requests.

        :param kind: one of :data:`REQUEST_KINDS`. All requests of a multipart upload count as ``put``.
        :param sent: bytes of files sent.
        :param received: bytes of files received.
        :param requests: number of requests.
        """
        self.add({kind: requests, _SENT: sent, _RECEIVED: received})

    def add(self, counts: Mapping[str, int]) -> None:
        """Add counts from elsewhere, in the form of :meth:`to_json`."""
        with self._lock:
            self._counts.update({name: counts.get(name, 0) for name in (*REQUEST_KINDS, _SENT, _RECEIVED)})
        if self._parent is not None:
            self._parent.add(counts)

    def to_json(self) -> dict[str, int]:
        """Return plain values: ``requests``, the number per kind, ``bytes_sent`` and ``bytes_received``."""
        with self._lock:
            kinds = {kind: self._counts[kind] for kind in REQUEST_KINDS if self._counts[kind]}
            return {"requests": sum(kinds.values()), **kinds, **{n: self._counts[n] for n in (_SENT, _RECEIVED)}}


def sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of several results of :meth:`RequestCounts.to_json`."""
    total = RequestCounts()
    for part in counts:
        total.add(part)
    return total.to_json()


def format_counts(counts: Mapping[str, int]) -> str:
    """Return human-readable text for a result of :meth:`RequestCounts.to_json`."""
    kinds = ", ".join(f"{counts[kind]:,} {kind.upper()}" for kind in REQUEST_KINDS if counts.get(kind))
    total = counts["requests"]
    text = f"{total:,} request{'' if total == 1 else 's'}" + (f" ({kinds})" if kinds else "")
    return f"{text}, {counts[_SENT]:,} bytes sent, {counts[_RECEIVED]:,} received"


_CURRENT: ContextVar[RequestCounts | None] = ContextVar("traffic", default=None)
#: Receives requests that are not to be counted.
_DISCARDED = RequestCounts()


def current_counts() -> RequestCounts:
    """Return the counts to which requests are added now."""
    return _CURRENT.get() or _DISCARDED


@contextmanager
def count_requests_in(counts: RequestCounts) -> Iterator[RequestCounts]:
    """Count the requests of this thread in ``counts``, and nowhere else, within the block."""
    token = _CURRENT.set(counts)
    try:
        yield counts
    finally:
        _CURRENT.reset(token)


def with_current_counts(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function that another thread calls, so that its requests are added to the current counts."""
    counts = current_counts()

    def counted(*args: P.args, **kwargs: P.kwargs) -> T:
        with count_requests_in(counts):
            return function(*args, **kwargs)

    return counted
