"""Iceberg tables that are written through a catalog of this project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import (
    Catalog,
    CatalogTable,
    CommitOutcome,
    TableIdentifier,
)
from airflow_provider_cdc.sinks.iceberg.format.partition_spec import new_partition_spec
from airflow_provider_cdc.sinks.iceberg.format.schema import new_schema
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata, new_metadata
from airflow_provider_cdc.sinks.iceberg.format.table_updates import (
    Update,
    require_ref,
    require_uuid,
)
from tests.support.iceberg import FolderTable

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
SHOP = TableIdentifier(("shop",), "customer")


def empty_metadata(location: str, version: int = 3, properties: Mapping[str, str] | None = None) -> TableMetadata:
    schema = new_schema(COLUMNS, version, identifiers=["id"])
    return new_metadata(version, location, schema, new_partition_spec(schema, ()), properties or {}, 1_700_000_000_000)


def some_rows(*ids: int) -> pa.Table:
    return pa.table({"id": [*ids], "name": [f"n{i}" for i in ids]}, schema=COLUMNS)


def local_path(location: str) -> Path:
    """Hadoop's file system writes `file:/lake`, this project `file:///lake`."""
    return Path("/" + location.removeprefix("file:").lstrip("/"))


@dataclass
class CatalogFolderTable(FolderTable):
    """A table in a folder whose commits go through a catalog."""

    catalog: Catalog = field(kw_only=True)
    identifier: TableIdentifier = SHOP
    base: CatalogTable = field(kw_only=True)
    outcome: CommitOutcome | None = None

    @classmethod
    def make(
        cls, catalog: Catalog, location: str, identifier: TableIdentifier = SHOP, version: int = 3
    ) -> CatalogFolderTable:
        """Create the table; the catalog may give it another place."""
        created = catalog.create_table(identifier, empty_metadata(location, version))
        assert created is not None
        return cls.of(catalog, created, identifier)

    @classmethod
    def of(cls, catalog: Catalog, base: CatalogTable, identifier: TableIdentifier = SHOP) -> CatalogFolderTable:
        folder = local_path(base.metadata.location)
        for name in ("data", "metadata"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        # A REST catalog refuses a snapshot that is older than the last one.
        now_ms = base.metadata.last_updated_ms + 1
        return cls(folder, base.metadata, now_ms=now_ms, catalog=catalog, base=base, identifier=identifier)

    def load(self, location: str) -> bytes:
        return local_path(location).read_bytes()

    def update(self, updates: Sequence[Update]) -> None:
        requirements = [require_uuid(self.metadata), require_ref(self.metadata)]
        self.outcome, result = self.catalog.commit_table(self.identifier, self.base, requirements, updates)
        assert (result is not None) == (self.outcome is CommitOutcome.DONE)
        if result is not None:
            self.base, self.metadata, self.now_ms = result, result.metadata, result.metadata.last_updated_ms + 1
