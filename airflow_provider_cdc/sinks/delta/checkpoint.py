"""Checkpoints of a Delta log: what they say, as it would stand in commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.sinks.files import parquet
from airflow_provider_cdc.sinks.storage import Storage

#: What is a map in the log.
_MAPS = {"partitionValues", "tags", "configuration", "options"}


def actions_of(storage: Storage, name: str, since: Callable[[], float]) -> Iterator[dict[str, Any]]:
    """What a file of a checkpoint says. Not the tombstones as Python objects: they may be many.

    :param storage: that of the table's folder.
    :param since: milliseconds; what was removed before is left out. Called when the properties of the table are known.
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
                gone = rows["remove"].filter(pc.is_valid(rows["remove"])).combine_chunks()
                yield from _tombstones(gone, since())


def _tombstones(gone: pa.StructArray, since: float) -> Iterator[dict[str, Any]]:
    if "deletionTimestamp" in {f.name for f in gone.type}:
        recent = pc.greater(pc.fill_null(pc.struct_field(gone, "deletionTimestamp"), 0), since)
        for value in gone.filter(recent).to_pylist():
            yield {"remove": _plain(value)}


def _wanted(schema: pa.Schema) -> list[str]:
    """Columns of a checkpoint: not the statistics a second time, in columns of their own."""
    found = []
    for column in schema:
        if column.name in ("protocol", "metaData", "txn", "remove"):
            found.append(column.name)
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
