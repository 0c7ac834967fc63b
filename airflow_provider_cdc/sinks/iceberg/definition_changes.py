"""Changes of a table's definition, as updates of its metadata: columns keep their field ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_provider_cdc.model.column_policy import SOURCE_COLUMN
from airflow_provider_cdc.model.definition_history import NO_CHANGES, ColumnChanges, default_array
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.model.schema import DELETED_COLUMN, TableSchema
from airflow_provider_cdc.sinks.iceberg.format import table_updates
from airflow_provider_cdc.sinks.iceberg.format.partition_spec import PartitionSpec, new_partition_spec
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema
from airflow_provider_cdc.sinks.iceberg.format.schema_changes import SchemaEditor
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.format.table_updates import Update
from airflow_provider_cdc.sinks.iceberg.format.values import values_of_array
from airflow_provider_cdc.sinks.iceberg.log.file_schemas import (
    column_types,
    find_schema,
    has_same_columns,
)
from airflow_provider_cdc.sinks.iceberg.log.iceberg_log import IcebergLog
from airflow_provider_cdc.sinks.iceberg.table_format import IcebergTableFormat, transform_of
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import with_deleted_column
from airflow_provider_cdc.sinks.lake.table_checks import (
    KEY_PROPERTY,
    RENAME_REMEDY,
    key_property_value,
    other_type_error,
)
from airflow_provider_cdc.sinks.lake.table_options import TableOptions

_FRESH_PATH_REMEDY = "Start with a fresh sink.path"
#: Property of the metadata of a column with its comment.
_COMMENT = "comment"


def column_docs(options: TableOptions) -> dict[str, str]:
    """Return the comments of columns."""
    return {name: values[_COMMENT] for name, values in options.column_metadata.items() if _COMMENT in values}


def partition_spec_for(
    schema: IcebergSchema, table_format: IcebergTableFormat, metadata: TableMetadata | None = None
) -> PartitionSpec:
    """Return the partition spec of a table.

    :param metadata: its metadata, if it exists.
    """
    wanted = [(part.column, transform_of(part).text) for part in table_format.fields]
    if metadata is None:
        return new_partition_spec(schema, wanted)
    specs = metadata.partition_specs
    return new_partition_spec(
        schema,
        wanted,
        spec_id=max(specs) + 1,
        last_partition_id=metadata.last_partition_id,
        known_specs=list(specs.values()),
    )


class SchemaNotAddedError(Exception):
    """A table is to get a schema that it does not have yet, and whose number only the catalog can give.

    :param base: the schema that was changed.
    :param schema: the new schema, whose number is not valid.
    :param last_column_id: the highest field id with it.
    """

    def __init__(self, base: IcebergSchema, schema: IcebergSchema, last_column_id: int) -> None:
        super().__init__(f"schema with the field ids {[nested.id for nested in schema.fields]}")
        self.base, self.schema, self.last_column_id = base, schema, last_column_id


def alter_updates(
    log: IcebergLog,
    old_table: TableSchema,
    table_format: IcebergTableFormat,
    options: TableOptions,
    changes: ColumnChanges = NO_CHANGES,
    added: SchemaNotAddedError | None = None,
) -> list[Update]:
    """Return updates that give a table other columns; none if nothing changes.

    Columns are added, dropped, renamed, and widened; existing files stay as they are.

    :param old_table: the definition that the table's columns match now.
    :param table_format: format under the new definition.
    :param options: options under the new definition.
    :param changes: what the definitions do not show.
    :param added: a schema that was added to the table since the last call.
    :raises SchemaNotAddedError: if the new schema must be added before.
    :raises TerminalError: if the table does not have the columns of ``old_table``, or cannot get the new ones.
    """
    metadata, old_columns, columns = log.metadata, old_table.sink_schema, table_format.schema
    if DELETED_COLUMN in columns.names:
        old_columns = with_deleted_column(old_columns)
    if not has_same_columns(metadata.current_schema, old_columns, metadata.format_version):
        raise TerminalError(
            f"the {log.name} has other columns than {old_table.label} had before its definition changed",
            f"Other software has altered it. {_FRESH_PATH_REMEDY}",
        )
    if old_table.key != table_format.key_columns:
        raise TerminalError(
            f"the {log.name} cannot follow the change of the definition of {old_table.label}: its key was "
            f"({', '.join(old_table.key)}) and is now ({', '.join(table_format.key_columns)})",
            _FRESH_PATH_REMEDY,
        )
    if added is not None and added.base.schema_id == metadata.current_schema.schema_id:
        known = next((s for s in metadata.schemas.values() if s.has_same_fields(added.schema)), None)
        if known is not None:
            return [table_updates.set_current_schema(known.schema_id)]
    try:
        schema, last_column_id = _edited_schema(metadata, columns, column_docs(options), changes)
    except NotReadyError as error:
        raise TerminalError(f"the {log.name} cannot follow: {error.message}", error.remedy) from None
    if schema.has_same_fields(metadata.current_schema):
        return []
    known = next((s for s in metadata.schemas.values() if s.has_same_fields(schema)), None)
    if known is not None:
        return [table_updates.set_current_schema(known.schema_id)]
    raise SchemaNotAddedError(metadata.current_schema, schema, last_column_id)


def why_not_in_place(log: IcebergLog, table_format: IcebergTableFormat, changes: ColumnChanges) -> str | None:
    """Return why a table cannot get other columns while its files stay as they are; ``None`` if it can.

    :param table_format: format under the new definition.
    :param changes: what the definitions do not show.
    """
    version = log.metadata.format_version
    if changes.defaults and version < 3:
        return f"existing rows get a value, and a table of format version {version} has no defaults of columns"
    try:
        _edited_schema(log.metadata, table_format.schema, {}, changes)
    except (TerminalError, NotReadyError) as error:
        return error.message
    return None


def overwrite_updates(log: IcebergLog, schema_id: int, table_format: IcebergTableFormat) -> list[Update]:
    """Return updates that replace the columns of a table, in a commit that replaces all of its rows.

    :param schema_id: number of the schema with which the new rows were written.
    :param table_format: format under the new definition.
    """
    return [
        *_schema_and_spec_updates(log.metadata, log.metadata.schemas[schema_id], table_format),
        table_updates.set_properties({KEY_PROPERTY: key_property_value(table_format.key_columns)}),
    ]


def build_shared_schema(
    log: IcebergLog, columns: pa.Schema, source: str, docs: Mapping[str, str]
) -> tuple[IcebergSchema, int]:
    """Return the schema of a table with the columns of a definition in addition, and the highest field id then.

    :param log: the current state of the table.
    :param columns: columns of the definition.
    :param source: ``database.table`` that has it.
    :param docs: comments by column.
    :raises TerminalError: if a column has another type in the table, or cannot be stored.
    """
    metadata, current = log.metadata, log.metadata.current_schema
    editor = SchemaEditor(current, metadata.last_column_id, metadata.format_version, ())
    names, types = list(current.columns), dict(column_types(columns, metadata.format_version))
    at = names.index(SOURCE_COLUMN)
    for column in columns:
        known = current.columns.get(column.name)
        if known is not None and str(known.type) != types[column.name]:
            raise other_type_error(log, source, column.name, known.type, types[column.name])
        if known is None:
            try:
                editor.add_column(column.name, column.type, doc=docs.get(column.name))
            except NotReadyError as error:
                text = f"the {log.name} cannot have column {column.name}: {error.message}"
                raise TerminalError(text, RENAME_REMEDY) from None
            names.insert(at, column.name)
            at += 1
    editor.order_columns(names)
    return editor.build_schema(max(metadata.schemas) + 1), editor.last_column_id


def replace_updates(log: IcebergLog, table_format: IcebergTableFormat, options: TableOptions) -> list[Update]:
    """Return updates that give a table any other columns, in a commit that removes all of its rows.

    :raises TransientError: if the table does not have their schema: it must be added before.
    """
    metadata = log.metadata
    schema = find_schema(metadata, table_format.schema, table_format.key_columns, column_docs(options))
    if schema is None:
        raise TransientError(f"the {log.name} was replaced or altered meanwhile", "Run again")
    obsolete = [table_updates.remove_properties([KEY_PROPERTY])] if KEY_PROPERTY in metadata.properties else []
    return [*_schema_and_spec_updates(metadata, schema, table_format), *obsolete]


def _schema_and_spec_updates(
    metadata: TableMetadata, schema: IcebergSchema, table_format: IcebergTableFormat
) -> list[Update]:
    """Return updates that make a schema of a table the current one, and let the partition spec use its columns."""
    is_current = schema is metadata.current_schema
    updates = [] if is_current else [table_updates.set_current_schema(schema.schema_id)]
    spec = partition_spec_for(schema, table_format, metadata)
    current = [(part.source_ids, part.transform) for part in metadata.default_spec.fields]
    if [(part.source_ids, part.transform) for part in spec.fields] == current:
        return updates
    # A catalog gives no new id to a spec that the table has had before, and manifests have this id.
    known = next((s for s in metadata.partition_specs.values() if s.fields == spec.fields), None)
    if known is not None:
        return [*updates, table_updates.set_default_spec(known.spec_id)]
    return [*updates, table_updates.add_partition_spec(spec), table_updates.set_default_spec()]


def _edited_schema(
    metadata: TableMetadata, columns: pa.Schema, docs: Mapping[str, str], changes: ColumnChanges
) -> tuple[IcebergSchema, int]:
    partition_ids = [number for part in metadata.default_spec.fields for number in part.source_ids]
    editor = SchemaEditor(metadata.current_schema, metadata.last_column_id, metadata.format_version, partition_ids)
    renamed, defaults = dict(changes.renamed), dict(changes.defaults)
    for name in metadata.current_schema.columns.keys() - {*columns.names} - renamed.keys():
        editor.drop_column(name)
    editor.rename_columns(renamed)
    current = editor.build_schema(0)
    types = dict(column_types(columns, metadata.format_version))
    for column in columns:
        if column.name in current.columns:
            if types[column.name] != str(current.columns[column.name].type):
                editor.promote_column(column.name, column.type)
            if (doc := docs.get(column.name)) != current.columns[column.name].doc:
                editor.set_doc(column.name, doc)
        else:
            text = defaults.get(column.name)
            default = None if text is None else values_of_array(default_array(text, column.type))[0]
            editor.add_column(column.name, column.type, doc=docs.get(column.name), default=default)
    editor.order_columns(columns.names)
    return editor.build_schema(max(metadata.schemas) + 1), editor.last_column_id


def new_table_properties(
    options: TableOptions, own: Mapping[str, str], existing: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the properties of a new table.

    :param own: properties that replace the default ones.
    :param existing: properties of an existing table, which keeps what it has in place of defaults.
    """
    mode = "merge-on-read" if options.deletion_vectors else "copy-on-write"
    return {
        **{name: (existing or {}).get(name, value) for name, value in _DEFAULT_PROPERTIES.items()},
        **{f"write.{action}.mode": mode for action in ("delete", "update", "merge")},
        **options.properties,
        **own,
    }


