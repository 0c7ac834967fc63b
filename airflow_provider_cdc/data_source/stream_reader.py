"""The data source ``mysql_cdc`` as a stream. It needs Spark 4.2 or newer, which reports where a batch begins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from airflow_provider_cdc.data_source.changes_planner import ChangesPlanner
from airflow_provider_cdc.data_source.options import reword_errors
from airflow_provider_cdc.data_source.range_reader import TableReader, make_partitions
from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.model.offset import Offset, Position


def _encode(offset: Offset, range_ends: Sequence[Offset] = (), range_bytes: int = 0) -> dict[str, Any]:
    """Encode an offset as Spark stores it: a dictionary of simple values.

    :param range_ends: ends of the batch ranges of the batch that ends at this offset.
    :param range_bytes: size with which they were planned.
    """
    parts = json.dumps([part.to_json() for part in range_ends])
    return {"version": 1, "offset": json.dumps(offset.to_json()), "parts": parts, "piece_bytes": range_bytes}


def _decode(value: dict[str, Any]) -> Offset:
    if value.get("version") != 1:
        raise NotReadyError("the checkpoint was written by another version of this source", "Use a new checkpoint")
    return Offset.from_json(json.loads(value["offset"]))


class TableStreamReader(TableReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the binlog."""

    _planner: ChangesPlanner | None = None
    _checked = False
    _target: Position | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a new query begins."""
        with reword_errors():
            return _encode(self._open_planner().find_offset(self._options.start or "latest"))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the maximum size of a batch."""
        return ReadMaxBytes(self._options.batch_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the current end of the binlog as the end of the stream."""
        with reword_errors():
            self._target = self._open_planner().binlog_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, which is the end of a transaction, or ``start`` if there is nothing new."""
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        with reword_errors():
            try:
                return self._plan_batch(start, size)
            except TransientError:  # a connection that was idle for long may be lost
                self.stop()
                return self._plan_batch(start, size)

    def _plan_batch(self, start: dict[str, Any], size: int | None) -> dict[str, Any]:
        at = self._checked_offset(start)
        planner = self._open_planner()
        target = planner.binlog_end() if self._target is None else self._target
        ends, altering = planner.find_range_ends(at, target, size)
        if not ends and altering is not None:
            raise planner.altered_error(altering)
        return _encode(ends[-1], ends, self._table_changes.range_bytes) if ends else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the batch ranges of a batch, one for each task."""
        with reword_errors():
            at, to = self._checked_offset(start), _decode(end)
            ends = [Offset.from_json(part) for part in json.loads(end["parts"])]
            return make_partitions(at, ends, int(end["piece_bytes"])) if at.at < to.at else []

    def stop(self) -> None:
        """Close the connections."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _open_planner(self) -> ChangesPlanner:
        if self._planner is None:
            self._planner = ChangesPlanner(self._table_changes)
        return self._planner

    def _checked_offset(self, start: dict[str, Any]) -> Offset:
        at = _decode(start)
        if not self._checked:
            self._open_planner().check_readable(at)
            self._checked = True
        return at
