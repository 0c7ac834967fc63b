"""The files of snapshots, read from manifest lists and manifests, which never change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.iceberg.format.manifest_list import ManifestContent, ManifestFile, read_manifest_list
from airflow_provider_cdc.sinks.iceberg.format.manifests import FileContent, ManifestEntry, read_manifest
from airflow_provider_cdc.sinks.iceberg.log.table_location import TableLocation
from airflow_provider_cdc.sinks.storage.storage import Storage

_REMEDY = "Restore the file from a backup, or roll the table back to an older snapshot"


@dataclass(frozen=True)
class LoadedManifest:
    """A manifest, and the files in it that are part of the snapshot.

    :param entries: these files, with what they inherit.
    """

    manifest: ManifestFile
    entries: tuple[ManifestEntry, ...]

    @property
    def is_data(self) -> bool:
        """Whether it lists data files, and not deletion vectors."""
        return self.manifest.content is ManifestContent.DATA


class SnapshotReader:
    """Reads manifest lists and manifests from the folder of a table.

    :param storage: storage of the folder.
    :param location: location of the table.
    """

    def __init__(self, storage: Storage, location: TableLocation) -> None:
        self._storage, self.location = storage, location
        self._paths_by_manifest = dict[str, frozenset[str]]()

    def read_file(self, location: str) -> bytes:
        """Return the content of a file of metadata.

        :raises TerminalError: if it is missing.
        """
        data = self._storage.read(self.location.path_of(location))
        if data is None:
            raise TerminalError(f"the file {location} of an Iceberg table is missing", _REMEDY)
        return data

    def read_list(self, location: str) -> list[ManifestFile]:
        """Return the manifests in a manifest list."""
        return read_manifest_list(self.read_file(location), location)

    def load_manifests(
        self, manifests: Iterable[ManifestFile], known: Mapping[str, LoadedManifest]
    ) -> dict[str, LoadedManifest]:
        """Return the manifests of a snapshot by location.

        :param known: manifests that are not read again.
        :raises TerminalError: if there are deletes other than deletion vectors.
        """
        loaded = dict[str, LoadedManifest]()
        for manifest in manifests:
            same = known.get(manifest.manifest_path)
            if same is not None and same.manifest.first_row_id == manifest.first_row_id:
                loaded[manifest.manifest_path] = same
                continue
            entries = self.read_entries(manifest)
            for entry in entries:
                self._check_content(entry)
            if entries:
                loaded[manifest.manifest_path] = LoadedManifest(manifest, entries)
        return loaded

    def read_entries(self, manifest: ManifestFile) -> tuple[ManifestEntry, ...]:
        """Return the entries of a manifest for files that are part of the snapshot."""
        entries = read_manifest(self.read_file(manifest.manifest_path), manifest)
        return tuple(entry for entry in entries if entry.is_live)

    def read_paths(self, manifest: ManifestFile) -> frozenset[str]:
        """Return the paths, in the table's folder, of the files that are part of the snapshot.

        :raises TerminalError: if a file of metadata is missing.
        """
        paths = self._paths_by_manifest.get(manifest.manifest_path)
        if paths is None:
            paths = frozenset(self.location.path_of(e.file.file_path) for e in self.read_entries(manifest))
            self._paths_by_manifest[manifest.manifest_path] = paths
        return paths

    def forget_paths(self, retained: Collection[str]) -> None:
        """Forget the files of manifests, except of some.

        :param retained: locations of manifests.
        """
        known = self._paths_by_manifest
        self._paths_by_manifest = {location: known[location] for location in known.keys() & {*retained}}

    def _check_content(self, entry: ManifestEntry) -> None:
        if entry.file.content != FileContent.DATA and not entry.file.is_deletion_vector:
            kind = "equality deletes" if entry.file.content == FileContent.EQUALITY_DELETES else "position deletes"
            raise TerminalError(
                f"the Iceberg table at {self.location.location} has a file of {kind}: {entry.file.file_path}",
                "Other software has written it. Such files are not supported: start with a fresh table, and let others "
                "write by copy-on-write, or by deletion vectors",
            )
