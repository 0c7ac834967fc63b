"""Opens the storage of a path: a local folder or an object store."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.config.store_address import StoreAddress, local_folder_of
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.sinks.storage.storage import Storage


def open_storage(path: str | Path, access: StoreAccess | None = None) -> Storage:
    """Return the storage of ``sink.path``.

    :param access: settings and credentials of an object store, from ``sink.conn_id``.
    """
    address = StoreAddress.parse(str(path))
    if address is None:
        return LocalStorage(local_folder_of(str(path)) or path)
    from airflow_provider_cdc.sinks.storage.object_storage import ObjectStorage  # not needed for a local folder

    return ObjectStorage(address, access if access and access.store else None)
