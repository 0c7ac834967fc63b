"""Compressed transactions (``binlog_transaction_compression``), whose events are inside one outer event."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import IO

import zstandard

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.events.wire_types import read_length_encoded

_END, _COMPRESSION, _UNCOMPRESSED_SIZE = 0, 2, 3
_ZSTD, _NONE = 0, 255
EVENT_HEADER = struct.Struct("<IBIIIH")


def inner_events(event: BinlogEvent) -> Iterator[BinlogEvent]:
    """Unpack a TRANSACTION_PAYLOAD event.

    :param event: the outer event.
    :returns: the inner events; they have no checksums, and the position of the outer event.
    :raises TerminalError: if the payload is damaged or its compression is unknown.
    """
    source, expected = open_payload(event, zstandard.ZstdDecompressor())
    total = 0
    try:
        for header, data in _split_events(source):
            timestamp, kind, server_id, _, _, flags = header
            total += EVENT_HEADER.size + len(data)
            place = event.file, event.position, event.start
            yield BinlogEvent(kind, timestamp, memoryview(data), *place, server_id, flags)
    except (EOFError, zstandard.ZstdError):
        raise damaged_payload_error(event.location) from None
    if expected is not None and total != expected:
        raise damaged_payload_error(event.location)


def open_payload(event: BinlogEvent, decompressor: zstandard.ZstdDecompressor) -> tuple[IO[bytes], int | None]:
    """Open a payload for reading.

    :param event: the outer event.
    :param decompressor: must not be used elsewhere at the same time.
    :returns: the uncompressed events as a stream, and their claimed size in bytes, if any.
    :raises TerminalError: if the payload's header is damaged or its compression is unknown.
    """
    compression, expected, at, body = _NONE, None, 0, event.body
    try:
        while True:
            kind, at = read_length_encoded(body, at)
            if kind == _END:
                break
            size, at = read_length_encoded(body, at)
            if kind == _COMPRESSION:
                compression = read_length_encoded(body, at)[0]
            elif kind == _UNCOMPRESSED_SIZE:
                expected = read_length_encoded(body, at)[0]
            at += size
    except IndexError:
        raise damaged_payload_error(event.location) from None
    if compression == _NONE:
        return io.BytesIO(body[at:]), expected
    if compression != _ZSTD:
        raise TerminalError(
            f"unknown compression {compression} of a transaction at {event.location}",
            "Set binlog_transaction_compression=OFF, then start with a fresh sink.path",
        )
    # Read as a stream: the sizes in the event are only claims, and must not determine how much is allocated.
    return decompressor.stream_reader(body[at:], read_across_frames=True), expected


def _split_events(source: IO[bytes]) -> Iterator[tuple[tuple[int, ...], bytes]]:
    while head := _read_exactly(source, EVENT_HEADER.size):
        header = EVENT_HEADER.unpack(head)
        size = header[3] - EVENT_HEADER.size
        data = _read_exactly(source, size) if size > 0 else b""
        if len(data) != size:
            raise EOFError
        yield header, data


def _read_exactly(source: IO[bytes], size: int) -> bytes:
    """Read ``size`` bytes, or none at the end.

    :raises EOFError: if there are fewer.
    """
    parts, left = [], size
    while left and (part := source.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    if left and left != size:
        raise EOFError
    return b"".join(parts)


def damaged_payload_error(where: str) -> TerminalError:
    """Return the error for an invalid payload."""
    return TerminalError(
        f"damaged compressed transaction at {where}",
        "Run again. If the error persists, set binlog_transaction_compression=OFF and start with a fresh sink.path",
    )
