"""A live data file in a version of a Delta table."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote

from airflow_provider_cdc.sinks.delta.log.deletion_vectors import DeletionVector
from airflow_provider_cdc.sinks.files.parquet import DataFile

#: Data files written by this project: the statistics of other writers are not exact for large numbers.
_OWN_FILE_PATH = re.compile(r"(snapshot|changes)/.*|([^/]+=[^/]*/)*part-[0-9a-f]{32}(-\d+)?\.parquet")
_MAX_EXACT_INTEGER = 1 << 53
#: Fields of row tracking.
_ROW_TRACKING_FIELDS = ("baseRowId", "defaultRowCommitVersion")


@dataclass(frozen=True)
class DeltaLiveFile:
    """A data file in a version.

    :param action: its ``add`` action in the log.
    """

    action: Mapping[str, Any]

    @cached_property
    def path(self) -> str:
        """Path in the table's folder."""
        return unquote(str(self.action["path"]))

    @cached_property
    def size(self) -> int:
        """Size in bytes."""
        return int(self.action["size"])

    @property
    def row_count(self) -> int | None:
        """Number of its rows, including dead ones; ``None`` if the log does not record it."""
        count = self.stats.get("numRecords")
        return count if isinstance(count, int) else None

    @cached_property
    def stats(self) -> Mapping[str, Any]:
        """Its statistics, which may be incomplete."""
        return json.loads(self.action.get("stats") or "{}") or {}

    @cached_property
    def partition(self) -> Mapping[str, str | None]:
        """Values, as text, of the columns that are not in the file; an empty text is NULL."""
        return {name: value or None for name, value in (self.action.get("partitionValues") or {}).items()}

    @cached_property
    def deletion_vector(self) -> DeletionVector | None:
        """Its deletion vector."""
        value = self.action.get("deletionVector")
        return DeletionVector.from_json(value) if value else None

    @property
    def dead_row_count(self) -> int:
        """Number of dead rows."""
        return self.deletion_vector.cardinality if self.deletion_vector else 0

    @property
    def row_origin(self) -> None:
        """Nothing: row tracking is not supported."""
        return None

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Return lowest and highest value; see :class:`~airflow_provider_cdc.sinks.lake.log.table_log.LiveFile`."""
        low, high = ((self.stats.get(name) or {}).get(column) for name in ("minValues", "maxValues"))
        if not isinstance(low, int) or not isinstance(high, int) or isinstance(low, bool):
            return None
        if _OWN_FILE_PATH.fullmatch(self.path):
            return low, high
        has_nulls = (self.stats.get("nullCount") or {}).get(column) != 0  # as far as is known
        exact = max(abs(low), abs(high)) < _MAX_EXACT_INTEGER and not has_nulls
        return (low, high) if exact else None

    def vector_action(self, vector: DeletionVector, row_count: int, *, data_change: bool) -> dict[str, Any]:
        """Return the action that adds the file again with other dead rows.

        :param row_count: number of its rows, including dead ones, which is required for a file with a vector.
        """
        stats = json.dumps({**self.stats, "numRecords": row_count, "tightBounds": False})
        return {"add": {**self.action, "dataChange": data_change, "stats": stats, "deletionVector": vector.to_json()}}

    def remove_action(self, *, data_change: bool) -> dict[str, Any]:
        """Return the action that removes the file."""
        fields = {name: self.action[name] for name in _ROW_TRACKING_FIELDS if self.action.get(name) is not None} | {
            "path": self.action["path"],
            "deletionTimestamp": now_milliseconds(),
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": self.action.get("partitionValues") or {},
            "size": self.size,
        }
        if self.deletion_vector:
            fields["deletionVector"] = self.deletion_vector.to_json()
        return {"remove": fields}


def add_action(
    file: DataFile, stats_column: str | None, vector: DeletionVector | None, *, data_change: bool = True
) -> dict[str, Any]:
    """Return the action that adds a new file.

    :param stats_column: name of the single integer key column.
    """
    bounds = {stats_column: (file.low, file.high)} if stats_column and file.low is not None else {}
    if file.oldest is not None:
        bounds["_cdc_seq"] = (file.oldest, file.newest)
    stats: dict[str, Any] = {"numRecords": file.rows}
    if bounds:
        stats["minValues"] = {name: low for name, (low, _) in bounds.items()}
        stats["maxValues"] = {name: high for name, (_, high) in bounds.items()}
        stats["nullCount"] = dict.fromkeys(bounds, 0)
    if vector:
        stats["tightBounds"] = False
    fields = {
        "path": quote(file.path, safe="/="),
        "partitionValues": dict(file.partition),
        "size": file.size,
        "modificationTime": now_milliseconds(),
        "dataChange": data_change,
        "stats": json.dumps(stats),
    }
    return {"add": fields | ({"deletionVector": vector.to_json()} if vector else {})}


def now_milliseconds() -> int:
    """Return the current time in milliseconds, as used in the log."""
    return int(time.time() * 1000)
