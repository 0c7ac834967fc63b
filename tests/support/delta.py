"""Delta tables of a pipeline, changed behind the project's back."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.sinks.delta.files import Actions
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.delta.table import DeltaTarget
from airflow_provider_cdc.sinks.files import write_file
from airflow_provider_cdc.sinks.protocol import Fence, SinkTable


def delta_table(context: Context, table: TableSchema) -> DeltaTarget:
    """The copy of a captured table."""
    assert isinstance(context.sink, DeltaSink)
    return context.sink.table(table)


def as_delta(table: SinkTable) -> DeltaTarget:
    """A table of the sink as what it is."""
    assert isinstance(table, DeltaTarget)
    return table


def put(
    target: DeltaTarget, rows: pa.Table, *, instead_of: Sequence[str] | None = None, stat: str | None = None
) -> None:
    """Write rows in the place of files, of all files by default.

    :param stat: column to keep statistics for.
    """

    def decide(table: DeltaTable) -> Actions:
        paths = [Path(uri.removeprefix("file://")).relative_to(target.path).as_posix() for uri in table.file_uris()]
        name = f"part-damaged-{uuid.uuid4().hex}.parquet"
        file = write_file(target.path, name, rows.schema, [rows], stat)
        return Actions([file], paths if instead_of is None else list(instead_of))

    assert target.transact(decide, {}, Fence("test", 1))
