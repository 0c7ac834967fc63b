"""The binlog as a stream of verified events.

The library ``mysql-replication`` connects, logs in and requests the binlog; the events are parsed here. Every event is
verified: its length, its checksum (by the algorithm of its file), and its position, which is counted in 64 bits because
the header's 32 bits wrap at 4 GiB.
"""

from __future__ import annotations

import contextlib
import io
import socket
import struct
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

import pymysql
from pymysqlreplication import BinLogStreamReader

from airflow_provider_cdc.model.errors import CdcError, OtherHistoryError, TerminalError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.start_mode import FIRST_EVENT_POSITION
from airflow_provider_cdc.mysql.binlog.events.dump_session import open_dump_session
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.events.event_types import (
    FILE_HEADER_EVENTS,
    FORMAT_DESCRIPTION,
    HEARTBEAT,
    HEARTBEATS,
    ROTATE,
)
from airflow_provider_cdc.mysql.binlog.events.stream_errors import damaged_stream_error, translate_stream_error
from airflow_provider_cdc.mysql.client.binlog_headers import next_file_after_torn_end
from airflow_provider_cdc.mysql.client.identity import is_mariadb
from airflow_provider_cdc.mysql.client.session import connect

_HEADER = struct.Struct("<IBIIIH")  # timestamp, type, server id, size, end position (32 bits), flags
_CHECKSUM_SIZE = 4
_ARTIFICIAL_FLAG = 0x20
_IN_USE_FLAG = 0x01
#: Event headers have 32 bits for a position.
_POSITION_MASK = 0xFFFF_FFFF
#: The request for a stream also has 32 bits for a position.
_FARTHEST_START = _POSITION_MASK


