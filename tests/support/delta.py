"""Delta tables of a pipeline, changed behind the project's back."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
from pyroaring import BitMap

from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.files.parquet import write_file
from airflow_provider_cdc.sinks.lake.merge.table_edit import TableEdit
from airflow_provider_cdc.sinks.protocol import Fence, SinkTable


def delta_table(context: RunContext, table: TableSchema) -> DeltaSinkTable:
    """The copy of a captured table."""
    assert isinstance(context.sink, DeltaSink)
    return context.sink.table(table)


def as_delta(table: SinkTable) -> DeltaSinkTable:
    """A table of the sink as what it is."""
    assert isinstance(table, DeltaSinkTable)
    return table


def put(
    target: DeltaSinkTable, rows: pa.Table, *, instead_of: Sequence[str] | None = None, stat: str | None = None
) -> None:
    """Write rows in the place of files, of all files by default.

    :param stat: column to keep statistics for.
    """

    def decide(log: DeltaLog) -> TableEdit:
        gone = set(log.files) if instead_of is None else set(instead_of)
        name = f"part-damaged-{uuid.uuid4().hex}.parquet"
        return TableEdit(
            removed_files=gone, added_files=[(write_file(target.storage, name, rows.schema, [rows], stat), BitMap())]
        )

    assert target.commit_edit(decide, {}, Fence("test", 1))
