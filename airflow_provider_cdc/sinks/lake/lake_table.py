"""What is done to a table of a lakehouse, whatever its format: each of these writes is one commit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.config.delete_policy import HARD
from airflow_provider_cdc.model.definition_history import NO_CHANGES, ColumnChanges
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.row_retention import RetainedRowsLoss
from airflow_provider_cdc.model.schema import DELETED_COLUMN, TableSchema
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.lake.compaction import FileCompaction, plan_compactions, prepare_compaction_commit
from airflow_provider_cdc.sinks.lake.file_scan import FileScanTask, plan_file_scan
from airflow_provider_cdc.sinks.lake.log.column_digest import COLUMNS_MARKER, digest_columns
from airflow_provider_cdc.sinks.lake.log.file_commit import AddFile, CommitKind, FileCommit, RemoveFile
from airflow_provider_cdc.sinks.lake.log.table_log import LiveFile, TableLog
from airflow_provider_cdc.sinks.lake.merge.change_merger import ChangeMerger, read_living_rows
from airflow_provider_cdc.sinks.lake.merge.retained_rows import RetainedFiles, RetainedRowFinder, find_overwrite_loss
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import drop_deleted_rows, with_deleted_column
from airflow_provider_cdc.sinks.lake.merge.table_edit import TableEdit
from airflow_provider_cdc.sinks.lake.merge.taken_keys import UNIQUE_KEYS_MARKER
from airflow_provider_cdc.sinks.lake.table_checks import (
    SHARED_KEY_REMEDY,
    check_key,
    check_owner,
    check_settings,
)
from airflow_provider_cdc.sinks.lake.transactional_table import COMMIT_TRIES, Log, TransactionalTable, back_off
from airflow_provider_cdc.sinks.protocol import DecideChange, Fence, Markers, Prefetcher, TableSize
from airflow_provider_cdc.system.failpoints import failpoint

#: Counts compactions, for display only.
_COMPACTION_COUNTER = "airflow-cdc/compactions"


class LakeTable(TransactionalTable[Log]):
    """One table; a format extends it by its encoder, and by how its definition is made and changed."""

    # ------------------------------------------------------------ what a format defines

    @abstractmethod
    def create(self, pipeline: str) -> None:
        """Create the table, or adopt an existing one; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`."""

    @abstractmethod
    def _add_columns(self, log: Log) -> bool:
        """Let a shared table have the columns of this definition in addition to its own, in a commit without rows.

        :returns: whether it was committed; if not, another writer was faster.
        :raises TerminalError: if a column has another type in the table.
        """

    @abstractmethod
    def _check_extendable(self, log: Log) -> None:
        """Check that a shared table can have the columns of this definition in addition to its own.

        :raises TerminalError: if it cannot.
        """

    @abstractmethod
    def clean_up(self) -> None:
        """Delete files that are no longer needed; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`."""

    @abstractmethod
    def _altered_definition(
        self, log: Log, old_table: TableSchema, changes: ColumnChanges
    ) -> Sequence[Mapping[str, Any]]:
        """Return the definition with the columns of this one instead of those of another; nothing if they are equal.

        :param changes: what the definitions do not show.
        :raises TerminalError: if the table does not have the columns of ``old_table``, or cannot get the new ones.
        """

    @abstractmethod
    def _overwritten_definition(self, log: Log, files: Sequence[DataFile]) -> Sequence[Mapping[str, Any]]:
        """Return the definition for a table whose rows are all replaced, whatever columns and key it had.

        :param files: the files with the new rows.
        :raises TerminalError: if the table cannot get these columns.
        """

    @abstractmethod
    def _reset_definition(self, log: Log) -> Sequence[Mapping[str, Any]]:
        """Return the definition for a table that loses all rows."""

    def check_owner(self, pipeline: str) -> None:
        """Refuse a table of another pipeline; see :class:`~airflow_provider_cdc.sinks.protocol.Adoptable`."""
        self._log.refresh()
        check_owner(self._log, pipeline)

    # ------------------------------------------------------------ commits

    def reset(self, pipeline: str, fence: Fence, markers: Sequence[str]) -> None:
        """Remove all rows, once; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`.

        A table to be adopted is left to :meth:`create`.
        """
        for attempt in range(COMMIT_TRIES):
            self._log.refresh()
            log = self._log
            if self._awaits_adoption():
                return
            check_settings(log, self._format, self.options)
            check_owner(log, pipeline)
            self._ensure_columns()
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
            definition = self._reset_definition(log) if self._format.source is None else ()
            commit = FileCommit([RemoveFile(file) for file in log.files.values()], definition, CommitKind.OVERWRITE)
            if self._write_commit(commit, {fence.name: fence.value, **self._definition_markers}):
                return
            back_off(attempt)
        raise self._gave_up_error()

    def commit(self, decide: DecideChange, markers: Mapping[str, int], fence: Fence) -> bool:
        """Change rows and markers atomically; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`."""

        def edit(log: Log) -> TableEdit | None:
            change = decide(dict(log.markers))
            if change is None:
                return None
            self._check_definition()  # before anything is written
            if self._taken_keys is not None and UNIQUE_KEYS_MARKER in log.markers:
                self._taken_keys.refuse(log, change)
            return ChangeMerger(log, self._key_lookup, self.options.deletes).plan_edit(change)

        return self.commit_edit(edit, markers, fence)

    def alter(
        self,
        old_table: TableSchema,
        markers: Mapping[str, int],
        fence: Fence,
        changes: ColumnChanges = NO_CHANGES,
    ) -> bool:
        """Follow a change of the definition; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`."""
        old_copy = old_table.copy
        self._ensure_columns()

        def edit(log: Log) -> TableEdit | FileCommit | None:
            if _has_markers(log, markers):
                return None
            if self._format.source is not None:
                self._check_altered_from(log, old_copy)
                return TableEdit()
            if not (definition := self._altered_definition(log, old_copy, changes)):
                return TableEdit()
            only_adds = {*old_copy.sink_schema.names} <= {*self.schema.names}
            kind = CommitKind.ADD_COLUMNS if only_adds else CommitKind.REPLACE_COLUMNS
            return FileCommit(definition=definition, kind=kind)

        return self.commit_edit(edit, {**markers, **self._definition_markers}, fence)

    def overwrite(
        self,
        slices: Sequence[DataFile],
        markers: Mapping[str, int],
        fence: Fence,
        *,
        keep_deleted_to: int | None = None,
    ) -> bool:
        """Replace all rows; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`.

        Slices are added unchanged, whichever way rows are deleted in this table.
        """
        self._ensure_columns()

        def edit(log: Log) -> FileCommit | None:
            if _has_markers(log, markers):
                return None
            if self._format.source is not None:
                check_key(log, self._format.declared_key)
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
            files = {file.path: file for part in slices for file in part.files if file.rows}
            # Adding it again would undo changes to its rows. Also, a version must not remove and add the same file.
            if already_live := sorted(files.keys() & log.files.keys()):
                raise TerminalError(
                    f"the file {self.storage.location(already_live[0])} is part of the table already",
                    "Start with a fresh sink.path",
                )
            removed_files = (f for f in log.files.values() if f.path not in retained_files.unchanged)
            new_files = [*files.values(), *retained_files.written]
            return FileCommit(
                [*map(RemoveFile, removed_files), *map(AddFile, new_files)],
                self._overwritten_definition(log, new_files) if self._format.source is None else (),
                CommitKind.OVERWRITE,
                delete_on_conflict=[f.path for f in retained_files.written],
            )

        return self.commit_edit(edit, {**markers, **self._definition_markers}, fence)

    def overwrite_loss(
        self, old_table: TableSchema, slices: Sequence[DataFile] | None = None, *, reason: str | None = None
    ) -> RetainedRowsLoss | None:
        """Return what an overwrite would lose; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`."""
        if self.options.deletes == HARD or not self.exists():
            return None
        return find_overwrite_loss(
            self.load_log(), self._key_lookup, self.options.deletes, old_table.copy, slices, reason
        )

    # ------------------------------------------------------------ reading

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

    def read_with_soft_deleted(self) -> pa.Table:
        """Return all rows of the newest version, including those marked as deleted."""
        return read_living_rows(self.load_log(), self.schema)

    def table_size(self) -> TableSize:
        """Return the size of the newest version, as recorded in the log."""
        log = self.load_log()
        return _measure_size(log.files.values(), log.markers.get(_COMPACTION_COUNTER, 0))

    @property
    def index_bytes_used(self) -> tuple[int, int]:
        """Bytes that the key index uses, in memory and on disk."""
        return self._key_index.bytes_used

    def prefetcher(self) -> Prefetcher:
        """Return a prefetcher; see :class:`~airflow_provider_cdc.sinks.protocol.Prefetchable`."""
        self._forget_revived_keys()  # otherwise the first batch would forget what is prefetched
        return self._key_lookup.prefetcher(self._log)

    # ------------------------------------------------------------ compaction

    def plan_compactions(self, *, purge: bool = False) -> list[FileCompaction]:
        """Return the compactions that keep files few and large, and dead rows few."""
        self.load_log()
        self._check_definition()
        return plan_compactions(self._log, self._format, deletion_vectors=self.options.deletion_vectors, purge=purge)

    def commit_compactions(self, results: Sequence[tuple[FileCompaction, Sequence[DataFile]]]) -> int:
        """Replace files by compacted ones; see :class:`~airflow_provider_cdc.sinks.protocol.Compactable`.

        Rows that have died meanwhile are dead in the new files, too. Files that are not committed are deleted.

        :raises TerminalError: if the table now has other columns.
        """
        may_be_made = False
        for attempt in range(COMMIT_TRIES):
            log = self.load_log()
            self._check_same_table()
            if not self._has_this_definition(log):
                break
            commit, committed_count = prepare_compaction_commit(log, results, self._format)
            if not committed_count or not all(self.is_staged(file) for _, files in results for file in files):
                break  # a VACUUM deletes files that no version refers to
            counter = log.markers.get(_COMPACTION_COUNTER, 0) + committed_count
            if self._write_commit(commit, {_COMPACTION_COUNTER: counter}):
                self.storage.delete(*commit.delete_on_success)
                return committed_count
            self._delete_files_of_lost(commit)
            may_be_made = may_be_made or commit.may_be_made
            back_off(attempt)
        if not may_be_made:  # Except files already committed: the same results may be committed twice.
            self.storage.delete(*(f.path for _, files in results for f in files if f.path not in self._log.files))
        self._check_definition()
        return 0

    # ------------------------------------------------------------ tables that several sources share

    @property
    def _definition_markers(self) -> dict[str, int]:
        """Markers that are written with each change of the definition."""
        return {} if self._format.source is None else {COLUMNS_MARKER: self._columns_digest}

    def why_not_extendable(self) -> tuple[str, str] | None:
        """Return reason and remedy, or ``None``; see :class:`~airflow_provider_cdc.sinks.protocol.Extendable`."""
        if self._format.source is None or not self.open_log().exists():
            return None
        try:
            self._check_extendable(self.load_log())
        except TerminalError as error:
            return error.message, error.remedy
        try:
            check_key(self._log, self._format.declared_key)
        except TerminalError as error:
            return error.message, SHARED_KEY_REMEDY
        return None

    def ignore_keys_of(self, others: Collection[str]) -> None:
        """Let some keys not count as taken; see :class:`~airflow_provider_cdc.sinks.protocol.HasUniqueKeys`."""
        if self._taken_keys is not None:
            self._taken_keys.ignored_sources = frozenset(others)

    def check_unique_keys(self, fence: Fence, others: Collection[str]) -> None:
        """Check all keys, once; see :class:`~airflow_provider_cdc.sinks.protocol.HasUniqueKeys`."""
        taken_keys = self._taken_keys
        if taken_keys is None:
            return

        def edit(log: Log) -> TableEdit | None:
            if UNIQUE_KEYS_MARKER in log.markers:
                return None
            taken_keys.refuse_living_rows(log, others)
            return TableEdit()

        self.commit_edit(edit, {UNIQUE_KEYS_MARKER: 1}, fence)

    def refuse_taken_keys(self, slices: Sequence[DataFile]) -> None:
        """Refuse slices; see :class:`~airflow_provider_cdc.sinks.protocol.HasUniqueKeys`."""
        if self._taken_keys is not None and self.open_log().exists():
            self._taken_keys.refuse_slices(self.load_log(), slices)

    def _ensure_columns(self) -> None:
        """Give a shared table the columns of this definition that it lacks: NULL in the rows of other sources."""
        if self._format.source is None:
            return
        for attempt in range(COMMIT_TRIES):
            self._log.refresh()
            if self._covers_columns(self._log):
                return
            failpoint("columns.before_add")
            if self._add_columns(self._log):
                failpoint("columns.after_add")
                return
            back_off(attempt)
        raise self._gave_up_error()

    def _register_source(self) -> None:
        """Let a shared table, which exists, have the rows of this source from now on.

        :raises TerminalError: if it has another key, or has this source with other columns.
        """
        self._ensure_columns()
        check_key(self._log, self._format.declared_key)
        for attempt in range(COMMIT_TRIES):
            digest = self._log.markers.get(COLUMNS_MARKER)
            if digest is None and not self._try_commit(TableEdit(), self._definition_markers):
                back_off(attempt)
                self._log.refresh()
                continue
            self._check_columns(self._log)
            return
        raise self._gave_up_error()

    def _check_altered_from(self, log: Log, old_copy: TableSchema) -> None:
        """Check that the source had the columns of a definition until now."""
        old_schema = old_copy.sink_schema
        if DELETED_COLUMN in self.schema.names:
            old_schema = with_deleted_column(old_schema)
        if log.markers.get(COLUMNS_MARKER) != digest_columns(old_schema, old_copy.key):
            raise TerminalError(
                f"the rows of {old_copy.label} in the {log.name} have other columns than the table had before its "
                "definition changed",
                "Start with a fresh sink.path",
            )

    # ------------------------------------------------------------ parts

    def _load_pinned_log(self) -> Log:
        """Return a separate log at the newest version, which does not advance while it is read."""
        log = self.open_log()
        log.refresh()
        check_settings(log, self._format, self.options)
        self._check_columns(log)
        return log


def _has_markers(log: TableLog, markers: Mapping[str, int]) -> bool:
    """Return whether there are markers, and the log has all of them at these values or higher ones."""
    return bool(markers) and all(log.markers.get(name, value - 1) >= value for name, value in markers.items())


def _measure_size(files: Collection[LiveFile], compaction_count: int) -> TableSize:
    """Return the size of a version.

    :param files: live files of the version.
    :param compaction_count: number of compactions so far.
    """
    rows = [file.row_count for file in files if file.row_count is not None]
    dead = sum(file.dead_row_count for file in files)
    return TableSize(
        files=len(files),
        bytes=sum(file.size for file in files),
        rows=sum(rows) - dead if len(rows) == len(files) else None,
        dead_rows=dead,
        files_with_vectors=sum(file.dead_row_count > 0 for file in files),
        compactions=compaction_count,
    )
