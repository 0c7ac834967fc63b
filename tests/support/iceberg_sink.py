"""Iceberg sinks whose catalog is a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import Catalog
from airflow_provider_cdc.sinks.iceberg.catalogs.sql_catalog import SqlCatalog
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable


@dataclass(frozen=True)
class SqliteCatalog:
    """Opens a catalog in a file."""

    path: str

    def __call__(self) -> Catalog:
        return SqlCatalog(f"sqlite:///{self.path}", "iceberg")


def metadata_file(target: IcebergSinkTable) -> Path:
    """The newest metadata of a table, whose catalog is beside the folder of its database."""
    catalog = SqliteCatalog(str(Path(target.storage.location()).parents[1] / "catalog.db"))()
    table = catalog.load_table(target.identifier)
    assert table is not None
    return Path(str(table.metadata_location).removeprefix("file://"))
