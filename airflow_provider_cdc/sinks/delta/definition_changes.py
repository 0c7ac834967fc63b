"""Following changes of a table's definition: only the log changes, and no file is rewritten.

Existing files lack new columns; readers return NULL for them, as the Delta protocol requires
(:func:`~airflow_provider_cdc.sinks.files.parquet.read_row_groups`). Existing files still contain removed columns, which
are not read: a column with the name of a removed one may be added only by an overwrite. Compaction removes these
differences over time.

Other changes need a re-snapshot that overwrites all rows, after which no older file is left.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.config.table_properties import OWN_PREFIX
from airflow_provider_cdc.model.column_policy import SOURCE_COLUMN
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import DELETED_COLUMN, TableSchema
from airflow_provider_cdc.sinks.delta.log.commit_actions import drop_clustering_columns
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.log.features import (
    check_protocol,
    merge_protocols,
    protocol_actions,
    protocol_for,
    uses_vectors,
)
from airflow_provider_cdc.sinks.delta.table_format import DeltaTableFormat
from airflow_provider_cdc.sinks.delta.table_metadata import (
    DeltaTableOptions,
    build_column_metadata,
    build_metadata,
    has_same_columns,
    schema_fields,
)
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import with_deleted_column
from airflow_provider_cdc.sinks.lake.table_checks import (
    KEY_PROPERTY,
    RENAME_REMEDY,
    key_property_value,
    other_type_error,
)

_FRESH_PATH_REMEDY = "Start with a fresh sink.path"


def alter_actions(
    log: DeltaLog, old_table: TableSchema, table_format: DeltaTableFormat, options: DeltaTableOptions
) -> list[dict[str, Any]]:
    """Return actions that give a table other columns; none if nothing changes.

    :param log: the current state of the table.
    :param old_table: the definition that the table's columns match now.
    :param table_format: format under the new definition.
    :param options: options under the new definition.
    :raises TerminalError: if the table does not have the columns of ``old_table``, or cannot get the new ones.
    """
    declared = table_format.table_schema
    old_schema = old_table.sink_schema
    if DELETED_COLUMN in table_format.schema.names:
        old_schema = with_deleted_column(old_schema)
    if not has_same_columns(log, pa.schema([*old_schema, *[*declared][len(table_format.schema) :]])):
        raise TerminalError(
            f"the {log.name} has other columns than {old_table.label} had before its definition changed",
            f"Other software has altered it. {_FRESH_PATH_REMEDY}",
        )
    if problem := _why_not_alterable(old_table, old_schema, table_format):
        raise TerminalError(
            f"the {log.name} cannot follow the change of the definition of {old_table.label}: {problem}",
            _FRESH_PATH_REMEDY,
        )
    metadata = {**log.metadata, "schemaString": _altered_schema(log, old_table, table_format, options)}
    protocol = merge_protocols(log.protocol, protocol_for(declared, vectors=False))
    check_protocol(log.name, protocol, metadata)  # every later reader checks this, and would fail too late
    actions = protocol_actions(log.protocol, protocol)
    if schema_fields(metadata["schemaString"]) != schema_fields(log.metadata["schemaString"]):
        actions.append({"metaData": metadata})
    return actions + drop_clustering_columns(log.domain_metadata, declared.names)


def overwrite_actions(
    log: DeltaLog, table_format: DeltaTableFormat, options: DeltaTableOptions
) -> list[dict[str, Any]]:
    """Return actions that replace the columns of a table, in a commit that replaces all of its rows.

    A change data feed reports all old rows, except dead ones, as deleted and the new ones as inserted, even if they are
    equal; readers derive that from the removed and added files. Feed files would need the new columns, which old rows
    may lack, and would use the new key.

    :param log: the current state of the table.
    :param table_format: format under the new definition.
    :param options: options under the new definition.
    :raises TerminalError: if the table cannot get these columns.
    """
    declared = table_format.table_schema
    if problem := _duplicate_column(declared.names):
        raise TerminalError(
            f"the {log.name} cannot be given the columns of its source table: {problem}", _FRESH_PATH_REMEDY
        )
    metadata = {
        **log.metadata,
        "schemaString": _overwritten_schema(log, table_format, options),
        "configuration": {**log.properties, KEY_PROPERTY: key_property_value(table_format.key_columns)},
    }
    protocol = merge_protocols(log.protocol, protocol_for(declared, vectors=False))
    check_protocol(log.name, protocol, metadata)
    return [
        *protocol_actions(log.protocol, protocol),
        {"metaData": metadata},  # even if equal: makes concurrent transactions of other programs conflict
        *drop_clustering_columns(log.domain_metadata, declared.names),
    ]


def reset_actions(log: DeltaLog, table_format: DeltaTableFormat, options: DeltaTableOptions) -> list[dict[str, Any]]:
    """Return actions that give a table any other columns, in a commit that removes all of its rows.

    :param log: the current state of the table.
    """
    vectors = uses_vectors(log.protocol, log.properties)
    new_protocol = merge_protocols(log.protocol, protocol_for(table_format.table_schema, vectors=vectors))
    configuration = {name: value for name, value in log.properties.items() if name != KEY_PROPERTY}
    new_metadata = build_metadata(table_format.schema, options, configuration, log.metadata["description"])
    return [
        *protocol_actions(log.protocol, new_protocol),
        {"metaData": {**new_metadata, "id": log.metadata["id"]}},
        *drop_clustering_columns(log.domain_metadata, table_format.table_schema.names),
    ]


def shared_columns_actions(
    log: DeltaLog, table_format: DeltaTableFormat, options: DeltaTableOptions
) -> list[dict[str, Any]]:
    """Return actions that give a table the columns of a definition in addition to those that it has.

    :param log: the current state of the table.
    :param table_format: format under the definition.
    :param options: options under the definition.
    :raises TerminalError: if a column has another type in the table, or another name in all but case.
    """
    fields = schema_fields(log.metadata["schemaString"])
    known, at = {column["name"]: column for column in fields}, [c["name"] for c in fields].index(SOURCE_COLUMN)
    declared = table_format.table_schema
    for column in schema_fields(build_metadata(table_format.schema, options, {}, "")["schemaString"]):
        other = known.get(column["name"])
        if other is None:
            fields.insert(at, column)
            at += 1
        elif other["type"] != column["type"]:
            raise other_type_error(log, str(table_format.source), column["name"], other["type"], column["type"])
    if problem := _duplicate_column(column["name"] for column in fields):
        raise TerminalError(
            f"the {log.name} cannot have the columns of {table_format.source}: {problem}", RENAME_REMEDY
        )
    schema = {**json.loads(log.metadata["schemaString"]), "fields": fields}
    metadata = {**log.metadata, "schemaString": json.dumps(schema)}
    protocol = merge_protocols(log.protocol, protocol_for(declared, vectors=False))
    check_protocol(log.name, protocol, metadata)
    return [*protocol_actions(log.protocol, protocol), {"metaData": metadata}]


def _why_not_alterable(old_table: TableSchema, old_schema: pa.Schema, table_format: DeltaTableFormat) -> str | None:
    """Return why the columns cannot change to those of another definition; ``None`` if they can.

    To support changes other than added and removed columns, allow them here and create actions for them.
    """
    if [*old_table.key] != [*table_format.key_columns]:
        return f"its key was ({', '.join(old_table.key)}) and is now ({', '.join(table_format.key_columns)})"
    for field in old_schema:
        index = table_format.schema.get_field_index(field.name)
        if index >= 0 and (kind := table_format.schema.field(index).type) != field.type:
            return f"column {field.name} was {field.type} and is now {kind}"
    return _duplicate_column(table_format.table_schema.names)


def _duplicate_column(column_names: Iterable[str]) -> str | None:
    names = Counter(name.lower() for name in column_names)
    duplicates = [name for name, count in names.items() if count > 1]
    return f"it would have column {duplicates[0]} twice: case does not count" if duplicates else None


def _altered_schema(
    log: DeltaLog, old_table: TableSchema, table_format: DeltaTableFormat, options: DeltaTableOptions
) -> str:
    """Return the new columns in the format of the log.

    Column metadata from other programs is kept; metadata that this project set for the old definition is dropped.
    """
    new_schema = json.loads(build_metadata(table_format.schema, options, {}, "")["schemaString"])
    current_metadata = {column["name"]: column["metadata"] for column in schema_fields(log.metadata["schemaString"])}
    own_metadata = build_column_metadata(old_table)
    for column in new_schema["fields"]:
        own_values = own_metadata.get(column["name"], {})
        foreign_values = {k: v for k, v in current_metadata.get(column["name"], {}).items() if own_values.get(k) != v}
        column["metadata"] = {**foreign_values, **column["metadata"]}
    return json.dumps(new_schema)


def _overwritten_schema(log: DeltaLog, table_format: DeltaTableFormat, options: DeltaTableOptions) -> str:
    """Return the new columns in the format of the log, whatever columns the table had.

    Metadata from other programs is kept for unchanged columns. So is a comment that this project no longer sets,
    because it may be theirs.
    """
    new_schema = json.loads(build_metadata(table_format.schema, options, {}, "")["schemaString"])
    before = {column["name"]: column for column in schema_fields(log.metadata["schemaString"])}
    for column in new_schema["fields"]:
        old_column = before.get(column["name"])
        if old_column is not None and old_column["type"] == column["type"]:
            column["metadata"] = {**_foreign_metadata(old_column["metadata"]), **column["metadata"]}
    return json.dumps(new_schema)


def _foreign_metadata(column_metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return column metadata without this project's own, and without rules that compute values from other columns."""
    return {name: value for name, value in column_metadata.items() if not name.startswith((OWN_PREFIX, "delta."))}
