"""The log of a Delta table: reading the newest version and writing the next one.

A commit is a file that only one writer can create: what was decided on version ``v`` becomes version ``v + 1`` or
fails. The log is the only truth about a table; the state kept here may be outdated but is never wrong.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyroaring import BitMap

from airflow_provider_cdc import __version__
from airflow_provider_cdc.model.errors import CdcError, TerminalError, TransientError
from airflow_provider_cdc.sinks.delta.log import checkpoint as checkpoints
from airflow_provider_cdc.sinks.delta.log.checkpoint import Checkpoint, find_newest_checkpoint, read_actions
from airflow_provider_cdc.sinks.delta.log.commit_actions import complete_actions
from airflow_provider_cdc.sinks.delta.log.cross_check import check_live_files
from airflow_provider_cdc.sinks.delta.log.deletion_vectors import DeletionVector, read_vector
from airflow_provider_cdc.sinks.delta.log.features import check_protocol
from airflow_provider_cdc.sinks.delta.log.live_file import DeltaLiveFile, now_milliseconds
from airflow_provider_cdc.sinks.delta.log.retention import file_retention, log_retention
from airflow_provider_cdc.sinks.lake.log.process_commits import RecentCommits
from airflow_provider_cdc.sinks.lake.log.source_scope import WHOLE_TABLE, SourceScope
from airflow_provider_cdc.sinks.lake.log.table_log import FRESH_SECONDS
from airflow_provider_cdc.sinks.storage.storage import Storage

LOG_FOLDER = checkpoints.LOG_FOLDER
_COMMIT_NAME = re.compile(rf"{LOG_FOLDER}/(\d{{20}})\.json")
#: Any file of a version, even of an unknown kind.
_VERSION_FILE_NAME = re.compile(rf"{LOG_FOLDER}/\d{{20}}\.")
#: Seconds for which tombstones are remembered beyond the retention of the table's files.
_REMEMBER_SECONDS = 86400
#: Commits after which older tombstones are forgotten: a stream runs for months.
_FORGET_EVERY = 1000

#: Commits to tables that several sources share.
_recent_commits = RecentCommits()


@dataclass
class DeltaLog:
    """The log of one table. Not thread-safe.

    :param storage: storage of the table's folder.
    :param scope: what of the table this log shows in :attr:`files` and :attr:`markers`.
    """

    storage: Storage
    scope: SourceScope = WHOLE_TABLE
    version: int = -1
    files: dict[str, DeltaLiveFile] = field(default_factory=dict)
    #: Live files of other source tables.
    other_files: dict[str, DeltaLiveFile] = field(default_factory=dict)
    markers: dict[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    #: Configuration by domain name, such as the clustering columns.
    domain_metadata: dict[str, str] = field(default_factory=dict)
    #: Removed data files and vector files, with the latest version that may have removed them.
    tombstones: dict[str, int] = field(default_factory=dict)
    #: Files in which dead rows may be alive again, as after a RESTORE: what is known of their rows is invalid.
    revived_files: set[str] = field(default_factory=set)
    #: Version of the newest known checkpoint.
    checkpoint_version: int | None = None
    _dead_rows: dict[str, tuple[DeletionVector, BitMap]] = field(default_factory=dict)
    _refreshed_at: float = 0.0
    _forgot_at_version: int = 0
    #: Version of the checkpoint that this log was read from while its tombstones have no version of their own; else -1.
    _undated_checkpoint: int = -1
    #: Versions that were current at moments of this process's own clock.
    _versions_by_time: list[tuple[float, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the table in messages."""
        return f"Delta table {self.storage.location()}"

    @property
    def seconds_since_refresh(self) -> float:
        """Seconds since the log was last checked for newer versions."""
        return abs(time.time() - self._refreshed_at)

    @property
    def is_loaded(self) -> bool:
        """Whether a version has been read."""
        return self.version >= 0

    @property
    def all_files(self) -> Mapping[str, DeltaLiveFile]:
        """Live files by path, including those of other source tables."""
        return ChainMap(self.files, self.other_files) if self.other_files else self.files

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties of the table."""
        return self.metadata.get("configuration") or {}

    @property
    def partition_columns(self) -> Sequence[str]:
        """Names of the columns that partition the table."""
        return self.metadata.get("partitionColumns") or ()

    @property
    def table_id(self) -> str | None:
        """The number of the table."""
        return self.metadata.get("id")

    @property
    def definition(self) -> object:
        """Columns and properties of the table; another object after they may have changed."""
        return self.metadata

    def identify_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return columns with what identifies them in files: their names alone."""
        return columns

    def exists(self) -> bool:
        """Return whether the table exists."""
        return self.version >= 0 or any(map(_VERSION_FILE_NAME.match, self._list_log()))

    def refresh(self) -> None:
        """Read the commits made since the last call.

        :raises TerminalError: if there is no table, or it uses something that is not understood.
        """
        if self._is_cut_off():
            self._reset()
        if self.version < 0:
            self._load()
        else:
            self._read_new_commits()
        if self.version < 0:
            raise TerminalError(f"the {self.name} is missing", "Start with a fresh sink.path, or restore it")
        try:
            check_protocol(self.name, self.protocol, self.metadata)
        except TerminalError:
            self._reset()  # so that nothing is committed on it
            raise

    def catch_up(self) -> None:
        """Replay the commits of other sources that this process knows, without a look at the storage."""
        while self.version >= 0 and (actions := self._known_commit()) is not None:
            self._replay(actions, self.version + 1)
            self.version += 1

    def refresh_checkpoint_version(self) -> None:
        """Look for the newest checkpoint, which another process may have written."""
        if checkpoint := self._find_checkpoint():
            self.checkpoint_version = min(checkpoint.version, self.version)

    def dead_rows(self, path: str) -> BitMap:
        """Return the dead rows of a file, none if it is not live; callers must not modify the result."""
        file = self.all_files.get(path)
        if file is None or file.deletion_vector is None:
            return BitMap()
        vector, rows = self._dead_rows.get(path, (None, None))
        if rows is None or vector != file.deletion_vector:
            rows = read_vector(self.storage, file.deletion_vector)
            self.cache_dead_rows(path, file.deletion_vector, rows)
        return rows

    def cache_dead_rows(self, path: str, vector: DeletionVector, rows: BitMap) -> None:
        """Remember the content of a deletion vector."""
        self._dead_rows[path] = (vector, rows)

    def references(self, path: str) -> bool:
        """Return whether a data file is, or was until recently, part of the table."""
        return path in self.all_files or path in self.tombstones

    def cross_check_files(self) -> None:
        """Check that delta-rs finds the same live files, before files are permanently deleted.

        :raises TransientError: if delta-rs cannot read the log now.
        :raises TerminalError: if it finds other files.
        """
        check_live_files(self.storage, self.name, self.version, self.all_files)

    def commit(self, actions: Sequence[dict[str, Any]], operation: str) -> bool:
        """Write the next version.

        :returns: whether it was committed; if not, another writer has written that version.
        :raises TransientError: if the outcome is unknown, or the version cannot be written now.
        """
        if self._is_cut_off():
            return False
        transaction_id = uuid.uuid4().hex
        info = {
            "timestamp": now_milliseconds(),
            "operation": operation,
            "operationParameters": {},
            "engineInfo": f"airflow-provider-cdc/{__version__}",
            "txnId": transaction_id,
        }
        version = self.version + 1
        all_actions = complete_actions(
            self.storage, actions, version, self.protocol, self.metadata, self.domain_metadata
        )
        lines = [{"commitInfo": info}, *all_actions]
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        name = self._commit_name(version)
        problem: OSError | None = None
        try:
            is_committed = self.storage.write_once(name, data)
        except OSError as error:
            is_committed, problem = False, error
        if not is_committed:  # it may be this commit itself: the first response was lost
            try:
                is_committed = self._is_own_commit(name, transaction_id)
            except OSError as error:  # unknown outcome: files written for it must stay
                problem = problem or error
        if not is_committed and problem is not None:
            message, remedy = str(problem), "Check the storage, then run again"
            if isinstance(problem, CdcError):
                message, remedy = problem.message, problem.remedy
            raise TransientError(f"the {self.name} could not be committed: {message}", remedy) from problem
        if is_committed:
            self._remember_commit(lines)
            self._replay(lines, self.version + 1, own_commit=True)
            self.version += 1
            self._refreshed_at = time.time()
            if self.version - self._forgot_at_version >= _FORGET_EVERY:
                self._forgot_at_version, retention = self.version, file_retention(self.properties)
                self.forget_tombstones(
                    -1 if retention is None else self.newest_version_seen_before(retention + _REMEMBER_SECONDS)
                )
        return is_committed

    # ------------------------------------------------------------ removed files

    def newest_version_before(self, versions: Sequence[int], moment: float) -> int:
        """Return the newest of some versions that was committed by a moment on the storage's clock; -1 for none.

        The times stated in commits are not used: they are from the clocks of their writers.

        :param versions: versions whose commits are in the log, in ascending order.
        :param moment: seconds since 1970.
        """
        count = bisect_right(versions, moment, key=self.committed_at)
        return versions[count - 1] if count else -1

    def committed_at(self, version: int) -> float:
        """Return when a commit was written, by the storage's clock; infinity if it is no longer in the log."""
        modified = self.storage.modified_at(self._commit_name(version))
        return float("inf") if modified is None else modified

    def newest_version_seen_before(self, seconds: float) -> int:
        """Return the newest version that this process saw at least ``seconds`` ago, by its own clock; -1 for none.

        A version counts only if this method was called while it was current, so it must be called regularly.
        """
        clock = time.monotonic()
        old_versions = [version for moment, version in self._versions_by_time if moment <= clock - seconds]
        self._versions_by_time = [*self._versions_by_time[max(0, len(old_versions) - 1) :], (clock, self.version)]
        return max(old_versions, default=-1)

    def assign_tombstone_versions(self, version: int) -> None:
        """Determine which tombstones from the checkpoint that this log was read from are newer than a version.

        :param version: version after which all commits are in the log.
        """
        later = dict[str, int]()
        for number in range(version + 1, self._undated_checkpoint + 1):
            if (data := self.storage.read(self._commit_name(number))) is None:
                return  # the log is being cleaned up: try again next time
            removes = (action.get("remove") for action in self._parse_commit(number, data))
            later |= {path: number for remove in removes if remove for path in _removed_paths(remove)}
        dated_tombstones = {
            path: later.get(path, version)
            for path, removed_at in self.tombstones.items()
            if removed_at == self._undated_checkpoint
        }
        self.tombstones |= dated_tombstones
        self._undated_checkpoint = -1

    def forget_tombstones(self, version: int) -> None:
        """Forget what was removed by a version or an earlier one."""
        self.tombstones = {path: removed_at for path, removed_at in self.tombstones.items() if removed_at > version}

    # ------------------------------------------------------------ reading

    @staticmethod
    def _commit_name(version: int) -> str:
        return f"{LOG_FOLDER}/{version:020d}.json"

    def _parse_commit(self, version: int, data: bytes) -> list[dict[str, Any]]:
        """Return the actions of a commit.

        :raises TerminalError: if it is damaged. A commit is never empty: it contains at least its commitInfo.
        """
        try:
            actions = [json.loads(line) for line in data.splitlines() if line.strip()]
        except ValueError as error:
            problem = f"it is truncated or not JSON ({error})"
        else:
            problem = "it has an unknown form" if actions else "it is empty"
            if actions and all(isinstance(action, dict) for action in actions):
                return actions
        raise TerminalError(
            f"version {version} of the {self.name} is damaged: {problem}, in "
            f"{self.storage.location(self._commit_name(version))}",
            "Restore this file from a backup, or start with a fresh sink.path: the table cannot be read without it",
        )

    def _is_own_commit(self, name: str, transaction_id: str) -> bool:
        try:
            data = self.storage.read(name)
            return data is not None and json.loads(data.split(b"\n", 1)[0])["commitInfo"]["txnId"] == transaction_id
        except (ValueError, KeyError, TypeError):
            return False

    def _is_cut_off(self) -> bool:
        """Return whether the log was cleaned up beyond this version, so that nothing may be committed on it.

        Also true if the table is gone. Not checked shortly after a refresh: such recent commits are not cleaned up.
        """
        if self.version < 0 or self.seconds_since_refresh <= min(FRESH_SECONDS, log_retention(self.properties) or 0):
            return False
        if self.storage.size(self._commit_name(self.version)) is not None:
            return False
        checkpoint = self._find_checkpoint()
        return checkpoint is None or checkpoint.version != self.version

    def _reset(self) -> None:
        if self.scope.source is not None and self.table_id is not None:
            _recent_commits.forget(self.table_id)
        self.revived_files |= self.all_files.keys()
        self.version, self.markers, self.metadata, self.protocol = -1, {}, {}, {}
        self.files, self.other_files, self.tombstones, self.domain_metadata = {}, {}, {}, {}
        self._undated_checkpoint = -1

    def _list_log(self) -> list[str]:
        return [name for name, _ in self.storage.list(LOG_FOLDER)]

    def _find_checkpoint(self) -> Checkpoint | None:
        """Return the newest complete checkpoint."""
        return find_newest_checkpoint(self._list_log())

    def _load(self) -> None:
        checkpoint = self._find_checkpoint()
        try:
            self._load_from(checkpoint)
        except FileNotFoundError as error:
            self._reset()
            if self._find_checkpoint() == checkpoint:
                raise TerminalError(
                    f"a checkpoint of the {self.name} is incomplete: {error}",
                    "Nothing was changed. Restore the file, or start with a fresh sink.path",
                ) from None
            self._load()  # the log was cleaned up meanwhile
        except BaseException:
            self._reset()  # partially read state is not the table
            raise

    def _load_from(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            self._replay(read_actions(self.storage, checkpoint, self.name), checkpoint.version)
            self.version = self.checkpoint_version = self._undated_checkpoint = checkpoint.version
        self._read_new_commits(only_storage=True)
        later_versions = [
            int(m[1]) for m in filter(None, map(_COMMIT_NAME.fullmatch, self._list_log())) if int(m[1]) > self.version
        ]
        if later_versions:  # a gap, or new commits
            self._read_new_commits(only_storage=True)
            if min(later_versions) > self.version and self._find_checkpoint() != checkpoint:  # the log was cleaned up
                self._reset()
                self._load()
            elif min(later_versions) > self.version:
                raise TerminalError(
                    f"the log of the {self.name} lacks version {self.version + 1}",
                    "Restore the file, or start with a fresh sink.path",
                )

    def _read_new_commits(self, *, only_storage: bool = False) -> None:
        if not only_storage:
            self.catch_up()
        while (data := self.storage.read(self._commit_name(self.version + 1))) is not None:
            actions = self._parse_commit(self.version + 1, data)
            self._remember_commit(actions)
            self._replay(actions, self.version + 1)
            self.version += 1
            if not only_storage:
                self.catch_up()
        self._refreshed_at = time.time()

    def _known_commit(self) -> Sequence[dict[str, Any]] | None:
        """Return the actions of the next commit if this process knows it."""
        is_shared = self.scope.source is not None and self.table_id is not None
        return _recent_commits.get(str(self.table_id), self.version + 1) if is_shared else None

    def _remember_commit(self, actions: Sequence[dict[str, Any]]) -> None:
        """Let other sources of the table know the next commit, which is in the storage."""
        if self.scope.source is not None and self.table_id is not None:
            _recent_commits.add(self.table_id, self.version + 1, actions)

    def _replay(self, actions: Iterable[Mapping[str, Any]], version: int, *, own_commit: bool = False) -> None:
        adds, removed_files = [], dict[str, DeltaLiveFile]()
        for action in actions:
            if remove := action.get("remove"):
                if (old_file := self._remove_file(remove, version)) is not None:
                    removed_files[old_file.path] = old_file
            elif add := action.get("add"):
                adds.append(DeltaLiveFile(add))
            elif txn := action.get("txn"):
                if (marker := self.scope.own_marker(txn["appId"])) is not None:
                    self.markers[marker] = int(txn["version"])
            elif metadata := action.get("metaData"):
                self.metadata = metadata
            elif protocol := action.get("protocol"):
                self.protocol = protocol
            elif domain := action.get("domainMetadata"):
                self.domain_metadata.pop(domain["domain"], None)
                if not domain.get("removed"):
                    self.domain_metadata[domain["domain"]] = str(domain.get("configuration") or "")
        for file in adds:  # last: a file whose dead rows change is removed and added in one commit
            files = self.files if self.scope.has_file(file.partition) else self.other_files
            old_file = removed_files.pop(file.path, None) or files.get(file.path)
            # Own commits only add dead rows; in commits of others, the set may change in any way.
            if old_file is not None and not own_commit and file.deletion_vector != old_file.deletion_vector:
                self.revived_files.add(file.path)
            files[file.path] = file
            self.tombstones.pop(file.path, None)
            if file.deletion_vector and file.deletion_vector.file_name:
                self.tombstones.pop(file.deletion_vector.file_name, None)
        self.revived_files |= removed_files.keys()  # removed, but may be added again

    def _remove_file(self, remove: Mapping[str, Any], version: int) -> DeltaLiveFile | None:
        path, *vectors = _removed_paths(remove)
        self.tombstones |= dict.fromkeys((path, *vectors), version)
        self._dead_rows.pop(path, None)
        return self.files.pop(path, None) or self.other_files.pop(path, None)


def commit_versions(names: Iterable[str], newest: int) -> list[int]:
    """Return the versions, up to ``newest``, whose commits are among some files, in ascending order."""
    versions = (int(match[1]) for match in filter(None, map(_COMMIT_NAME.fullmatch, names)))
    return sorted(version for version in versions if version <= newest)


def _removed_paths(remove: Mapping[str, Any]) -> list[str]:
    """Return the data file that an action removes, and the file of its deletion vector."""
    vector_file = DeletionVector.from_json(remove["deletionVector"]).file_name if remove.get("deletionVector") else None
    return [unquote(str(remove["path"])), *([vector_file] if vector_file else [])]
