"""Deletes files that no snapshot needs: those of expired snapshots, and those that killed writers have left."""

from __future__ import annotations

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.sinks.iceberg.commit_encoder import VECTOR_FOLDER
from airflow_provider_cdc.sinks.iceberg.format.manifest_list import ManifestFile
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import may_delete_files
from airflow_provider_cdc.sinks.iceberg.log.iceberg_log import IcebergLog
from airflow_provider_cdc.sinks.iceberg.log.retained_files import (
    METADATA_FOLDER,
    ExpiredSnapshot,
    find_expired_snapshots,
    find_paths,
)
from airflow_provider_cdc.sinks.lake.merge.table_edit import CHANGES_FOLDER, is_part_file
from airflow_provider_cdc.sinks.lake.storage_clock import ABANDONED_HOURS, file_time, storage_time

#: Seconds for which files are kept after the last snapshot that needs them was replaced, for readers of it.
RETENTION_SECONDS = 3600


def vacuum_files(log: IcebergLog) -> None:
    """Delete the files of a table that no snapshot needs.

    Nothing is deleted if the table has ``gc.enabled = false``. Only the storage's clock counts. An expired snapshot is
    needed until an hour after it was replaced by the next one. Files of a commit whose outcome is unknown belong to no
    snapshot: they are deleted as abandoned ones, like those of writers that were killed.

    :raises TransientError: if that is not possible now.
    """
    if not may_delete_files(log.metadata):
        return
    try:
        expired = find_expired_snapshots(log.storage, log.reader, log.metadata)
        abandoned = _find_leftovers(log)
        if not expired and not abandoned:
            return
        now = storage_time(log.storage, lambda: file_time(log.storage, _newest_list(log)))
        unneeded = [snapshot for snapshot in expired if snapshot.replaced_at < now - RETENTION_SECONDS]
        needed = [snapshot for snapshot in expired if snapshot not in unneeded]
        old = [name for name in abandoned if file_time(log.storage, name) < now - ABANDONED_HOURS * 3600]
        if unneeded or old:
            _delete_unneeded(log, unneeded, needed, old)
    except OSError as error:
        raise TransientError(
            f"old files of the {log.name} could not be deleted: {error}", "The next maintenance run will try again"
        ) from None


def _delete_unneeded(
    log: IcebergLog, unneeded: list[ExpiredSnapshot], needed: list[ExpiredSnapshot], abandoned: list[str]
) -> None:
    """Delete the files of expired snapshots and abandoned files, except those that other snapshots need.

    Manifests go after the files that they list, and manifest lists, by which expired snapshots are found, at the end
    and in their order: what a killed run has left is found again.
    """
    reader, path_of = log.reader, log.location.path_of
    lists = [reader.read_list(snapshot.manifest_list) for snapshot in log.metadata.snapshots.values()]
    kept_manifests = _by_path(log, [m for manifests in (*lists, *(s.manifests for s in needed)) for m in manifests])
    old_manifests = _by_path(log, [m for snapshot in unneeded for m in snapshot.manifests])
    kept_lists = {path_of(snapshot.manifest_list) for snapshot in log.metadata.snapshots.values()}
    kept_lists |= {snapshot.list_path for snapshot in needed}
    gone_manifests = {
        path: manifest
        for path, manifest in old_manifests.items()
        if path not in kept_manifests and log.storage.size(path) is not None
    }
    kept = find_paths(reader, kept_manifests.values()) | log.all_files.keys()
    gone = find_paths(reader, gone_manifests.values()) - kept
    known = kept | kept_manifests.keys() | kept_lists | old_manifests.keys() | {s.list_path for s in unneeded}
    gone |= {name for name in abandoned if name not in known}
    log.cross_check_files()
    log.storage.delete(*gone)
    log.storage.delete(*gone_manifests)
    for snapshot in reversed(unneeded):
        log.storage.delete(snapshot.list_path)
    reader.forget_paths([manifest.manifest_path for manifest in kept_manifests.values()])


def _by_path(log: IcebergLog, manifests: list[ManifestFile]) -> dict[str, ManifestFile]:
    return {log.location.path_of(manifest.manifest_path): manifest for manifest in manifests}


def _find_leftovers(log: IcebergLog) -> list[str]:
    """Return the files that the current snapshot does not have, and that can be left over from a run."""
    current = log.all_files.keys() | {log.location.path_of(location) for location in log.manifests}
    return [
        name
        for name, _ in log.storage.list("")
        if name not in current
        and (
            is_part_file(name)
            or name.startswith((f"{CHANGES_FOLDER}/", f"{VECTOR_FOLDER}/"))
            or (name.startswith(f"{METADATA_FOLDER}/") and name.endswith(".avro"))
        )
    ]


def _newest_list(log: IcebergLog) -> str:
    snapshot = log.metadata.current_snapshot
    return "" if snapshot is None else log.location.path_of(snapshot.manifest_list)
