"""Catalogs of Iceberg tables, as ``sink.catalog`` and Airflow connections of type ``iceberg`` configure them.

A connection is read as Airflow's own Iceberg provider does: the host is the ``uri``, login and password are client id
and secret, and the extra has further properties by pyiceberg's names. ``sink.catalog`` has properties by the same
names, but no secrets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from posixpath import dirname
from typing import Any, Protocol
from urllib.parse import urlsplit

from airflow_provider_cdc.config.connections import ResolvedConnection
from airflow_provider_cdc.config.store_access import StoreAccess, parse_store_access
from airflow_provider_cdc.config.store_address import StoreAddress, local_folder_of
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import check_choice, invalid_value

#: Type of connections that name a catalog.
ICEBERG_CONNECTION = "iceberg"
REST, SQL = "rest", "sql"
#: Types that pyiceberg has, and that have REST endpoints of their own as well.
_OTHER_TYPES = ("glue", "hive", "dynamodb", "bigquery", "in-memory")
_REST_ENDPOINTS = "Use type rest with the REST endpoint of that catalog, or type sql"
#: Name of the catalog in a SQL database, and its file below ``sink.path``, where nothing else is configured.
DEFAULT_CATALOG_NAME, DEFAULT_CATALOG_FILE = "iceberg", "iceberg_catalog.db"
#: Namespace of tables whose path has only one part.
_DEFAULT_NAMESPACE = ("default",)

_COMMON = ("type", "uri")
_SQL_PROPERTIES = ("name",)
_REST_PROPERTIES = (
    *("warehouse", "prefix", "scope", "audience", "resource", "oauth2-server-uri", "client.region"),
    *("rest.sigv4-enabled", "rest.signing-region", "rest.signing-name"),
)
#: Properties that only a connection may have: secrets, and files on hosts.
_REST_SECRETS = (
    *("token", "credential", "client.access-key-id", "client.secret-access-key", "client.session-token"),
    *("client.profile-name", "ssl"),
)
_HEADER_PREFIX = "header."
#: Properties of S3, by the names that connections of type ``aws`` have for them.
_S3_PROPERTIES = {
    "s3.region": "region_name",
    "s3.endpoint": "endpoint_url",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.role-arn": "role_arn",
}
_VIRTUAL_ADDRESSING = "s3.force-virtual-addressing"
_S3_FROM_CLIENT = ("region", "access-key-id", "secret-access-key", "session-token")


class _SinkFields(Protocol):
    """The settings of a sink that are used."""

    @property
    def path(self) -> str: ...
    @property
    def catalog(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class CatalogSettings:
    """A catalog. Its ``repr`` shows no secret; they are in ``access``, which is passed to tasks like passwords.

    :param kind: ``rest`` or ``sql``.
    :param uri: address of the server, or SQLAlchemy URL of the database, without login and password.
    :param properties: further properties, by pyiceberg's names.
    :param access: what a connection specifies of the catalog and of the object store; ``None`` without a connection.
    """

    kind: str
    uri: str
    properties: tuple[tuple[str, str], ...] = ()
    access: StoreAccess | None = field(default=None, repr=False)

    def is_file_in(self, path: str) -> bool:
        """Return whether it is a file of SQLite right below a folder, such as ``sink.path``."""
        folder = local_folder_of(path) if StoreAddress.parse(path) is None else None
        file = self.uri.removeprefix("sqlite:///").partition("?")[0]
        return folder is not None and self.uri.startswith("sqlite:///") and dirname(file) == folder.rstrip("/")

    @property
    def store(self) -> StoreAccess | None:
        """Access to the object store with the files; ``None`` to use the environment of each host."""
        return self.access if self.access is not None and self.access.store else None

    @property
    def all_properties(self) -> dict[str, Any]:
        """All properties, **with the secrets**."""
        secret = dict(self.access.catalog) if self.access else {}
        merged: dict[str, Any] = {**secret, **dict(self.properties), "uri": self.uri}
        if "ssl" in merged:
            merged["ssl"] = json.loads(merged["ssl"])
        return merged


def check_catalog(catalog: object) -> dict[str, str]:
    """Return ``sink.catalog`` as properties.

    :raises NotReadyError: for the first property that is not usable, by name. No value is shown but that of ``type``.
    """
    if catalog is None:
        return {}
    if not isinstance(catalog, Mapping):
        shown = catalog if catalog in (REST, SQL, *_OTHER_TYPES) else type(catalog).__name__  # another could be secret
        raise invalid_value("sink.catalog", shown, "a mapping such as {type: rest, uri: https://...}")
    kind = _check_type("sink.catalog.type", catalog["type"]) if "type" in catalog else None
    # Without a type, it may be that of the connection.
    known = (*_COMMON, *(_REST_PROPERTIES if kind != SQL else ()), *(_SQL_PROPERTIES if kind != REST else ()))
    properties = dict[str, str]()
    for name, value in catalog.items():
        if name in (*_REST_SECRETS, "password", "login") or str(name).startswith((_HEADER_PREFIX, "s3.")):
            raise NotReadyError(
                f"sink.catalog.{name} belongs in a connection",
                "Put it into the extra of a connection of type iceberg, and name that in sink.conn_id",
            )
        if name not in known:
            raise NotReadyError(f"unknown key sink.catalog.{str(name)[:80]}", f"The keys here are {', '.join(known)}")
        properties[name] = _to_text("sink.catalog", name, value)
    if "uri" in properties and kind:
        _check_uri("sink.catalog.uri", kind, properties["uri"])
    return properties


def parse_catalog_connection(conn: ResolvedConnection) -> StoreAccess:
    """Parse a connection of type ``iceberg``.

    :raises NotReadyError: if it has another type, or specifies something that would have no effect.
    """
    what = f"connection {conn.conn_id}"
    if conn.conn_type != ICEBERG_CONNECTION:
        raise NotReadyError(f"{what} is of type {conn.conn_type}", "For an Iceberg catalog it must be iceberg")
    extra = {name: value for name, value in conn.extra.items() if value not in (None, "", {}, [])}
    if conn.host:
        extra["uri"] = conn.host.rstrip("/") if str(extra.get("type", REST)) == REST else conn.host
    kind = _check_type(f"{what}: extra 'type'", extra.get("type", REST))
    if "uri" in extra:
        _check_uri(f"{what}: its uri", kind, str(extra["uri"]))
    known = (*_COMMON, *(_SQL_PROPERTIES if kind == SQL else (*_REST_PROPERTIES, *_REST_SECRETS)))
    catalog, s3 = dict[str, str](), dict[str, Any]()
    for name, value in extra.items():
        if name in _S3_PROPERTIES or name == _VIRTUAL_ADDRESSING:
            s3[name] = value
        elif name in known or (kind == REST and name.startswith(_HEADER_PREFIX)):
            catalog[name] = _to_text(what, name, value)
        else:
            shown = ", ".join((*known, f"{_HEADER_PREFIX}*" if kind == REST else "", *_S3_PROPERTIES))
            raise NotReadyError(f"{what}: extra {name!r} is not supported", f"Use only {shown.replace(', , ', ', ')}")
    if bool(conn.login) != bool(conn.password):
        raise NotReadyError(f"{what} has only one of login (client id) and password (client secret)", "Give both")
    if conn.login and kind == REST:
        catalog["credential"] = f"{conn.login}:{conn.password}"
    elif conn.login:
        catalog |= {"login": conn.login, "password": str(conn.password)}
    access = _parse_s3(conn, s3, catalog)
    return replace(access, catalog=tuple(sorted(catalog.items())))


def catalog_settings(settings: _SinkFields, access: StoreAccess | None) -> CatalogSettings:
    """Return the catalog of a sink: that of its connection and of ``sink.catalog``, else a file below ``sink.path``.

    :param access: what the connection in ``sink.conn_id`` specifies.
    :raises NotReadyError: if there is no catalog, or the two contradict each other.
    """
    own, given = check_catalog(settings.catalog), dict(access.catalog) if access else {}
    for name in own.keys() & given.keys():
        if own[name] != given[name]:
            raise NotReadyError(
                f"sink.catalog.{name} is not what {access.label if access else ''} has", "Leave one of them out"
            )
    merged = {**{name: value for name, value in given.items() if name in _PUBLIC}, **own}
    if not own and not given:
        folder = local_folder_of(settings.path) if StoreAddress.parse(settings.path) is None else None
        if folder is None:
            raise NotReadyError(
                "sink.path is in an object store, and there is no catalog for its tables",
                "Name a connection of type iceberg in sink.conn_id, or set sink.catalog",
            )
        if access is None:
            merged = {"type": SQL, "uri": f"sqlite:///{folder.rstrip('/')}/{DEFAULT_CATALOG_FILE}"}
    kind, uri = merged.pop("type", REST), merged.pop("uri", None)
    if uri is None:
        raise NotReadyError(
            "the catalog has no uri", "Set sink.catalog.uri, or the host of the connection in sink.conn_id"
        )
    _check_uri("the uri of the catalog", kind, uri)
    for name in merged:
        if name not in (_REST_PROPERTIES if kind == REST else _SQL_PROPERTIES):
            raise NotReadyError(f"sink.catalog.{name} is set, and a {kind} catalog has no {name}", "Leave it out")
    return CatalogSettings(kind, uri, tuple(sorted(merged.items())), access)


def table_identifier(folder: str) -> tuple[tuple[str, ...], str]:
    """Return namespace and name, in its catalog, of the table in a folder.

    :param folder: path of the table below ``sink.path``.
    """
    *namespace, name = folder.split("/")
    return tuple(namespace) or _DEFAULT_NAMESPACE, name


#: Properties that may be shown.
_PUBLIC = frozenset((*_COMMON, *_SQL_PROPERTIES, *_REST_PROPERTIES))


def _check_type(key: str, value: object) -> str:
    check_choice(key, value, (REST, SQL), _OTHER_TYPES, _REST_ENDPOINTS)
    return str(value)


def _check_uri(key: str, kind: str, uri: str) -> None:
    """Reject an address that is none of this kind, or has a password. It is never shown."""
    schemes = ("http", "https") if kind == REST else ("sqlite", "postgresql")
    example = "https://host/path" if kind == REST else "postgresql://host/database or sqlite:////data/catalog.db"
    try:
        parts = urlsplit(uri)
        is_valid = parts.scheme.partition("+")[0] in schemes
        has_login = "@" in parts.netloc or "password" in parts.query.lower()
    except ValueError:
        is_valid = has_login = False
    if not is_valid:
        raise NotReadyError(f"{key} is no address of a {kind.upper()} catalog", f"Write it as {example}")
    if has_login:
        raise NotReadyError(f"{key} has a login in it", "Put login and password into the fields of a connection")
    if parts.scheme.startswith("sqlite") and not uri.startswith("sqlite:////"):
        raise NotReadyError(
            f"{key} names no absolute path", "Write it as sqlite:////data/catalog.db, with four slashes"
        )


def _to_text(what: str, name: str, value: object) -> str:
    if name == "ssl" and isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, bool):
        return str(value).lower()
    if name == "ssl" or not isinstance(value, str | int) or value == "":
        raise NotReadyError(f"{what}: {name!r} has no usable value", "Write it as pyiceberg does; ssl is an object")
    return str(value)


def _parse_s3(conn: ResolvedConnection, s3: Mapping[str, Any], catalog: Mapping[str, str]) -> StoreAccess:
    """Return the access to S3 that the properties specify; one without a store if there are none."""
    extra = {_S3_PROPERTIES[name]: value for name, value in s3.items() if name in _S3_PROPERTIES}
    if not s3:
        return StoreAccess("", f"connection {conn.conn_id}")
    for name in _S3_FROM_CLIENT:
        if f"client.{name}" in catalog and (name == "region" or "s3.access-key-id" not in s3):
            extra.setdefault(_S3_PROPERTIES[f"s3.{name}"], catalog[f"client.{name}"])
    if _VIRTUAL_ADDRESSING in s3:
        style = "virtual" if str(s3[_VIRTUAL_ADDRESSING]).lower() == "true" else "path"
        extra["config_kwargs"] = {"s3": {"addressing_style": style}}
    return parse_store_access(ResolvedConnection(conn.conn_id, "aws", extra=extra))
