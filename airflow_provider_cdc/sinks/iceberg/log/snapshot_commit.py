"""A commit as the catalog gets it, and what proves that it was not made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from airflow_provider_cdc.sinks.iceberg.format.snapshots import TableSnapshot
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.format.table_updates import Requirement, Update
from airflow_provider_cdc.sinks.iceberg.log.snapshot_files import LoadedManifest


@dataclass(frozen=True)
class SnapshotCommit:
    """A commit as the catalog gets it.

    :param snapshot: the snapshot that it makes.
    :param manifests: the manifests of the snapshot, by location, with those of their files that are part of it.
    :param dead_rows: dead rows by path, of the files whose deletion vectors it writes.
    """

    snapshot: TableSnapshot
    requirements: Sequence[Requirement]
    updates: Sequence[Update]
    manifests: Mapping[str, LoadedManifest]
    dead_rows: Mapping[str, BitMap]

    def has_lost_against(self, metadata: TableMetadata, base: TableMetadata) -> bool:
        """Return whether a table has another snapshot with the sequence number of this one, which is not part of it.

        Then this one was not made, however old or new the metadata is: each number is used once, but for snapshots that
        are based on none.

        :param metadata: metadata of the table without this snapshot.
        :param base: what the commit is based on.
        """
        if metadata.table_uuid != base.table_uuid or self.snapshot.parent_snapshot_id is None:
            return False
        return self.snapshot.sequence_number in {other.sequence_number for other in metadata.snapshots.values()}
