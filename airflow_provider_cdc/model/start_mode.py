"""Where a stream begins: with a snapshot, or without one at a position in the binlog."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.model.gtid import GtidSet, MariadbGtidPosition
from airflow_provider_cdc.model.offset import POSITION_BITS, split_file
from airflow_provider_cdc.model.value_checks import invalid_value

#: One of :data:`NAMED_STARTS`, or a mapping with one of the sets of keys in :data:`POSITION_KEYS`; plain JSON values.
StreamStart = str | Mapping[str, Any]

SNAPSHOT, EARLIEST, LATEST = NAMED_STARTS = ("snapshot", "earliest", "latest")
POSITION_KEYS = ({"gtid_set"}, {"file", "position"}, {"timestamp"})
#: Where the first event of a binlog file begins.
FIRST_EVENT_POSITION = 4


def check_start(key: str, value: object) -> str | dict[str, Any]:
    """Check a ``stream.start`` value and return it as plain JSON values.

    :param key: its name in messages.
    :raises NotReadyError: if it is not valid.
    """
    if isinstance(value, str) and value in NAMED_STARTS:
        return value
    if not isinstance(value, Mapping) or set(value) not in POSITION_KEYS:
        places = "a mapping with gtid_set, with file and position, or with timestamp"
        raise invalid_value(key, value, f"{', '.join(NAMED_STARTS)}, or {places}")
    checks = {
        "gtid_set": _check_gtid_set,
        "file": _check_file,
        "position": _check_position,
        "timestamp": _check_timestamp,
    }
    return {name: checks[name](f"{key}.{name}", value[name]) for name in sorted(value)}


def format_start(start: StreamStart) -> str:
    """Return a start as one human-readable line."""
    if isinstance(start, str):
        return start
    return "{file}:{position}".format(**start) if "file" in start else str(next(iter(start.values())))


def start_timestamp(start: Mapping[str, Any]) -> datetime:
    """Return the moment of a start at a timestamp."""
    return datetime.fromisoformat(start["timestamp"])


def _check_gtid_set(key: str, value: object) -> str:
    text = "".join(value.split()) if isinstance(value, str) else ""
    for kind in (GtidSet, MariadbGtidPosition):
        try:
            if text and str(kind.parse(text)):
                return text
        except ValueError:
            continue
    allowed = "a GTID set such as uuid:1-100, on MariaDB a position such as 0-1-100"
    raise invalid_value(key, value, f"{allowed}; to start before the first one, use earliest")


def _check_file(key: str, value: object) -> str:
    try:
        split_file(value if isinstance(value, str) else "")
    except CdcError:
        raise invalid_value(key, value, "the name of a binlog file such as binlog.000017") from None
    return str(value)


def _check_position(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not FIRST_EVENT_POSITION <= value < 1 << POSITION_BITS:
        raise invalid_value(
            key, value, f"a whole number of at least {FIRST_EVENT_POSITION}: the end of a transaction in the file"
        )
    return value


def _check_timestamp(key: str, value: object) -> str:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise invalid_value(key, value, "a date and time with its zone, such as 2026-11-21T08:30:00Z")
    return moment.astimezone(UTC).isoformat()
