"""How long a Delta table keeps what its newest version does not need: its properties, or Delta's defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_provider_cdc.config.table_properties import DELETED_FILE_RETENTION, LOG_RETENTION

_DAY = 24 * 3600.0
#: Defaults of Delta for tables without these properties.
_DEFAULTS = {DELETED_FILE_RETENTION: 7 * _DAY, LOG_RETENTION: 30 * _DAY}
_UNITS = {
    "week": 7 * _DAY,
    "day": _DAY,
    "hour": 3600.0,
    "minute": 60.0,
    "second": 1.0,
    "millisecond": 1e-3,
    "microsecond": 1e-6,
}
_AMOUNT = re.compile(rf"(\d+)\s+({'|'.join(_UNITS)})s?\b\s*")


def file_retention(configuration: Mapping[str, str]) -> float | None:
    """Return for how many seconds removed files are kept; ``None`` if the property is not understood."""
    return _parse_seconds(configuration, DELETED_FILE_RETENTION)


def log_retention(configuration: Mapping[str, str]) -> float | None:
    """Return for how many seconds commits are kept in the log, at least; ``None`` if it is not understood."""
    return _parse_seconds(configuration, LOG_RETENTION)


def drop_shorter_retentions(current: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the wanted properties without retentions shorter than the table's own, which its owner has chosen.

    :param current: properties of the table.
    :param wanted: properties that the table is to get.
    """
    return {name: value for name, value in wanted.items() if name not in _DEFAULTS or _is_longer(current, wanted, name)}


def _is_longer(current: Mapping[str, str], wanted: Mapping[str, str], name: str) -> bool:
    before, after = _parse_seconds(current, name), _parse_seconds(wanted, name)
    return before is not None and after is not None and after > before


def _parse_seconds(configuration: Mapping[str, str], name: str) -> float | None:
    text = configuration.get(name)
    if text is None:
        return _DEFAULTS[name]
    interval = str(text).strip().lower().removeprefix("interval").strip()
    amounts = _AMOUNT.findall(interval)
    if not amounts or _AMOUNT.sub("", interval):
        return None
    return sum(int(count) * _UNITS[unit] for count, unit in amounts)
