"""The log of an Iceberg table: its newest version, as the catalog and the table's files say.

A commit is a compare-and-set in the catalog: what was decided on the current snapshot becomes its child, or fails.
Every write of a marker makes a snapshot, because properties alone are not compared.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyroaring import BitMap

from airflow_provider_cdc.config.table_properties import OWN_PREFIX
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import Catalog, CatalogTable, CommitOutcome, TableIdentifier
from airflow_provider_cdc.sinks.iceberg.format import table_updates
from airflow_provider_cdc.sinks.iceberg.format.manifests import ContentFile, ManifestEntry
from airflow_provider_cdc.sinks.iceberg.format.partition_spec import describe_partition_field, partition_field_name
from airflow_provider_cdc.sinks.iceberg.format.puffin import read_vector_blob
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema
from airflow_provider_cdc.sinks.iceberg.format.snapshots import ancestors_of
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.log.column_ids import identify_columns
from airflow_provider_cdc.sinks.iceberg.log.folder_owner import FolderOwner, take_folder
from airflow_provider_cdc.sinks.iceberg.log.known_versions import (
    KnownVersion,
    find_newest_version,
    is_newer,
    remember_version,
)
from airflow_provider_cdc.sinks.iceberg.log.live_file import IcebergLiveFile
from airflow_provider_cdc.sinks.iceberg.log.retained_files import find_retained_paths
from airflow_provider_cdc.sinks.iceberg.log.snapshot_commit import SnapshotCommit
from airflow_provider_cdc.sinks.iceberg.log.snapshot_files import LoadedManifest, SnapshotReader
from airflow_provider_cdc.sinks.iceberg.log.table_location import TableLocation, location_of
from airflow_provider_cdc.sinks.iceberg.log.table_markers import parse_markers
from airflow_provider_cdc.sinks.lake.log.source_scope import WHOLE_TABLE, SourceScope
from airflow_provider_cdc.sinks.lake.table_checks import owner_of
from airflow_provider_cdc.sinks.storage.storage import Storage
from airflow_provider_cdc.system.failpoints import failpoint

#: Property with id and sequence number of the last snapshot that this project has made.
OWN_SNAPSHOT_PROPERTY = f"{OWN_PREFIX}snapshot"
#: Property with the field ids of the columns that this project has given the table.
FIELD_IDS_PROPERTY = f"{OWN_PREFIX}field-ids"


@dataclass
class IcebergLog:
    """The log of one table. Not thread-safe.

    :param storage: storage of the table's folder.
    :param open_catalog: returns the catalog for the current thread.
    :param identifier: name of the table in the catalog.
    :param needs_vectors: whether rows are to be deleted by deletion vectors.
    :param scope: what of the table this log shows in :attr:`files` and :attr:`markers`.
    """

    storage: Storage
    open_catalog: Callable[[], Catalog]
    identifier: TableIdentifier
    needs_vectors: bool = False
    scope: SourceScope = WHOLE_TABLE
    files: dict[str, IcebergLiveFile] = field(default_factory=dict)
    #: Live files of other source tables.
    other_files: dict[str, IcebergLiveFile] = field(default_factory=dict)
    markers: dict[str, int] = field(default_factory=dict)
    #: Manifests of the current snapshot by location.
    manifests: dict[str, LoadedManifest] = field(default_factory=dict)
    #: Files in which dead rows may be alive again, or that may come back: what is known of their rows is invalid.
    revived_files: set[str] = field(default_factory=set)
    _table: CatalogTable | None = None
    _dead_rows: dict[str, tuple[ContentFile, BitMap]] = field(default_factory=dict)
    _retained_paths: frozenset[str] | None = None
    _known_version: KnownVersion | None = None
    _refreshed_at: float = 0.0
    _reader: SnapshotReader | None = None
    _definition: object = None

    @property
    def name(self) -> str:
        """Name of the table in messages."""
        return f"Iceberg table {self.identifier}"

    @property
    def seconds_since_refresh(self) -> float:
        """Seconds since the log was last checked for newer versions."""
        return abs(time.time() - self._refreshed_at)

    @property
    def is_loaded(self) -> bool:
        """Whether a version has been read."""
        return self._table is not None

    @property
    def table(self) -> CatalogTable:
        """The table as the catalog has it; a version must have been read."""
        assert self._table is not None, "no version has been read"
        return self._table

    @property
    def metadata(self) -> TableMetadata:
        """The metadata of this version."""
        return self.table.metadata

    @property
    def location(self) -> TableLocation:
        """Location of the table."""
        return TableLocation(self.metadata.location)

    @property
    def reader(self) -> SnapshotReader:
        """Reader of its snapshots."""
        if self._reader is None or self._reader.location.location != self.location.location:
            self._reader = SnapshotReader(self.storage, self.location)
        return self._reader

    @property
    def all_files(self) -> Mapping[str, IcebergLiveFile]:
        """Live files by path, including those of other source tables."""
        return ChainMap(self.files, self.other_files) if self.other_files else self.files

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties of the table."""
        return self._table.metadata.properties if self._table else {}

    @property
    def partition_columns(self) -> Sequence[str]:
        """Descriptions of the partition fields; for one that this project would not have made, also its transform."""
        spec, names = self.metadata.default_spec, {f.id: f.name for f in self.metadata.current_schema.fields}
        columns = list[str]()
        for part in spec.fields:
            transform, source = part.transform, str(names.get(part.source_ids[0]))
            is_own = part.name == partition_field_name(source, transform)
            own, other = describe_partition_field(part.name, transform), f"{part.name} ({transform.text} of {source})"
            columns.append(own if is_own else other)
        return columns

    @property
    def table_id(self) -> str | None:
        """The number of the table."""
        return self._table.metadata.table_uuid if self._table else None

    @property
    def definition(self) -> object:
        """What identifies columns, partitioning and properties of the table."""
        metadata = self.metadata
        own = {n: v for n, v in metadata.properties.items() if not n.startswith(_CHANGING_PROPERTIES)}
        signature = (metadata.table_uuid, metadata.json["current-schema-id"], metadata.json["default-spec-id"], own)
        if signature != self._definition:
            self._definition = signature
        return self._definition

    @property
    def has_own_columns(self) -> bool:
        """Whether the columns are those that this project has given the table, and not others of the same names."""
        text = self.properties.get(FIELD_IDS_PROPERTY)
        return text is None or text == field_ids_text(self.metadata.current_schema)

    def identify_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return columns with what identifies them in the files of this version."""
        return identify_columns(columns, self.metadata.current_schema, self.properties, self.name)

    def exists(self) -> bool:
        """Return whether the table exists."""
        return self._table is not None or self._load_table() is not None

    def find_metadata(self) -> TableMetadata | None:
        """Return the newest metadata, without reading the files of a version; ``None`` if there is no table."""
        table = self._load_table()
        return None if table is None else table.metadata

    def refresh(self) -> None:
        """Advance to the newest version.

        :raises TerminalError: if there is no table, it uses something that is not supported, or its ``main`` branch
            does not have the last snapshot of this project.
        :raises NotReadyError: if its format version lacks deletion vectors, and they are needed.
        """
        self.catch_up()
        try:
            self._advance_to(self._require_table())
        except (TerminalError, NotReadyError):
            self._reset()  # so that nothing is committed on it
            raise

    def dead_rows(self, path: str) -> BitMap:
        """Return the dead rows of a file, none if it is not live; callers must not modify the result."""
        file = self.all_files.get(path)
        if file is None or file.vector is None:
            return BitMap()
        vector = file.vector.file
        known, rows = self._dead_rows.get(path, (None, None))
        if rows is None or known is not vector:
            rows = self._read_vector(vector)
            self._dead_rows[path] = (vector, rows)
        return rows

    def references(self, path: str) -> bool:
        """Return whether a data file is, or was until recently, part of the table."""
        if path in self.all_files:
            return True
        if self._retained_paths is None:
            self._retained_paths = find_retained_paths(self.storage, self.reader, self.metadata)
        return path in self._retained_paths

    def take_folder(self) -> None:
        """Let the table's folder belong to this table.

        :raises TerminalError: if it belongs to another one.
        """
        owner = FolderOwner(self.metadata.table_uuid, str(self.identifier), self.open_catalog().name)
        take_folder(self.storage, self.name, owner)

    def cross_check_files(self) -> None:
        """Check that only this table has files here, and pyiceberg finds the same, before they are permanently deleted.

        :raises TransientError: if pyiceberg cannot read the manifests now.
        :raises TerminalError: if it finds other files, or the folder belongs to another table.
        """
        self.take_folder()
        from airflow_provider_cdc.sinks.iceberg.log.cross_check import check_live_files  # loads pyiceberg

        paths = {f.entry.file.file_path for f in self.all_files.values()}
        check_live_files(self.reader, self.name, self.metadata, paths)

    def catch_up(self) -> None:
        """Advance to the newest version that this process knows of a table that several sources share."""
        if self._table is None or self.scope.source is None:
            return
        newest = find_newest_version(self.metadata.table_uuid)
        if newest is not None and is_newer(newest.table.metadata, self.metadata):
            refreshed_at = self._refreshed_at
            self._set_version(newest.table, newest.manifests)
            self._refreshed_at = refreshed_at

    def commit(self, commit: SnapshotCommit) -> CommitOutcome:
        """Make the next snapshot.

        :returns: ``DONE``; ``CONFLICT`` if another writer has made a snapshot instead; ``UNKNOWN`` if the catalog calls
            it a conflict, and the table that it shows does not prove it: it may be an older one, and the catalog may
            have repeated a commit that it had made.
        :raises TransientError: if the catalog did not answer, or the commit cannot be made now.
        """
        self._refreshed_at = 0.0  # unless it succeeds, nobody knows
        catalog, base = self.open_catalog(), self.table
        failpoint("iceberg.before_swap")
        outcome, table = catalog.commit_table(self.identifier, base, commit.requirements, commit.updates)
        failpoint("iceberg.after_swap")
        if table is None:  # it may have been made all the same: the first response was lost
            table = self._load_table()
            if table is None or commit.snapshot.snapshot_id not in table.metadata.snapshots:
                if outcome is CommitOutcome.CONFLICT:
                    is_lost = table is not None and commit.has_lost_against(table.metadata, base.metadata)
                    return CommitOutcome.CONFLICT if is_lost else CommitOutcome.UNKNOWN
                raise TransientError(
                    f"it is unknown whether snapshot {commit.snapshot.snapshot_id} of the {self.name} was committed: "
                    f"the {catalog.name} did not confirm it",
                    "Check the catalog, then run again",
                )
        current = table.metadata.current_snapshot
        if current is not None and current.snapshot_id == commit.snapshot.snapshot_id:
            self._set_version(table, commit.manifests, is_own=True)
            for path, rows in commit.dead_rows.items():
                if (file := self.files.get(path)) is not None and file.vector is not None:
                    self._dead_rows[path] = (file.vector.file, rows)
        else:  # others have committed since
            self._advance_to(table)
        return CommitOutcome.DONE

    def remove_snapshots(self, snapshot_ids: Sequence[int]) -> None:
        """Remove snapshots from the metadata, unless a branch or tag of this version has changed; no row changes."""
        metadata = self.metadata
        refs = [table_updates.require_ref(metadata, name) for name in metadata.refs]
        requirements = [table_updates.require_uuid(metadata), *refs]
        removal = table_updates.remove_snapshots(snapshot_ids)
        self._refreshed_at = 0.0  # unless it succeeds, nobody knows
        _, table = self.open_catalog().commit_table(self.identifier, self.table, requirements, [removal])
        if table is not None:
            self._advance_to(table)

    def add_schema(self, schema: IcebergSchema, last_column_id: int, *, make_current: bool = False) -> TableMetadata:
        """Add a schema to the table; no row or marker changes.

        :param make_current: whether to make it the current one.
        :returns: the newest metadata, which has the schema unless another writer was faster.
        """
        table = self._table or self._require_table()
        definition = table_updates.require_definition(table.metadata)
        requirements = [
            table_updates.require_uuid(table.metadata),
            *(r for r in definition if "last-assigned-field-id" in r),
        ]
        updates = [table_updates.add_schema(schema, last_column_id)]
        if make_current:
            ids = {FIELD_IDS_PROPERTY: field_ids_text(schema)}
            updates += [table_updates.set_current_schema(), table_updates.set_properties(ids)]
            requirements = [table_updates.require_uuid(table.metadata), *definition]
        _, changed = self.open_catalog().commit_table(self.identifier, table, requirements, updates)
        changed = changed or self._require_table()
        if self._table is not None:
            self._advance_to(changed)
        return changed.metadata

    # ------------------------------------------------------------ reading

    def _load_table(self) -> CatalogTable | None:
        return self.open_catalog().load_table(self.identifier)

    def _require_table(self) -> CatalogTable:
        table = self._load_table()
        if table is None:
            raise TerminalError(f"the {self.name} is missing", "Start with a fresh sink.path, or restore it")
        return table

    def _advance_to(self, table: CatalogTable) -> None:
        metadata, known = table.metadata, self._table.metadata if self._table else None
        if known is not None and known.table_uuid != metadata.table_uuid:
            self._reset()  # another table: nothing is known of it
            known = None
        if metadata is known:
            self._refreshed_at = time.time()
            return
        self._check_supported(metadata)
        self._check_history(metadata)
        snapshot = metadata.current_snapshot
        manifests: Mapping[str, LoadedManifest] = self.manifests
        if snapshot is None:
            manifests = {}
        elif known is None or known.current_snapshot is None or known.current_snapshot.json != snapshot.json:
            reader = SnapshotReader(self.storage, TableLocation(metadata.location))
            known_manifests: Mapping[str, LoadedManifest] = self.manifests
            if self.scope.source is not None and (newest := find_newest_version(metadata.table_uuid)) is not None:
                known_manifests = ChainMap(dict(known_manifests), dict(newest.manifests))
            manifests = reader.load_manifests(reader.read_list(snapshot.manifest_list), known_manifests)
        self._set_version(table, manifests)

    def _check_supported(self, metadata: TableMetadata) -> None:
        if not TableLocation(metadata.location).is_folder(self.storage):
            raise TerminalError(
                f"the {self.name} lies at {metadata.location}, and not at {location_of(self.storage)}",
                "Let sink.path and sink.table_path name its folder, or use another name for the table",
            )
        if self.needs_vectors and metadata.format_version < 3:
            text = f"has format version {metadata.format_version}, which has no deletion vectors"
            remedy = (
                "Set sink.merge to copy_on_write for this table. Or upgrade it, if all of its readers support version "
                "3: ALTER TABLE t SET TBLPROPERTIES ('format-version' = '3')"
            )
            if owner_of(metadata.properties) is None:
                text = f"was not created by this project, and {text}"
                remedy = f"Choose another sink.path. To let sink.adopt take it over: {remedy}"
            raise NotReadyError(f"the {self.name} {text}", remedy)

    def _check_history(self, metadata: TableMetadata) -> None:
        """Refuse a table whose current snapshot is not based on the last one of this project: rows would be missing."""
        text = metadata.properties.get(OWN_SNAPSHOT_PROPERTY)
        if text is None:
            return
        snapshot_id, _, sequence_number = text.partition("/")
        current = metadata.current_snapshot
        is_cut = False
        for snapshot in ancestors_of(metadata.snapshots, current.snapshot_id if current else None):
            if str(snapshot.snapshot_id) == snapshot_id:
                return
            if snapshot.sequence_number <= int(sequence_number):
                break
            is_cut = snapshot.parent_snapshot_id is not None and snapshot.parent_snapshot_id not in metadata.snapshots
        if is_cut and int(snapshot_id) not in metadata.snapshots:  # it has expired, and everything since is newer
            return
        raise TerminalError(
            f"the current snapshot of the {self.name} is {current.snapshot_id if current else 'none'}, which is not "
            f"based on snapshot {snapshot_id}, the last one of this pipeline: its main branch was rolled back or "
            "replaced",
            f"Make snapshot {snapshot_id} the current one again, in Spark with CALL system.set_current_snapshot; or "
            "start with a fresh sink.path",
        )

    def _set_version(
        self, table: CatalogTable, manifests: Mapping[str, LoadedManifest], *, is_own: bool = False
    ) -> None:
        """Let this log have a version.

        :param is_own: whether this log has made it. Own commits only add dead rows; others may change them in any way.
        """
        metadata = table.metadata
        location, schema, specs = TableLocation(metadata.location), metadata.current_schema, metadata.partition_specs
        vectors = {
            entry.file.referenced_data_file: entry
            for manifest in manifests.values()
            if not manifest.is_data
            for entry in manifest.entries
        }
        old_files, files, other_files = self.all_files, dict[str, IcebergLiveFile](), dict[str, IcebergLiveFile]()
        for manifest in manifests.values():
            if not manifest.is_data:
                continue
            spec = specs[manifest.manifest.partition_spec_id]
            spec_schema = metadata.schema_of_spec(spec, schema)
            for entry in manifest.entries:
                vector = vectors.get(entry.file.file_path)
                path = location.path_of(entry.file.file_path)
                old = old_files.get(path)
                is_same_schema = old is not None and old.schema.schema_id == schema.schema_id
                if old is None or not is_same_schema or old.entry.file is not entry.file or old.vector is not vector:
                    if old is not None and not is_own and not _is_same_vector(old, vector):
                        self.revived_files.add(path)
                    file = IcebergLiveFile(path, entry, vector, schema, spec, spec_schema)
                else:
                    file = old
                (files if self.scope.has_file(file.partition) else other_files)[path] = file
        removed = old_files.keys() - files.keys() - other_files.keys()
        self.revived_files |= removed  # removed, but may be added again
        for path in removed:
            self._dead_rows.pop(path, None)
        self._table, self.files, self.other_files, self.manifests = table, files, other_files, dict(manifests)
        own_markers = (
            (self.scope.own_marker(name), value) for name, value in parse_markers(metadata.properties).items()
        )
        self.markers = {name: value for name, value in own_markers if name is not None}
        self._retained_paths = None
        self._refreshed_at = time.time()
        if self.scope.source is not None:
            self._known_version = remember_version(table, self.manifests)  # the others find it as long as a log has it

    def _reset(self) -> None:
        self.revived_files |= self.all_files.keys()
        self._table, self.files, self.other_files, self.manifests = None, {}, {}, {}
        self.markers, self._dead_rows = {}, {}

    def _read_vector(self, vector: ContentFile) -> BitMap:
        assert vector.content_offset is not None and vector.content_size_in_bytes is not None
        with self.storage.open(self.location.path_of(vector.file_path), "rb") as file:
            file.seek(vector.content_offset)
            data = file.read(vector.content_size_in_bytes)
        return read_vector_blob(data, vector.record_count, vector.file_path)


#: Prefixes of properties that change with commits.
_CHANGING_PROPERTIES = (f"{OWN_PREFIX}marker", OWN_SNAPSHOT_PROPERTY)


def field_ids_text(schema: IcebergSchema) -> str:
    """Return the value of :data:`FIELD_IDS_PROPERTY` for the columns of a schema."""
    return ",".join(str(nested.id) for nested in schema.fields)


def _is_same_vector(file: IcebergLiveFile, vector: ManifestEntry | None) -> bool:
    """Return whether a file still has the same deletion vector, though another manifest may list it."""
    old, new = (v.file if v else None for v in (file.vector, vector))
    if old is None or new is None:
        return old is new
    return (old.file_path, old.content_offset) == (new.file_path, new.content_offset)
