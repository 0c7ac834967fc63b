"""Compactions of the sink's tables, which tasks run."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airflow_provider_cdc.core.store_access import StoreAccess
from airflow_provider_cdc.sinks.files import DataFile
from airflow_provider_cdc.sinks.protocol import Compaction
from airflow_provider_cdc.sinks.traffic import Traffic, carried, counting, current

#: Runs compactions wherever there is room; the results are in their order.
Runner = Callable[[Sequence[Compaction]], Sequence[Sequence[DataFile]]]


def run_in_threads(work: Sequence[Compaction]) -> Sequence[Sequence[DataFile]]:
    """Runner for this process."""

    def run(compaction: Compaction) -> Sequence[DataFile]:
        return compaction.run()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(carried(run), work))


def run_for_json(compaction: Compaction) -> str:
    """Run one, and say what it has written and asked as JSON: so it travels from a task."""
    with counting(Traffic()) as asked:
        files = [file.to_json() for file in compaction.run()]
    return json.dumps({"files": files, "asked": asked.to_json()})


class Parcel:
    """Work on its way to tasks. It may be large, and what is large goes by way of disks: it holds no secret.

    :param keys: what the connections of object stores say, which travel by themselves.
    """

    def __init__(self, keys: Sequence[StoreAccess] = ()) -> None:
        self.keys = list(keys)

    def pack(self, work: object) -> bytes:
        """One piece of work, and its secrets among the keys."""
        keys = self.keys

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> int | None:
                if not isinstance(value, StoreAccess):
                    return None
                if value not in keys:
                    keys.append(value)
                return keys.index(value)

        packed = io.BytesIO()
        Pickler(packed).dump(work)
        return packed.getvalue()

    def unpack(self, data: bytes) -> Any:
        """The piece of work again."""
        keys = self.keys

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, number: int) -> StoreAccess:
                return keys[number]

        return Unpickler(io.BytesIO(data)).load()


def from_json(text: str) -> list[DataFile]:
    """The files that :func:`run_for_json` has told of; what it has asked is counted here."""
    found = json.loads(text)
    current().add(found["asked"])
    return [DataFile(**value) for value in found["files"]]
