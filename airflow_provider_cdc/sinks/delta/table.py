"""One Delta table: the encoder of its commits, and how it is created, adopted, altered and maintained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.column_policy import UNIQUE_KEY
from airflow_provider_cdc.model.definition_history import ColumnChanges
from airflow_provider_cdc.model.errors import TerminalError, TransientError
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.delta.adoption import OWNER_DESCRIPTION_PREFIX, adoption_actions, check_adoptable
from airflow_provider_cdc.sinks.delta.change_data_feed import ChangeFeedWriter, feed_actions
from airflow_provider_cdc.sinks.delta.commit_encoder import encode_operations, marker_actions
from airflow_provider_cdc.sinks.delta.definition_changes import (
    alter_actions,
    overwrite_actions,
    reset_actions,
    shared_columns_actions,
)
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.log.features import (
    has_feed,
    protocol_for,
    protocol_with_feed,
    reconfigure_actions,
    switch_vectors_actions,
    uses_vectors,
)
from airflow_provider_cdc.sinks.delta.maintenance import (
    OBSOLETE,
    OVERDUE_COMMITS,
    is_checkpoint_due,
    vacuum_files,
    write_checkpoint_if_due,
)
from airflow_provider_cdc.sinks.delta.table_format import DeltaTableFormat
from airflow_provider_cdc.sinks.delta.table_metadata import (
    DEFAULT_OPTIONS,
    DeltaTableOptions,
    build_metadata,
    check_column_names,
    covers_columns,
    has_same_columns,
    new_table_properties,
    with_current_properties,
)
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.lake.compaction import FileCompaction
from airflow_provider_cdc.sinks.lake.lake_table import LakeTable
from airflow_provider_cdc.sinks.lake.log.file_commit import CommitKind, FileCommit, dead_rows_of
from airflow_provider_cdc.sinks.lake.merge.table_edit import TableEdit
from airflow_provider_cdc.sinks.lake.table_checks import (
    KEY_PROPERTY,
    OWNER_PROPERTY,
    check_no_other_format,
    check_owner,
    key_property_value,
    owner_of,
)
from airflow_provider_cdc.sinks.lake.transactional_table import COMMIT_TRIES, back_off
from airflow_provider_cdc.sinks.protocol import Fence
from airflow_provider_cdc.sinks.storage.storage import Storage


class DeltaSinkTable(LakeTable[DeltaLog]):
    """One Delta table.

    :param storage: storage of its folder.
    :param schema: Arrow schema of its rows.
    :param key_columns: names of the key columns; none if equal rows are counted instead.
    :param stats_column: column of the file statistics (a single integer key).
    :param options: options of the table.
    :param source: ``database.table`` whose rows this object reads and writes, if the table has those of others, too.
    """

    options: DeltaTableOptions
    _format: DeltaTableFormat

    def __init__(
        self,
        storage: Storage,
        schema: pa.Schema,
        key_columns: Sequence[str] = (),
        stats_column: str | None = None,
        options: DeltaTableOptions = DEFAULT_OPTIONS,
        source: str | None = None,
    ) -> None:
        table_format = DeltaTableFormat(
            schema,
            options.partitioned_by,
            options.row_group_size,
            tuple(key_columns),
            stats_column,
            source,
            options.shared == UNIQUE_KEY,
        )
        super().__init__(storage, table_format, options)

    def open_log(self) -> DeltaLog:
        """Return a log of the table that has read nothing yet."""
        return DeltaLog(self.storage, self._format.scope)

    def create(self, pipeline: str, configuration: Mapping[str, str] | None = None) -> None:
        """Create the table, or adopt an existing one; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`.

        :param configuration: properties of a new table that replace the default ones.
        :raises NotReadyError: if it should be adopted but cannot be.
        """
        properties = {**new_table_properties(self.options), **(configuration or {}), OWNER_PROPERTY: pipeline}
        new_metadata = build_metadata(self.schema, self.options, properties, OWNER_DESCRIPTION_PREFIX + pipeline)
        protocol = protocol_with_feed(
            protocol_for(self._format.table_schema, vectors=self.options.deletion_vectors), properties
        )
        if self._format.source is not None:
            new_metadata["configuration"][KEY_PROPERTY] = key_property_value(self._format.declared_key)
        for attempt in range(COMMIT_TRIES):
            if not self.open_log().exists():
                self.check_folder_is_free()
                self._log.commit([{"protocol": protocol}, {"metaData": new_metadata}], "CREATE TABLE")
            elif not self.will_adopt(pipeline) or self._log.commit(
                adoption_actions(self._log, new_metadata, protocol), "OVERWRITE"
            ):
                break
            else:
                back_off(attempt)
        self._log.refresh()
        check_owner(self._log, pipeline)
        if self._format.source is not None:
            self._register_source()
            return
        check_column_names(self.load_log(), new_metadata)

    def check_folder_is_free(self) -> None:
        """Refuse the folder of another table; see :class:`~airflow_provider_cdc.sinks.protocol.InFolder`."""
        check_no_other_format(self.storage, self.name, "an Iceberg table", "metadata", _is_iceberg_metadata)

    def will_adopt(self, pipeline: str) -> bool:
        """Return whether :meth:`create` adopts it; see :class:`~airflow_provider_cdc.sinks.protocol.Adoptable`."""
        self._log.refresh()
        if not self.options.adopt or owner_of(self._log.properties) == pipeline:
            return False
        wanted_schema = build_metadata(self.schema, self.options, {}, "")["schemaString"]
        check_adoptable(self._log, wanted_schema, self._format.columns, self.options.nullable_columns)
        return True

    def commit_edit(
        self,
        decide_edit: Callable[[DeltaLog], TableEdit | FileCommit | None],
        markers: Mapping[str, int],
        fence: Fence,
    ) -> bool:
        """Commit rows and markers in one transaction, and write a checkpoint if maintenance has not done so in time.

        Maintenance does not run with every commit, and each reader has to replay all commits since the last checkpoint.
        """
        if not super().commit_edit(decide_edit, markers, fence):
            return False
        with suppress(TransientError):  # still due after the next commit
            write_checkpoint_if_due(self._log, OVERDUE_COMMITS)
        return True

    def commit_compactions(self, results: Sequence[tuple[FileCompaction, Sequence[DataFile]]]) -> int:
        """Replace files by compacted ones, and write a checkpoint if one is due; see :class:`LakeTable`."""
        committed_count = super().commit_compactions(results)
        if committed_count:
            write_checkpoint_if_due(self._log)
        return committed_count

    # ------------------------------------------------------------ maintenance

    def is_checkpoint_due(self) -> bool:
        """Return whether :meth:`clean_up` would write a checkpoint of the log, as far as this object knows."""
        return is_checkpoint_due(self._log)

    def clean_up(self) -> None:
        """Delete files that are no longer needed, and write a checkpoint of the log if one is due."""
        log = self.load_log()
        vectors_disabled = not self.options.deletion_vectors and uses_vectors(log.protocol, log.properties)
        if vectors_disabled and not any(file.deletion_vector for file in log.all_files.values()):
            # If it fails, next time.
            log.commit(switch_vectors_actions(log.protocol, log.metadata, vectors=False), "DROP FEATURE")
            log.checkpoint_version = OBSOLETE
        # An object used only for maintenance never commits rows, and would accumulate these keys.
        self._forget_revived_keys()
        vacuum_files(log)
        write_checkpoint_if_due(log)

    # ------------------------------------------------------------ definition

    def _has_same_columns(self, log: DeltaLog) -> bool:
        return has_same_columns(log, self._format.table_schema)

    def _covers_columns(self, log: DeltaLog) -> bool:
        return covers_columns(log, self._format.table_schema)

    def _check_extendable(self, log: DeltaLog) -> None:
        shared_columns_actions(log, self._format, self.options)

    def _add_columns(self, log: DeltaLog) -> bool:
        return log.commit(shared_columns_actions(log, self._format, self.options), CommitKind.ADD_COLUMNS.value)

    def _altered_definition(
        self, log: DeltaLog, old_table: TableSchema, changes: ColumnChanges
    ) -> list[dict[str, Any]]:
        if changes:
            raise TerminalError(
                f"the {log.name} cannot follow {old_table.label}: its files have columns under their old names",
                "Re-snapshot the table: airflow-cdc resnapshot",
            )
        return alter_actions(log, old_table, self._format, self.options)

    def _overwritten_definition(self, log: DeltaLog, files: Sequence[DataFile]) -> list[dict[str, Any]]:
        return overwrite_actions(log, self._format, self.options)

    def _reset_definition(self, log: DeltaLog) -> list[dict[str, Any]]:
        return reset_actions(log, self._format, self.options)

    def _current_definition(self, metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return actions that give the table its current properties, and deletion vectors if it is to have them.

        :param metadata: its metadata with these properties.
        """
        log = self._log
        if self.options.deletion_vectors and not uses_vectors(log.protocol, log.properties):
            return switch_vectors_actions(log.protocol, metadata, vectors=True)  # copy-on-write until now
        return reconfigure_actions(log.protocol, log.metadata, metadata)

    # ------------------------------------------------------------ encoder

    def _write_commit(self, commit: FileCommit, markers: Mapping[str, int], edit: TableEdit | None = None) -> bool:
        log, definition = self._log, [dict(action) for action in commit.definition]
        file_actions = encode_operations(log, commit, self._format.stats_column)
        if edit is not None:
            metadata = with_current_properties(log, self.options)
            definition = self._current_definition(metadata)
            if has_feed(metadata.get("configuration") or {}):
                files = ChangeFeedWriter(log, self._format, self._key_hasher).write_feed(edit, file_actions)
                commit.delete_on_conflict += [file.path for file in files]
                file_actions += feed_actions(files)
        if not log.commit([*definition, *file_actions, *marker_actions(markers, log.scope)], commit.kind.value):
            return False
        for path, rows in dead_rows_of(commit).items():
            if (file := log.files.get(path)) is not None and file.deletion_vector is not None:
                log.cache_dead_rows(path, file.deletion_vector, rows)
        return True


def _is_iceberg_metadata(path: str) -> bool:
    """Return whether a file is metadata or a manifest list of an Iceberg table, or names the folder's owner."""
    name = path.rpartition("/")[2]
    return name.endswith((".metadata.json", "-table.json")) or (name.startswith("snap-") and name.endswith(".avro"))
