"""Notes between the driver of a chunk group and its readers, on whatever hosts they are: small files in the sink.

A reader says why it waits, the driver says that all shall stop. Nothing depends on them but what people see, and how
soon a job ends that has to end.
"""

from __future__ import annotations

from airflow_provider_cdc.model.errors import CdcError, embed_error, extract_error
from airflow_provider_cdc.sinks.storage.storage import Storage, read_json, write_json


class AttemptSignals:
    """The notes of one attempt at a group.

    :param folder: where they lie in the storage.
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder
        self._stop_file = f"{folder}/stop.json"

    def set_pause_reason(self, reader: int, reason: str | None) -> None:
        """A reader waits, or (``None``) goes on."""
        name = f"{self._folder}/paused-{reader}.json"
        if reason is None:
            self._storage.delete(name)
        else:
            write_json(self._storage, name, reason)

    def pause_reason(self) -> str | None:
        """Why readers wait; ``None`` if none does."""
        names = sorted(name for name, _ in self._storage.list(self._folder) if name != self._stop_file)
        return next((reason for name in names if (reason := read_json(self._storage, name)) is not None), None)

    def stop_readers(self, error: CdcError) -> None:
        """Tell all readers to end with an error."""
        write_json(self._storage, self._stop_file, embed_error(error))

    def raise_if_stopped(self) -> None:
        """Raise the error that readers shall end with, if there is one."""
        packed_error = read_json(self._storage, self._stop_file)
        if packed_error is not None and (error := extract_error(packed_error)) is not None:
            raise error

    def remove_all(self) -> None:
        """Remove all notes."""
        self._storage.delete_folder(self._folder)
