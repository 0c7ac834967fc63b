"""Checks by trial whether a storage keeps the guarantees that exactly-once delivery relies on."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.sinks.storage.request_counts import with_current_counts
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Writers that try to create the same file at the same time.
_WRITERS = 4


def check_storage_guarantees(storage: Storage, folder: str) -> None:
    """Write, read, list and delete a small file, leaving nothing behind.

    :param folder: folder of the pipeline in the storage.
    :raises NotReadyError: if the storage does not keep a guarantee.
    """
    name = f"{folder}/check/{uuid.uuid4().hex}"
    where = storage.location(folder)

    def write_number(number: int) -> bool:
        return storage.write_once(name, b"%d" % number)

    try:
        with ThreadPoolExecutor(_WRITERS) as pool:
            won = list(pool.map(with_current_counts(write_number), range(_WRITERS)))
        content = storage.read(name)
        if sum(won) != 1 or storage.write_once(name, b"later") or storage.read(name) != content:
            raise NotReadyError(
                f"the store does not let only one writer create a file: several have created {storage.location(name)}",
                "It must honor If-None-Match: * in PUT. Use a newer version of it, another store, or no proxy that "
                "removes this header",
            )
        if (
            content != b"%d" % won.index(True)
            or [listed_name for listed_name, _ in storage.list(f"{folder}/check")].count(name) != 1
        ):
            raise NotReadyError(
                f"a file written to {where} cannot be read and listed immediately",
                "Use a store that is strongly consistent",
            )
    finally:
        storage.delete(name)
    if storage.read(name) is not None:
        raise NotReadyError(f"a file deleted in {where} can still be read", "Use a store that is strongly consistent")
