"""Manifests: Avro files that list data files, or deletion vectors, of one partition spec.

A new entry has no sequence number and no ``first_row_id``: it inherits them from the manifest list, so that a manifest
need not be written again if another commit comes first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from airflow_provider_cdc.sinks.iceberg.format.avro_files import read_records, unknown_field_value, write_records
from airflow_provider_cdc.sinks.iceberg.format.manifest_list import ManifestContent, ManifestFile, PartitionSummary
from airflow_provider_cdc.sinks.iceberg.format.manifest_schemas import (
    MANIFEST_NAMES,
    METRIC_NAMES,
    avro_name,
    decimal_bytes,
    manifest_schema,
)
from airflow_provider_cdc.sinks.iceberg.format.partition_spec import PartitionSpec
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema
from airflow_provider_cdc.sinks.iceberg.format.types import PrimitiveType
from airflow_provider_cdc.sinks.iceberg.format.values import encode_value

PARQUET, PUFFIN = "PARQUET", "PUFFIN"


class EntryStatus(IntEnum):
    """What a commit did to a file."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


class FileContent(IntEnum):
    """What a file contains. A deletion vector is a set of position deletes."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


class ContentFile(msgspec.Struct, frozen=True):
    """A data file, or a file of deletes; the specification calls it ``data_file``.

    :param file_path: its location.
    :param record_count: number of rows, including dead ones; for a deletion vector, number of dead rows.
    :param partition: partition values by partition field id, in the form of
        :mod:`~airflow_provider_cdc.sinks.iceberg.format.values`.
    :param column_sizes: bytes by field id, and so on; bounds are encoded.
    :param first_row_id: ``_row_id`` of its first row; ``None`` for a new file, and for deletes.
    :param referenced_data_file: location of the data file whose dead rows a deletion vector has.
    :param content_offset: where a deletion vector begins in the file.
    :param content_size_in_bytes: its length.
    """

    file_path: str
    record_count: int
    file_size_in_bytes: int
    content: int = FileContent.DATA
    file_format: str = PARQUET
    partition: Mapping[int, Any] = msgspec.field(default_factory=dict)
    column_sizes: Mapping[int, int] | None = None
    value_counts: Mapping[int, int] | None = None
    null_value_counts: Mapping[int, int] | None = None
    nan_value_counts: Mapping[int, int] | None = None
    lower_bounds: Mapping[int, bytes] | None = None
    upper_bounds: Mapping[int, bytes] | None = None
    key_metadata: bytes | None = None
    split_offsets: Sequence[int] | None = None
    equality_ids: Sequence[int] | None = None
    sort_order_id: int | None = None
    first_row_id: int | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None

    @property
    def is_deletion_vector(self) -> bool:
        """Whether it is a deletion vector in a Puffin file."""
        return self.content == FileContent.POSITION_DELETES and self.file_format.upper() == PUFFIN


class ManifestEntry(msgspec.Struct, frozen=True):
    """A file in a manifest.

    :param snapshot_id: the snapshot that added the file, or deleted it; ``None`` if inherited.
    :param sequence_number: data sequence number; ``None`` if inherited.
    :param file_sequence_number: sequence number of the snapshot that added the file; ``None`` if inherited.
    """

    status: int
    file: ContentFile
    snapshot_id: int | None = None
    sequence_number: int | None = None
    file_sequence_number: int | None = None

    @property
    def is_live(self) -> bool:
        """Whether the file is part of the snapshot."""
        return self.status != EntryStatus.DELETED

    def as_existing(self) -> ManifestEntry:
        """Return the entry for a manifest that lists the file again."""
        return replace(self, status=EntryStatus.EXISTING)

    def as_deleted(self, snapshot_id: int) -> ManifestEntry:
        """Return the entry that removes the file."""
        return replace(self, status=EntryStatus.DELETED, snapshot_id=snapshot_id)


@dataclass(frozen=True)
class ManifestHeader:
    """What all entries of a manifest have in common.

    :param schema: schema of the table.
    """

    format_version: int
    content: ManifestContent
    spec: PartitionSpec
    schema: IcebergSchema

    @property
    def partition(self) -> tuple[tuple[int, str, PrimitiveType], ...]:
        """Id, name and type of each partition field."""
        types = self.spec.result_types(self.schema)
        return tuple((part.field_id, part.name, types[part.field_id]) for part in self.spec.fields)


def write_manifest(
    header: ManifestHeader, entries: Sequence[ManifestEntry], location: str, snapshot_id: int
) -> tuple[bytes, ManifestFile]:
    """Return the bytes of a manifest, and its entry for the manifest list.

    :param location: where it will be stored.
    :param snapshot_id: the snapshot that adds it.
    :raises ValueError: if an entry lacks something that its status or the format version requires.
    """
    partition = header.partition
    for entry in entries:
        _check_entry(header, entry)
    records = (_to_record(entry, header.format_version, partition) for entry in entries)
    properties = {
        "schema": json.dumps(header.schema.to_json()),
        "schema-id": str(header.schema.schema_id),
        "partition-spec": json.dumps(header.spec.to_json()["fields"]),
        "partition-spec-id": str(header.spec.spec_id),
        "format-version": str(header.format_version),
        "content": header.content.name.lower(),
    }
    data = write_records(manifest_schema(partition, header.format_version), records, properties)
    explicit = [e.sequence_number for e in entries if e.is_live and e.sequence_number is not None]
    counts = {status: [e.file.record_count for e in entries if e.status == status] for status in EntryStatus}
    return data, ManifestFile(
        location,
        len(data),
        header.spec.spec_id,
        header.content,
        None,
        min(explicit, default=None),
        snapshot_id,
        added_files_count=len(counts[EntryStatus.ADDED]),
        existing_files_count=len(counts[EntryStatus.EXISTING]),
        deleted_files_count=len(counts[EntryStatus.DELETED]),
        added_rows_count=sum(counts[EntryStatus.ADDED]),
        existing_rows_count=sum(counts[EntryStatus.EXISTING]),
        deleted_rows_count=sum(counts[EntryStatus.DELETED]),
        partitions=tuple(
            _summarize_partition([entry.file.partition.get(number) for entry in entries], kind)
            for number, _, kind in partition
        ),
    )


def read_manifest(data: bytes, manifest: ManifestFile) -> list[ManifestEntry]:
    """Return the entries of a manifest, with what they inherit.

    :param data: its bytes.
    :param manifest: its entry in the manifest list of a snapshot.
    :raises TerminalError: if it is damaged.
    """
    records, _ = read_records(data, MANIFEST_NAMES, manifest.manifest_path)
    next_row_id = manifest.first_row_id
    for record in records:
        values = record["data_file"]
        if next_row_id is None:
            values["first_row_id"] = None  # written before the table had row ids
        elif record["status"] != EntryStatus.DELETED and values.get("first_row_id") is None:
            values["first_row_id"] = next_row_id
            next_row_id += values["record_count"]
    return [_from_record(record, manifest) for record in records]


def assign_row_ids(entries: Iterable[ManifestEntry], first_row_id: int | None) -> tuple[ManifestEntry, ...]:
    """Return the live entries of a manifest with the row ids that their files inherit.

    :param first_row_id: that of the manifest; ``None`` if it has none.
    """
    assigned = list[ManifestEntry]()
    for entry in entries:
        if first_row_id is not None and entry.file.first_row_id is None:
            file = msgspec.structs.replace(entry.file, first_row_id=first_row_id)
            entry, first_row_id = msgspec.structs.replace(entry, file=file), first_row_id + file.record_count
        assigned.append(entry)
    return tuple(assigned)


def _check_entry(header: ManifestHeader, entry: ManifestEntry) -> None:
    file, problem = entry.file, None
    if (file.content == FileContent.DATA) != (header.content is ManifestContent.DATA):
        problem = f"a manifest of {header.content.name.lower()} cannot list it"
    elif entry.status != EntryStatus.ADDED and None in (entry.sequence_number, entry.file_sequence_number):
        problem = "it is not new, and has no sequence numbers"
    elif entry.status == EntryStatus.ADDED and file.first_row_id is not None:
        problem = "it is new, and has a first_row_id"
    elif header.format_version < 3 and (file.is_deletion_vector or file.first_row_id is not None):
        problem = f"format version {header.format_version} has neither deletion vectors nor row ids"
    elif file.is_deletion_vector and None in (
        file.referenced_data_file,
        file.content_offset,
        file.content_size_in_bytes,
    ):
        problem = "it is a deletion vector without a data file or a place"
    elif file.content == FileContent.POSITION_DELETES and header.format_version >= 3 and not file.is_deletion_vector:
        problem = "format version 3 allows no new files of position deletes" if entry.status == 1 else None
    if problem:
        raise ValueError(f"{file.file_path}: {problem}")


def _to_record(
    entry: ManifestEntry, format_version: int, partition: Iterable[tuple[int, str, PrimitiveType]]
) -> dict[str, Any]:
    file = entry.file
    values = {avro_name(name): _to_avro(file.partition.get(number), kind) for number, name, kind in partition}
    data_file: dict[str, Any] = {
        "content": int(file.content),
        "file_path": file.file_path,
        "file_format": file.file_format,
        "partition": values,
        "record_count": file.record_count,
        "file_size_in_bytes": file.file_size_in_bytes,
        "key_metadata": file.key_metadata,
        "split_offsets": file.split_offsets,
        "equality_ids": file.equality_ids,
        "sort_order_id": file.sort_order_id,
        "referenced_data_file": file.referenced_data_file,
    }
    for name in METRIC_NAMES:
        metric = getattr(file, name)
        if metric is not None:
            data_file[name] = [{"key": number, "value": value} for number, value in metric.items()]
    if format_version >= 3:
        data_file["first_row_id"] = file.first_row_id
        data_file["content_offset"] = file.content_offset
        data_file["content_size_in_bytes"] = file.content_size_in_bytes
    return {
        "status": int(entry.status),
        "snapshot_id": entry.snapshot_id,
        "sequence_number": entry.sequence_number,
        "file_sequence_number": entry.file_sequence_number,
        "data_file": data_file,
    }


def _from_record(record: Mapping[str, Any], manifest: ManifestFile) -> ManifestEntry:
    """Return the entry of a record."""
    values = record["data_file"]
    metrics = {
        name: {pair["key"]: pair["value"] for pair in values[name]}
        for name in METRIC_NAMES
        if values.get(name) is not None
    }
    file = ContentFile(
        values["file_path"],
        values["record_count"],
        values["file_size_in_bytes"],
        values.get("content") or FileContent.DATA,
        values["file_format"].upper(),
        dict(unknown_field_value(*value) for value in values["partition"].items()),
        **metrics,
        key_metadata=values.get("key_metadata"),
        split_offsets=values.get("split_offsets"),
        equality_ids=values.get("equality_ids"),
        sort_order_id=values.get("sort_order_id"),
        first_row_id=values.get("first_row_id"),
        referenced_data_file=values.get("referenced_data_file"),
        content_offset=values.get("content_offset"),
        content_size_in_bytes=values.get("content_size_in_bytes"),
    )
    snapshot_id, sequence_number = record.get("snapshot_id"), record.get("sequence_number")
    file_sequence_number = record.get("file_sequence_number")
    inherits = record["status"] == EntryStatus.ADDED or manifest.sequence_number == 0
    return ManifestEntry(
        record["status"],
        file,
        manifest.added_snapshot_id if snapshot_id is None else snapshot_id,
        manifest.sequence_number if sequence_number is None and inherits else sequence_number,
        manifest.sequence_number if file_sequence_number is None and inherits else file_sequence_number,
    )


def _summarize_partition(values: Sequence[Any], kind: PrimitiveType) -> PartitionSummary:
    numbers = [value for value in values if value is not None and value == value]
    has_nan = len(numbers) < sum(value is not None for value in values)
    # Of the two zeros of a float, the negative one comes first.
    ordered = sorted(numbers, key=lambda value: (value, str(value)[:1] != "-") if isinstance(value, float) else value)
    return PartitionSummary(
        any(value is None for value in values),
        has_nan if kind.name in ("float", "double") else None,
        encode_value(kind, ordered[0]) if ordered else None,
        encode_value(kind, ordered[-1]) if ordered else None,
    )


def _to_avro(value: Any, kind: PrimitiveType) -> Any:
    digits = kind.decimal_digits
    if value is None or digits is None:
        return value
    return int(value).to_bytes(decimal_bytes(digits[0]), "big", signed=True)