#: Default properties of a new table: its metadata stays small. Files of expired snapshots are deleted later.
_DEFAULT_PROPERTIES = {
    "history.expire.max-snapshot-age-ms": "3600000",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "commit.manifest-merge.enabled": "false",
}


def find_adoption_obstacles(
    log: IcebergLog, table_format: IcebergTableFormat, options: TableOptions, owner: str | None
) -> Sequence[str]:
    """Return the obstacles to adopting a table.

    :param owner: the pipeline that owns it.
    """
    metadata, obstacles = log.metadata, list[str]()
    if owner is not None:
        obstacles.append(f"it belongs to pipeline {owner}")
    if names := sorted(log.markers):
        obstacles.append(f"it has markers: {', '.join(names[:3])}")
    existing, version = metadata.current_schema.columns, metadata.format_version
    for column, (name, kind) in zip(table_format.schema, column_types(table_format.schema, version), strict=True):
        if (nested := existing.get(name)) is None:
            if not name.startswith("_cdc_"):
                obstacles.append(f"it lacks column {name} ({kind})")
        elif str(nested.type) != kind:
            obstacles.append(f"column {name} is {nested.type}, and not {kind}")
        elif nested.required and (column.name in options.nullable_columns or name.startswith("_cdc_")):
            obstacles.append(f"column {name} is NOT NULL, and may be NULL in the source")
    if [*log.partition_columns] != table_format.columns:
        obstacles.append(
            f"it is partitioned by {', '.join(log.partition_columns) or 'nothing'}, and not by "
            f"{', '.join(table_format.columns) or 'nothing'}"
        )
    extra = [name for name in existing if name not in table_format.schema.names]
    return [*obstacles, *(f"it has column {name}, which the source does not have" for name in extra)]
