"""Options of a Delta table, and the metadata in its log."""

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
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.delta.adoption import owner_of
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.log.features import VECTORS_PROPERTY, has_feed
from airflow_provider_cdc.sinks.delta.log.retention import drop_shorter_retentions
from airflow_provider_cdc.sinks.lake.merge.partitions import PartitionField, TableFormat

#: Property of a table that keeps rows deleted in the source: ``sink.deletes``.
DELETES_PROPERTY = "airflow-cdc.deletes"
#: Property of a table: the source table of which it is the copy.
SOURCE_PROPERTY = f"{OWN_PREFIX}source"
#: Property of a table that was overwritten: the columns of its key, which nothing else in its log records.
KEY_PROPERTY = f"{OWN_PREFIX}key"
#: Default properties of a new table.
_DEFAULT_PROPERTIES = {
    LOG_RETENTION: "interval 1 days",
    DELETED_FILE_RETENTION: "interval 2 hours",
    "delta.checkpointInterval": "100",
}
#: Rows per row group in a table with a change data feed: reading one row means reading its row group.
_FEED_ROW_GROUP_SIZE = 4096


@dataclass(frozen=True)
class DeltaTableOptions:
    """Options of a table.

    :param deletion_vectors: whether rows are deleted by deletion vectors; otherwise files are rewritten.
    :param index_bytes: memory limit in bytes of its key index.
    :param deletes: how rows that the source deletes are handled; one of
        :data:`~airflow_provider_cdc.config.delete_policy.DELETE_MODES`.
    :param properties: table properties in addition to those that the project sets.
    :param column_metadata: metadata by column.
    :param adopt: whether a table made by other software is adopted.
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
        """Rows per row group, if single rows are read back; otherwise ``None``."""
        return _FEED_ROW_GROUP_SIZE if has_feed(self.properties) else None


#: Default options.
DEFAULT_OPTIONS = DeltaTableOptions()


def new_table_properties(options: DeltaTableOptions) -> dict[str, str]:
    """Return the properties of a new table."""
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
    """Return the metadata of a table.

    :param schema: schema of its rows.
    :param configuration: its properties.
    :param owner: its description.
    """
    table_format = TableFormat(schema, options.partitioned_by)
    fields = json.loads(Schema.from_arrow(table_format.table_schema).to_json())
    for column in fields["fields"]:
        column["metadata"] = {**column["metadata"], **options.column_metadata.get(column["name"], {})}
    return {
        "id": str(uuid.uuid4()),
        "description": owner,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(fields),
        "partitionColumns": table_format.columns,
        "configuration": dict(configuration),
        "createdTime": int(time.time() * 1000),
    }


def build_column_metadata(table: TableSchema) -> dict[str, dict[str, str]]:
    """Return metadata by column: its type in the source, and its comment."""
    comments = dict(table.comments)
    return {
        column.name: {f"{OWN_PREFIX}type": column.column_type}
        | ({"comment": comments[column.name]} if column.name in comments else {})
        for column in table.sink_columns
    }


def with_current_properties(log: DeltaLog, options: DeltaTableOptions) -> Mapping[str, Any]:
    """Return a table's metadata with the properties that it is to have now; the same object if nothing changes."""
    wanted_properties = {**log.configuration, **drop_shorter_retentions(log.configuration, options.properties)}
    if wanted_properties == log.configuration:
        return log.metadata
    return {**log.metadata, "configuration": wanted_properties}


_FRESH_PATH_REMEDY = "Other software did that, and what it has written would be lost: use a fresh sink.path"


def check_not_replaced(log: DeltaLog, known_metadata: Mapping[str, Any] | None) -> None:
    """Refuse a table that was replaced by another one.

    :param known_metadata: its earlier metadata, if known.
    :raises TerminalError: if it was replaced.
    """
    if known_metadata is not None and log.metadata.get("id") != known_metadata.get("id"):
        raise TerminalError(f"the {log.name} was replaced by another one", _FRESH_PATH_REMEDY)


def check_columns(log: DeltaLog, schema: pa.Schema) -> None:
    """Refuse a table with other columns: it was altered, or follows a newer definition.

    :param schema: schema of the table as readers see it.
    :raises TerminalError: if the columns differ.
    """
    if not has_same_columns(log, schema):
        raise TerminalError(f"the {log.name} has other columns than its source table", _FRESH_PATH_REMEDY)