class BinlogStream:
    """An open binlog stream; iterate over it to get :class:`BinlogEvent` objects.

    ``file_start_times`` contains the creation times of the files read so far, by name, in seconds since the epoch on
    the server's clock. ``collations`` maps the collation numbers of table maps. ``has_checksums`` is whether the events
    of the current file end with a checksum, and ``is_mariadb`` whether the server is MariaDB.

    :param connect_args: keyword arguments of ``pymysql.connect``.
    :param server_id: replica server id of this reader; no other reader or replica may use it.
    :param replica_uuid: UUID that this reader reports; it must be unique, too.
    :param file: binlog file to start in.
    :param position: byte position to start at; it must be the start of an event.
    :param heartbeat_seconds: interval of the heartbeats of an idle server.
    :param read_timeout: seconds of silence after which the connection counts as lost.
    :param blocking: whether to wait for new events; otherwise the stream ends at the end of the binlog.
    :param server: identity of the server that the position belongs to; ``None`` accepts any.
    :raises TransientError: if the server cannot be reached.
    :raises NotReadyError: if the user may not read the binlog.
    :raises TerminalError: if there is no event at a position above 4 GiB. At any other position, the error is raised
        for the first event.
    """

    def __init__(
        self,
        connect_args: Mapping[str, Any],
        *,
        server_id: int,
        replica_uuid: str,
        file: str,
        position: int,
        heartbeat_seconds: float = 1.0,
        read_timeout: int = 30,
        blocking: bool = True,
        server: str | None = None,
    ) -> None:
        self.file, self.position = file, position if position <= _FARTHEST_START else FIRST_EVENT_POSITION
        self.file_start_times: dict[str, int] = {}
        self._args = connect_args
        self.has_checksums = True  # the reader asks for CRC32; a format event may change it
        self._closed, self._driver_has_buffered = False, False
        settings = {key: value for key, value in connect_args.items() if key != "cursorclass"}
        settings |= {"charset": "utf8mb4", "autocommit": True, "read_timeout": read_timeout}
        settings |= {"write_timeout": read_timeout}  # also limits the TLS handshake, which has no other timeout
        self._reader = BinLogStreamReader(
            connection_settings=settings,
            server_id=server_id,
            slave_uuid=replica_uuid,
            slave_heartbeat=heartbeat_seconds,
            blocking=blocking,
            resume_stream=True,
            log_file=file,
            log_pos=self.position,
            enable_logging=False,  # it would log the connection settings
            pymysql_wrapper=partial(self._open_session, server),
        )
        try:
            self._reader._BinLogStreamReader__connect_to_stream()
        except (pymysql.MySQLError, OSError) as error:
            self._close_connection()
            raise self._translate_error(error) from None
        self._connection = self._reader._stream_connection
        self.is_mariadb = is_mariadb(self._connection)
        if self.position < position:
            self._skip_to(file, position)

    def __iter__(self) -> Iterator[BinlogEvent]:
        while (packet := self._read_packet()) is not None:
            yield self._parse_event(packet)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the stream, also for a thread that is waiting in it. Closing it twice is allowed."""
        if not self._closed:
            self._closed = True
            self._close_connection()

    def _open_session(self, server: str | None, **settings: Any) -> pymysql.Connection[Any]:
        connection, self.collations = open_dump_session(server, **settings)
        return connection

    def _skip_to(self, file: str, position: int) -> None:
        """Read up to a position that exceeds the protocol's 32 bits, as in the file of a huge transaction."""
        while self.position < position and (packet := self._read_packet()) is not None:
            self._parse_event(packet)
        if (self.file, self.position) != (file, position):
            self.close()
            raise TerminalError(
                f"there is no binlog event at {file}:{position}: the server is at {self.file}:{self.position}",
                "Start again with a fresh sink.path",
            )

    def _close_connection(self) -> None:
        connection: Any = getattr(self._reader, "_stream_connection", None)
        # Shut down first: closing a socket that another thread is reading would wait for that thread.
        with contextlib.suppress(Exception):
            connection._sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            connection.close()

    def _read_packet(self) -> bytes | None:
        """Return the next packet without its leading status byte; ``None`` at the end."""
        try:
            packet: bytes = b"\xfe" if self._closed else self._connection._read_packet()._data
        except (pymysql.MySQLError, OSError, AttributeError, ValueError) as error:
            if self._closed:  # by another thread, while this one waited
                return None
            raise self._translate_error(error) from None
        return self._strip_status(packet)

    def _strip_status(self, packet: bytes) -> bytes | None:
        if packet[:1] == b"\xfe" and len(packet) < 9:
            self.close()
            return None
        if packet[:1] != b"\x00":
            raise damaged_stream_error("unknown packet in the binlog stream", f"{self.file}:{self.position}")
        return packet[1:]

    def start_raw_reading(self) -> int:
        """Switch to reading with :meth:`receive` and :meth:`parse_packet`; return the next packet number."""
        # The driver does the same before each read.
        self._connection._sock.settimeout(self._connection._read_timeout)
        self._driver_has_buffered = True
        return int(self._connection._next_seq_id)

    def receive(self, into: memoryview) -> int:
        """Receive raw bytes from the server.

        :param into: destination, at least as large as the driver's buffer.
        :returns: number of bytes received; 0 if the stream was closed by another thread.
        :raises TransientError: if the connection is lost.
        """
        try:
            got = 0 if self._closed else int(self._receive(into))
        except (pymysql.MySQLError, OSError, AttributeError, ValueError) as error:
            if self._closed:
                return 0
            raise self._translate_error(error) from None
        if not got and not self._closed:
            raise self._translate_error(
                pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")
            )
        return got

    def _receive(self, into: memoryview) -> int:
        """Read the driver's buffer first, then bypass it.

        The first read is no larger than the buffer: with a larger target, readinto1 may wait for more bytes.
        """
        file, ahead = self._connection._rfile, self._driver_has_buffered
        self._driver_has_buffered = False
        return int(file.readinto1(into[: io.DEFAULT_BUFFER_SIZE]) if ahead else file.raw.readinto(into))

    def parse_packet(self, packet: bytes) -> BinlogEvent | None:
        """Verify a packet and return its event; ``None`` at the end of the stream.

        ``file`` and ``position`` must be those of the packet's start.

        :param packet: the packet without its header of four bytes.
        """
        if packet[:1] == b"\xff":
            try:
                pymysql.err.raise_mysql_exception(packet)
            except pymysql.MySQLError as error:
                raise self._translate_error(error) from None
        data = self._strip_status(packet)
        return None if data is None else self._parse_event(data)

    def _translate_error(self, error: Exception) -> CdcError:
        return translate_stream_error(error, f"{self.file}:{self.position}")

    def _parse_event(self, data: bytes) -> BinlogEvent:
        where = f"{self.file}:{self.position}"
        if len(data) < _HEADER.size:
            raise damaged_stream_error(f"cut off event of {len(data)} bytes", where)
        timestamp, kind, server_id, size, end, flags = _HEADER.unpack_from(data)
        if size != len(data):
            raise damaged_stream_error(f"event of type {kind} with {len(data)} bytes that claims {size}", where)
        if kind == FORMAT_DESCRIPTION:
            # This event ends with one byte for the algorithm and room for a checksum, whatever the algorithm is.
            algorithm = data[-_CHECKSUM_SIZE - 1]
            if algorithm not in (0, 1):
                raise damaged_stream_error(f"unknown checksum algorithm {algorithm}", where)
            self.has_checksums = algorithm == 1
        if self.has_checksums:
            self._verify_checksum(data, kind, where)
        if kind == FORMAT_DESCRIPTION:
            self._check_file_start(self.file, timestamp)
        has_room = self.has_checksums or kind == FORMAT_DESCRIPTION
        body = memoryview(data)[_HEADER.size : len(data) - _CHECKSUM_SIZE if has_room else len(data)]
        start = self.position
        if kind in HEARTBEATS:
            self._check_heartbeat(kind, body, end, where)
        elif kind == ROTATE and (flags & _ARTIFICIAL_FLAG or end == 0):
            self._handle_rotate(body, where)
            start = self.position
        elif not flags & _ARTIFICIAL_FLAG and (end != 0 or (self.is_mariadb and kind not in FILE_HEADER_EVENTS)):
            self.position += size
            # MariaDB 11.7 and later (binlog_legacy_event_pos=OFF) writes no positions for events inside a transaction;
            # the position of the last one shows whether any is missing.
            if end != 0 and self.position & _POSITION_MASK != end:
                expected = self.position & _POSITION_MASK
                raise damaged_stream_error(f"event of type {kind} that ends at {end} instead of {expected}", where)
        event = BinlogEvent(kind, timestamp, body, self.file, self.position, start, server_id, flags)
        if kind == ROTATE and not flags & _ARTIFICIAL_FLAG and end != 0:
            self._handle_rotate(body, where)
        return event

    def next_file_after_torn_end(self, at: Position) -> Position | None:
        """Call :func:`.binlog_headers.next_file_after_torn_end` on a new connection."""
        with contextlib.closing(connect(self._args)) as connection:
            return next_file_after_torn_end(connection, at)

    def expect_file_starts(self, start_times: dict[str, int]) -> None:
        """Stop at a file whose creation time differs from that of a file of the same name read before.

        :param start_times: known creation times by file name; those of files read from now on are added.
        """
        found, self.file_start_times = self.file_start_times, start_times
        for file, began in found.items():
            self._check_file_start(file, began)

    def _check_file_start(self, file: str, start_time: int) -> None:
        """Compare a file's creation time, from the format event that every reader gets first, with the known one."""
        known = self.file_start_times.setdefault(file, start_time)
        if known != start_time:
            raise OtherHistoryError(
                f"binlog file {file} of the server was created at {_format_time(start_time)}, but the file of this "
                f"name that was read before was created at {_format_time(known)}"
            )

    def _verify_checksum(self, data: bytes, kind: int, where: str) -> None:
        covered = data[:-_CHECKSUM_SIZE]
        if kind == FORMAT_DESCRIPTION and data[17] & _IN_USE_FLAG:
            # The checksum was computed without the flag "file in use".
            covered = data[:17] + bytes([data[17] & ~_IN_USE_FLAG]) + data[18:-_CHECKSUM_SIZE]
        if zlib.crc32(covered) != int.from_bytes(data[-_CHECKSUM_SIZE:], "little"):
            raise damaged_stream_error(f"wrong checksum of the event of type {kind}", where)

    def _handle_rotate(self, body: memoryview, where: str) -> None:
        if len(body) < 9:
            raise damaged_stream_error("cut off rotate event", where)
        self.position = int.from_bytes(body[:8], "little")
        self.file = bytes(body[8:]).decode("utf-8", "replace")

    def _check_heartbeat(self, kind: int, body: memoryview, end: int, where: str) -> None:
        """Check that the server has read no further than this stream: if it has, events are missing."""
        if kind == HEARTBEAT:
            file, position = bytes(body).decode("utf-8", "replace"), end
            # The lower 32 bits of a position that cannot be before the current one.
            position += self.position & ~_POSITION_MASK
            position += (_POSITION_MASK + 1) * (position < self.position)
        else:
            file, position = _parse_heartbeat_v2(body)
        if file != self.file or position != self.position:
            raise damaged_stream_error(
                f"events are missing: the server has read up to {file}:{position}, but its stream is", where
            )


def _parse_heartbeat_v2(body: memoryview) -> tuple[str, int]:
    """Return file and position of a HEARTBEAT_V2 event, which is a list of (type, length, value)."""
    file, position, at = "", 0, 0
    while at < len(body) and body[at] != 0:
        kind, size = body[at], body[at + 1]
        value = body[at + 2 : at + 2 + size]
        if kind == 1:
            file = bytes(value).decode("utf-8", "replace")
        elif kind == 2:
            # A packed integer: one byte up to 250; otherwise a byte for the width, then the number.
            position = value[0] if value[0] < 251 else int.from_bytes(value[1:], "little")
        at += 2 + size
    return file, position


def _format_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
