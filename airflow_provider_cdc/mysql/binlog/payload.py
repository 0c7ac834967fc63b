"""Compressed transactions (``binlog_transaction_compression``): the events inside of one outer event."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import zstandard

from airflow_provider_cdc.exceptions import TerminalError
from airflow_provider_cdc.mysql.binlog import walk_state
from airflow_provider_cdc.mysql.binlog.stream import Event
from airflow_provider_cdc.mysql.binlog.table_map import packed_int
from airflow_provider_cdc.mysql.primitives import SLACK

_END, _COMPRESSION, _UNCOMPRESSED_SIZE = 0, 2, 3
_ZSTD, _NONE = 0, 255
_HEADER = struct.Struct("<IBIIIH")
#: Bytes to begin with: most transactions are small. A large one is unpacked bit by bit.
_BLOCK, _LARGE_BLOCK = 4 << 10, 1 << 20


def inner_events(event: Event) -> Iterator[Event]:
    """Unpack a TRANSACTION_PAYLOAD event.

    :param event: the outer event.
    :returns: the inner events; they have no checksum of their own, and their place is that of the outer event.
    :raises TerminalError: if the payload is damaged or its compression unknown.
    """
    source, expected = _open(event, zstandard.ZstdDecompressor())
    total = 0
    try:
        for header, data in _split(source):
            timestamp, kind, server_id, *_ = header
            total += _HEADER.size + len(data)
            yield Event(kind, timestamp, memoryview(data), event.file, event.position, event.start, server_id)
    except (EOFError, zstandard.ZstdError):
        raise _damaged(event) from None
    if expected is not None and total != expected:
        raise _damaged(event)


class Unpacked:
    """The same for the machine code: the events one after the other, as many as it asks for.

    :param event: the outer event.
    :param state: of the machine code; it says how far that has walked.
    :param decompressor: not in use elsewhere at the same time.
    :raises TerminalError: as :func:`inner_events`.
    """

    def __init__(self, event: Event, state: Any, decompressor: zstandard.ZstdDecompressor) -> None:
        self._event, self._state = event, state
        self._source, self._expected = _open(event, decompressor)
        self.data: Any = np.empty(min(self._expected or 0, _LARGE_BLOCK) + _BLOCK + SLACK, np.uint8)
        self.end = self._total = 0

    def fill(self) -> bool:
        """Unpack more; ``False`` at the end.

        :raises TerminalError: if it is damaged.
        """
        at, room = int(self._state[walk_state.AT]), len(self.data) - SLACK
        left = self.end - at
        data: Any = self.data if left < room // 2 else np.empty(2 * room + SLACK, np.uint8)
        data[:left] = self.data[at : self.end].copy()
        self.data, self.end, self._state[walk_state.AT] = data, left, 0
        try:
            got = self._source.readinto(memoryview(data)[left : len(data) - SLACK])  # type: ignore[attr-defined]
        except zstandard.ZstdError:
            raise _damaged(self._event) from None
        self.end += got
        self._total += got
        if not got and (left or self._expected not in (None, self._total)):
            raise _damaged(self._event)
        return bool(got)

    def take(self) -> Event:
        """The next event, for the plain code."""
        header = _HEADER.unpack(self._bytes(_HEADER.size))
        timestamp, kind, server_id, size, *_ = header
        if size < _HEADER.size:
            raise _damaged(self._event)
        body, outer = memoryview(self._bytes(size))[_HEADER.size :], self._event
        self._state[walk_state.AT] += size
        return Event(kind, timestamp, body, outer.file, outer.position, outer.start, server_id)

    def _bytes(self, size: int) -> bytes:
        while self.end - int(self._state[walk_state.AT]) < size:
            if not self.fill():
                raise _damaged(self._event)
        at = int(self._state[walk_state.AT])
        return bytes(self.data[at : at + size])


def _open(event: Event, decompressor: zstandard.ZstdDecompressor) -> tuple[IO[bytes], int | None]:
    """(the events, how many bytes they are said to have)."""
    compression, expected, at, body = _NONE, None, 0, event.body
    try:
        while True:
            kind, at = packed_int(body, at)
            if kind == _END:
                break
            size, at = packed_int(body, at)
            if kind == _COMPRESSION:
                compression = packed_int(body, at)[0]
            elif kind == _UNCOMPRESSED_SIZE:
                expected = packed_int(body, at)[0]
            at += size
    except IndexError:
        raise _damaged(event) from None
    if compression == _NONE:
        return io.BytesIO(body[at:]), expected
    if compression != _ZSTD:
        raise TerminalError(
            f"unknown compression {compression} of a transaction at {event.where}",
            "set binlog_transaction_compression=OFF, then start with a fresh sink.path",
        )
    # Read as a stream: the sizes in the event are claims, and nothing is allocated by them.
    return decompressor.stream_reader(body[at:], read_across_frames=True), expected


def _split(source: IO[bytes]) -> Iterator[tuple[tuple[int, ...], bytes]]:
    while head := _exactly(source, _HEADER.size):
        header = _HEADER.unpack(head)
        size = header[3] - _HEADER.size
        data = _exactly(source, size) if size > 0 else b""
        if len(data) != size:
            raise EOFError
        yield header, data


def _exactly(source: IO[bytes], size: int) -> bytes:
    """``size`` bytes, or none at the end."""
    parts, left = [], size
    while left and (part := source.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    if left and left != size:
        raise EOFError
    return b"".join(parts)


def _damaged(event: Event) -> TerminalError:
    return TerminalError(
        f"damaged compressed transaction at {event.where}",
        "run again; if it stays, set binlog_transaction_compression=OFF and start with a fresh sink.path",
    )
