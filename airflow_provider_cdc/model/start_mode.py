"""Where a stream begins: with a snapshot, or without one at a place of the binlog."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.model.gtid import GtidSet, MariadbPosition
from airflow_provider_cdc.model.offset import POSITION_BITS, split_file
from airflow_provider_cdc.model.value_checks import refused

#: One of :data:`WORDS`, or a mapping with the keys of one of :data:`PLACES`; always plain JSON values.
Start = str | Mapping[str, Any]

SNAPSHOT, EARLIEST, LATEST = WORDS = ("snapshot", "earliest", "latest")
PLACES = ({"gtid_set"}, {"file", "position"}, {"timestamp"})
#: Where the first event of a binlog file begins.
FIRST_POSITION = 4


def check_start(key: str, value: object) -> str | dict[str, Any]:
    """A start as plain JSON values.

    :param key: what messages call it.
    :raises NotReadyError: if it is none.
    """
    if isinstance(value, str) and value in WORDS:
        return value
    if not isinstance(value, Mapping) or set(value) not in PLACES:
        places = "a mapping with gtid_set, with file and position, or with timestamp"
        raise refused(key, value, f"{', '.join(WORDS)}, or {places}")
    checks = {"gtid_set": _gtid_set, "file": _file, "position": _position, "timestamp": _timestamp}
    return {name: checks[name](f"{key}.{name}", value[name]) for name in sorted(value)}


def start_text(start: Start) -> str:
    """A start for people, on one line."""
    if isinstance(start, str):
        return start
    return "{file}:{position}".format(**start) if "file" in start else str(next(iter(start.values())))


def moment_of(start: Mapping[str, Any]) -> datetime:
    """The moment of a start at a timestamp."""
    return datetime.fromisoformat(start["timestamp"])


def _gtid_set(key: str, value: object) -> str:
    text = "".join(value.split()) if isinstance(value, str) else ""
    for kind in (GtidSet, MariadbPosition):
        try:
            if text and str(kind.parse(text)):
                return text
        except ValueError:
            continue
    allowed = "a GTID set such as uuid:1-100, on MariaDB a position such as 0-1-100"
    raise refused(key, value, f"{allowed}; to start before the first one, use earliest")


def _file(key: str, value: object) -> str:
    try:
        split_file(value if isinstance(value, str) else "")
    except CdcError:
        raise refused(key, value, "the name of a binlog file such as binlog.000017") from None
    return str(value)


def _position(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not FIRST_POSITION <= value < 1 << POSITION_BITS:
        raise refused(key, value, f"a whole number of at least {FIRST_POSITION}: the end of a transaction in the file")
    return value


def _timestamp(key: str, value: object) -> str:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise refused(key, value, "a date and time with its zone, such as 2026-11-21T08:30:00Z")
    return moment.astimezone(UTC).isoformat()
