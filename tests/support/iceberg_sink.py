"""Iceberg sinks whose catalog is a file."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_cdc.config.catalog_settings import DEFAULT_CATALOG_FILE, SQL, CatalogSettings
from airflow_provider_cdc.sinks.iceberg.catalogs.open_catalog import open_catalog
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import Catalog, CatalogTable
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable


def catalog_file(folder: Path) -> CatalogSettings:
    """The catalog of a sink for which none is configured."""
    return CatalogSettings(SQL, f"sqlite:///{folder}/{DEFAULT_CATALOG_FILE}")


def catalog_of(target: IcebergSinkTable) -> Catalog:
    """Another client of the catalog of a table, whose folder is in that of its database."""
    return open_catalog(catalog_file(Path(target.storage.location()).parents[1]))


def loaded_table(target: IcebergSinkTable) -> CatalogTable:
    """A table as its catalog has it."""
    table = catalog_of(target).load_table(target.identifier)
    assert table is not None
    return table


def metadata_file(target: IcebergSinkTable) -> Path:
    """The newest metadata of a table."""
    return Path(str(loaded_table(target).metadata_location).removeprefix("file://"))
