"""Markers as properties of an Iceberg table.

A property has one marker. Markers whose names differ only in a number at the end, such as those of chunk groups, share
a property, in which equal values of successive numbers are one range: ``0-4999:1,5000:2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from airflow_provider_cdc.config.table_properties import OWN_PREFIX
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.lake.log.source_scope import WHOLE_TABLE, SourceScope

_SINGLE, _NUMBERED = f"{OWN_PREFIX}marker.", f"{OWN_PREFIX}markers."
_NUMBERED_NAME = re.compile(r"(.*/)(0|[1-9]\d*)", re.DOTALL)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?:(-?\d+)")


def parse_markers(properties: Mapping[str, str]) -> dict[str, int]:
    """Return the markers in the properties of a table.

    :raises TerminalError: if a property is damaged.
    """
    markers = dict[str, int]()
    for name, text in properties.items():
        try:
            if name.startswith(_SINGLE):
                markers[name.removeprefix(_SINGLE)] = int(text)
            elif name.startswith(_NUMBERED):
                prefix = name.removeprefix(_NUMBERED)
                markers |= {f"{prefix}{number}": value for number, value in _parse_ranges(text)}
        except ValueError:
            raise TerminalError(
                f"the table property {name} has the value {text!r}, which this version does not understand",
                "Restore the value, or start with a fresh sink.path: the property records which work the table has",
            ) from None
    return markers


def marker_properties(
    markers: Mapping[str, int], changed: Mapping[str, int], scope: SourceScope = WHOLE_TABLE
) -> dict[str, str]:
    """Return the properties that change if markers are written.

    :param markers: all markers that the table has in the scope.
    :param changed: markers to write.
    :param scope: whose markers they are.
    """
    markers, changed = ({scope.stored_marker(name): value for name, value in one.items()} for one in (markers, changed))
    properties, prefixes = dict[str, str](), set[str]()
    for name, value in changed.items():
        if match := _NUMBERED_NAME.fullmatch(name):
            prefixes.add(match[1])
        else:
            properties[f"{_SINGLE}{name}"] = str(value)
    if prefixes:
        numbered: dict[str, dict[int, int]] = {prefix: {} for prefix in prefixes}
        for name, value in {**markers, **changed}.items():
            match = _NUMBERED_NAME.fullmatch(name)
            if match and match[1] in prefixes:
                numbered[match[1]][int(match[2])] = value
        properties |= {f"{_NUMBERED}{prefix}": _ranges_text(values) for prefix, values in numbered.items()}
    return properties


def properties_to_set(current: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return those of the wanted properties that a table does not have."""
    return {name: value for name, value in wanted.items() if current.get(name) != value}


def _parse_ranges(text: str) -> Iterator[tuple[int, int]]:
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(part)
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            yield number, int(match[3])


def _ranges_text(values: Mapping[int, int]) -> str:
    ranges = list[list[int]]()
    for number, value in sorted(values.items()):
        if ranges and ranges[-1][1] + 1 == number and ranges[-1][2] == value:
            ranges[-1][1] = number
        else:
            ranges.append([number, number, value])
    return ",".join(f"{first}:{value}" if first == last else f"{first}-{last}:{value}" for first, last, value in ranges)
