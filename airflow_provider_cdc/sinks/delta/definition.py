"""How a table is kept, and what its log says of that."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from deltalake import Schema

from airflow_provider_cdc.core.deletes import HARD
from airflow_provider_cdc.exceptions import TerminalError
from airflow_provider_cdc.sinks.delta.features import ENABLED, has_feed
from airflow_provider_cdc.sinks.delta.log import Log
from airflow_provider_cdc.sinks.delta.partitions import Part, Partitioning

#: Property of a table whose deleted rows stay: which of the two ways.
DELETES = "airflow-cdc.deletes"
#: Of a new table. Checkpoints keep tombstones for longer than files are kept: else nobody would delete those.
_PROPERTIES = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 2 hours",
    "delta.checkpointInterval": "100",
}
#: Rows of a row group of a table with a change data feed: to read one of them, all are read.
_FEED_ROWS = 4096


@dataclass(frozen=True)
class Options:
    """How a table is kept.

    :param vectors: rows die by deletion vectors; else files are written anew.
    :param index_bytes: what the index of its keys may take in memory.
    :param deletes: what becomes of rows that are deleted in the source; one of
        :data:`~airflow_provider_cdc.core.deletes.DELETES`.
    :param properties: what the table's configuration has beside what the project decides.
    :param columns: metadata of columns.
    :param adopt: whether a table that something else has made is taken over.
    :param nullable: names of the columns that may be NULL in the source.
    :param partitioned_by: columns, and parts of dates.
    """

    vectors: bool = True
    index_bytes: int = 1 << 28
    deletes: str = HARD
    properties: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    adopt: bool = False
    nullable: frozenset[str] = frozenset()
    partitioned_by: tuple[Part, ...] = ()

    @property
    def group_rows(self) -> int | None:
        """Rows of a row group, where single rows are read again."""
        return _FEED_ROWS if has_feed(self.properties) else None


#: The defaults.
USUAL = Options()


def properties_of(options: Options) -> dict[str, str]:
    """Properties of a new table."""
    kept = {} if options.deletes == HARD else {DELETES: options.deletes}
    return {**_PROPERTIES, **({ENABLED: "true"} if options.vectors else {}), **options.properties, **kept}


def metadata_of(schema: pa.Schema, options: Options, configuration: Mapping[str, str], owner: str) -> dict[str, Any]:
    """Metadata of a table.

    :param schema: of its rows.
    :param configuration: its properties.
    :param owner: what its description says.
    """
    partitioning = Partitioning(schema, options.partitioned_by)
    fields = json.loads(Schema.from_arrow(partitioning.declared).to_json())
    for column in fields["fields"]:
        column["metadata"] = {**column["metadata"], **options.columns.get(column["name"], {})}
    return {
        "id": str(uuid.uuid4()),
        "description": owner,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(fields),
        "partitionColumns": partitioning.names,
        "configuration": dict(configuration),
        "createdTime": int(time.time() * 1000),
    }


def configured(log: Log, options: Options) -> Mapping[str, Any]:
    """A table's metadata with the properties that it is to have now; the very same if it has them."""
    wanted = {**log.configuration, **options.properties}
    return log.metadata if wanted == log.configuration else {**log.metadata, "configuration": wanted}


def check_same(log: Log, known: Mapping[str, Any] | None, schema: pa.Schema) -> None:
    """Refuse a table that somebody has given other columns, or replaced by another one.

    :param known: its metadata as it was before, if that is known.
    :param schema: of the table as readers see it.
    :raises TerminalError: saying so.
    """
    remedy = "Something else did that, and what it has written would be lost: use a fresh sink.path"
    if known is not None and log.metadata.get("id") != known.get("id"):
        raise TerminalError(f"the {log.name} was replaced by another one", remedy)
    if _kinds(log.metadata["schemaString"]) != _kinds(Schema.from_arrow(schema).to_json()):
        raise TerminalError(f"the {log.name} has other columns than its source table", remedy)


def _kinds(schema: str) -> list[tuple[str, str]]:
    """Names and types of columns; of a nested type only what it is."""
    return [(c["name"], c["type"] if isinstance(c["type"], str) else c["type"]["type"]) for c in _fields(schema)]


def _fields(schema: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(schema)["fields"]
    return found


def column_names(metadata: Mapping[str, Any]) -> list[str]:
    """Names of a table's columns, in their order."""
    return [column["name"] for column in _fields(metadata["schemaString"])]
