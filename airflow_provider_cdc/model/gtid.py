"""GTID sets as MySQL writes and compares them, and the GTID positions of MariaDB.

A GTID is ``uuid:number`` or, with a tag, ``uuid:tag:number``. GTID sets are compared as sets and never by order: two
servers may have run transactions in different orders, and a set may have gaps that are filled later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

#: Closed intervals (first, last), sorted, neither overlapping nor touching.
Intervals = tuple[tuple[int, int], ...]
#: (uuid, tag); the tag of an ordinary GTID is empty.
GtidSource = tuple[str, str]

_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"([0-9]+)(?:-([0-9]+))?")


class GtidSet:
    """An immutable set of GTIDs.

    ``str(s)`` is the canonical text (the server's, on one line) and ``GtidSet.parse(str(s)) == s``.
    """

    __slots__ = ("_intervals",)
    _intervals: Mapping[GtidSource, Intervals]

    def __init__(self, intervals: Mapping[GtidSource, Iterable[tuple[int, int]]] | None = None) -> None:
        """Build a set.

        :param intervals: closed intervals for each (uuid, tag), in any order; they may overlap.
        """
        merged = {source: _merge_intervals(parts) for source, parts in (intervals or {}).items()}
        self._intervals = MappingProxyType({source: parts for source, parts in merged.items() if parts})

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        r"""Parse a GTID set such as the value of ``@@global.gtid_executed``.

        :param text: such as ``uuid:1-5:8,\nuuid2:1-3:tag:1-2``; line breaks and spaces are ignored.
        :raises ValueError: if it is not a GTID set.
        """
        intervals: dict[GtidSource, list[tuple[int, int]]] = {}
        for part in filter(None, "".join(text.split()).split(",")):
            uuid, *items = part.split(":")
            source = (_parse_uuid(uuid), "")
            if not items:
                raise ValueError(f"not a GTID set: {part!r} has no numbers")
            for item in items:
                if match := _INTERVAL.fullmatch(item):
                    first, last = int(match[1]), int(match[2] or match[1])
                    if first < 1 or last < first:
                        raise ValueError(f"not a GTID set: bad interval {item!r}")
                    intervals.setdefault(source, []).append((first, last))
                else:
                    source = (source[0], _parse_tag(item))
        return cls(intervals)

    def __str__(self) -> str:
        texts: dict[str, str] = {}
        for (uuid, tag), parts in sorted(self._intervals.items()):
            numbers = ":".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)
            texts[uuid] = texts.get(uuid, uuid) + (f":{tag}:{numbers}" if tag else f":{numbers}")
        return ",".join(texts.values())

    def __repr__(self) -> str:
        return f"GtidSet({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GtidSet) and self._intervals == other._intervals

    def __hash__(self) -> int:
        return hash(frozenset(self._intervals.items()))

    def __bool__(self) -> bool:
        return bool(self._intervals)

    def __contains__(self, gtid: str) -> bool:
        """Return whether the set contains one GTID, such as ``uuid:7`` or ``uuid:tag:7``."""
        source, number = split_gtid(gtid)
        return any(first <= number <= last for first, last in self._intervals.get(source, ()))

    def add(self, gtid: str) -> GtidSet:
        """Return the set with one more GTID; fast if the GTID follows the highest number, as in a stream."""
        source, number = split_gtid(gtid)
        parts = self._intervals.get(source, ())
        if parts and number == parts[-1][1] + 1:
            changed: Intervals = (*parts[:-1], (parts[-1][0], number))
        else:
            changed = _merge_intervals((*parts, (number, number)))
        return _from_merged({**self._intervals, source: changed})

    def with_all(self, gtids: Iterable[str]) -> GtidSet:
        """Return the set with further GTIDs and ranges of them, such as ``uuid:7-9``."""
        more = ",".join(gtids)
        return self.union(self.parse(more)) if more else self

    def union(self, other: GtidSet) -> GtidSet:
        """Return all GTIDs of both sets."""
        result = dict(self._intervals)
        for source, parts in other._intervals.items():
            result[source] = _merge_intervals((*result.get(source, ()), *parts))
        return _from_merged(result)

    def subtract(self, other: GtidSet) -> GtidSet:
        """Return the GTIDs of this set that the other lacks."""
        result = {
            source: _subtract_intervals(parts, other._intervals.get(source, ()))
            for source, parts in self._intervals.items()
        }
        return _from_merged({source: parts for source, parts in result.items() if parts})

    def repeated_in(self, more: GtidSet) -> GtidSet:
        """Return the GTIDs in both this set and ``more``, the GTIDs that follow it in a binlog.

        Within one binlog there are none.
        """
        return more.subtract(more.subtract(self))

    def issubset(self, other: GtidSet) -> bool:
        """Return whether every GTID of this set is in the other."""
        return not self.subtract(other)

    def minus_all(self, gtids: Iterable[str]) -> GtidSet:
        """Return the set without the given GTIDs and ranges of them."""
        return self.subtract(GtidSet().with_all(gtids))


@dataclass(frozen=True)
class MariadbGtidPosition:
    """A position in a MariaDB binlog: the newest GTID (``domain-server-number``) of each replication domain.

    :param newest: (server, number) by domain.
    """

    newest: Mapping[int, tuple[int, int]]

    @classmethod
    def parse(cls, text: str) -> MariadbGtidPosition:
        """Parse a GTID position such as the value of ``@@global.gtid_binlog_pos``.

        :param text: such as ``0-1-7,3-1-2``.
        :raises ValueError: if it has another form.
        """
        gtids = [tuple(map(int, part.split("-"))) for part in "".join(text.split()).split(",") if part]
        return cls({domain: (server, number) for domain, server, number in gtids})

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.newest.items()))

    def __bool__(self) -> bool:
        return bool(self.newest)

    def __contains__(self, gtid: str) -> bool:
        """Return whether one GTID is at or before the position; GTIDs of a domain are ordered."""
        return MariadbGtidPosition.parse(gtid).issubset(self)

    def issubset(self, other: MariadbGtidPosition) -> bool:
        """Return whether this position is at or before the other in every domain."""
        return all(d in other.newest and number <= other.newest[d][1] for d, (_, number) in self.newest.items())

    def minus_all(self, gtids: Iterable[str]) -> MariadbGtidPosition:
        """Return the position without the domains in which the given GTIDs reach it.

        :param gtids: GTIDs in binlog order.
        """
        reached = self.parse(",".join(gtids))
        return MariadbGtidPosition(
            {d: gtid for d, gtid in self.newest.items() if gtid[1] > reached.newest.get(d, (0, 0))[1]}
        )

    def repeated_in(self, more: MariadbGtidPosition) -> MariadbGtidPosition:
        """Return an empty position: in MariaDB, the numbers of a domain need not grow (``gtid_strict_mode=OFF``)."""
        return MariadbGtidPosition({})

    def union(self, more: MariadbGtidPosition) -> MariadbGtidPosition:
        """Return the position that is reached after ``more``, which follows this one."""
        return MariadbGtidPosition({**self.newest, **more.newest})

    def add(self, gtid: str) -> MariadbGtidPosition:
        """Return the position with one more GTID, which becomes the newest of its domain."""
        return self.with_all([gtid])

    def with_all(self, gtids: Iterable[str]) -> MariadbGtidPosition:
        """Return the position with further GTIDs, given in binlog order."""
        return self.union(self.parse(",".join(gtids)))


def gtid_class_of(server: str) -> type[GtidSet] | type[MariadbGtidPosition]:
    """Return the class that represents the GTIDs of a server.

    :param server: its identity (:func:`airflow_provider_cdc.mysql.client.identity.server_identity`).
    """
    return MariadbGtidPosition if server.startswith("mariadb:") else GtidSet


def split_gtid(gtid: str) -> tuple[GtidSource, int]:
    """Split one GTID into ``((uuid, tag), number)``.

    :raises ValueError: if it is not one GTID.
    """
    uuid, _, rest = gtid.partition(":")
    tag, _, number = rest.rpartition(":")
    if not (number.isascii() and number.isdigit() and int(number) > 0):
        raise ValueError(f"not a GTID: {gtid!r}")
    return (_parse_uuid(uuid), _parse_tag(tag) if tag else ""), int(number)


def parse_gtid_owned(text: str) -> dict[str, tuple[int, ...]]:
    r"""Parse ``@@global.gtid_owned``: the GTIDs of transactions that are being committed.

    The server prints ``uuid:7#11:8#12,\nuuid2:tag:3#9``: each number is followed by the threads that own it. A number
    without an owner counts as owned, which at worst causes a slightly longer wait.

    :param text: value of the variable; empty if nothing is owned.
    :returns: GTIDs as ``uuid:7`` and ``uuid:tag:7``, each with the ids of the threads (connections) that own it.
    :raises ValueError: if the text has another form.
    """
    owned: dict[str, tuple[int, ...]] = {}
    for part in filter(None, "".join(text.split()).split(",")):
        uuid, *items = part.split(":")
        prefix = _parse_uuid(uuid)
        for item in items:
            number, *threads = item.split("#")
            if number.isascii() and number.isdigit():
                owned[f"{prefix}:{int(number)}"] = tuple(int(thread) for thread in threads if thread.isdigit())
            else:
                prefix = f"{_parse_uuid(uuid)}:{_parse_tag(item)}"
    return owned


def _from_merged(intervals: dict[GtidSource, Intervals]) -> GtidSet:
    """Make a set from intervals that are already merged."""
    result = GtidSet()
    result._intervals = MappingProxyType(intervals)
    return result


def _merge_intervals(parts: Iterable[tuple[int, int]]) -> Intervals:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(parts):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _subtract_intervals(parts: Intervals, removed: Intervals) -> Intervals:
    remaining = []
    for first, last in parts:
        for a, b in removed:
            if b < first or a > last:
                continue
            if a > first:
                remaining.append((first, a - 1))
            first = b + 1
        if first <= last:
            remaining.append((first, last))
    return tuple(remaining)


def _parse_uuid(text: str) -> str:
    # The canonical form, nearly the only one, skips the parser: this runs once per transaction.
    if len(text) == 36 and text.islower() and text.count("-") == 4:
        return text
    try:
        return str(UUID(text))
    except ValueError:
        raise ValueError(f"not a GTID: {text!r} is not a server uuid") from None


def _parse_tag(text: str) -> str:
    tag = text.lower()
    if not _TAG.fullmatch(tag):
        raise ValueError(f"not a GTID: bad tag {text!r}")
    return tag
