"""Data files of Delta tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
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
