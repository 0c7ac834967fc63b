"""Manifest lists: Avro files that list the manifests of a snapshot. Each commit writes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.iceberg.format.avro_files import read_records, write_records
from airflow_provider_cdc.sinks.iceberg.format.manifest_schemas import LIST_NAMES, manifest_list_schema

#: A count that a manifest list of format version 1 does not have. It may be any number.
UNKNOWN_COUNT = -1


class ManifestContent(IntEnum):
    """What a manifest lists."""

    DATA = 0
    DELETES = 1


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """Values of one partition field in a manifest; the specification calls it ``field_summary``.

    :param contains_nan: ``None`` if the field is no floating point number.
    :param lower_bound: the lowest value, encoded; ``None`` if there is none.
    :param upper_bound: the highest value.
    """

    contains_null: bool
    contains_nan: bool | None = None
    lower_bound: bytes | None = None
    upper_bound: bytes | None = None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A manifest in a manifest list.

    :param sequence_number: sequence number of the snapshot that added it; ``None`` for a new one.
    :param min_sequence_number: the lowest data sequence number of its live files; ``None`` if it is that of the
        snapshot.
    :param first_row_id: ``_row_id`` of the first row of its first data file without one; ``None`` for deletes, and for
        a new one.
    """

    manifest_path: str
    manifest_length: int
    partition_spec_id: int
    content: ManifestContent
    sequence_number: int | None
    min_sequence_number: int | None
    added_snapshot_id: int
    added_files_count: int = 0
    existing_files_count: int = 0
    deleted_files_count: int = 0
    added_rows_count: int = 0
    existing_rows_count: int = 0
    deleted_rows_count: int = 0
    partitions: tuple[PartitionSummary, ...] | None = None
    key_metadata: bytes | None = None
    first_row_id: int | None = None

    @property
    def has_live_files(self) -> bool:
        """Whether it lists a file that is part of the snapshot, as far as its counts tell."""
        return bool(self.added_files_count or self.existing_files_count)


def assign_inherited(
    manifests: Sequence[ManifestFile], sequence_number: int, first_row_id: int | None
) -> tuple[list[ManifestFile], int | None]:
    """Give new manifests what their entries inherit.

    :param sequence_number: sequence number of the snapshot.
    :param first_row_id: ``next-row-id`` of the table; ``None`` if its format version has no row ids.
    :returns: the manifests, and the next ``next-row-id``.
    :raises TerminalError: if a manifest that needs row ids has no counts of rows.
    """
    assigned, next_row_id = list[ManifestFile](), first_row_id
    for manifest in manifests:
        if manifest.sequence_number is None:
            lowest = manifest.min_sequence_number
            manifest = replace(
                manifest,
                sequence_number=sequence_number,
                min_sequence_number=sequence_number if lowest is None else min(lowest, sequence_number),
            )
        if next_row_id is not None and manifest.content is ManifestContent.DATA and manifest.first_row_id is None:
            manifest = replace(manifest, first_row_id=next_row_id)
            _check_counts(manifest)
            # Existing files too: those of a table that was upgraded from version 2 have no row ids yet.
            next_row_id += manifest.added_rows_count + manifest.existing_rows_count
        assigned.append(manifest)
    return assigned, next_row_id


def write_manifest_list(
    manifests: Sequence[ManifestFile],
    format_version: int,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    first_row_id: int | None = None,
) -> bytes:
    """Return the bytes of a manifest list.

    :param manifests: the manifests of the snapshot, as :func:`assign_inherited` returns them.
    :param first_row_id: ``first-row-id`` of the snapshot, from version 3 on.
    """
    properties = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_snapshot_id is None else str(parent_snapshot_id),
        "sequence-number": str(sequence_number),
        "format-version": str(format_version),
        **({"first-row-id": str(first_row_id)} if format_version >= 3 else {}),
    }
    records = (_to_record(manifest) for manifest in manifests)
    return write_records(manifest_list_schema(format_version), records, properties)


def read_manifest_list(data: bytes, location: str) -> list[ManifestFile]:
    """Return the manifests in a manifest list.

    :param location: location of the file, for errors.
    :raises TerminalError: if it is damaged.
    """
    records, _ = read_records(data, LIST_NAMES, location)
    return [_from_record(record) for record in records]


def read_parent_id(data: bytes, location: str) -> int | None:
    """Return the id of the snapshot on which that of a manifest list is based; ``None`` if it does not say.

    :param location: location of the file, for errors.
    """
    _, properties = read_records(data, LIST_NAMES, location)
    text = properties.get("parent-snapshot-id", "null")
    return int(text) if text.lstrip("-").isdigit() else None


def _check_counts(manifest: ManifestFile) -> None:
    """Refuse a manifest whose rows are not counted: its row ids could be those of other rows."""
    counts = (getattr(manifest, name) for name in ManifestFile.__dataclass_fields__ if name.endswith("_count"))
    if UNKNOWN_COUNT in counts:
        raise TerminalError(
            f"the Iceberg manifest {manifest.manifest_path} has no counts of rows, as format version 1 allows",
            "Rewrite the table's manifests with Spark: CALL system.rewrite_manifests",
        )


def _to_record(manifest: ManifestFile) -> dict[str, Any]:
    _check_counts(manifest)
    record = {name: getattr(manifest, name) for name in ManifestFile.__dataclass_fields__}
    if manifest.partitions is not None:
        names = PartitionSummary.__dataclass_fields__
        record["partitions"] = [{name: getattr(summary, name) for name in names} for summary in manifest.partitions]
    return record


def _from_record(record: dict[str, Any]) -> ManifestFile:
    summaries = record.get("partitions")
    names = PartitionSummary.__dataclass_fields__
    counts = {
        name: UNKNOWN_COUNT if record.get(name) is None else record[name]
        for name in ManifestFile.__dataclass_fields__
        if name.endswith("_count")
    }
    return ManifestFile(
        record["manifest_path"],
        record["manifest_length"],
        record["partition_spec_id"],
        ManifestContent(record.get("content") or 0),
        record.get("sequence_number") or 0,
        record.get("min_sequence_number") or 0,
        record["added_snapshot_id"],
        **counts,
        partitions=None
        if summaries is None
        else tuple(PartitionSummary(*(summary.get(name) for name in names)) for summary in summaries),
        key_metadata=record.get("key_metadata"),
        first_row_id=record.get("first_row_id"),
    )
