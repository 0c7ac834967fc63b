"""Signals between the driver of a chunk group and its readers on any host: small files in the sink.

A reader reports why it waits; the driver tells all readers to stop. The signals affect only what users see and how soon
a failing job ends, never the data.
"""

from __future__ import annotations

from airflow_provider_cdc.model.errors import CdcError, embed_error, extract_error
from airflow_provider_cdc.sinks.storage.storage import Storage, read_json, write_json


class AttemptSignals:
    """The signals of one attempt at a chunk group.

    :param storage: storage of the files.
    :param folder: folder of the files.
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder
        self._stop_file = f"{folder}/stop.json"

    def set_pause_reason(self, reader: int, reason: str | None) -> None:
        """Record why a reader waits, or (``None``) that it continues."""
        name = f"{self._folder}/paused-{reader}.json"
        if reason is None:
            self._storage.delete(name)
        else:
            write_json(self._storage, name, reason)

    def pause_reason(self) -> str | None:
        """Return why readers wait, or ``None`` if none does."""
        names = sorted(name for name, _ in self._storage.list(self._folder) if name != self._stop_file)
        return next((reason for name in names if (reason := read_json(self._storage, name)) is not None), None)

    def stop_readers(self, error: CdcError) -> None:
        """Make all readers fail with an error."""
        write_json(self._storage, self._stop_file, embed_error(error))

    def raise_if_stopped(self) -> None:
        """Raise the error passed to :meth:`stop_readers`, if any."""
        packed_error = read_json(self._storage, self._stop_file)
        if packed_error is not None and (error := extract_error(packed_error)) is not None:
            raise error

    def remove_all(self) -> None:
        """Delete all signals."""
        self._storage.delete_folder(self._folder)
