"""Opens files by the locations that Iceberg metadata has: they are literal, without percent-encoding."""

from __future__ import annotations

import re

from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.config.store_address import StoreAddress
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.sinks.storage.open_storage import open_storage
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Others write ``file:/data``, ``file:///data`` or ``/data``.
_LOCAL = re.compile(r"(?:file:(?://)?)?(/.*)")
_REMOTE = re.compile(r"([a-z0-9]+://[^/]+)/?(.*)")


def open_folder(location: str, access: StoreAccess | None) -> Storage:
    """Return the storage of a folder.

    :param location: location of the folder.
    :param access: settings and credentials of the object store.
    :raises TerminalError: if it is in a store that is not supported.
    """
    if local := _LOCAL.fullmatch(location):
        from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage

        return LocalStorage(local[1])
    remote = _REMOTE.fullmatch(location)
    try:
        address = StoreAddress.parse(remote[1]) if remote else None
    except NotReadyError:
        address = None
    if remote is None or address is None:
        raise TerminalError(
            f"files of an Iceberg table are in {location}, which is in no supported store",
            "Use a table in a local folder, S3, Google Cloud Storage or Azure",
        )
    root = open_storage(remote[1], access)
    return root.subfolder(remote[2].rstrip("/")) if remote[2].strip("/") else root


def open_file_folder(location: str, access: StoreAccess | None) -> tuple[Storage, str]:
    """Return the storage of the folder of a file, and the file's name there.

    :param location: location of the file.
    :param access: settings and credentials of the object store.
    :raises TerminalError: if it is in a store that is not supported.
    """
    folder, _, name = location.rpartition("/")
    return open_folder(folder, access), name
