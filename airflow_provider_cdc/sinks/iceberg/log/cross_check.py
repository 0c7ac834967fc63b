"""The live files of a table as pyiceberg reads them, to be compared before files are permanently deleted."""

from __future__ import annotations

import io
from collections.abc import Collection
from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import ManifestContent, read_manifest_list

from airflow_provider_cdc.model.errors import TerminalError, TransientError
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.log.snapshot_files import SnapshotReader


def check_live_files(
    reader: SnapshotReader, name: str, metadata: TableMetadata, live_locations: Collection[str]
) -> None:
    """Check that pyiceberg finds the same live data files, before files are permanently deleted.

    The two programs decode manifests with independent code, so that a file missed by one of them shows as a difference.

    :param name: name of the table in messages.
    :param live_locations: locations of its live data files as this project reads them.
    :raises TransientError: if pyiceberg cannot read the manifests now.
    :raises TerminalError: if it finds other files.
    """
    snapshot = metadata.current_snapshot
    found = set[str]()
    if snapshot is not None:
        try:
            found = _read_locations(reader, snapshot.manifest_list)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise TransientError(
                f"no old files of the {name} were deleted: pyiceberg cannot read it: {error}",
                "The next maintenance run will try again",
            ) from None
    if found != {*live_locations}:
        locations = sorted(found ^ {*live_locations})
        raise TerminalError(
            f"no old files of the {name} were deleted: it has {len(live_locations)} data files, but {len(found)} as "
            f"pyiceberg reads it; {locations[0]} is in only one of the two lists",
            "Stop the stream, run airflow-cdc verify, and report it with the folder metadata",
        )


def _read_locations(reader: SnapshotReader, manifest_list: str) -> set[str]:
    files = _TableFiles(reader)
    return {
        entry.data_file.file_path
        for manifest in read_manifest_list(files.new_input(manifest_list))
        if manifest.content is ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(files)
    }


class _TableFiles(FileIO):
    """The files of a table's metadata, from the storage that everything else is read from."""

    def __init__(self, reader: SnapshotReader) -> None:
        super().__init__()
        self._reader = reader

    def new_input(self, location: str) -> InputFile:
        return _FileContent(location, self._reader.read_file(location))

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise NotImplementedError(location)


class _FileContent(InputFile):
    def __init__(self, location: str, data: bytes) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._data)
