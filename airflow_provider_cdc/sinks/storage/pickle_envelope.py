"""Pickling of objects for tasks, without the secrets of the stores that they use."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

from airflow_provider_cdc.config.store_access import StoreAccess


class PickleEnvelope:
    """Work to be sent to tasks. Large data passes through disks, so the pickled data contains no secrets.

    :param store_accesses: settings and credentials of object stores, which are sent separately.
    """

    def __init__(self, store_accesses: Sequence[StoreAccess] = ()) -> None:
        self.store_accesses = list(store_accesses)

    def pack(self, payload: object) -> bytes:
        """Return one object pickled; add its credentials to :attr:`store_accesses`."""
        store_accesses = self.store_accesses

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> int | None:
                if not isinstance(value, StoreAccess):
                    return None
                if value not in store_accesses:
                    store_accesses.append(value)
                return store_accesses.index(value)

        buffer = io.BytesIO()
        Pickler(buffer).dump(payload)
        return buffer.getvalue()

    def unpack(self, data: bytes) -> Any:
        """Return the unpickled object."""
        store_accesses = self.store_accesses

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, number: int) -> StoreAccess:
                return store_accesses[number]

        return Unpickler(io.BytesIO(data)).load()
