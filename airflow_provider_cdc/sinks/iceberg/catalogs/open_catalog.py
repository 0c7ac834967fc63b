"""Opens the catalog of a sink."""

from __future__ import annotations

from airflow_provider_cdc.config.catalog_settings import DEFAULT_CATALOG_NAME, SQL, CatalogSettings
from airflow_provider_cdc.config.tls import postgres_tls_settings
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import Catalog


def open_catalog(settings: CatalogSettings) -> Catalog:
    """Return a catalog. Nothing is connected yet.

    :raises NotReadyError: if a library that it needs is not installed.
    """
    properties = settings.all_properties
    if settings.kind == SQL:
        from sqlalchemy import make_url

        from airflow_provider_cdc.sinks.iceberg.catalogs.sql_catalog import SqlCatalog

        url = make_url(settings.uri).set(username=properties.get("login"), password=properties.get("password"))
        if url.get_backend_name() == "postgresql":
            parameters = {name: str(value) for name, value in url.query.items()}
            label = settings.access.label if settings.access else "sink.catalog"
            url = url.set(query=postgres_tls_settings(label, url.host, parameters))
        return SqlCatalog(url, properties.get("name", DEFAULT_CATALOG_NAME), settings.store)
    from airflow_provider_cdc.sinks.iceberg.catalogs.rest_catalog import RestCatalog

    return RestCatalog(properties, settings.access.secrets if settings.access else ())
