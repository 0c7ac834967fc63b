"""One Delta table: every write is one idempotent commit that carries its own markers.

Commits are compare-and-set on the table's version: the state on which a commit was decided (markers, fence, live files)
is that of version ``v``, and the commit succeeds only as version ``v + 1``; otherwise the state is read and the
decision made again. A marker can therefore never be written twice, and an overtaken writer can never commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.config.delete_policy import HARD
from airflow_provider_cdc.model.errors import CdcError, FencedError, TerminalError, TransientError
from airflow_provider_cdc.model.multiset import MissingRowsError
from airflow_provider_cdc.model.row_retention import RetainedRowsLoss
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.delta.adoption import (
    OWNER_DESCRIPTION_PREFIX,
    OWNER_PROPERTY,
    adoption_actions,
    check_adoptable,
    owner_of,
)
from airflow_provider_cdc.sinks.delta.change_data_feed import ChangeFeedWriter, feed_actions
from airflow_provider_cdc.sinks.delta.definition_changes import alter_actions, overwrite_actions, reset_actions
from airflow_provider_cdc.sinks.delta.log.delta_log import FRESH_SECONDS, DeltaLog, back_off
from airflow_provider_cdc.sinks.delta.log.features import (
    has_feed,
    protocol_for,
    protocol_with_feed,
    reconfigure_actions,
    switch_vectors_actions,
    uses_vectors,
)
from airflow_provider_cdc.sinks.delta.maintenance import (
    OVERDUE_COMMITS,
    is_checkpoint_due,
    measure_size,
    vacuum_files,
    write_checkpoint_if_due,
)
from airflow_provider_cdc.sinks.delta.table_metadata import (
    DEFAULT_OPTIONS,
    DeltaTableOptions,
    build_metadata,
    check_column_names,
    check_columns,
    check_has_owner,
    check_key,
    check_not_replaced,
    check_owner,
    check_settings,
    has_same_columns,
    new_table_properties,
    with_current_properties,
)
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.lake.compaction import DeltaCompaction, plan_compactions, prepare_compaction_commit
from airflow_provider_cdc.sinks.lake.file_scan import FileScanTask, plan_file_scan
from airflow_provider_cdc.sinks.lake.merge.change_merger import ChangeMerger, read_living_rows
from airflow_provider_cdc.sinks.lake.merge.key_hashes import KeyHasher
from airflow_provider_cdc.sinks.lake.merge.key_index import KeyIndex
from airflow_provider_cdc.sinks.lake.merge.key_lookup import KeyLookup
from airflow_provider_cdc.sinks.lake.merge.partitions import TableFormat
from airflow_provider_cdc.sinks.lake.merge.retained_rows import RetainedFiles, RetainedRowFinder, find_overwrite_loss
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import drop_deleted_rows
from airflow_provider_cdc.sinks.lake.merge.table_edit import (
    PreparedCommit,
    TableEdit,
    is_part_file,
    prepare_copy_on_write,
    prepare_deletion_vectors,
)
from airflow_provider_cdc.sinks.lake.slice_staging import SliceStaging
from airflow_provider_cdc.sinks.protocol import DecideChange, Fence, Markers, Prefetcher, TableSize
from airflow_provider_cdc.sinks.storage.storage import Storage

_COMMIT_TRIES = 50
_STALE_VERSION_ERRORS = (CdcError, MissingRowsError, FileNotFoundError)  # possibly only because the version is outdated
#: Counts compactions, for display only.
_COMPACTION_COUNTER = "airflow-cdc/compactions"


class DeltaSinkTable(SliceStaging):
    """One Delta table.

    :param storage: storage of its folder.
    :param schema: Arrow schema of its rows.
    :param key_columns: names of the key columns; none if equal rows are counted instead.
    :param stats_column: column of the file statistics (a single integer key).
    :param options: options of the table.
    """

    def __init__(
        self,
        storage: Storage,
        schema: pa.Schema,
        key_columns: Sequence[str] = (),
        stats_column: str | None = None,
        options: DeltaTableOptions = DEFAULT_OPTIONS,
    ) -> None:
        super().__init__(
            storage,
            TableFormat(schema, options.partitioned_by, options.row_group_size, tuple(key_columns), stats_column),
        )
        self.options = options
        self._log = DeltaLog(storage)
        self._checked_metadata: Mapping[str, Any] | None = None
        self._key_index = KeyIndex(options.index_bytes)
        self._key_hasher = KeyHasher(self._format.identity_columns, schema, is_key=bool(key_columns))
        self._key_lookup = KeyLookup(storage, self._format, self._key_hasher, self._key_index)

    @property
    def name(self) -> str:
        """Name of the table in messages."""
        return self._log.name

    def exists(self) -> bool:
        """Return whether the table has been created."""
        return DeltaLog(self.storage).exists()

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
        for attempt in range(_COMMIT_TRIES):
            if not self.exists():
                self._log.commit([{"protocol": protocol}, {"metaData": new_metadata}], "CREATE TABLE")
            elif not self.will_adopt(pipeline) or self._log.commit(
                adoption_actions(self._log, new_metadata, protocol), "OVERWRITE"
            ):
                break
            else:
                back_off(attempt)
        self._log.refresh()
        check_owner(self._log, pipeline)
        check_column_names(self.load_log(), new_metadata)

    def owner(self) -> str | None:
        """Return the pipeline that owns the table; see :class:`~airflow_provider_cdc.sinks.protocol.HasOwner`."""
        self._log.refresh()
        return owner_of(self._log.metadata)

    def will_adopt(self, pipeline: str) -> bool:
        """Return whether :meth:`create` adopts it; see :class:`~airflow_provider_cdc.sinks.protocol.Adoptable`."""
        self._log.refresh()
        if not self.options.adopt or owner_of(self._log.metadata) == pipeline:
            return False
        wanted_schema = build_metadata(self.schema, self.options, {}, "")["schemaString"]
        check_adoptable(self._log, wanted_schema, self._format.columns, self.options.nullable_columns)
        return True

    def load_log(self) -> DeltaLog:
        """Return the log at the newest version of the table.

        :raises TerminalError: if the table is missing, its partitioning differs, or it uses unsupported features.
        :raises NotReadyError: if it was created with another ``sink.deletes``.
        """
        self._log.refresh()
        check_settings(self._log, self._format, self.options)
        return self._log

    def markers(self) -> Markers:
        """Return the markers of the newest version; none if the table does not exist."""
        if self._log.version < 0 and not self.exists():
            return {}
        self._log.refresh()
        if self.options.adopt and owner_of(self._log.metadata) is None:
            return {}  # not adopted yet
        check_has_owner(self._log)
        return dict(self.load_log().markers)

    def raise_fence(self, fence: Fence) -> bool:
        """Raise a fence; see :class:`~airflow_provider_cdc.sinks.protocol.Fenceable`."""
        return self.commit_edit(
            lambda log: None if log.markers.get(fence.name) == fence.value else TableEdit(), {}, fence
        )

    def reset(self, pipeline: str, fence: Fence, markers: Sequence[str]) -> None:
        """Remove all rows, once; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`.

        A table to be adopted is left to :meth:`create`.
        """
        for attempt in range(_COMMIT_TRIES):
            self._log.refresh()
            log = self._log
            if self.options.adopt and owner_of(log.metadata) is None:
                return
            check_settings(log, self._format, self.options)
            check_owner(log, pipeline)
            if log.markers.get(fence.name, 0) >= fence.value:
                return
            if any(marker in log.markers for marker in markers):
                raise TerminalError(
                    f"rows under an older definition of its source were published to the {self.name}",
                    "Start with a fresh sink.path (or remove the old one) and run again",
                )
            if log.files and self.options.deletes != HARD:
                raise TerminalError(
                    f"the {self.name} has rows that the source may have deleted (sink.deletes), and a new snapshot "
                    "would remove them",
                    "Start with a fresh sink.path",
                )
            actions = reset_actions(log, self._format, self.options)
            if log.commit([*actions, _marker_action(fence.name, fence.value)], "OVERWRITE"):
                return
            back_off(attempt)
        raise self._gave_up_error()

    def commit(self, decide: DecideChange, markers: Mapping[str, int], fence: Fence) -> bool:
        """Change rows and markers atomically; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`."""

        def edit(log: DeltaLog) -> TableEdit | None:
            change = decide(dict(log.markers))
            if change is None:
                return None
            self._check_definition()  # before anything is written
            return ChangeMerger(log, self._key_lookup, self.options.deletes).plan_edit(change)

        return self.commit_edit(edit, markers, fence)

    def alter(self, old_table: TableSchema, markers: Mapping[str, int], fence: Fence) -> bool:
        """Follow a change of the definition; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`."""

        def edit(log: DeltaLog) -> TableEdit | None:
            if _has_markers(log, markers):
                return None
            operation = "ADD COLUMNS" if {*old_table.sink_schema.names} <= {*self.schema.names} else "REPLACE COLUMNS"
            return TableEdit(
                overriding_actions=alter_actions(log, old_table, self._format, self.options), operation=operation
            )

        return self.commit_edit(edit, markers, fence)

    def overwrite(
        self,
        slices: Sequence[DataFile],
        markers: Mapping[str, int],
        fence: Fence,
        *,
        keep_deleted_to: int | None = None,
    ) -> bool:
        """Replace all rows; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`.

        A change data feed reports all rows, except dead ones, as deleted and those of the slices as inserted, even if
        they are equal.
        """

        def edit(log: DeltaLog) -> TableEdit | None:
            if _has_markers(log, markers):
                return None
            for file in slices:
                if not self.is_staged(file):
                    raise TerminalError(
                        f"the slice {self.storage.location(file.path)} is missing or incomplete",
                        "The table is unchanged: re-snapshot it again, and do not run VACUUM meanwhile",
                    )
            retained_files = RetainedFiles()
            if keep_deleted_to is not None and self.options.deletes != HARD:
                retained_files = RetainedRowFinder(log, self._key_lookup, self.options.deletes).write_retained_rows(
                    slices, keep_deleted_to
                )
            definition = overwrite_actions(log, self._format, self.options, slices, retained_files)
            return TableEdit(
                overriding_actions=definition,
                delete_on_conflict=[f.path for f in retained_files.written],
                operation="OVERWRITE",
            )

        return self.commit_edit(edit, markers, fence)

    def overwrite_loss(
        self, old_table: TableSchema, slices: Sequence[DataFile] | None = None
    ) -> RetainedRowsLoss | None:
        """Return what an overwrite would lose; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`."""
        if self.options.deletes == HARD or not self.exists():
            return None
        return find_overwrite_loss(self.load_log(), self._key_lookup, self.options.deletes, old_table, slices)

    def commit_edit(
        self, decide_edit: Callable[[DeltaLog], TableEdit | None], markers: Mapping[str, int], fence: Fence
    ) -> bool:
        """Commit rows and markers in one transaction, as :meth:`commit` does.

        :param decide_edit: called with the current state of the table; returns the edit, or ``None`` to leave it
            unchanged.
        """
        log = self._log
        for attempt in range(_COMMIT_TRIES):
            # Optimistic at first: the commit itself detects an outdated version. But only the newest version shows that
            # there is nothing to do, or that it cannot be done.
            newest = attempt > 0 or log.version < 0 or log.seconds_since_refresh > FRESH_SECONDS
            if newest:
                log.refresh()
            try:
                edit = self._decide_with_fence(decide_edit, fence)
            except _STALE_VERSION_ERRORS:
                if newest:
                    raise
                continue
            if edit is None:
                if newest:
                    return False
                continue
            try:
                if self._try_commit(edit, {**markers, fence.name: fence.value}):
                    self._checkpoint_if_overdue()
                    return True
            except FileNotFoundError:  # possibly an outdated version
                if newest:
                    raise
                continue
            back_off(attempt)
        raise self._gave_up_error()

    def read(self) -> tuple[pa.Table, Markers]:
        """Return all rows of the newest version in the sink's schema, and its markers."""
        log = self._load_pinned_log()
        return drop_deleted_rows(read_living_rows(log, self.schema)), dict(log.markers)

    def plan_scan(self) -> tuple[list[FileScanTask], Markers]:
        """Return scan tasks of the newest version, and its markers.

        The files are kept for at least an hour after a newer version has removed them. See
        :class:`~airflow_provider_cdc.sinks.scan_tasks.Scannable`.
        """
        log = self._load_pinned_log()
        return plan_file_scan(log, self.schema), dict(log.markers)

    def _load_pinned_log(self) -> DeltaLog:
        """Return a separate log at the newest version, which does not advance while it is read."""
        log = DeltaLog(self.storage)
        log.refresh()
        check_settings(log, self._format, self.options)
        check_columns(log, self._format.table_schema)
        return log

    def read_with_soft_deleted(self) -> pa.Table:
        """Return all rows of the newest version, including those marked as deleted."""
        return read_living_rows(self.load_log(), self.schema)

    # ------------------------------------------------------------ maintenance

    def is_checkpoint_due(self) -> bool:
        """Return whether :meth:`clean_up` would write a checkpoint of the log, as far as this object knows."""
        return is_checkpoint_due(self._log)

    def clean_up(self) -> None:
        """Delete files that are no longer needed, and write a checkpoint of the log if one is due."""
        log = self.load_log()
        vectors_disabled = not self.options.deletion_vectors and uses_vectors(log.protocol, log.configuration)
        if vectors_disabled and not any(file.deletion_vector for file in log.files.values()):
            # If it fails, next time.
            log.commit(switch_vectors_actions(log.protocol, log.metadata, vectors=False), "DROP FEATURE")
            log.checkpoint_version = None
        # An object used only for maintenance never commits rows, and would accumulate these keys.
        self._forget_revived_keys()
        vacuum_files(log)
        write_checkpoint_if_due(log)

    def plan_compactions(self, *, purge: bool = False) -> list[DeltaCompaction]:
        """Return the compactions that keep files few and large, and dead rows few."""
        self.load_log()
        self._check_definition()
        return plan_compactions(self._log, self._format, deletion_vectors=self.options.deletion_vectors, purge=purge)

    def commit_compactions(self, results: Sequence[tuple[DeltaCompaction, Sequence[DataFile]]]) -> int:
        """Replace files by compacted ones; see :class:`~airflow_provider_cdc.sinks.protocol.Compactable`.

        Rows that have died meanwhile are dead in the new files, too. Files that are not committed are deleted.

        :raises TerminalError: if the table now has other columns.
        """
        for attempt in range(_COMMIT_TRIES):
            log = self.load_log()
            self._check_same_table()
            if not has_same_columns(log, self._format.table_schema):
                break
            prepared, committed_count = prepare_compaction_commit(log, results, self._format)
            if not committed_count or not all(self.is_staged(file) for _, files in results for file in files):
                break  # a VACUUM deletes files that no version refers to
            counter_action = _marker_action(
                _COMPACTION_COUNTER, log.markers.get(_COMPACTION_COUNTER, 0) + committed_count
            )
            if log.commit([*prepared.actions, counter_action], "OPTIMIZE"):
                log.storage.delete(*prepared.delete_on_success)
                write_checkpoint_if_due(log)
                return committed_count
            log.storage.delete(*prepared.delete_on_conflict)
            back_off(attempt)
        # Except files already committed: the same results may be committed twice.
        self.storage.delete(*(f.path for _, files in results for f in files if f.path not in self._log.files))
        self._check_definition()
        return 0

    def table_size(self) -> TableSize:
        """Return the size of the newest version, as recorded in the log."""
        log = self.load_log()
        return measure_size(log.files.values(), log.markers.get(_COMPACTION_COUNTER, 0))

    @property
    def index_bytes_used(self) -> tuple[int, int]:
        """Bytes that the key index uses, in memory and on disk."""
        return self._key_index.bytes_used

    def prefetcher(self) -> Prefetcher:
        """Return a prefetcher; see :class:`~airflow_provider_cdc.sinks.protocol.Prefetchable`."""
        self._forget_revived_keys()  # otherwise the first batch would forget what is prefetched
        return self._key_lookup.prefetcher(self._log)

    # ------------------------------------------------------------ parts

    def _checkpoint_if_overdue(self) -> None:
        """Write a checkpoint if maintenance has not done so in time.

        Maintenance does not run with every commit, and each reader has to replay all commits since the last checkpoint.
        """
        with suppress(TransientError):  # still due after the next commit
            write_checkpoint_if_due(self._log, OVERDUE_COMMITS)

    def _check_definition(self) -> None:
        if self._log.metadata is not self._checked_metadata:
            self._check_same_table()
            check_columns(self._log, self._format.table_schema)
            check_key(self._log, self._format.key_columns)
            self._checked_metadata = self._log.metadata

    def _check_same_table(self) -> None:
        check_not_replaced(self._log, self._checked_metadata)
        check_has_owner(self._log)

    def _decide_with_fence(self, decide_edit: Callable[[DeltaLog], TableEdit | None], fence: Fence) -> TableEdit | None:
        check_settings(self._log, self._format, self.options)
        self._check_same_table()
        current_value = self._log.markers.get(fence.name)
        if current_value is not None and current_value > fence.value:
            raise FencedError(
                f"{fence.name} stands at {current_value} in {self.storage.location()}, this run has {fence.value}",
                "A newer run has taken over; leave it running and stop this one",
            )
        self._forget_revived_keys()
        edit = decide_edit(self._log)
        if edit:  # without an edit, a run with outdated columns may raise its fence
            self._check_definition()
        return edit

    def _forget_revived_keys(self) -> None:
        self._key_index.forget_files(self._log.revived_files)
        self._log.revived_files.clear()

    def _try_commit(self, edit: TableEdit, markers: Mapping[str, int]) -> bool:
        log, storage = self._log, self.storage
        if edit.overriding_actions:
            is_committed = log.commit(
                [*edit.overriding_actions, *(_marker_action(k, v) for k, v in markers.items())], edit.operation
            )
            storage.delete(*(() if is_committed else edit.delete_on_conflict))
            return is_committed
        metadata = with_current_properties(log, self.options)
        prepare = prepare_deletion_vectors if self.options.deletion_vectors else prepare_copy_on_write
        prepared = prepare(log, edit, self._format)
        metadata_actions = reconfigure_actions(log.protocol, log.metadata, metadata)
        if self.options.deletion_vectors and not uses_vectors(log.protocol, log.configuration):
            metadata_actions = switch_vectors_actions(log.protocol, metadata, vectors=True)  # copy-on-write until now
        if has_feed(metadata.get("configuration") or {}):
            self._add_change_feed(edit, prepared)
        prepared.actions = [*metadata_actions, *prepared.actions]
        new_paths = [
            *prepared.delete_on_conflict,
            *(file.path for file, _ in edit.added_files if is_part_file(file.path)),
        ]
        if not log.commit([*prepared.actions, *(_marker_action(k, v) for k, v in markers.items())], "MERGE"):
            storage.delete(*new_paths)
            return False
        self._remember_commit(edit, prepared)
        return True

    def _add_change_feed(self, edit: TableEdit, prepared: PreparedCommit) -> None:
        """Add change data feed files for the rows that the commit changes."""
        files = ChangeFeedWriter(self._log, self._format, self._key_hasher).write_feed(edit, prepared.actions)
        prepared.delete_on_conflict += [file.path for file in files]
        prepared.actions += feed_actions(files)

    def _remember_commit(self, edit: TableEdit, prepared: PreparedCommit) -> None:
        log = self._log
        for path, rows in prepared.dead_rows.items():
            if (file := log.files.get(path)) is not None and file.deletion_vector is not None:
                log.cache_dead_rows(path, file.deletion_vector, rows)
        for path, facts in edit.key_hashes.items():
            if path in log.files:
                self._key_index.add_file(path, facts)
        self.storage.delete(*prepared.delete_on_success)

    def _gave_up_error(self) -> TransientError:
        return TransientError(
            f"the {self.name} could not be committed in {_COMMIT_TRIES} tries: other writers were always faster",
            "Pause other writers of the table and check the storage, then run again",
        )


def _has_markers(log: DeltaLog, markers: Mapping[str, int]) -> bool:
    """Return whether there are markers, and the log has all of them at these values or higher ones."""
    return bool(markers) and all(log.markers.get(name, value - 1) >= value for name, value in markers.items())


def _marker_action(name: str, value: int) -> dict[str, Any]:
    return {"txn": {"appId": name, "version": value, "lastUpdated": int(time.time() * 1000)}}
