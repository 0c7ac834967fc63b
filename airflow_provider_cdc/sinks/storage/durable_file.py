"""Files of a file system that are written in several parts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.sinks.storage.disk import fsync_folder, translate_disk_full


class DurableFile(pa.OSFile):  # type: ignore[misc]  # pyarrow has no type information
    """A file for writing that is durable on disk once it is closed, so that a commit may refer to it.

    :param path: the file; it is created or truncated.
    """

    def __new__(cls, path: Path) -> DurableFile:
        """Open the file."""
        file: DurableFile = super().__new__(cls, str(path), "wb")
        return file

    def __init__(self, path: Path) -> None:
        self._path = path

    def close(self) -> None:
        """Close the file and force its content and its name to disk."""
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
