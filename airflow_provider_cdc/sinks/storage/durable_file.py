"""Files of a file system that are written in pieces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.sinks.storage.disk import fsync_folder, translate_disk_full


class DurableFile(pa.OSFile):  # type: ignore[misc]  # pyarrow says nothing of its types
    """A file that is written, and is on disk when it is closed: a commit names it then.

    :param path: the file; it is made, or emptied.
    """

    def __new__(cls, path: Path) -> DurableFile:
        """See the class."""
        file: DurableFile = super().__new__(cls, str(path), "wb")
        return file

    def __init__(self, path: Path) -> None:
        self._path = path

    def close(self) -> None:
        """Close it, and force it and its name to disk."""
        if self.closed:
            return
        with translate_disk_full(self._path):
            super().close()
            descriptor = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            fsync_folder(self._path.parent)

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
            return
        super().close()
        with translate_disk_full(self._path):
            raise value
