"""The section of a pipeline that says where rows go, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_cdc.core.checks import check_choice, check_whole, refused, unbuilt
from airflow_provider_cdc.core.patterns import check_patterns
from airflow_provider_cdc.sinks.registry import KINDS

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):/")
_SINK_KINDS = ("delta", "iceberg", "jdbc", "kafka", "changelog")
_UNITS = ("year", "month", "day", "hour")
_MERGES = ("deletion_vectors", "copy_on_write")


@dataclass(frozen=True)
class Sink:
    """Where rows go.

    :param path: absolute folder; one table a folder: ``<path>/<database>/<table>``.
    :param kind: ``delta``; one of :data:`airflow_provider_cdc.sinks.registry.KINDS`.
    :param deletes: ``hard``: a deleted row is gone.
    :param merge: how rows that are replaced or deleted go: ``deletion_vectors`` or ``copy_on_write``; or, for some
        tables, ``{"copy_on_write": [patterns]}``.
    :param index_bytes: what the index of a table's keys may take in memory.
    :param partition_by: for patterns of tables, what they are partitioned by: columns, and parts of dates as
        ``{"month": "created_at"}``; the first pattern that fits counts.
    :param compaction: whether the stream compacts the tables beside its work; else only ``airflow-cdc maintain`` does.
    """

    path: str
    kind: str = "delta"
    deletes: str = "hard"
    merge: str | Mapping[str, Sequence[str]] = field(default="deletion_vectors", hash=False)
    index_bytes: int = 268_435_456
    partition_by: Mapping[str, Sequence[str | Mapping[str, str]]] = field(default_factory=dict, hash=False)
    compaction: bool = True

    def __post_init__(self) -> None:
        check_choice("sink.kind", self.kind, tuple(KINDS), _SINK_KINDS, f"Use {' or '.join(KINDS)}")
        path: object = self.path
        if not isinstance(path, str):
            raise refused("sink.path", path, "the absolute path of a folder, such as /data/lake")
        if scheme := _SCHEME.match(path):
            # The rest is not shown: storage addresses can carry keys.
            raise unbuilt(
                "sink.path", f"{scheme[1]}://", "Use the plain path of a folder that the driver and all executors share"
            )
        if not path.startswith("/") or not path.isprintable():
            raise refused("sink.path", path, "the absolute path of a folder, such as /data/lake")
        check_choice(
            "sink.deletes", self.deletes, ("hard",), ("soft",), "Use hard: a deleted row is removed from the sink"
        )
        self._check_merge()
        self._check_partitions()
        check_whole("sink.index_bytes", self.index_bytes, 1 << 20)
        compaction: object = self.compaction
        if not isinstance(compaction, bool):
            raise refused("sink.compaction", compaction, "true or false")

    def _check_merge(self) -> None:
        merge: object = self.merge
        if not isinstance(merge, Mapping):
            check_choice("sink.merge", merge, _MERGES, (), "")
        elif list(merge) != ["copy_on_write"]:
            raise refused("sink.merge", merge, f"{' or '.join(_MERGES)}, or {{copy_on_write: [patterns of tables]}}")
        else:
            patterns = check_patterns("sink.merge.copy_on_write", merge["copy_on_write"])
            object.__setattr__(self, "merge", {"copy_on_write": patterns})

    def _check_partitions(self) -> None:
        value: object = {} if self.partition_by is None else self.partition_by
        if not isinstance(value, Mapping):
            raise refused("sink.partition_by", value, "a mapping of patterns of tables to lists of columns")
        found: dict[str, list[str | dict[str, str]]] = {}
        for pattern in check_patterns("sink.partition_by", list(value)):
            key, listed = f"sink.partition_by.{pattern}", value[pattern]
            if not isinstance(listed, list | tuple) or not listed:
                raise refused(key, listed, "a list such as [country, {month: created_at}]")
            found[pattern] = [_part(key, part) for part in listed]
        object.__setattr__(self, "partition_by", found)

    @property
    def settings(self) -> dict[str, Any]:
        """What the class of the sink takes beside path and pipeline, as far as it is not the default."""
        found: dict[str, Any] = {}
        if self.merge != "deletion_vectors":
            found["copies"] = (".*[.].*",) if isinstance(self.merge, str) else tuple(self.merge["copy_on_write"])
        if self.index_bytes != type(self).index_bytes:
            found["index_bytes"] = self.index_bytes
        if self.partition_by:
            found["partition_by"] = tuple(
                (pattern, tuple((part, None) if isinstance(part, str) else _column_and_unit(part) for part in parts))
                for pattern, parts in self.partition_by.items()
            )
        return found


def _part(key: str, part: object) -> str | dict[str, str]:
    """What a table is partitioned by, if it is such."""
    if isinstance(part, str) and part:
        return part
    if isinstance(part, Mapping) and len(part) == 1:
        ((unit, column),) = part.items()
        if unit in _UNITS and isinstance(column, str) and column:
            return {unit: column}
    raise refused(
        key, part, f"a list of columns and parts of dates, such as {{month: created_at}}: {', '.join(_UNITS)}"
    )


def _column_and_unit(part: Mapping[str, str]) -> tuple[str, str]:
    ((unit, column),) = part.items()
    return column, unit
