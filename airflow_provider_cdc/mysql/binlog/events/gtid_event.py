"""GTID events, the first event of each transaction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.events.event_types import ANONYMOUS_GTID, GTID_TAGGED, MARIADB_GTID

#: Flags of MariaDB's GTID event: a group of a single statement, without an end event.
_STANDALONE = 1
#: A group commit number follows.
_GROUP_COMMIT = 2
#: A group that ends with XA PREPARE, or that completes a prepared one; the XA transaction's name follows.
_PREPARED_XA, _COMPLETED_XA = 64, 128
#: Its extra flags: an ALTER that begins, and one that has failed (binlog_alter_two_phase). If the ALTER succeeds, the
#: statement is logged a second time.
_START_ALTER, _ROLLBACK_ALTER = 2, 8
#: Numbers of the fields of a tagged GTID event. Not used: flags, two group commit numbers, the original commit time,
#: the transaction's length, two server versions, the group commit ticket.
_UUID, _GNO, _TAG, _COMMIT, _LAST_FIELD = 1, 2, 3, 6, 11
_TAG_FORM = re.compile(rb"[a-z_][a-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True)
class GtidEvent:
    """Content of a GTID event.

    :param gtid: such as ``uuid:7`` or ``uuid:tag:7``, on MariaDB ``domain-server-7``; empty for an anonymous one.
    :param commit_us: commit time on this server, in microseconds since the epoch, UTC.
    :param has_begun: whether the transaction has begun with this event, without a BEGIN.
    :param is_xa: whether rows follow that end with an XA PREPARE.
    :param is_idle_alter: whether the next statement changes nothing: an ALTER that only begins, or has failed.
    """

    gtid: str
    commit_us: int
    has_begun: bool = False
    is_xa: bool = False
    is_idle_alter: bool = False


def parse_gtid_event(event: BinlogEvent) -> GtidEvent:
    """Parse a GTID event of any type.

    :raises ValueError: if it is cut off or invalid.
    """
    body, seconds = event.body, event.timestamp * 1_000_000
    if event.type == MARIADB_GTID:
        if len(body) < 13:
            raise ValueError("cut off")
        number, domain = int.from_bytes(body[:8], "little"), int.from_bytes(body[8:12], "little")
        # There is no BEGIN event: unless the group is a single statement, the transaction begins here.
        begun, xa = not body[12] & _STANDALONE, bool(body[12] & _PREPARED_XA)
        idle = bool(_second_flags(body) & (_START_ALTER | _ROLLBACK_ALTER))
        return GtidEvent(f"{domain}-{event.server_id}-{number}", seconds, begun, xa, idle)
    if event.type == GTID_TAGGED:
        gtid, commit_us = _parse_tagged(body)
        return GtidEvent(gtid, commit_us or seconds)
    number = int.from_bytes(body[17:25], "little")
    gtid = f"{UUID(bytes=bytes(body[1:17]))}:{number}"
    # Flags, UUID, number, kind of clock, two clock values; then the commit time in 7 bytes, whose top bit says that the
    # original commit time follows.
    commit_us = int.from_bytes(body[42:49], "little") & ((1 << 55) - 1)
    return GtidEvent("" if event.type == ANONYMOUS_GTID else gtid, commit_us or seconds)


def _second_flags(body: memoryview) -> int:
    """Return the second flags byte of MariaDB's GTID event."""
    at = 13
    if body[12] & _GROUP_COMMIT:
        at += 8
    if body[12] & (_PREPARED_XA | _COMPLETED_XA):
        at += 6 + sum(body[at + 4 : at + 6])
    return body[at] if at < len(body) else 0


def _parse_tagged(body: memoryview) -> tuple[str, int]:
    """Return the GTID and the commit time of a tagged GTID event.

    It is a message of MySQL's serialization library: version, size in bytes, one plus the number of the last field that
    the reader must understand, then the fields in ascending order, each preceded by its number.
    """
    version, at = _read_varint(body, 0)
    size, at = _read_varint(body, at)
    wanted, at = _read_varint(body, at)
    if version != 1 or size != len(body) or wanted > _LAST_FIELD + 1:
        raise ValueError("of another version")
    fields: dict[int, int] = {}
    uuid = tag = b""
    last = -1
    while at < len(body):
        field, at = _read_varint(body, at)
        if field > _LAST_FIELD:
            break  # from a newer server, and may be ignored
        if field <= last:
            raise ValueError("fields out of order")
        last = field
        if field == _UUID:
            parts = []
            for _ in range(16):  # each byte is encoded as a varint
                part, at = _read_varint(body, at)
                parts.append(part)
            uuid = bytes(parts)
        elif field == _TAG:
            length, at = _read_varint(body, at)
            tag, at = bytes(body[at : at + length]), at + length
        else:
            fields[field], at = _read_varint(body, at)
    number, commit_us = fields.get(_GNO, 0), fields.get(_COMMIT, 0)
    # The lowest bit of the number is its sign.
    if at > len(body) or not _TAG_FORM.fullmatch(tag) or number & 1 or not number or commit_us >= 1 << 55:
        raise ValueError("without a GTID")
    return f"{UUID(bytes=uuid)}:{tag.decode()}:{number >> 1}", commit_us


def _read_varint(body: memoryview, at: int) -> tuple[int, int]:
    """Return a variable-length number and where it ends; the trailing ones of its first byte count the bytes after it.

    :raises ValueError: if it is cut off.
    """
    size = 1
    while at < len(body) and size < 9 and body[at] >> (size - 1) & 1:
        size += 1
    if at + size > len(body):
        raise ValueError("cut off")
    return int.from_bytes(body[at : at + size], "little") >> min(size, 8), at + size
