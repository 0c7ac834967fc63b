"""The data source ``mysql_cdc`` as a range of the binlog, read in parts by several tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from airflow_provider_cdc.data_source.changes_planner import ChangesPlanner
from airflow_provider_cdc.data_source.options import PLANNER_READERS, READERS_PER_TASK, SourceOptions, reword_errors
from airflow_provider_cdc.data_source.table_changes import TableChanges
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.offset import Offset


class BinlogRange(InputPartition):
    """The transactions in (start, end], which one task reads.

    :param slot: number of the task's first reader.
    :param range_bytes: size with which the range was planned.
    """

    def __init__(self, start: Offset, end: Offset, slot: int, range_bytes: int) -> None:
        super().__init__(None)
        self.start, self.end, self.slot, self.range_bytes = start, end, slot, range_bytes


def make_partitions(start: Offset, ends: Sequence[Offset], range_bytes: int) -> list[InputPartition]:
    """Return a partition for each part of (start, last of the ends]."""
    pairs = enumerate(zip([start, *ends], ends, strict=False))
    return [BinlogRange(a, b, PLANNER_READERS + READERS_PER_TASK * i, range_bytes) for i, (a, b) in pairs]


class TableReader:
    """Base class of the readers of one table.

    :param table_changes: the table and how to read it.
    :param options: where to begin and end, and the size of a batch.
    :param schema: Arrow schema that Spark expects.
    """

    def __init__(self, table_changes: TableChanges, options: SourceOptions, schema: pa.Schema) -> None:
        self._table_changes, self._options, self._schema = table_changes, options, schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of one partition."""
        if not isinstance(partition, BinlogRange):  # Spark's placeholder if there are no partitions
            return
        with reword_errors():
            part = partition.start, partition.end, partition.slot, partition.range_bytes
            for batch in self._table_changes.read(*part):
                columns = [a.cast(field.type) for a, field in zip(batch.columns, self._schema, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


class RangeReader(TableReader, DataSourceReader):
    """Reads a range of the binlog."""

    def partitions(self) -> list[InputPartition]:
        """Divide the range into parts that end with a transaction.

        :raises NotReadyError: if the range ends before its start, or one of them does not exist.
        :raises TerminalError: if the range cannot be read, or the table is altered within it.
        """
        with reword_errors(), closing(ChangesPlanner(self._table_changes)) as planner:
            end = planner.find_offset(self._options.end)
            start = planner.find_offset(self._options.start or "earliest")
            if end.at < start.at:
                raise NotReadyError(
                    f"the range ends at {end.at}, before its start {start.at}", "Check the options start and end"
                )
            planner.check_readable(start)
            ends, altering = planner.find_range_ends(start, end.at)
            if altering is not None:
                raise planner.altered_error(altering)
            return make_partitions(start, ends, self._table_changes.range_bytes)
