"""Notes between the driver of a chunk group and its readers, on whatever hosts they are: small files in the sink.

A reader says why it waits, the driver says that all shall stop. Nothing depends on them but what people see, and how
soon a job ends that has to end.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from airflow_provider_cdc.exceptions import CdcError, pack, unpack
from airflow_provider_cdc.sinks.layout import read_json, write_json


class Notes:
    """The notes of one attempt at a group.

    :param folder: where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop = folder / "stop.json"

    def pause(self, reader: int, why: str | None) -> None:
        """A reader waits, or (``None``) goes on."""
        path = self._folder / f"paused-{reader}.json"
        if why is None:
            path.unlink(missing_ok=True)
        else:
            write_json(path, why)

    def paused(self) -> str | None:
        """Why readers wait; ``None`` if none does."""
        found = (read_json(path) for path in sorted(self._folder.glob("paused-*.json")))
        return next((why for why in found if why is not None), None)

    def stop(self, error: CdcError) -> None:
        """Tell all readers to end with an error."""
        write_json(self._stop, pack(error))

    def check(self) -> None:
        """Raise the error that readers shall end with, if there is one."""
        if self._stop.exists():
            error = unpack(read_json(self._stop) or "")
            if error is not None:
                raise error

    def clear(self) -> None:
        """Remove all notes."""
        shutil.rmtree(self._folder, ignore_errors=True)
