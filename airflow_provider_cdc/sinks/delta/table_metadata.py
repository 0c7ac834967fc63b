"""Options of a Delta table, and the metadata in its log."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
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
from airflow_provider_cdc.sinks.delta.table_format import DeltaTableFormat
from airflow_provider_cdc.sinks.lake.table_checks import DELETES_PROPERTY
from airflow_provider_cdc.sinks.lake.table_options import TableOptions

#: Default properties of a new table.
_DEFAULT_PROPERTIES = {
    LOG_RETENTION: "interval 1 days",
    DELETED_FILE_RETENTION: "interval 2 hours",
    "delta.checkpointInterval": "100",
}
#: Rows per row group in a table with a change data feed: reading one row means reading its row group.
_FEED_ROW_GROUP_SIZE = 4096


@dataclass(frozen=True)
class DeltaTableOptions(TableOptions):
    """Options of a Delta table."""

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
    table_format = DeltaTableFormat(schema, options.partitioned_by)
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
    wanted_properties = {**log.properties, **drop_shorter_retentions(log.properties, options.properties)}
    if wanted_properties == log.properties:
        return log.metadata
    return {**log.metadata, "configuration": wanted_properties}


def has_same_columns(log: DeltaLog, schema: pa.Schema) -> bool:
    """Return whether the table has these column names and types, in this order.

    Of a nested type, only its kind is compared.

    :param schema: schema of the table as readers see it.
    """
    return _names_and_types(log.metadata["schemaString"]) == _names_and_types(Schema.from_arrow(schema).to_json())


def covers_columns(log: DeltaLog, schema: pa.Schema) -> bool:
    """Return whether the table has these columns, among others; as for :func:`has_same_columns`."""
    return {*_names_and_types(Schema.from_arrow(schema).to_json())} <= {*_names_and_types(log.metadata["schemaString"])}


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
