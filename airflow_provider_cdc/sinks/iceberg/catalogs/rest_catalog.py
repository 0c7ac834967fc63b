"""A catalog behind the REST protocol of Iceberg, such as Polaris, Lakekeeper, Unity, Nessie, Glue or S3 Tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import CatalogTable, CommitOutcome, TableIdentifier
from airflow_provider_cdc.sinks.iceberg.catalogs.rest_client import ResponseLostError, RestClient, RestResponse
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata, parse_metadata
from airflow_provider_cdc.sinks.iceberg.format.table_updates import Requirement, Update

_OK, _BAD_REQUEST, _NOT_FOUND, _CONFLICT, _SERVER_ERRORS = range(200, 300), 400, 404, 409, range(500, 600)


class RestCatalog:
    """A REST catalog; see :class:`~airflow_provider_cdc.sinks.iceberg.catalogs.protocol.Catalog`.

    The server writes the metadata of tables.

    :param properties: pyiceberg's properties of the catalog, such as ``uri``, ``warehouse`` and ``credential``.
    :param secrets: texts that no message may contain.
    """

    def __init__(self, properties: Mapping[str, Any], secrets: tuple[str, ...] = ()) -> None:
        uri = urlsplit(str(properties["uri"]))
        address = f"{uri.scheme}://{uri.netloc.rpartition('@')[2]}{uri.path}"  # without what could be a secret
        self._name = f"REST catalog {address}"
        self._client = RestClient(f"the {self._name}", properties, secrets)

    @property
    def name(self) -> str:
        """See :class:`Catalog`."""
        return self._name

    def check(self) -> str:
        """See :class:`Catalog`. The server's configuration is asked for, with a token if there are credentials."""
        self._client.open()
        warehouse = self._client.warehouse
        return f"{self._name}, warehouse {warehouse}" if warehouse else self._name

    def load_table(self, table: TableIdentifier) -> CatalogTable | None:
        """See :class:`Catalog`."""
        response = self._client.ask("GET", self._path_of(table))
        if response.status == _NOT_FOUND:
            return None
        if response.status not in _OK:
            raise self._client.refuse(response, f"load table {table}")
        return _parse_table(table, response)

    def create_table(self, table: TableIdentifier, metadata: TableMetadata) -> CatalogTable | None:
        """See :class:`Catalog`. The catalog may choose another location."""
        request = {
            "name": table.name,
            "location": metadata.location,
            "schema": metadata.json["schemas"][0],
            "partition-spec": metadata.json["partition-specs"][0],
            "properties": {**metadata.properties, "format-version": str(metadata.format_version)},
        }
        path = self._client.table_path(table.namespace)
        response = self._client.ask("POST", path, request)
        if response.status == _NOT_FOUND:
            self._create_namespace(table.namespace)
            response = self._client.ask("POST", path, request)
        if response.status == _CONFLICT:
            return None
        if response.status not in _OK:
            raise self._client.refuse(response, f"create table {table}")
        return _parse_table(table, response)

    def commit_table(
        self,
        table: TableIdentifier,
        base: CatalogTable,
        requirements: Sequence[Requirement],
        updates: Sequence[Update],
    ) -> tuple[CommitOutcome, CatalogTable | None]:
        """See :class:`Catalog`."""
        request = {
            "identifier": {"namespace": [*table.namespace], "name": table.name},
            "requirements": [*requirements],
            "updates": [*updates],
        }
        try:
            response = self._client.ask("POST", self._path_of(table), request)
            if response.status in _OK:
                return CommitOutcome.DONE, _parse_table(table, response, base.config)
        except ResponseLostError:
            return CommitOutcome.UNKNOWN, None
        if response.status in _SERVER_ERRORS:
            return CommitOutcome.UNKNOWN, None
        if response.status in (_CONFLICT, _NOT_FOUND):
            return CommitOutcome.CONFLICT, None
        # The numbers of a snapshot are wrong if another branch has got one: there is no requirement for that.
        if response.status == _BAD_REQUEST and self._was_changed(table, base):
            return CommitOutcome.CONFLICT, None
        raise self._client.refuse(response, f"commit to table {table}")

    def drop_table(self, table: TableIdentifier) -> None:
        """See :class:`Catalog`."""
        response = self._client.ask("DELETE", self._path_of(table), purgeRequested="false")
        if response.status not in _OK and response.status != _NOT_FOUND:
            raise self._client.refuse(response, f"drop table {table}")

    def _was_changed(self, table: TableIdentifier, base: CatalogTable) -> bool:
        """Return whether a table has changed since it was loaded."""
        current = self.load_table(table)
        return current is None or _version_of(current.metadata) != _version_of(base.metadata)

    def _create_namespace(self, namespace: tuple[str, ...]) -> None:
        """Create a namespace, and those above it, where they do not exist."""
        for depth in range(1, len(namespace) + 1):
            levels = namespace[:depth]
            response = self._client.ask("POST", "namespaces", {"namespace": [*levels], "properties": {}})
            if response.status in _OK or response.status == _CONFLICT:
                continue
            # Some answer 500, not 409, to one of two clients that create it at once.
            if response.status not in _SERVER_ERRORS or not self._namespace_exists(levels):
                raise self._client.refuse(response, f"create namespace {'.'.join(levels)}")

    def _namespace_exists(self, namespace: tuple[str, ...]) -> bool:
        return self._client.ask("GET", self._client.namespace_path(namespace)).status in _OK

    def _path_of(self, table: TableIdentifier) -> str:
        return self._client.table_path(table.namespace, table.name)


def _version_of(metadata: TableMetadata) -> tuple[object, ...]:
    numbers = metadata.last_sequence_number, metadata.next_row_id, metadata.last_updated_ms
    return metadata.table_uuid, *numbers


def _parse_table(
    table: TableIdentifier, response: RestResponse, config: Mapping[str, str] | None = None
) -> CatalogTable:
    body = response.body
    if not isinstance(body, Mapping) or not isinstance(body.get("metadata"), Mapping):
        raise ResponseLostError(
            f"the answer to a request for Iceberg table {table} has no metadata", "Check what is between it and here"
        )
    metadata = parse_metadata(body["metadata"], str(table))
    return CatalogTable(metadata, body.get("metadata-location"), body.get("config") or config or {})
