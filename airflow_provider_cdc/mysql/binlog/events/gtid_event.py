"""GTID events: the first one of each transaction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.events.event_types import ANONYMOUS_GTID, GTID_TAGGED, MARIADB_GTID

#: Flags of MariaDB's GTID event: a group of one statement, without an end of its own.
_STANDALONE = 1
#: A number of a group commit follows.
_GROUP_COMMIT = 2
#: And a group that ends with an XA PREPARE, or ends one that did: its name follows.
_PREPARED_XA, _COMPLETED_XA = 64, 128
#: Its further flags: an ALTER that begins, and one that has failed (binlog_alter_two_phase). Of one that has not, the
#: statement comes once more.
_START_ALTER, _ROLLBACK_ALTER = 2, 8
#: Fields of a tagged GTID event by their numbers. Not used: flags, two numbers of the group commit, the commit time on
#: the origin, the transaction's length, two server versions, a ticket of the group commit.
_UUID, _GNO, _TAG, _COMMIT, _LAST_FIELD = 1, 2, 3, 6, 11
_TAG_FORM = re.compile(rb"[a-z_][a-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True)
class GtidEvent:
    """What a GTID event says.

    :param gtid: such as ``uuid:7`` and ``uuid:tag:7``, of MariaDB ``domain-server-7``; empty for an anonymous one.
    :param commit_us: commit time on this server, microseconds since the epoch, UTC.
    :param has_begun: whether no BEGIN follows.
    :param is_xa: whether rows follow that an XA PREPARE ends.
    :param is_idle_alter: whether the statement that follows has changed nothing: an ALTER that only begins, or has
        failed.
    """

    gtid: str
    commit_us: int
    has_begun: bool = False
    is_xa: bool = False
    is_idle_alter: bool = False


def parse_gtid_event(event: BinlogEvent) -> GtidEvent:
    """Read a GTID event of any kind.

    :raises ValueError: if it is cut off or makes no sense.
    """
    body, seconds = event.body, event.timestamp * 1_000_000
    if event.type == MARIADB_GTID:
        if len(body) < 13:
            raise ValueError("cut off")
        number, domain = int.from_bytes(body[:8], "little"), int.from_bytes(body[8:12], "little")
        # There is no BEGIN: all but single statements have begun here.
        begun, xa = not body[12] & _STANDALONE, bool(body[12] & _PREPARED_XA)
        idle = bool(_second_flags(body) & (_START_ALTER | _ROLLBACK_ALTER))
        return GtidEvent(f"{domain}-{event.server_id}-{number}", seconds, begun, xa, idle)
    if event.type == GTID_TAGGED:
        gtid, commit_us = _parse_tagged(body)
        return GtidEvent(gtid, commit_us or seconds)
    number = int.from_bytes(body[17:25], "little")
    gtid = f"{UUID(bytes=bytes(body[1:17]))}:{number}"
    # flags, uuid, number, kind of clock, two clock values; then the commit time in 7 bytes, whose top bit says that the
    # time on the origin follows.
    commit_us = int.from_bytes(body[42:49], "little") & ((1 << 55) - 1)
    return GtidEvent("" if event.type == ANONYMOUS_GTID else gtid, commit_us or seconds)


def _second_flags(body: memoryview) -> int:
    """The second byte of flags of MariaDB's GTID event."""
    at = 13
    if body[12] & _GROUP_COMMIT:
        at += 8
    if body[12] & (_PREPARED_XA | _COMPLETED_XA):
        at += 6 + sum(body[at + 4 : at + 6])
    return body[at] if at < len(body) else 0


def _parse_tagged(body: memoryview) -> tuple[str, int]:
    """(GTID, commit time).

    A message of MySQL's serialization library: its version, its size in bytes, the number that the last field has that
    the reader must know, plus one; then fields, each behind its number, in ascending order.
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
            break  # of a newer server, and need not be known
        if field <= last:
            raise ValueError("fields out of order")
        last = field
        if field == _UUID:
            parts = []
            for _ in range(16):  # each byte is a number
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
    """(a number, where it ends). As many ones as its first byte ends with, so many bytes follow."""
    size = 1
    while at < len(body) and size < 9 and body[at] >> (size - 1) & 1:
        size += 1
    if at + size > len(body):
        raise ValueError("cut off")
    return int.from_bytes(body[at : at + size], "little") >> min(size, 8), at + size
