"""Keeps the folder of a Delta table small: checkpoints of its log, and deletion of files that are no longer needed."""

from __future__ import annotations

from deltalake import DeltaTable

from airflow_provider_cdc.config.table_properties import DELETED_FILE_RETENTION
from airflow_provider_cdc.model.errors import TerminalError, TransientError
from airflow_provider_cdc.sinks.delta.change_data_feed import FEED_FOLDER as FEED
from airflow_provider_cdc.sinks.delta.change_data_feed import feed_file_time
from airflow_provider_cdc.sinks.delta.log.cross_check import DELTA_RS_ERRORS, error_line
from airflow_provider_cdc.sinks.delta.log.deletion_vectors import VECTOR_FOLDER as VECTORS
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog, commit_versions
from airflow_provider_cdc.sinks.delta.log.retention import file_retention, log_retention
from airflow_provider_cdc.sinks.lake.merge.table_edit import CHANGES_FOLDER, is_part_file
from airflow_provider_cdc.sinks.lake.storage_clock import ABANDONED_HOURS, file_time, storage_time

#: Minimum hours for which files of older versions are kept, for readers of such a version.
MIN_RETENTION_HOURS = 1
_PROTECTED_BEFORE_PROPERTY = "delta.requireCheckpointProtectionBeforeVersion"
#: In place of a checkpoint's version: no older checkpoint will do.
OBSOLETE = -1
#: Commits between two checkpoints.
_CHECKPOINT_INTERVAL = 100
#: Commits after which the committer itself writes the checkpoint, because maintenance, which does not delay the stream,
#: has not done so.
OVERDUE_COMMITS = 2 * _CHECKPOINT_INTERVAL


def is_checkpoint_due(log: DeltaLog, commits: int | None = None) -> bool:
    """Return whether a log has had enough commits since its newest known checkpoint.

    :param commits: number of commits; by default the regular interval between checkpoints.
    """
    return log.version - max(log.checkpoint_version or 0, 0) >= (_CHECKPOINT_INTERVAL if commits is None else commits)


def write_checkpoint_if_due(log: DeltaLog, commits: int | None = None) -> None:
    """Write a checkpoint of the log if one is due, and delete log files older than the log's retention.

    :param commits: number of commits since the last checkpoint after which one is due.
    :raises TransientError: if that is not possible now.
    """
    if not is_checkpoint_due(log, commits):
        return
    if log.checkpoint_version != OBSOLETE:  # otherwise a checkpoint with the current protocol is needed
        log.refresh_checkpoint_version()  # by another process, or by another table whose copy is the same
        if not is_checkpoint_due(log, commits):
            return
    try:
        table = DeltaTable(log.storage.uri(), storage_options=log.storage.storage_options() or None)
        table.create_checkpoint()
        if _may_clean_log(log):
            table.cleanup_metadata()
    except DELTA_RS_ERRORS as error:
        raise TransientError(
            f"no checkpoint of the {log.name} could be written: {error_line(error)}",
            "The next maintenance run will try again",
        ) from None
    log.checkpoint_version = log.version


def vacuum_files(log: DeltaLog, retention: float | None = None) -> None:
    """Delete files that no version within the table's retention needs.

    These are data files and vectors, older files of the change data feed, and abandoned files. Only the storage's clock
    counts: a file was removed when the commit that removes it was written. The times stated in commits are those of
    other hosts.

    :param retention: seconds for which files are kept; ``None`` for the table's own retention.
    :raises TransientError: if that is not possible now.
    :raises TerminalError: if the table's retention is not understood.
    """
    retention = _retention_seconds(log) if retention is None else retention
    files = log.all_files
    live = {*files} | {
        f.deletion_vector.file_name for f in files.values() if f.deletion_vector and f.deletion_vector.file_name
    }
    try:
        unlisted_names = [name for name, _ in log.storage.list("") if name not in live]
        unneeded = [name for name in unlisted_names if name in log.tombstones or _is_own_leftover(name)]
        if not unneeded:
            return
        now = _storage_time(log)
        # Commits no longer in the log have no time; a long-running process knows these versions by its own clock.
        last_expired = max(
            log.newest_version_before(commit_versions(unlisted_names, log.version), now - retention),
            log.newest_version_seen_before(retention),
        )
        if last_expired >= 0 and any(log.tombstones.get(name, -1) > last_expired for name in unneeded):
            log.assign_tombstone_versions(last_expired)

        def is_old(name: str) -> bool:
            if name.startswith(f"{FEED}/"):  # the name alone rules out most of them
                return feed_file_time(name) < now - retention and file_time(log.storage, name) < now - retention
            if (version := log.tombstones.get(name)) is not None:
                return version <= last_expired
            return file_time(log.storage, name) < now - max(retention, ABANDONED_HOURS * 3600)

        if expired := [name for name in unneeded if is_old(name)]:
            log.cross_check_files()
            log.storage.delete(*expired)
        log.forget_tombstones(last_expired)
    except OSError as error:
        raise TransientError(
            f"old files of the {log.name} could not be deleted: {error}", "The next maintenance run will try again"
        ) from None


def _is_own_leftover(name: str) -> bool:
    """Return whether a file that no version refers to can be left over from a run, rather than a waiting slice."""
    return is_part_file(name) or name.startswith((f"{CHANGES_FOLDER}/", f"{VECTORS}/", f"{FEED}/"))


def _storage_time(log: DeltaLog) -> float:
    return storage_time(log.storage, lambda: log.committed_at(log.version))


def _may_clean_log(log: DeltaLog) -> bool:
    """Return whether commits older than the log's retention may be deleted.

    After a feature was dropped, Spark requires (feature ``checkpointProtection``) that all commits before that version
    are deleted together. They are, once that version itself is older than the retention.
    """
    protected_before = str(log.properties.get(_PROTECTED_BEFORE_PROPERTY, "0"))
    retention = log_retention(log.properties)
    if protected_before == "0":
        return True
    if not protected_before.isdecimal() or retention is None:
        return False
    written = log.committed_at(int(protected_before))
    return written == float("inf") or written < _storage_time(log) - retention


def _retention_seconds(log: DeltaLog) -> float:
    """Return for how many seconds removed files are kept: the table's own retention, but at least an hour."""
    retention = file_retention(log.properties)
    if retention is None:
        raise TerminalError(
            f"no old files of the {log.name} are deleted: it has {DELETED_FILE_RETENTION} = "
            f"{log.properties[DELETED_FILE_RETENTION]!r}, "
            "which this version does not understand",
            "Write it in the form interval 7 days, in sink.table_properties or with ALTER TABLE",
        )
    return max(retention, MIN_RETENTION_HOURS * 3600)