def key_property_value(key_columns: Sequence[str]) -> str:
    """Return the value of :data:`KEY_PROPERTY` for the columns of a key."""
    return json.dumps(list(key_columns), ensure_ascii=False)


def check_key(log: DeltaLog, key_columns: Sequence[str]) -> None:
    """Refuse a table that was given another key, by which this definition would not find its rows.

    :param key_columns: columns of the key; none if there is no key.
    :raises TerminalError: if the keys differ.
    """
    current_key = log.configuration.get(KEY_PROPERTY)
    if current_key is not None and current_key != key_property_value(key_columns):
        raise TerminalError(f"the {log.name} has another key than its source table: {current_key}", _FRESH_PATH_REMEDY)


def has_same_columns(log: DeltaLog, schema: pa.Schema) -> bool:
    """Return whether the table has these column names and types, in this order.

    Of a nested type, only its kind is compared.

    :param schema: schema of the table as readers see it.
    """
    return _names_and_types(log.metadata["schemaString"]) == _names_and_types(Schema.from_arrow(schema).to_json())


def _names_and_types(schema: str) -> list[tuple[str, str]]:
    return [(c["name"], c["type"] if isinstance(c["type"], str) else c["type"]["type"]) for c in schema_fields(schema)]


def schema_fields(schema: str) -> list[dict[str, Any]]:
    """Return the columns of a table.

    :param schema: schema in the format of the log.
    """
    columns: list[dict[str, Any]] = json.loads(schema)["fields"]
    return columns


def check_column_names(log: DeltaLog, wanted_metadata: Mapping[str, Any]) -> None:
    """Refuse a table that was created with other columns.

    :param wanted_metadata: metadata of a new table.
    :raises TerminalError: if the column names differ.
    """
    if column_names(log.metadata) != column_names(wanted_metadata):
        raise TerminalError(
            f"the {log.name} has other columns than its source table",
            "It was written by other software, or under another definition: use a fresh sink.path, or remove it",
        )


def column_names(metadata: Mapping[str, Any]) -> list[str]:
    """Return the names of a table's columns, in order."""
    return [column["name"] for column in schema_fields(metadata["schemaString"])]


def check_owner(log: DeltaLog, pipeline: str) -> None:
    """Refuse a table that the pipeline does not own.

    :raises TerminalError: if another pipeline, or none, owns it.
    """
    if owner_of(log.metadata) != pipeline:
        raise TerminalError(
            f"the {log.name} was not created by pipeline {pipeline}",
            "Choose another sink.path: only one pipeline may write to a table",
        )


def check_has_owner(log: DeltaLog) -> None:
    """Refuse a table that no pipeline owns.

    :raises TerminalError: if it has no owner.
    """
    if owner_of(log.metadata) is None:
        raise TerminalError(
            f"the {log.name} belongs to no pipeline: it was replaced by another one, or created by other software",
            "Start with a fresh sink.path",
        )


def check_settings(log: DeltaLog, table_format: TableFormat, options: DeltaTableOptions) -> None:
    """Refuse a table that was created with other unchangeable settings, or for another source table.

    :raises TerminalError: if its partitioning differs.
    :raises NotReadyError: if its ``sink.deletes`` differs, or it is the copy of another table.
    """
    table_source, own_source = log.configuration.get(SOURCE_PROPERTY), options.properties.get(SOURCE_PROPERTY)
    if table_source is not None and own_source is not None and table_source != own_source:
        raise NotReadyError(
            f"the {log.name} is the copy of table {table_source}, and not of {own_source}: their folders are the same "
            "there, as if case did not count",
            "Give the tables different folders in sink.table_path, or exclude one of them",
        )
    table_format.check_partition_columns(log.name, log.metadata)
    table_deletes = log.configuration.get(DELETES_PROPERTY, HARD)
    if table_deletes != options.deletes:
        raise NotReadyError(
            f"the {log.name} was created with sink.deletes {table_deletes}, which is {options.deletes} now",
            f"It cannot be changed later: set it back to {table_deletes} for this table, or start with a fresh "
            "sink.path",
        )
