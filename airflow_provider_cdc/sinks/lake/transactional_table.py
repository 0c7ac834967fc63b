"""A table whose writes are idempotent commits that carry their own markers, whatever its format.

Commits are compare-and-set on the table's version: the state on which a commit was decided (markers, fence, live files)
is that of one version, and the commit succeeds only as the next one; otherwise the state is read and the decision made
again. A marker can therefore never be written twice, and an overtaken writer can never commit.
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

import pyarrow as pa

from airflow_provider_cdc.model.errors import CdcError, FencedError, TerminalError, TransientError
from airflow_provider_cdc.model.multiset import MissingRowsError
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.lake.log.column_digest import COLUMNS_MARKER, digest_columns
from airflow_provider_cdc.sinks.lake.log.file_commit import FileCommit
from airflow_provider_cdc.sinks.lake.log.process_commits import commit_turn
from airflow_provider_cdc.sinks.lake.log.table_log import FRESH_SECONDS, TableLog
from airflow_provider_cdc.sinks.lake.merge.key_hashes import KeyHasher
from airflow_provider_cdc.sinks.lake.merge.key_index import KeyIndex
from airflow_provider_cdc.sinks.lake.merge.key_lookup import KeyLookup
from airflow_provider_cdc.sinks.lake.merge.partitions import TableFormat
from airflow_provider_cdc.sinks.lake.merge.table_edit import (
    TableEdit,
    is_part_file,
    prepare_copy_on_write,
    prepare_deletion_vectors,
    write_data_files,
)
from airflow_provider_cdc.sinks.lake.merge.taken_keys import TakenKeys
from airflow_provider_cdc.sinks.lake.slice_staging import SliceStaging
from airflow_provider_cdc.sinks.lake.table_checks import (
    OVERWRITTEN_REMEDY,
    check_has_owner,
    check_key,
    check_not_replaced,
    check_settings,
    owner_of,
)
from airflow_provider_cdc.sinks.lake.table_options import TableOptions
from airflow_provider_cdc.sinks.protocol import Fence, Markers
from airflow_provider_cdc.sinks.storage.storage import Storage

COMMIT_TRIES = 50
_STALE_VERSION_ERRORS = (CdcError, MissingRowsError, FileNotFoundError)  # possibly only because the version is outdated

Log = TypeVar("Log", bound=TableLog)


class TransactionalTable(SliceStaging, Generic[Log]):
    """One table: its markers, its fence, and the commit of whatever changes it.

    :param storage: storage of its folder.
    :param table_format: format of its rows.
    :param options: options of the table.
    """

    def __init__(self, storage: Storage, table_format: TableFormat, options: TableOptions) -> None:
        super().__init__(storage, table_format)
        self.options = options
        self._log = self.open_log()
        self._checked_definition: object = None
        self._checked_digest: int | None = None
        self._columns_digest = digest_columns(table_format.schema, table_format.key_columns)
        self._checked_id: str | None = None
        self._key_index = KeyIndex(options.index_bytes)
        self._key_hasher = KeyHasher(
            table_format.identity_columns, table_format.schema, is_key=bool(table_format.key_columns)
        )
        self._key_lookup = KeyLookup(storage, table_format, self._key_hasher, self._key_index)
        self._taken_keys = TakenKeys(self._key_lookup, options.deletes) if table_format.unique_keys else None

    # ------------------------------------------------------------ what a format defines

    @abstractmethod
    def open_log(self) -> Log:
        """Return a log of the table that has read nothing yet."""

    @abstractmethod
    def _has_same_columns(self, log: Log) -> bool:
        """Return whether the table has the columns of this definition, in this order."""

    @abstractmethod
    def _covers_columns(self, log: Log) -> bool:
        """Return whether the table has all columns of this definition, among others."""

    @abstractmethod
    def _write_commit(self, commit: FileCommit, markers: Mapping[str, int], edit: TableEdit | None = None) -> bool:
        """Write the next version of the log.

        Files that this writes are added to those that the commit deletes on conflict.

        :param commit: what the commit does to files and definition.
        :param markers: (name -> value) to write in the same version.
        :param edit: the rows that it changes, unless it replaces all of them or none.
        :returns: whether it was committed; if not, another writer has written that version.
        :raises TransientError: if the outcome is unknown, or the version cannot be written now.
        """

    # ------------------------------------------------------------ markers and fences

    @property
    def name(self) -> str:
        """Name of the table in messages."""
        return self._log.name

    def exists(self) -> bool:
        """Return whether the table has been created; one that others share, for this source, too."""
        log = self.open_log()
        if not log.exists() or self._format.source is None:
            return log.exists()
        log.refresh()
        return COLUMNS_MARKER in log.markers

    def owner(self) -> str | None:
        """Return the pipeline that owns the table; see :class:`~airflow_provider_cdc.sinks.protocol.HasOwner`."""
        self._log.refresh()
        return owner_of(self._log.properties)

    def load_log(self) -> Log:
        """Return the log at the newest version of the table.

        :raises TerminalError: if the table is missing, its partitioning differs, or it uses unsupported features.
        :raises NotReadyError: if it was created with another ``sink.deletes``.
        """
        self._log.refresh()
        check_settings(self._log, self._format, self.options)
        return self._log

    def markers(self) -> Markers:
        """Return the markers of the newest version; none if the table does not exist."""
        if not self._log.is_loaded and not self.exists():
            return {}
        self._log.refresh()
        if self._awaits_adoption():
            return {}
        check_has_owner(self._log)
        return dict(self.load_log().markers)

    def raise_fence(self, fence: Fence) -> bool:
        """Raise a fence; see :class:`~airflow_provider_cdc.sinks.protocol.Fenceable`."""
        return self.commit_edit(
            lambda log: None if log.markers.get(fence.name) == fence.value else TableEdit(), {}, fence
        )

    # ------------------------------------------------------------ commits

    def write_rows(self, rows: pa.Table) -> list[DataFile]:
        """Write rows to new files of the table's folder, which :meth:`commit_edit` may add."""
        return write_data_files(self.storage, self._format, [rows])[0]

    def commit_edit(
        self,
        decide_edit: Callable[[Log], TableEdit | FileCommit | None],
        markers: Mapping[str, int],
        fence: Fence,
    ) -> bool:
        """Commit rows and markers in one transaction, as :meth:`commit` does.

        :param decide_edit: called with the current state of the table; returns the edit, a commit that is ready to be
            written, or ``None`` to leave it unchanged.
        """
        if self._format.source is None:
            return self._commit_edit(decide_edit, markers, fence)
        with commit_turn(self.storage.uri()):
            self._log.catch_up()
            return self._commit_edit(decide_edit, markers, fence)

    # ------------------------------------------------------------ parts

    def _commit_edit(
        self,
        decide_edit: Callable[[Log], TableEdit | FileCommit | None],
        markers: Mapping[str, int],
        fence: Fence,
    ) -> bool:
        log = self._log
        for attempt in range(COMMIT_TRIES):
            # Optimistic at first: the commit itself detects an outdated version. But only the newest version shows that
            # there is nothing to do, or that it cannot be done.
            newest = attempt > 0 or not log.is_loaded or log.seconds_since_refresh > FRESH_SECONDS
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
                    return True
            except FileNotFoundError:  # possibly an outdated version
                if newest:
                    raise
                continue
            back_off(attempt)
        raise self._gave_up_error()

    def _awaits_adoption(self) -> bool:
        return self.options.adopt and owner_of(self._log.properties) is None

    def _has_this_definition(self, log: Log) -> bool:
        if self._format.source is None:
            return self._has_same_columns(log)
        return log.markers.get(COLUMNS_MARKER) == self._columns_digest and self._covers_columns(log)

    def _check_columns(self, log: Log) -> None:
        """Refuse a table with other columns: it was altered, or follows a newer definition."""
        if not self._has_this_definition(log):
            raise TerminalError(f"the {log.name} has other columns than its source table", OVERWRITTEN_REMEDY)

    def _check_definition(self) -> None:
        definition, digest = self._log.definition, self._log.markers.get(COLUMNS_MARKER)
        if definition is not self._checked_definition or digest != self._checked_digest:
            self._check_same_table()
            self._check_columns(self._log)
            check_key(self._log, self._format.declared_key)
            self._checked_definition, self._checked_digest = definition, digest
            self._checked_id = self._log.table_id

    def _check_same_table(self) -> None:
        check_not_replaced(self._log, self._checked_id)
        check_has_owner(self._log)

    def _decide_with_fence(
        self, decide_edit: Callable[[Log], TableEdit | FileCommit | None], fence: Fence
    ) -> TableEdit | FileCommit | None:
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
        if isinstance(edit, TableEdit) and edit:  # without it, a run with outdated columns may raise its fence
            self._check_definition()
        return edit

    def _forget_revived_keys(self) -> None:
        self._key_index.forget_files(self._log.revived_files)
        if self._taken_keys is not None:
            self._taken_keys.forget_files(self._log.revived_files)
        self._log.revived_files.clear()

    def _try_commit(self, edit: TableEdit | FileCommit, markers: Mapping[str, int]) -> bool:
        if isinstance(edit, FileCommit):
            commit, new_paths = edit, list[str]()
            is_committed = self._write_commit(commit, markers)
        else:
            prepare = prepare_deletion_vectors if self.options.deletion_vectors else prepare_copy_on_write
            commit = prepare(self._log, edit, self._format)
            new_paths = [file.path for file, _ in edit.added_files if is_part_file(file.path)]
            is_committed = self._write_commit(commit, markers, edit)
        if not is_committed:
            self._delete_files_of_lost(commit, new_paths)
            return False
        if isinstance(edit, TableEdit):
            for path, key_hashes in edit.key_hashes.items():
                if path in self._log.files:
                    self._key_index.add_file(path, key_hashes)
        self.storage.delete(*commit.delete_on_success)
        return True

    def _delete_files_of_lost(self, commit: FileCommit, new_paths: Iterable[str] = ()) -> None:
        """Delete the files of a commit that was not made, if that is certain.

        :param new_paths: more files that only this commit has.
        """
        if not commit.may_be_made:
            self.storage.delete(*commit.delete_on_conflict, *new_paths)

    def _gave_up_error(self) -> TransientError:
        return TransientError(
            f"the {self.name} could not be committed in {COMMIT_TRIES} tries: other writers were always faster",
            "Pause other writers of the table and check the storage, then run again",
        )


def back_off(failed_tries: int) -> None:
    """Wait before the next try of a commit, to give other writers a chance.

    :param failed_tries: number of the try that has failed, counted from 0.
    """
    time.sleep(min(1.0, 0.01 * 2 ** min(failed_tries, 10)) * random.uniform(0.5, 1))
