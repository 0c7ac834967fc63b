"""How a table is kept, and what its log says of that."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from deltalake import Schema

from airflow_provider_cdc.config.delete_policy import HARD
from airflow_provider_cdc.config.table_properties import DELETED_FILE_RETENTION, LOG_RETENTION, OWN_PREFIX
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.log.features import VECTORS_PROPERTY, has_feed
from airflow_provider_cdc.sinks.delta.log.retention import drop_shorter_retentions
from airflow_provider_cdc.sinks.delta.merge.partitions import PartitionField, Partitioning

#: Property of a table whose deleted rows stay: which of the two ways.
DELETES_PROPERTY = "airflow-cdc.deletes"
#: Property of a table: the source table that it is the copy of.
SOURCE_PROPERTY = f"{OWN_PREFIX}source"
#: Property of a table that was exchanged: the columns of its key. Nothing else in its log tells it.
KEY_PROPERTY = f"{OWN_PREFIX}key"
#: Of a new table.
_DEFAULT_PROPERTIES = {
    LOG_RETENTION: "interval 1 days",
    DELETED_FILE_RETENTION: "interval 2 hours",
    "delta.checkpointInterval": "100",
}
#: Rows of a row group of a table with a change data feed: to read one of them, all are read.
_FEED_ROW_GROUP_SIZE = 4096


@dataclass(frozen=True)
class DeltaTableOptions:
    """How a table is kept.

    :param deletion_vectors: rows die by deletion vectors; else files are written anew.
    :param index_bytes: what the index of its keys may take in memory.
    :param deletes: what becomes of rows that are deleted in the source; one of
        :data:`~airflow_provider_cdc.config.delete_policy.DELETE_MODES`.
    :param properties: what the table's configuration has beside what the project decides.
    :param column_metadata: metadata of columns.
    :param adopt: whether a table that something else has made is taken over.
    :param nullable_columns: names of the columns that may be NULL in the source.
    :param partitioned_by: columns, and parts of dates.
    """

    deletion_vectors: bool = True
    index_bytes: int = 1 << 28
    deletes: str = HARD
    properties: Mapping[str, str] = field(default_factory=dict)
    column_metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    adopt: bool = False
    nullable_columns: frozenset[str] = frozenset()
    partitioned_by: tuple[PartitionField, ...] = ()

    @property
    def row_group_size(self) -> int | None:
        """Rows of a row group, where single rows are read again."""
        return _FEED_ROW_GROUP_SIZE if has_feed(self.properties) else None


#: The defaults.
DEFAULT_OPTIONS = DeltaTableOptions()


def new_table_properties(options: DeltaTableOptions) -> dict[str, str]:
    """Properties of a new table."""
    deletes_property = {} if options.deletes == HARD else {DELETES_PROPERTY: options.deletes}
    return {
        **_DEFAULT_PROPERTIES,
        **({VECTORS_PROPERTY: "true"} if options.deletion_vectors else {}),
        **options.properties,
        **deletes_property,
    }


def build_metadata(
    schema: pa.Schema, options: DeltaTableOptions, configuration: Mapping[str, str], owner: str
) -> dict[str, Any]:
    """Metadata of a table.

    :param schema: of its rows.
    :param configuration: its properties.
    :param owner: what its description says.
    """
    partitioning = Partitioning(schema, options.partitioned_by)
    fields = json.loads(Schema.from_arrow(partitioning.table_schema).to_json())
    for column in fields["fields"]:
        column["metadata"] = {**column["metadata"], **options.column_metadata.get(column["name"], {})}
    return {
        "id": str(uuid.uuid4()),
        "description": owner,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(fields),
        "partitionColumns": partitioning.columns,
        "configuration": dict(configuration),
        "createdTime": int(time.time() * 1000),
    }


def build_column_metadata(table: TableSchema) -> dict[str, dict[str, str]]:
    """What is told of the columns: their type in the source, and their comment."""
    comments = dict(table.comments)
    return {
        column.name: {f"{OWN_PREFIX}type": column.column_type}
        | ({"comment": comments[column.name]} if column.name in comments else {})
        for column in table.sink_columns
    }


def with_current_properties(log: DeltaLog, options: DeltaTableOptions) -> Mapping[str, Any]:
    """A table's metadata with the properties that it is to have now; the very same if it has them."""
    wanted_properties = {**log.configuration, **drop_shorter_retentions(log.configuration, options.properties)}
    return (
        log.metadata if wanted_properties == log.configuration else {**log.metadata, "configuration": wanted_properties}
    )


_FRESH_PATH_REMEDY = "Something else did that, and what it has written would be lost: use a fresh sink.path"


def check_not_replaced(log: DeltaLog, known_metadata: Mapping[str, Any] | None) -> None:
    """Refuse a table that somebody has replaced by another one.

    :param known_metadata: its metadata as it was before, if that is known.
    :raises TerminalError: saying so.
    """
    if known_metadata is not None and log.metadata.get("id") != known_metadata.get("id"):
        raise TerminalError(f"the {log.name} was replaced by another one", _FRESH_PATH_REMEDY)


def check_columns(log: DeltaLog, schema: pa.Schema) -> None:
    """Refuse a table that has other columns: somebody has given it those, or it follows a newer definition.

    :param schema: of the table as readers see it.
    :raises TerminalError: saying so.
    """
    if not has_same_columns(log, schema):
        raise TerminalError(f"the {log.name} has other columns than its source table", _FRESH_PATH_REMEDY)


def key_property_value(key_columns: Sequence[str]) -> str:
    """The columns of a key as :data:`KEY` has them."""
    return json.dumps(list(key_columns), ensure_ascii=False)


def check_key(log: DeltaLog, key_columns: Sequence[str]) -> None:
    """Refuse a table that was given another key: its rows would not be found by this one.

    :param key_columns: columns of the key; none if there is no key.
    :raises TerminalError: saying so.
    """
    current_key = log.configuration.get(KEY_PROPERTY)
    if current_key is not None and current_key != key_property_value(key_columns):
        raise TerminalError(f"the {log.name} has another key than its source table: {current_key}", _FRESH_PATH_REMEDY)


def has_same_columns(log: DeltaLog, schema: pa.Schema) -> bool:
    """Whether the names and types of a table's columns, in their order, are these; of a nested type only what it is.

    :param schema: of the table as readers see it.
    """
    return _names_and_types(log.metadata["schemaString"]) == _names_and_types(Schema.from_arrow(schema).to_json())


def _names_and_types(schema: str) -> list[tuple[str, str]]:
    return [(c["name"], c["type"] if isinstance(c["type"], str) else c["type"]["type"]) for c in schema_fields(schema)]


def schema_fields(schema: str) -> list[dict[str, Any]]:
    """The columns of a table.

    :param schema: as the log says it.
    """
    columns: list[dict[str, Any]] = json.loads(schema)["fields"]
    return columns


def check_column_names(log: DeltaLog, wanted_metadata: Mapping[str, Any]) -> None:
    """Refuse a table that was made with other columns.

    :param wanted_metadata: metadata of a new table.
    :raises TerminalError: if it was.
    """
    if column_names(log.metadata) != column_names(wanted_metadata):
        raise TerminalError(
            f"the {log.name} has other columns than its source table",
            "It was written by something else or under another definition: use a fresh sink.path, or remove it",
        )


def column_names(metadata: Mapping[str, Any]) -> list[str]:
    """Names of a table's columns, in their order."""
    return [column["name"] for column in schema_fields(metadata["schemaString"])]
