"""Locations of files in Iceberg metadata, and their paths in the table's folder."""

from __future__ import annotations

import re

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.storage.storage import Storage

_LOCAL = re.compile(r"file:(//)?(?=/)")
_S3 = re.compile(r"s3[an]://")


def location_of(storage: Storage) -> str:
    """Return the location of a folder: literally, because readers of Iceberg tables decode nothing."""
    location = storage.location().rstrip("/")
    return f"file://{location}" if location.startswith("/") else location


class TableLocation:
    """The location of a table.

    :param location: as its metadata has it.
    """

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        self._prefix = f"{_uniform(self.location)}/"

    def is_folder(self, storage: Storage) -> bool:
        """Return whether it is the location of a folder."""
        return self._prefix == f"{_uniform(location_of(storage))}/"

    def path_of(self, location: str) -> str:
        """Return the path of a file in the table's folder.

        :raises TerminalError: if it is elsewhere.
        """
        uniform = _uniform(location)
        if not uniform.startswith(self._prefix):
            raise TerminalError(
                f"the Iceberg table at {self.location} has a file outside of its folder: {location}",
                "Other software has added it: rewrite the table's files into its folder, or start with a fresh table",
            )
        return uniform.removeprefix(self._prefix)

    def file_location(self, path: str) -> str:
        """Return the location of a file in the table's folder."""
        return f"{self.location}/{path}"


def _uniform(location: str) -> str:
    """Return a location in one of the forms that programs write."""
    return _S3.sub("s3://", _LOCAL.sub("", location, count=1), count=1)
