"""Which files of a table snapshots refer to: those in its metadata, and those that have expired, but not their files.

A snapshot expires by a commit, because metadata with many of them would make each commit slow. Its files stay for a
while, for readers that have begun to read it. Expired snapshots are found by their manifest lists, each of which names
the snapshot before: from the oldest ancestor of ``main`` on, back to a snapshot whose manifest list is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_cdc.sinks.iceberg.format.manifest_list import (
    ManifestContent,
    ManifestFile,
    read_manifest_list,
    read_parent_id,
)
from airflow_provider_cdc.sinks.iceberg.format.snapshots import ancestors_of
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.log.snapshot_files import SnapshotReader
from airflow_provider_cdc.sinks.lake.storage_clock import file_time
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Folder of manifest lists and manifests in the table's folder.
METADATA_FOLDER = "metadata"
_LIST_NAME = re.compile(rf"{METADATA_FOLDER}/snap-(\d+)-.*\.avro")


def is_manifest_list(path: str) -> bool:
    """Return whether a file in a table's folder is the manifest list of a snapshot."""
    return _LIST_NAME.fullmatch(path) is not None


@dataclass(frozen=True)
class ExpiredSnapshot:
    """A snapshot that is no longer in the metadata.

    :param list_path: path of its manifest list in the table's folder.
    :param manifests: its manifests.
    :param replaced_at: when the next snapshot was made, in seconds since 1970 by the storage's clock.
    """

    list_path: str
    manifests: tuple[ManifestFile, ...]
    replaced_at: float


def find_expired_snapshots(storage: Storage, reader: SnapshotReader, metadata: TableMetadata) -> list[ExpiredSnapshot]:
    """Return the expired snapshots whose manifest lists exist, the newest first."""
    *_, oldest = [None, *ancestors_of(metadata.snapshots, _current_id(metadata))]
    if oldest is None or oldest.parent_snapshot_id is None or oldest.parent_snapshot_id in metadata.snapshots:
        return []
    lists = {
        int(match[1]): name
        for name, _ in storage.list(METADATA_FOLDER)
        if (match := _LIST_NAME.fullmatch(name)) is not None
    }
    expired, next_path = list[ExpiredSnapshot](), reader.location.path_of(oldest.manifest_list)
    parent_id: int | None = oldest.parent_snapshot_id
    while parent_id is not None and (path := lists.pop(parent_id, None)) is not None:
        if (data := storage.read(path)) is None:
            break
        if parent_id not in metadata.snapshots:  # as one of a tag is, which is older than others that have expired
            expired.append(ExpiredSnapshot(path, tuple(read_manifest_list(data, path)), file_time(storage, next_path)))
        parent_id, next_path = read_parent_id(data, path), path
    return expired


def find_paths(reader: SnapshotReader, manifests: Iterable[ManifestFile]) -> set[str]:
    """Return the paths of the files that are in manifests."""
    by_location = {manifest.manifest_path: manifest for manifest in manifests}
    return set().union(*(reader.read_paths(manifest) for manifest in by_location.values()))


def find_retained_paths(storage: Storage, reader: SnapshotReader, metadata: TableMetadata) -> frozenset[str]:
    """Return the paths of the data files of all snapshots, including expired ones whose files have not been deleted."""
    lists = [reader.read_list(snapshot.manifest_list) for snapshot in metadata.snapshots.values()]
    lists += [list(snapshot.manifests) for snapshot in find_expired_snapshots(storage, reader, metadata)]
    manifests = (m for manifests in lists for m in manifests if m.content is ManifestContent.DATA)
    return frozenset(find_paths(reader, manifests))


def _current_id(metadata: TableMetadata) -> int | None:
    snapshot = metadata.current_snapshot
    return None if snapshot is None else snapshot.snapshot_id
