"""Objects on their way to tasks, without the secrets of the stores that they use."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

from airflow_provider_cdc.config.store_access import StoreAccess


class PickleEnvelope:
    """Work on its way to tasks. It may be large, and what is large goes by way of disks: it holds no secret.

    :param store_accesses: what the connections of object stores say, which travel by themselves.
    """

    def __init__(self, store_accesses: Sequence[StoreAccess] = ()) -> None:
        self.store_accesses = list(store_accesses)

    def pack(self, payload: object) -> bytes:
        """One piece of work, and its secrets among the keys."""
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
        """The piece of work again."""
        store_accesses = self.store_accesses

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, number: int) -> StoreAccess:
                return store_accesses[number]

        return Unpickler(io.BytesIO(data)).load()
