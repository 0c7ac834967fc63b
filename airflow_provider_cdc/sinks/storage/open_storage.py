"""Open the storage of a path: a local folder or an object store."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.config.store_address import StoreAddress, local_folder_of
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.sinks.storage.storage import Storage


def open_storage(path: str | Path, access: StoreAccess | None = None) -> Storage:
    """The storage of ``sink.path``.

    :param access: what ``sink.conn_id`` says of an object store.
    """
    address = StoreAddress.parse(str(path))
    if address is None:
        return LocalStorage(local_folder_of(str(path)) or path)
    from airflow_provider_cdc.sinks.storage.object_storage import ObjectStorage  # not for those who have a folder

    return ObjectStorage(address, access)
