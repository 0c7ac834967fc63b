"""One Iceberg table: the encoder of its commits, and how it is created, adopted, altered and maintained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from airflow_provider_cdc.config.delete_policy import HARD
from airflow_provider_cdc.model.definition_history import NO_CHANGES, ColumnChanges
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import Catalog, CommitOutcome, TableIdentifier
from airflow_provider_cdc.sinks.iceberg.commit_encoder import CommitEncoder
from airflow_provider_cdc.sinks.iceberg.definition_changes import (
    SchemaNotAddedError,
    alter_updates,
    build_shared_schema,
    column_docs,
    find_adoption_obstacles,
    new_table_properties,
    overwrite_updates,
    partition_spec_for,
    replace_updates,
    why_not_in_place,
)
from airflow_provider_cdc.sinks.iceberg.format import table_updates
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema, new_schema
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata, new_metadata
from airflow_provider_cdc.sinks.iceberg.format.table_updates import Update
from airflow_provider_cdc.sinks.iceberg.log.file_schemas import (
    NEW_TABLE_SCHEMA_ID,
    build_schema,
    column_types,
    find_schema,
    has_ids_of_new_table,
    has_same_columns,
)
from airflow_provider_cdc.sinks.iceberg.log.folder_owner import (
    OWNER_FILE,
    check_folder_is_free,
    check_may_delete_folder,
)
from airflow_provider_cdc.sinks.iceberg.log.iceberg_log import IcebergLog
from airflow_provider_cdc.sinks.iceberg.log.retained_files import METADATA_FOLDER
from airflow_provider_cdc.sinks.iceberg.log.table_location import location_of
from airflow_provider_cdc.sinks.iceberg.log.table_markers import properties_to_set
from airflow_provider_cdc.sinks.iceberg.snapshot_expiry import expire_snapshots
from airflow_provider_cdc.sinks.iceberg.table_format import (
    FileSchemaLookup,
    IcebergTableFormat,
    file_schema_of,
    schema_number_of,
)
from airflow_provider_cdc.sinks.iceberg.upkeep import vacuum_files
from airflow_provider_cdc.sinks.lake.lake_table import LakeTable
from airflow_provider_cdc.sinks.lake.log.file_commit import AddFile, CommitKind, FileCommit, RemoveFile
from airflow_provider_cdc.sinks.lake.merge.table_edit import TableEdit
from airflow_provider_cdc.sinks.lake.table_checks import (
    DELETES_PROPERTY,
    KEY_PROPERTY,
    OVERWRITTEN_REMEDY,
    OWNER_PROPERTY,
    check_owner,
    key_property_value,
    owner_of,
)
from airflow_provider_cdc.sinks.lake.table_options import TableOptions
from airflow_provider_cdc.sinks.lake.transactional_table import COMMIT_TRIES, back_off
from airflow_provider_cdc.sinks.protocol import Fence
from airflow_provider_cdc.sinks.storage.storage import Storage


class IcebergSinkTable(LakeTable[IcebergLog]):
    """One Iceberg table.

    :param storage: storage of its folder.
    :param open_catalog: returns the catalog for the current thread.
    :param identifier: name of the table in the catalog.
    :param table_format: format of its rows.
    :param options: options of the table.
    """

    _format: IcebergTableFormat

    def __init__(
        self,
        storage: Storage,
        open_catalog: Callable[[], Catalog],
        identifier: TableIdentifier,
        table_format: IcebergTableFormat,
        options: TableOptions,
    ) -> None:
        self._open_catalog, self.identifier = open_catalog, identifier
        self._found_schema: tuple[TableMetadata, pa.Schema] | None = None
        self._overwriting_schema: pa.Schema | None = None
        self._added_schema: SchemaNotAddedError | None = None
        table_format = replace(table_format, file_schema_lookup=FileSchemaLookup(self.find_file_schema))
        super().__init__(storage, table_format, options)

    def open_log(self) -> IcebergLog:
        """Return a log of the table that has read nothing yet."""
        return IcebergLog(
            self.storage, self._open_catalog, self.identifier, self.options.deletion_vectors, self._format.scope
        )

    # ------------------------------------------------------------ creation

    def create(self, pipeline: str) -> None:
        """Create the table, or adopt an existing one; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`.

        :raises NotReadyError: if it should be adopted but cannot be.
        """
        for attempt in range(COMMIT_TRIES):
            if not self.open_log().exists():
                self.check_folder_is_free()
                self._open_catalog().create_table(self.identifier, self._new_metadata(pipeline))
            elif not self.will_adopt(pipeline) or self._adopt(pipeline):
                break
            else:
                back_off(attempt)
        self._log.refresh()
        check_owner(self._log, pipeline)
        self._log.take_folder()
        if self._format.source is not None:
            self._register_source()
            return
        names = list(self.load_log().metadata.current_schema.columns)
        if names != self.schema.names:
            raise TerminalError(
                f"the {self.name} has other columns than its source table",
                "It was written by other software, or under another definition: use a fresh sink.path, or remove it",
            )

    def check_folder_is_free(self) -> None:
        """Refuse the folder of another table; see :class:`~airflow_provider_cdc.sinks.protocol.InFolder`."""
        if self._format.source is None or not self.open_log().exists():
            check_folder_is_free(self.storage, self.name)

    def will_adopt(self, pipeline: str) -> bool:
        """Return whether :meth:`create` adopts it; see :class:`~airflow_provider_cdc.sinks.protocol.Adoptable`."""
        self._log.refresh()
        owner = owner_of(self._log.properties)
        if not self.options.adopt or owner == pipeline:
            return False
        if obstacles := find_adoption_obstacles(self._log, self._format, self.options, owner):
            raise NotReadyError(
                f"the {self.name} cannot be adopted: {'; '.join(obstacles)}",
                "Alter it, or choose another sink.path or sink.table_path",
            )
        return True

    def _new_metadata(self, pipeline: str) -> TableMetadata:
        version = 3 if self.options.deletion_vectors else 2
        schema = new_schema(self.schema, version, identifiers=self._format.declared_key, docs=column_docs(self.options))
        spec = partition_spec_for(schema, self._format)
        properties = new_table_properties(self.options, self._own_properties(pipeline))
        return new_metadata(version, location_of(self.storage), schema, spec, properties, int(time.time() * 1000))

    def _own_properties(self, pipeline: str) -> dict[str, str]:
        deletes = {} if self.options.deletes == HARD else {DELETES_PROPERTY: self.options.deletes}
        key = {} if self._format.source is None else {KEY_PROPERTY: key_property_value(self._format.declared_key)}
        return {**deletes, **key, OWNER_PROPERTY: pipeline}

    def _adopt(self, pipeline: str) -> bool:
        """Remove all rows of a table, and make a pipeline its owner."""
        log = self._log
        log.take_folder()
        if self._find_schema(log.metadata) is None:
            self._find_or_add_schema(log.metadata)  # which advances the log
            return False
        properties = new_table_properties(self.options, self._own_properties(pipeline), log.properties)
        definition = [
            *replace_updates(log, self._format, self.options),
            table_updates.set_properties(properties_to_set(log.properties, properties)),
        ]
        commit = FileCommit([RemoveFile(file) for file in log.files.values()], definition, CommitKind.OVERWRITE)
        is_committed = self._write_commit(commit, {})
        if not is_committed:
            self._delete_files_of_lost(commit)
        return is_committed

    # ------------------------------------------------------------ files

    def find_file_schema(self) -> pa.Schema:
        """Return the schema of new files, which the table gets if it has none with the columns of this definition.

        It becomes the current one only by an overwrite. If there is no table yet, it is the one that it will have.
        """
        if self._overwriting_schema is not None:
            return self._overwriting_schema
        metadata = self._log.metadata if self._log.is_loaded else None
        if metadata is None or self._found_schema is None or self._found_schema[0] is not metadata:
            metadata = metadata or self._log.find_metadata()
            if metadata is None:
                new_table = self._new_metadata("")
                schema = replace(new_table.current_schema, schema_id=NEW_TABLE_SCHEMA_ID)
                return file_schema_of(schema, new_table, self.name)
            if self._format.source is None:
                self._found_schema = metadata, self._find_or_add_schema(metadata)
            else:
                self._found_schema = self._find_shared_schema(metadata)
        return self._found_schema[1]

    def _find_shared_schema(self, metadata: TableMetadata) -> tuple[TableMetadata, pa.Schema]:
        """Return the metadata of a shared table that has the columns of this definition, and the schema of its files.

        They have only these columns.
        """
        if not self._metadata_covers_columns(metadata):
            self._ensure_columns()
            metadata = self._log.metadata
        schema = file_schema_of(metadata.current_schema, metadata, self.name)
        return metadata, pa.schema([schema.field(name) for name in self.schema.names], metadata=schema.metadata)

    def _find_schema(self, metadata: TableMetadata) -> IcebergSchema | None:
        return find_schema(metadata, self.schema, self._format.key_columns, column_docs(self.options))

    def _find_or_add_schema(self, metadata: TableMetadata | None) -> pa.Schema:
        for attempt in range(COMMIT_TRIES):
            if metadata is None:
                break
            schema = self._find_schema(metadata)
            if schema is not None:
                return file_schema_of(schema, metadata, self.name)
            metadata = self._log.find_metadata()
            if metadata and self._find_schema(metadata) is None:
                added = build_schema(metadata, self.schema, self._format.key_columns, column_docs(self.options))
                metadata = self._log.add_schema(*added)
                back_off(attempt)
        raise self._gave_up_error()

    def overwrite(
        self,
        slices: Sequence[DataFile],
        markers: Mapping[str, int],
        fence: Fence,
        *,
        keep_deleted_to: int | None = None,
    ) -> bool:
        """Replace all rows; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`.

        The table gets the schema with which the slices were written, unless it is shared.
        """
        if self._format.source is not None:
            return super().overwrite(slices, markers, fence, keep_deleted_to=keep_deleted_to)
        self._overwriting_schema = self._schema_of_slices(slices)
        try:
            return super().overwrite(slices, markers, fence, keep_deleted_to=keep_deleted_to)
        finally:
            self._overwriting_schema = None

    def _schema_of_slices(self, slices: Iterable[DataFile]) -> pa.Schema:
        ids = {file.schema_id for part in slices for file in part.files if file.rows}
        if not self._log.is_loaded or not ids <= {*self._log.metadata.schemas, NEW_TABLE_SCHEMA_ID}:
            self._log.refresh()
        metadata = self._log.metadata
        if not ids:
            return self._find_or_add_schema(metadata)
        if NEW_TABLE_SCHEMA_ID in ids:
            schema = self._find_schema(metadata)
            if schema is not None and has_ids_of_new_table(schema):
                ids = ids - {NEW_TABLE_SCHEMA_ID} | {schema.schema_id}
        schemas = [metadata.schemas.get(-1 if number is None else number) for number in ids]
        if len(schemas) > 1 or schemas[0] is None:
            raise TransientError(
                f"slices of the {self.name} were written with schemas {sorted(map(str, ids))} of the table",
                "Re-snapshot the table again: its columns were changed while it was read",
            )
        return file_schema_of(schemas[0], metadata, self.name)

    def alter(
        self,
        old_table: TableSchema,
        markers: Mapping[str, int],
        fence: Fence,
        changes: ColumnChanges = NO_CHANGES,
    ) -> bool:
        """Follow a change of the definition; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`.

        The schema is added before it becomes the current one: nobody knows its number before the catalog gives it.
        """
        self._added_schema = None
        for attempt in range(COMMIT_TRIES):
            try:
                return super().alter(old_table, markers, fence, changes)
            except SchemaNotAddedError as error:
                self._log.add_schema(error.schema, error.last_column_id)
                self._added_schema = error
                back_off(attempt)
        raise self._gave_up_error()

    def reset(self, pipeline: str, fence: Fence, markers: Sequence[str]) -> None:
        """Remove all rows, once; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`."""
        self._log.refresh()
        is_alone = self._format.source is None
        if is_alone and not self._awaits_adoption() and self._log.markers.get(fence.name, 0) < fence.value:
            self._find_or_add_schema(self._log.metadata)
        super().reset(pipeline, fence, markers)

    # ------------------------------------------------------------ maintenance

    @property
    def commit_count(self) -> int:
        """Number of commits in the table's history, as far as this object knows."""
        return self._log.metadata.last_sequence_number if self._log.is_loaded else 0

    def clean_up(self) -> None:
        """Delete files that are no longer needed."""
        log = self.load_log()
        # An object used only for maintenance never commits rows, and would accumulate these keys.
        self._forget_revived_keys()
        vacuum_files(log)

    def delete(self) -> None:
        """Delete the table; see :class:`~airflow_provider_cdc.sinks.protocol.Registered`.

        While the catalog has the table, the files of its metadata are there, by which it is recognized.
        """
        metadata = self._log.find_metadata()
        check_may_delete_folder(self.storage, self.name, metadata.table_uuid if metadata else None)
        names = [name for name, _ in self.storage.list("") if name != OWNER_FILE]
        self.storage.delete(*(name for name in names if not name.startswith(f"{METADATA_FOLDER}/")))
        self.storage.delete(OWNER_FILE)  # first: without it, a table of this name can be created again
        self._open_catalog().drop_table(self.identifier)
        self.storage.delete(*(name for name in names if name.startswith(f"{METADATA_FOLDER}/")))

    # ------------------------------------------------------------ definition

    def _has_same_columns(self, log: IcebergLog) -> bool:
        is_same = has_same_columns(log.metadata.current_schema, self.schema, log.metadata.format_version)
        return is_same and log.has_own_columns

    def _covers_columns(self, log: IcebergLog) -> bool:
        return self._metadata_covers_columns(log.metadata) and log.has_own_columns

    def _metadata_covers_columns(self, metadata: TableMetadata) -> bool:
        types = {nested.name: str(nested.type) for nested in metadata.current_schema.fields}
        return all(types.get(name) == kind for name, kind in column_types(self.schema, metadata.format_version))

    def _check_extendable(self, log: IcebergLog) -> None:
        self._build_shared_schema(log)

    def _add_columns(self, log: IcebergLog) -> bool:
        log.add_schema(*self._build_shared_schema(log), make_current=True)
        return self._covers_columns(log)

    def _build_shared_schema(self, log: IcebergLog) -> tuple[IcebergSchema, int]:
        if not log.has_own_columns:
            raise TerminalError(f"the columns of the {log.name} were replaced by others", OVERWRITTEN_REMEDY)
        return build_shared_schema(log, self.schema, str(self._format.source), column_docs(self.options))

    def _altered_definition(self, log: IcebergLog, old_table: TableSchema, changes: ColumnChanges) -> list[Update]:
        return alter_updates(log, old_table, self._format, self.options, changes, self._added_schema)

    def why_not_in_place(self, changes: ColumnChanges) -> str | None:
        """Return a reason, or ``None``; see :class:`~airflow_provider_cdc.sinks.protocol.InPlaceAlterable`."""
        return why_not_in_place(self.load_log(), self._format, changes)

    def _overwritten_definition(self, log: IcebergLog, files: Sequence[DataFile]) -> list[Update]:
        schema_id = schema_number_of(self._format.file_schema)
        if schema_id not in log.metadata.schemas:  # it was added after this version
            raise TransientError(f"the {self.name} has got another schema meanwhile", "Run again")
        return overwrite_updates(log, schema_id, self._format)

    def _reset_definition(self, log: IcebergLog) -> list[Update]:
        return replace_updates(log, self._format, self.options)

    def _knows_schemas_of(self, commit: FileCommit) -> bool:
        """Return whether this version has the schemas with which the files of a commit were written."""
        ids = {step.file.schema_id for step in commit.operations if isinstance(step, AddFile)}
        return ids <= {*self._log.metadata.schemas, NEW_TABLE_SCHEMA_ID, None}

    # ------------------------------------------------------------ encoder

    def _write_commit(self, commit: FileCommit, markers: Mapping[str, int], edit: TableEdit | None = None) -> bool:
        if self._format.source is not None and not self._knows_schemas_of(commit):
            return False  # another source has added columns since
        properties = self.options.properties if edit is not None else {}
        encoder = CommitEncoder(self._log, commit, markers, self._format.stats_column, properties)
        outcome = self._log.commit(encoder.encode())
        if outcome is CommitOutcome.DONE:
            expire_snapshots(self._log)
        commit.may_be_made = outcome is CommitOutcome.UNKNOWN
        return outcome is CommitOutcome.DONE
