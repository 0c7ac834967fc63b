"""Checkpoints of a Delta log: what they say, as it would stand in commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.sinks.files import parquet
from airflow_provider_cdc.sinks.storage import Storage

#: What is a map in the log.
_MAPS = {"partitionValues", "tags", "configuration", "options"}


def actions_of(storage: Storage, name: str) -> Iterator[dict[str, Any]]:
    """What a file of a checkpoint says; of tombstones only which files they are of, since they may be many.

    :param storage: that of the table's folder.
    """
    kinds = ("protocol", "metaData", "txn", "add")
    with parquet(storage, name) as file:
        known = set(file.schema_arrow.names)
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, columns=_wanted(file.schema_arrow))
            for kind in (k for k in kinds if k in known):
                for value in rows[kind].filter(pc.is_valid(rows[kind])).to_pylist():
                    yield {kind: _plain(value)}
            if "remove" in known:
                for value in rows["remove"].filter(pc.is_valid(rows["remove"])).to_pylist():
                    yield {"remove": _plain(value)}


def _wanted(schema: pa.Schema) -> list[str]:
    """Columns of a checkpoint: not the statistics a second time, in columns of their own."""
    found = []
    for column in schema:
        if column.name in ("protocol", "metaData", "txn"):
            found.append(column.name)
        elif column.name == "remove":
            found += [f"remove.{f.name}" for f in column.type if f.name in ("path", "deletionVector")]
        elif column.name == "add":
            found += [f"add.{f.name}" for f in column.type if f.name not in ("stats_parsed", "partitionValues_parsed")]
    return found


def _plain(value: Any) -> Any:
    """A value of a checkpoint as it would stand in a commit: there maps are lists of pairs, and what is missing is
    there as ``None``.
    """
    if isinstance(value, dict):
        return {k: dict(v) if k in _MAPS else _plain(v) for k, v in value.items() if v is not None}
    return value
