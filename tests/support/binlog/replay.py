"""Binlog streams recorded from a real server, and played again: whole, in pieces of any size, or changed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.client.collations import Collations
from tests.support.binlog.reading import open_stream
from tests.support.servers import MySQLServer


@dataclass(frozen=True)
class Recording:
    """All that a server sent after the dump command.

    :param number: number of the first packet.
    """

    file: str
    position: int
    number: int
    mariadb: bool
    data: bytes
    collations: Collations

    def packets(self) -> Iterator[bytes]:
        """Packets without their headers."""
        at = 0
        while at < len(self.data):
            size = int.from_bytes(self.data[at : at + 3], "little")
            yield self.data[at + 4 : at + 4 + size]
            at += 4 + size

    def changed(self, packets: list[bytes]) -> Recording:
        """The same with other packets."""
        numbered = [
            len(packet).to_bytes(3, "little") + bytes([(self.number + n) & 255]) + packet
            for n, packet in enumerate(packets)
        ]
        return replace(self, data=b"".join(numbered))

    def since(self, position: int) -> Recording:
        """What the server sends to one who asks for a later place in the same file."""
        packets, replay = list(self.packets()), Replay(self)
        for n, packet in enumerate(packets):
            if n >= 2 and replay.position == position:
                rotate, made = bytearray(packets[0][1:-4]), bytearray(packets[1][1:-4])
                rotate[19:27] = position.to_bytes(8, "little")
                made[13:17] = bytes(4)  # the format event is sent again, and stands nowhere
                listed = [sealed(bytes(rotate)), sealed(bytes(made)), *packets[n:]]
                return replace(self.changed(listed), position=position)
            replay.parse_packet(packet)
        raise AssertionError(f"no event begins at {position}")

    def events(self) -> list[BinlogEvent]:
        """The events, read the plain way."""
        stream = Replay(self)
        return [event for packet in self.packets() if (event := stream.parse_packet(packet)) is not None]


def record(server: MySQLServer, start: tuple[str, int]) -> Recording:
    """Everything from a place to the present end of the binlog."""
    with open_stream(server, start) as stream:
        number, data, part = stream.start_raw_reading(), bytearray(), bytearray(1 << 16)
        # The stream ends with a packet that says so; the driver would see it, so it is looked for here.
        while not _is_over(data):
            data += part[: stream.receive(memoryview(part))]
        return Recording(start[0], start[1], number, stream.is_mariadb, bytes(data), stream.collations)


def _is_over(data: bytearray) -> bool:
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 3], "little")
        if size < 9 and data[at + 4 : at + 5] == b"\xfe":
            return True
        at += 4 + size
    return False


def sealed(event: bytes) -> bytes:
    """A packet of an event (header and body) with the checksum that it should have."""
    return b"\0" + event + struct.pack("<I", zlib.crc32(event))


class Replay(BinlogStream):
    """A recording in place of a connection.

    :param piece: bytes that are received at a time, called before each.
    """

    def __init__(self, recording: Recording, piece: Callable[[], int] = lambda: 1 << 20) -> None:
        self.file, self.position, self.file_start_times = recording.file, recording.position, dict[str, int]()
        self.has_checksums, self._closed, self.is_mariadb = True, False, recording.mariadb
        self._recording, self._piece, self._at = recording, piece, 0
        self.collations = recording.collations

    def start_raw_reading(self) -> int:
        return self._recording.number

    def receive(self, into: memoryview) -> int:
        got = self._recording.data[self._at : self._at + min(len(into), max(1, self._piece()))]
        into[: len(got)] = got
        self._at += len(got)
        return len(got)

    def _close_connection(self) -> None:
        pass
