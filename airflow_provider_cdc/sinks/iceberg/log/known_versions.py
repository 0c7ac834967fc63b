"""The newest versions that this process knows of tables which several sources share.

The logs of the sources read a manifest once between them. See
:mod:`~airflow_provider_cdc.sinks.lake.log.process_commits`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakValueDictionary

from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import CatalogTable
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.log.snapshot_files import LoadedManifest


@dataclass(frozen=True)
class KnownVersion:
    """A version of a table, and its manifests by location. It is known as long as it is referenced."""

    table: CatalogTable
    manifests: Mapping[str, LoadedManifest]


_newest_versions: WeakValueDictionary[str, KnownVersion] = WeakValueDictionary()
_lock = threading.Lock()


def is_newer(metadata: TableMetadata, other: TableMetadata) -> bool:
    """Return whether a version is newer than another one of the same table."""
    numbers = [(one.last_sequence_number, one.last_updated_ms) for one in (metadata, other)]
    return numbers[0] > numbers[1]


def find_newest_version(table_uuid: str) -> KnownVersion | None:
    """Return the newest version that a log of this process has; ``None`` if there is none."""
    with _lock:
        return _newest_versions.get(table_uuid)


def remember_version(table: CatalogTable, manifests: Mapping[str, LoadedManifest]) -> KnownVersion:
    """Let other logs know a version unless they know a newer one.

    :returns: the newest known version.
    """
    uuid = table.metadata.table_uuid
    with _lock:
        newest = _newest_versions.get(uuid)
        if newest is None or is_newer(table.metadata, newest.table.metadata):
            newest = _newest_versions[uuid] = KnownVersion(table, manifests)
        return newest
