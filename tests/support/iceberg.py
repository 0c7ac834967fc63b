"""An Iceberg table in a folder, written with nothing but what `sinks/iceberg/format` gives, and other readers of it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable
from pyroaring import BitMap

from airflow_provider_cdc.sinks.iceberg.format import table_updates
from airflow_provider_cdc.sinks.iceberg.format.manifest_list import (
    ManifestContent,
    ManifestFile,
    assign_inherited,
    read_manifest_list,
    write_manifest_list,
)
from airflow_provider_cdc.sinks.iceberg.format.manifests import (
    PUFFIN,
    ContentFile,
    EntryStatus,
    FileContent,
    ManifestEntry,
    ManifestHeader,
    read_manifest,
    write_manifest,
)
from airflow_provider_cdc.sinks.iceberg.format.partition_spec import new_partition_spec
from airflow_provider_cdc.sinks.iceberg.format.puffin import write_vectors_file
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema
from airflow_provider_cdc.sinks.iceberg.format.snapshots import make_snapshot, new_snapshot_id
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata, new_metadata, parse_metadata
from airflow_provider_cdc.sinks.iceberg.format.values import encode_value, values_of_array


@dataclass
class FolderTable:
    """A table in a folder. Each commit writes all that there is about it again, as simply as can be."""

    folder: Path
    metadata: TableMetadata
    commits: int = 0
    now_ms: int = 1_700_000_000_000
    dead: dict[str, BitMap] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        folder: Path,
        schema: IcebergSchema,
        version: int = 3,
        partition: Sequence[tuple[str, str]] = (),
        properties: Mapping[str, str] | None = None,
    ) -> FolderTable:
        for name in ("data", "metadata"):
            (folder / name).mkdir(parents=True)
        spec = new_partition_spec(schema, partition)
        metadata = new_metadata(version, folder.as_uri(), schema, spec, properties or {}, 1_700_000_000_000)
        table = cls(folder, metadata)
        table.write_metadata()
        return table

    @property
    def metadata_file(self) -> Path:
        """The newest metadata."""
        return self.folder / "metadata" / f"{self.commits:05}.metadata.json"

    def write_metadata(self) -> None:
        self.metadata_file.write_bytes(self.metadata.to_bytes())

    def store(self, name: str, data: bytes) -> str:
        (self.folder / name).write_bytes(data)
        return f"{self.metadata.location}/{name}"

    def load(self, location: str) -> bytes:
        return Path(location.removeprefix("file://")).read_bytes()

    def write_rows(self, rows: pa.Table) -> list[ContentFile]:
        """One file of each partition, in the partitions' order."""
        schema, spec = self.metadata.current_schema, self.metadata.default_spec
        rows = rows.select(schema.columns).cast(schema.arrow_schema())
        values = {number: values_of_array(array) for number, array in spec.apply(rows, schema).items()}
        tuples = [*zip(*values.values(), strict=True)] or [()] * rows.num_rows
        files = []
        for key in sorted(set(tuples), key=repr):
            part = rows.filter(pa.array([own == key for own in tuples]))
            path = f"data/{uuid.uuid4().hex}.parquet"
            pq.write_table(part, self.folder / path)
            first, *_ = schema.fields
            numbers = sorted(v for v in values_of_array(part[first.name].combine_chunks()))
            kind = schema.primitive_type_of(first.id)
            assert kind is not None
            files.append(
                ContentFile(
                    f"{self.metadata.location}/{path}",
                    part.num_rows,
                    (self.folder / path).stat().st_size,
                    partition=dict(zip(values, key, strict=True)),
                    lower_bounds={first.id: encode_value(kind, numbers[0])},
                    upper_bounds={first.id: encode_value(kind, numbers[-1])},
                    null_value_counts={first.id: 0},
                )
            )
        return files

    def manifests(self) -> list[ManifestFile]:
        """Those of the current snapshot."""
        snapshot = self.metadata.current_snapshot
        return [] if snapshot is None else read_manifest_list(self.load(snapshot.manifest_list), snapshot.manifest_list)

    def entries(self, content: ManifestContent = ManifestContent.DATA) -> list[ManifestEntry]:
        """Live ones, with what they inherit."""
        manifests = [m for m in self.manifests() if m.content is content]
        found = [entry for m in manifests for entry in read_manifest(self.load(m.manifest_path), m)]
        return [entry for entry in found if entry.is_live]

    def commit(
        self,
        added: Sequence[ContentFile] = (),
        dead: Mapping[str, BitMap] | None = None,
        properties: Mapping[str, str] | None = None,
        more: Sequence[table_updates.Update] = (),
    ) -> None:
        """Add files, and let rows die, in one snapshot."""
        metadata, snapshot_id = self.metadata, new_snapshot_id(self.metadata.snapshots)
        version, sequence_number = metadata.format_version, metadata.last_sequence_number + 1
        manifests = self.manifests()
        name = f"metadata/{snapshot_id}"
        if added:
            header = ManifestHeader(version, ManifestContent.DATA, metadata.default_spec, metadata.current_schema)
            entries = [ManifestEntry(EntryStatus.ADDED, file, snapshot_id) for file in added]
            location = f"{metadata.location}/{name}-m0.avro"
            data, manifest = write_manifest(header, entries, location, snapshot_id)
            self.store(f"{name}-m0.avro", data)
            manifests.append(manifest)
        if dead:
            manifests = [m for m in manifests if m.content is ManifestContent.DATA]
            manifests.append(self._write_deletes(dead, snapshot_id, name))
        manifests, next_row_id = assign_inherited(manifests, sequence_number, metadata.next_row_id)
        parent = metadata.current_snapshot.snapshot_id if metadata.current_snapshot else None
        data = write_manifest_list(manifests, version, snapshot_id, parent, sequence_number, metadata.next_row_id)
        location = self.store(f"{name}-list.avro", data)
        snapshot = make_snapshot(
            snapshot_id,
            parent,
            sequence_number,
            self.now_ms,
            location,
            "overwrite" if dead else "append",
            metadata.current_schema.schema_id,
            first_row_id=metadata.next_row_id,
            added_rows=None if next_row_id is None else next_row_id - (metadata.next_row_id or 0),
        )
        updates = [
            *more,
            table_updates.add_snapshot(snapshot),
            table_updates.set_snapshot_ref(snapshot_id),
            table_updates.set_properties(properties or {}),
        ]
        self.update(updates)

    def update(self, updates: Sequence[table_updates.Update]) -> None:
        self.now_ms += 1000
        self.metadata = table_updates.apply_updates(self.metadata, updates, self.now_ms, self.metadata_file.as_uri())
        self.commits += 1
        self.write_metadata()
        assert parse_metadata(self.metadata_file.read_bytes(), "x").json == self.metadata.json

    def _write_deletes(self, dead: Mapping[str, BitMap], snapshot_id: int, name: str) -> ManifestFile:
        metadata = self.metadata
        partitions = {entry.file.file_path: entry.file.partition for entry in self.entries()}
        total = {path: rows | self.dead.get(path, BitMap()) for path, rows in dead.items()}
        data, places = write_vectors_file(total, "tests 1.0")
        location = self.store(f"data/{snapshot_id}.puffin", data)
        entries = [
            entry.as_deleted(snapshot_id) if entry.file.referenced_data_file in total else entry.as_existing()
            for entry in self.entries(ManifestContent.DELETES)
        ]
        for path, place in places.items():
            vector = ContentFile(
                location,
                place.cardinality,
                len(data),
                FileContent.POSITION_DELETES,
                PUFFIN,
                partitions[path],
                referenced_data_file=path,
                content_offset=place.offset,
                content_size_in_bytes=place.length,
            )
            entries.append(ManifestEntry(EntryStatus.ADDED, vector, snapshot_id))
        header = ManifestHeader(3, ManifestContent.DELETES, metadata.default_spec, metadata.current_schema)
        written, manifest = write_manifest(header, entries, f"{metadata.location}/{name}-d0.avro", snapshot_id)
        self.store(f"{name}-d0.avro", written)
        self.dead |= total
        return manifest


def read_with_pyiceberg(metadata_file: Path, **options: Any) -> pa.Table:
    return StaticTable.from_metadata(metadata_file.as_uri()).scan(**options).to_arrow()


@contextmanager
def duckdb_with_iceberg() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with its extension from PyPI: itself, it would fetch it from a server of its own."""
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        for name in ("avro", "iceberg"):
            package = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent
            connection.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def read_with_duckdb(metadata_file: Path, columns: str = "*") -> pa.Table:
    with duckdb_with_iceberg() as connection:
        return connection.execute(f"SELECT {columns} FROM iceberg_scan('{metadata_file}')").to_arrow_table()


def read_with_polars(metadata_file: Path) -> pa.Table:
    """By Polars' own reader of data files; it asks pyiceberg which ones there are."""
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # else it recommends another package
    return pl.scan_iceberg(metadata_file.as_uri(), reader_override="native").collect().to_arrow()
