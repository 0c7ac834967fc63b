"""Lets snapshots expire, so that metadata stays small: in a commit of its own, right after one of rows.

A REST catalog removes the tags and branches of snapshots that are removed, and no requirement covers one that is new.
What expires is therefore decided by metadata that the catalog has just answered, and not by that on which rows were
decided, which may be a minute old. A tag of such a snapshot that is made in the milliseconds in between is lost; with a
SQL catalog, none is.
"""

from __future__ import annotations

import time
from contextlib import suppress

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.sinks.iceberg.format.snapshots import expired_snapshots
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import may_delete_files
from airflow_provider_cdc.sinks.iceberg.log.iceberg_log import IcebergLog

#: Snapshots of ``main`` that the metadata has at most, but for those that expire together.
MAX_SNAPSHOTS = 100
#: Number of snapshots that expire together.
EXPIRY_BATCH = 10


def expire_snapshots(log: IcebergLog) -> None:
    """Let snapshots expire, if enough of them may.

    :param log: the log of a table, just after a commit. If the catalog fails now, the next commit tries again.
    """
    metadata = log.metadata
    if not may_delete_files(metadata):
        return
    now_ms = max(int(time.time() * 1000), metadata.last_updated_ms)
    expired = expired_snapshots(metadata.snapshots, metadata.refs, metadata.properties, now_ms, max_count=MAX_SNAPSHOTS)
    if len(expired) >= EXPIRY_BATCH:
        with suppress(TransientError):
            log.remove_snapshots(expired)
