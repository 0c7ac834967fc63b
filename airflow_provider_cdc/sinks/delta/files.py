"""Data files of Delta tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from airflow_provider_cdc.sinks.files import DataFile

#: A live file below this size is rewritten together with new rows, so that small files do not pile up; new rows never
#: join a file above the other size, so that no file grows without end.
SMALL_FILE, LARGE_FILE = 4 << 20, 64 << 20


@dataclass
class Actions:
    """What one commit does to the files of a table."""

    add: list[DataFile] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)


def files_of(table: DeltaTable) -> list[dict[str, Any]]:
    """The files of a Delta table as it stands, with their statistics."""
    # Not pa.table(): it loads pandas, which takes longer than all the rest of a look at a pipeline.
    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all().to_pylist()  # type: ignore[no-any-return]


def read_file(path: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """Rows of a data file.

    :param schema: schema of the table's rows.
    :param columns: only these columns.
    """
    wanted = schema if columns is None else pa.schema([schema.field(c) for c in columns])
    # Not pq.read_table(columns=...): it takes a dot in a column's name for a path into a struct.
    with pq.ParquetFile(path) as file:
        if columns is None:
            return file.read().select(wanted.names).cast(wanted)
        indices = [file.schema_arrow.get_field_index(c) for c in columns]
        groups = [file.reader.read_row_group(i, column_indices=indices) for i in range(file.metadata.num_row_groups)]
        return pa.concat_tables(groups).select(wanted.names).cast(wanted) if groups else wanted.empty_table()
