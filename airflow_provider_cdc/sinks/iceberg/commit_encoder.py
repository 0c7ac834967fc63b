"""Encodes what a commit does to files as a snapshot of an Iceberg table.

A commit is one Puffin file with all deletion vectors that change, one manifest of deletion vectors, one manifest of
data files, a manifest list, and one change in the catalog, which also has the markers. Files of the commit are deleted
only if it certainly was not made.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airflow_provider_cdc import __version__
from airflow_provider_cdc.model.schema import SEQ_COLUMN
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.iceberg.format import table_updates
from airflow_provider_cdc.sinks.iceberg.format.manifest_list import (
    ManifestContent,
    ManifestFile,
    assign_inherited,
    write_manifest_list,
)
from airflow_provider_cdc.sinks.iceberg.format.manifests import (
    PUFFIN,
    ContentFile,
    EntryStatus,
    FileContent,
    ManifestEntry,
    ManifestHeader,
    assign_row_ids,
    write_manifest,
)
from airflow_provider_cdc.sinks.iceberg.format.partition_spec import PartitionSpec, parse_partition_spec
from airflow_provider_cdc.sinks.iceberg.format.partition_values import parse_partition_value, value_name
from airflow_provider_cdc.sinks.iceberg.format.puffin import write_vectors_file
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema
from airflow_provider_cdc.sinks.iceberg.format.snapshots import (
    MAIN_BRANCH,
    TableSnapshot,
    make_snapshot,
    new_snapshot_id,
)
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.format.table_updates import Requirement, Update
from airflow_provider_cdc.sinks.iceberg.format.values import encode_value
from airflow_provider_cdc.sinks.iceberg.log.file_schemas import check_file_schema
from airflow_provider_cdc.sinks.iceberg.log.iceberg_log import (
    FIELD_IDS_PROPERTY,
    OWN_SNAPSHOT_PROPERTY,
    IcebergLog,
    field_ids_text,
)
from airflow_provider_cdc.sinks.iceberg.log.retained_files import METADATA_FOLDER, is_manifest_list
from airflow_provider_cdc.sinks.iceberg.log.snapshot_commit import SnapshotCommit
from airflow_provider_cdc.sinks.iceberg.log.snapshot_files import LoadedManifest
from airflow_provider_cdc.sinks.iceberg.log.table_markers import marker_properties, properties_to_set
from airflow_provider_cdc.sinks.lake.log.file_commit import (
    AddFile,
    CommitKind,
    FileCommit,
    MarkRowsDead,
    RemoveFile,
    dead_rows_of,
)
from airflow_provider_cdc.system.failpoints import failpoint

#: Folder, in the table's folder, of the files with deletion vectors.
VECTOR_FOLDER = "deletes"
#: Number of manifests with few files after which they are merged, and number of files that are not few.
MERGED_MANIFESTS, _MANY_FILES = 64, 1000


@dataclass
class _Change:
    """What a commit does, as far as manifests are concerned."""

    removed: set[str] = field(default_factory=set)
    added: list[DataFile] = field(default_factory=list)


class CommitEncoder:
    """Encodes one commit, and writes its files.

    :param log: the current state of the table.
    :param commit: the commit, to which its files are added as files to delete on conflict.
    :param markers: markers to write.
    :param stats_column: name of the single integer key column.
    :param properties: properties that the table is to have.
    """

    def __init__(
        self,
        log: IcebergLog,
        commit: FileCommit,
        markers: Mapping[str, int],
        stats_column: str | None,
        properties: Mapping[str, str],
    ) -> None:
        self._log, self._commit, self._markers = log, commit, markers
        self._stats_column, self._properties = stats_column, properties
        self._metadata: TableMetadata = log.metadata
        self._snapshot_id = new_snapshot_id(self._metadata.snapshots)
        self._sequence_number = self._metadata.last_sequence_number + 1
        self._stem = f"{self._snapshot_id}-{uuid.uuid4().hex}"
        self._definition: list[Update] = [dict(update) for update in commit.definition]
        self._schema, self._spec = _defined_schema_and_spec(self._metadata, self._definition)
        self._files = dict[str, bytes]()
        self._dead = dead_rows_of(commit)

    def encode(self) -> SnapshotCommit:
        """Return the commit for the catalog, after writing its files."""
        change = self._collect_change()
        vectors = self._encode_vectors(change)
        data = self._encode_data_manifests(change)
        deletes = self._encode_delete_manifests(change, vectors)
        manifests, loaded, next_row_id = self._assign_inherited([*data, *deletes])
        list_location = self._encode_list(manifests)
        self._write_files()
        snapshot = self._make_snapshot(list_location, change, loaded, next_row_id)
        return SnapshotCommit(snapshot, self._requirements(), self._updates(snapshot), loaded, self._dead)

    # ------------------------------------------------------------ files

    def _collect_change(self) -> _Change:
        change = _Change()
        for operation in self._commit.operations:
            match operation:
                case AddFile(file):
                    check_file_schema(
                        self._metadata,
                        self._schema,
                        file.schema_id,
                        self._log.storage,
                        file.path,
                        is_shared=self._log.scope.source is not None,
                    )
                    change.added.append(file)
                case RemoveFile(file):
                    change.removed.add(self._log.files[file.path].entry.file.file_path)
                case MarkRowsDead():
                    pass
        return change

    def _encode_vectors(self, change: _Change) -> dict[str, ContentFile]:
        """Return the deletion vectors that the commit writes, by location of the data file."""
        if not self._dead:
            return {}
        added = {file.path: file for file in change.added}
        locations = {path: self._location_of(path) for path in self._dead}
        content, places = write_vectors_file(
            {locations[path]: rows for path, rows in self._dead.items()}, f"airflow-provider-cdc {__version__}"
        )
        location = self._add_file(f"{VECTOR_FOLDER}/{self._stem}.puffin", content)
        vectors = {}
        for path, data_location in locations.items():
            live_file, place = self._log.files.get(path), places[data_location]
            partition = live_file.entry.file.partition if live_file else self._partition_of(added[path])
            vectors[data_location] = ContentFile(
                location,
                place.cardinality,
                len(content),
                FileContent.POSITION_DELETES,
                PUFFIN,
                partition,
                referenced_data_file=data_location,
                content_offset=place.offset,
                content_size_in_bytes=place.length,
            )
        return vectors

    def _location_of(self, path: str) -> str:
        file = self._log.files.get(path)
        return self._log.location.file_location(path) if file is None else file.entry.file.file_path

    def _partition_of(self, file: DataFile) -> dict[int, Any]:
        types = self._spec.result_types(self._schema)
        return {
            part.field_id: parse_partition_value(types[part.field_id], file.partition.get(value_name(part.name)))
            for part in self._spec.fields
        }

    def _content_file(self, file: DataFile) -> ContentFile:
        bounds = dict[int, tuple[bytes, bytes]]()
        for column, low, high in (
            (self._stats_column, file.low, file.high),
            (SEQ_COLUMN, file.oldest, file.newest),
        ):
            nested = self._schema.columns.get(column or "")
            kind = self._schema.primitive_type_of(nested.id) if nested else None
            if nested and kind and low is not None and high is not None:
                bounds[nested.id] = encode_value(kind, low), encode_value(kind, high)
        return ContentFile(
            self._log.location.file_location(file.path),
            file.rows,
            file.size,
            partition=self._partition_of(file),
            null_value_counts=dict.fromkeys(bounds, 0),
            lower_bounds={number: low for number, (low, _) in bounds.items()},
            upper_bounds={number: high for number, (_, high) in bounds.items()},
        )

    # ------------------------------------------------------------ manifests

    def _encode_data_manifests(self, change: _Change) -> list[LoadedManifest]:
        """Return the manifests of data files: unchanged ones, and those that this commit writes."""
        loaded = [manifest for manifest in self._log.manifests.values() if manifest.is_data]
        touched = [m for m in loaded if change.removed and any(e.file.file_path in change.removed for e in m.entries)]
        untouched = [manifest for manifest in loaded if manifest not in touched]
        small = [m for m in untouched if len(m.entries) < _MANY_FILES]
        if len(small) >= MERGED_MANIFESTS:
            touched += small
            untouched = [manifest for manifest in untouched if manifest not in small]
        added = [ManifestEntry(EntryStatus.ADDED, self._content_file(file), self._snapshot_id) for file in change.added]
        written = self._rewrite_manifests(
            touched, lambda entry: entry.file.file_path in change.removed, added, ManifestContent.DATA
        )
        return [*untouched, *written]

    def _encode_delete_manifests(self, change: _Change, vectors: dict[str, ContentFile]) -> list[LoadedManifest]:
        """Return the manifests of deletion vectors: one of each partition spec if any vector changes."""
        loaded = [manifest for manifest in self._log.manifests.values() if not manifest.is_data]
        replaced = change.removed | vectors.keys()

        def is_replaced(entry: ManifestEntry) -> bool:
            return entry.file.referenced_data_file in replaced

        if not vectors and not any(is_replaced(entry) for manifest in loaded for entry in manifest.entries):
            return loaded
        # The last one in the Puffin file first: DuckDB 1.5.5 confuses neighbours that it reads in ascending order.
        added = [ManifestEntry(EntryStatus.ADDED, vector, self._snapshot_id) for vector in reversed(vectors.values())]
        return self._rewrite_manifests(loaded, is_replaced, added, ManifestContent.DELETES)

    def _rewrite_manifests(
        self,
        manifests: Iterable[LoadedManifest],
        is_removed: Callable[[ManifestEntry], bool],
        added: list[ManifestEntry],
        content: ManifestContent,
    ) -> list[LoadedManifest]:
        """Return one new manifest of each partition spec, in place of others.

        :param manifests: the others.
        :param is_removed: whether a file is removed.
        :param added: entries of new files.
        """
        entries_by_spec = dict[int, list[ManifestEntry]]()
        for manifest in manifests:
            entries_by_spec.setdefault(manifest.manifest.partition_spec_id, []).extend(
                entry.as_deleted(self._snapshot_id) if is_removed(entry) else entry.as_existing()
                for entry in manifest.entries
            )
        for entry in added:
            entries_by_spec.setdefault(self._spec_of(entry, content), []).append(entry)
        return [
            self._encode_manifest(entries, content, spec_id, number)
            for number, (spec_id, entries) in enumerate(entries_by_spec.items())
        ]

    def _spec_of(self, entry: ManifestEntry, content: ManifestContent) -> int:
        """Return the partition spec of a new file: that of its data file, if it is a deletion vector."""
        referenced = entry.file.referenced_data_file
        if content is ManifestContent.DELETES and referenced is not None:
            file = self._log.files.get(self._log.location.path_of(referenced))
            if file is not None:
                return file.spec.spec_id
        return self._spec.spec_id

    def _encode_manifest(
        self, entries: list[ManifestEntry], content: ManifestContent, spec_id: int, number: int
    ) -> LoadedManifest:
        spec = self._spec if spec_id == self._spec.spec_id else self._metadata.partition_specs[spec_id]
        schema = self._metadata.schema_of_spec(spec, self._schema)
        header = ManifestHeader(self._metadata.format_version, content, spec, schema)
        name = f"{METADATA_FOLDER}/{self._stem}-{'m' if content is ManifestContent.DATA else 'd'}{number}.avro"
        data, manifest = write_manifest(header, entries, self._log.location.file_location(name), self._snapshot_id)
        self._add_file(name, data)
        return LoadedManifest(manifest, tuple(entries))

    def _assign_inherited(
        self, manifests: list[LoadedManifest]
    ) -> tuple[list[ManifestFile], dict[str, LoadedManifest], int | None]:
        """Give new manifests, and their entries, what they inherit from the snapshot.

        :returns: the manifests of the snapshot; those with files that are part of it, with these; next row id.
        """
        assigned, next_row_id = assign_inherited(
            [m.manifest for m in manifests], self._sequence_number, self._metadata.next_row_id
        )
        loaded = dict[str, LoadedManifest]()
        for before, manifest in zip(manifests, assigned, strict=True):
            if before.manifest.sequence_number is not None:
                loaded[manifest.manifest_path] = before
                if manifest != before.manifest:  # that of an upgraded table gets its first row id now
                    entries = assign_row_ids(before.entries, manifest.first_row_id)
                    loaded[manifest.manifest_path] = LoadedManifest(manifest, entries)
            elif entries := self._inherit(before.entries, manifest):
                loaded[manifest.manifest_path] = LoadedManifest(manifest, entries)
        return assigned, loaded, next_row_id

    def _inherit(self, entries: Iterable[ManifestEntry], manifest: ManifestFile) -> tuple[ManifestEntry, ...]:
        """Return the entries of a new manifest for files that are part of the snapshot, as they are read later."""
        live, number = list[ManifestEntry](), self._sequence_number
        for entry in entries:
            if not entry.is_live:
                continue
            if entry.status == EntryStatus.ADDED:
                entry = msgspec.structs.replace(entry, sequence_number=number, file_sequence_number=number)
            live.append(entry)
        return assign_row_ids(live, manifest.first_row_id)

    def _encode_list(self, manifests: list[ManifestFile]) -> str:
        data = write_manifest_list(
            manifests,
            self._metadata.format_version,
            self._snapshot_id,
            self._parent_id,
            self._sequence_number,
            self._metadata.next_row_id,
        )
        name = f"{METADATA_FOLDER}/snap-{self._snapshot_id}-0-{self._stem.partition('-')[2]}.avro"
        return self._add_file(name, data)

    # ------------------------------------------------------------ the catalog

    @property
    def _parent_id(self) -> int | None:
        current = self._metadata.current_snapshot
        return None if current is None else current.snapshot_id

    def _make_snapshot(
        self, list_location: str, change: _Change, loaded: Mapping[str, LoadedManifest], next_row_id: int | None
    ) -> TableSnapshot:
        first_row_id = self._metadata.next_row_id
        return make_snapshot(
            self._snapshot_id,
            self._parent_id,
            self._sequence_number,
            max(int(time.time() * 1000), self._metadata.last_updated_ms),  # REST catalogs demand this order
            list_location,
            self._operation(change),
            self._schema.schema_id,
            summary=self._summarize(change, loaded),
            first_row_id=first_row_id,
            added_rows=None if next_row_id is None or first_row_id is None else next_row_id - first_row_id,
        )

    def _operation(self, change: _Change) -> str:
        if self._commit.kind is CommitKind.OPTIMIZE:
            return "replace"
        if change.removed or self._dead:
            return "overwrite" if change.added else "delete"
        return "append"

    def _summarize(self, change: _Change, loaded: Mapping[str, LoadedManifest]) -> dict[str, str]:
        """Return the summary of the snapshot, which planners of queries use."""
        live = [e.file for m in loaded.values() if m.is_data for e in m.entries]
        dead = [e.file for m in loaded.values() if not m.is_data for e in m.entries]
        removed = [f.entry.file for f in self._log.files.values() if f.entry.file.file_path in change.removed]
        counts = {
            "added-data-files": len(change.added),
            "added-records": sum(f.rows for f in change.added),
            "added-files-size": sum(f.size for f in change.added),
            "added-dvs": len(self._dead),
            "deleted-data-files": len(removed),
            "deleted-records": sum(f.record_count for f in removed),
            "removed-files-size": sum(f.file_size_in_bytes for f in removed),
        }
        totals = {
            "total-data-files": len(live),
            "total-records": sum(f.record_count for f in live),
            "total-files-size": sum(f.file_size_in_bytes for f in live),
            "total-delete-files": len(dead),
            "total-position-deletes": sum(f.record_count for f in dead),
            "total-equality-deletes": 0,
        }
        nonzero = {name: str(count) for name, count in counts.items() if count}
        stored = {self._log.scope.stored_marker(name): value for name, value in self._markers.items()}
        markers = {f"airflow-cdc.marker.{name}": str(value) for name, value in stored.items()}
        return {**nonzero, **{name: str(count) for name, count in totals.items()}, **markers}

    def _requirements(self) -> list[Requirement]:
        definition = table_updates.require_definition(self._metadata)
        if not self._definition:  # rows of files that others have no definition for are missed by nobody
            definition = [r for r in definition if r["type"] in _REQUIRED_FOR_ROWS and self._commit.operations]
        return [table_updates.require_uuid(self._metadata), table_updates.require_ref(self._metadata), *definition]

    def _updates(self, snapshot: TableSnapshot) -> list[Update]:
        metadata, log = self._metadata, self._log
        wanted = {**self._properties, FIELD_IDS_PROPERTY: field_ids_text(self._schema)}
        properties = {
            **properties_to_set(metadata.properties, wanted),
            **marker_properties(log.markers, self._markers, log.scope),
            OWN_SNAPSHOT_PROPERTY: f"{snapshot.snapshot_id}/{snapshot.sequence_number}",
        }
        return [
            *self._definition,
            table_updates.add_snapshot(snapshot),
            table_updates.set_snapshot_ref(snapshot.snapshot_id, MAIN_BRANCH, **self._retention_of_main()),
            table_updates.set_properties(properties),
        ]

    def _retention_of_main(self) -> dict[str, int]:
        """Return what is said about the retention of ``main``: a catalog forgets what an update of it does not say."""
        ref = self._metadata.refs.get(MAIN_BRANCH, {})
        return {name.replace("-", "_"): ref[name] for name in _RETENTION if ref.get(name) is not None}

    # ------------------------------------------------------------ storage

    def _add_file(self, name: str, data: bytes) -> str:
        """Add a file to those to be written, and return its location."""
        self._files[name] = data
        return self._log.location.file_location(name)

    def _write_files(self) -> None:
        self._commit.delete_on_conflict += self._files
        if not self._log.storage.is_remote:
            for name, data in self._files.items():
                self._write_file(name, data)
            return
        with ThreadPoolExecutor(len(self._files)) as pool:  # each write is a request
            for _ in pool.map(self._write_file, self._files.keys(), self._files.values()):
                pass

    def _write_file(self, name: str, data: bytes) -> None:
        self._log.storage.write(name, data)
        if name.startswith(f"{VECTOR_FOLDER}/"):
            failpoint("iceberg.after_vectors")
        elif is_manifest_list(name):
            failpoint("iceberg.after_list")
        else:
            failpoint("iceberg.after_manifest")


#: Members of a branch that say how long its snapshots are kept.
_RETENTION = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")
#: What commits of rows require of the definition: that they have the columns and partitions of the table.
_REQUIRED_FOR_ROWS = ("assert-current-schema-id", "assert-default-spec-id")


def _defined_schema_and_spec(
    metadata: TableMetadata, definition: Iterable[Update]
) -> tuple[IcebergSchema, PartitionSpec]:
    """Return the schema and the partition spec that a table has after its definition has changed."""
    schema, spec = metadata.current_schema, metadata.default_spec
    for update in definition:
        if update["action"] == "set-current-schema":
            schema = metadata.schemas[update["schema-id"]]
        elif update["action"] == "add-spec":
            spec = parse_partition_spec(update["spec"])
        elif update["action"] == "set-default-spec" and update["spec-id"] != table_updates.LAST_ADDED:
            spec = metadata.partition_specs[update["spec-id"]]
    return schema, spec
