"""A version of a table: the JSON of its metadata, in which everything that others have written is retained."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.iceberg.format.partition_spec import (
    LAST_UNUSED_FIELD_ID,
    PartitionSpec,
    parse_partition_spec,
)
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema, parse_schema
from airflow_provider_cdc.sinks.iceberg.format.snapshots import BRANCH, MAIN_BRANCH, TableSnapshot
from airflow_provider_cdc.sinks.iceberg.format.types import FORMAT_VERSIONS

_GZIP_MAGIC = b"\x1f\x8b"
_REQUIRED = (
    *("table-uuid", "location", "last-sequence-number", "last-updated-ms", "last-column-id", "schemas"),
    *("current-schema-id", "partition-specs", "default-spec-id", "last-partition-id"),
)


@dataclass(frozen=True)
class TableMetadata:
    """The metadata of a table.

    :param json: its JSON, of a format version that is supported.
    """

    json: Mapping[str, Any]

    @property
    def format_version(self) -> int:
        """Version of the format."""
        return int(self.json["format-version"])

    @property
    def table_uuid(self) -> str:
        """Identifies the table, whatever its name."""
        return str(self.json["table-uuid"])

    @property
    def location(self) -> str:
        """Location of its files, without a slash at the end."""
        return str(self.json["location"]).rstrip("/")

    @property
    def last_sequence_number(self) -> int:
        """The number of the last commit."""
        return int(self.json["last-sequence-number"])

    @property
    def last_updated_ms(self) -> int:
        """When it was changed last."""
        return int(self.json["last-updated-ms"])

    @property
    def last_column_id(self) -> int:
        """The highest field id that it has ever had."""
        return int(self.json["last-column-id"])

    @property
    def last_partition_id(self) -> int:
        """The highest partition field id that it has ever had."""
        return int(self.json["last-partition-id"])

    @property
    def next_row_id(self) -> int | None:
        """The first unused ``_row_id``; ``None`` before version 3."""
        return int(self.json.get("next-row-id") or 0) if self.format_version >= 3 else None

    @property
    def properties(self) -> Mapping[str, str]:
        """Its properties."""
        return self.json.get("properties") or {}

    @cached_property
    def schemas(self) -> Mapping[int, IcebergSchema]:
        """Its schemas by id."""
        return {schema.schema_id: schema for schema in map(parse_schema, self.json["schemas"])}

    @property
    def current_schema(self) -> IcebergSchema:
        """Its current schema."""
        return self.schemas[self.json["current-schema-id"]]

    @cached_property
    def partition_specs(self) -> Mapping[int, PartitionSpec]:
        """Its partition specs by id."""
        return {spec.spec_id: spec for spec in map(parse_partition_spec, self.json["partition-specs"])}

    @property
    def default_spec(self) -> PartitionSpec:
        """The partition spec of new files."""
        return self.partition_specs[self.json["default-spec-id"]]

    def schema_of_spec(self, spec: PartitionSpec, schema: IcebergSchema) -> IcebergSchema:
        """Return a schema with the columns of a partition spec, some of which may have been dropped since.

        :param schema: this one, if it has all of them; else the newest one that has.
        """
        source_ids = {number for part in spec.fields for number in part.source_ids}
        candidates = [schema, *(self.schemas[number] for number in sorted(self.schemas, reverse=True))]
        return next((s for s in candidates if source_ids <= {field.id for field in s.fields}), schema)

    @cached_property
    def snapshots(self) -> Mapping[int, TableSnapshot]:
        """Its snapshots by id, in the order in which they were made."""
        return {snapshot["snapshot-id"]: TableSnapshot(snapshot) for snapshot in self.json.get("snapshots") or ()}

    @cached_property
    def refs(self) -> Mapping[str, Mapping[str, Any]]:
        """Its branches and tags by name, as JSON. There is a ``main`` branch if there is a current snapshot."""
        refs = dict(self.json.get("refs") or {})
        current = self.json.get("current-snapshot-id")
        if MAIN_BRANCH not in refs and current not in (None, -1):
            refs[MAIN_BRANCH] = {"snapshot-id": current, "type": BRANCH}
        return refs

    @property
    def current_snapshot(self) -> TableSnapshot | None:
        """The snapshot of ``main``; ``None`` if nothing was written yet.

        :raises TerminalError: if it is missing.
        """
        if MAIN_BRANCH not in self.refs:
            return None
        snapshot_id = self.refs[MAIN_BRANCH]["snapshot-id"]
        if snapshot_id not in self.snapshots:
            raise TerminalError(
                f"the current snapshot {snapshot_id} of the Iceberg table at {self.location} is missing in its "
                "metadata",
                "Roll the table back to an existing snapshot, or restore its metadata from a backup",
            )
        return self.snapshots[snapshot_id]

    def to_bytes(self) -> bytes:
        """Return the text of its JSON."""
        return json.dumps(self.json, separators=(",", ":")).encode()


def may_delete_files(metadata: TableMetadata) -> bool:
    """Return whether snapshots may expire and files be deleted: not if other tables use the same files."""
    return metadata.properties.get("gc.enabled", "true").lower() != "false"


def parse_metadata(value: Mapping[str, Any] | bytes, location: str) -> TableMetadata:
    """Return the metadata with a JSON.

    :param value: the JSON, or the bytes of its file, which may be compressed.
    :param location: location of the file, or name of the table, for errors.
    :raises TerminalError: if it is damaged, or of a format version that is not supported.
    """
    try:
        if isinstance(value, bytes):
            value = json.loads(gzip.decompress(value) if value.startswith(_GZIP_MAGIC) else value)
        if not isinstance(value, Mapping):
            raise ValueError("it is no JSON object")
        version = value["format-version"]
        if version in FORMAT_VERSIONS:
            metadata = TableMetadata(value)
            if missing := [name for name in _REQUIRED if name not in value]:
                raise ValueError(f"it lacks {', '.join(missing)}")
            _ = metadata.current_schema, metadata.default_spec
            return metadata
    except (ValueError, KeyError, TypeError, EOFError, OSError) as error:
        raise TerminalError(
            f"the metadata of an Iceberg table in {location} is damaged: {error}",
            "Restore the file from a backup, or register an older metadata file in the catalog",
        ) from None
    versions = " and ".join(map(str, FORMAT_VERSIONS))
    raise TerminalError(
        f"the Iceberg table in {location} has format version {version}; this version supports {versions}",
        "Use another table; one of version 1 can be upgraded, in Spark with "
        "ALTER TABLE t SET TBLPROPERTIES ('format-version' = '2')",
    )


def new_metadata(
    format_version: int,
    location: str,
    schema: IcebergSchema,
    spec: PartitionSpec,
    properties: Mapping[str, str],
    now_ms: int,
) -> TableMetadata:
    """Return the metadata of a new table without snapshots.

    :param location: location of its files.
    :param now_ms: milliseconds since 1970.
    """
    return TableMetadata(
        {
            "format-version": format_version,
            "table-uuid": str(uuid.uuid4()),
            "location": location.rstrip("/"),
            "last-sequence-number": 0,
            "last-updated-ms": now_ms,
            "last-column-id": schema.highest_field_id,
            "current-schema-id": schema.schema_id,
            "schemas": [schema.to_json()],
            "default-spec-id": spec.spec_id,
            "partition-specs": [spec.to_json()],
            "last-partition-id": max((part.field_id for part in spec.fields), default=LAST_UNUSED_FIELD_ID),
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": dict(properties),
            "refs": {},
            "snapshots": [],
            "snapshot-log": [],
            "metadata-log": [],
            "statistics": [],
            "partition-statistics": [],
            **({"next-row-id": 0} if format_version >= 3 else {}),
        }
    )
