"""Catalogs of Iceberg tables in settings and connections: what is read, what is refused, and where secrets are."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.config.catalog_settings import (
    CatalogSettings,
    catalog_settings,
    check_catalog,
    parse_catalog_connection,
)
from airflow_provider_cdc.config.connections import ResolvedConnection
from airflow_provider_cdc.config.sink_kinds import SINK_KINDS
from airflow_provider_cdc.config.sink_section import Sink
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.sinks.iceberg.catalogs.open_catalog import open_catalog
from airflow_provider_cdc.sinks.storage.open_storage import open_storage
from airflow_provider_cdc.spark.tasks import SecretFreePickler
from tests.support.plain_sink import LISTED_KIND

URI = "https://catalog.example.com/ws"
SECRET = "top-secret"


@dataclass(frozen=True)
class SinkFields:
    path: str = "/lake"
    catalog: dict[str, Any] = field(default_factory=dict)


def connection(host: str | None = URI, **fields: Any) -> ResolvedConnection:
    extra = fields.pop("extra", {})
    return ResolvedConnection("lake", fields.pop("conn_type", "iceberg"), host=host, extra=extra, **fields)


def resolve(conn: ResolvedConnection | None = None, path: str = "/lake", **catalog: Any) -> CatalogSettings:
    return catalog_settings(SinkFields(path, catalog), parse_catalog_connection(conn) if conn else None)


def test_without_a_catalog_there_is_a_file_below_the_sink() -> None:
    for path in ("/lake", "/lake/", "file:///lake"):
        settings = resolve(path=path)
        assert (settings.kind, settings.uri, settings.store) == ("sql", "sqlite:////lake/iceberg_catalog.db", None)
    assert open_catalog(settings).name == "SQL catalog sqlite:////lake/iceberg_catalog.db"
    with pytest.raises(NotReadyError, match="sink.path is in an object store, and there is no catalog") as error:
        resolve(path="s3://bucket/lake")
    assert error.value.remedy == "Name a connection of type iceberg in sink.conn_id, or set sink.catalog"


def test_a_connection_is_read_as_airflow_reads_it() -> None:
    extra = {"warehouse": "main", "scope": "PRINCIPAL_ROLE:ALL", "header.X-Tenant": "blue", "rest.sigv4-enabled": True}
    settings = resolve(connection(f"{URI}/", login="id", password=SECRET, extra=extra))
    assert (settings.kind, settings.uri) == ("rest", URI)
    assert settings.all_properties == {
        "uri": URI,
        "warehouse": "main",
        "scope": "PRINCIPAL_ROLE:ALL",
        "credential": f"id:{SECRET}",
        "header.X-Tenant": "blue",
        "rest.sigv4-enabled": "true",
    }
    assert open_catalog(settings).name == f"REST catalog {URI}"
    by_extra = resolve(connection(None, extra={"type": "rest", "uri": URI, "token": "abc", "ssl": {"cabundle": "/x"}}))
    properties = by_extra.all_properties
    assert (properties["uri"], properties["token"], properties["ssl"]) == (URI, "abc", {"cabundle": "/x"})


def test_settings_and_connection_complete_each_other() -> None:
    settings = resolve(connection(None, login="id", password=SECRET), type="rest", uri=URI, warehouse="main")
    assert settings.all_properties["credential"] == f"id:{SECRET}"
    assert (settings.uri, dict(settings.properties)) == (URI, {"warehouse": "main"})
    with pytest.raises(NotReadyError, match=r"sink.catalog.uri is not what connection lake has\. Leave one of them"):
        resolve(connection(), uri="https://other.example.com")
    with pytest.raises(NotReadyError, match="the catalog has no uri"):
        resolve(connection(None), warehouse="main")
    with pytest.raises(NotReadyError, match=r"sink.catalog.name is set, and a rest catalog has no name\. Leave it out"):
        resolve(connection(), name="prod")
    with pytest.raises(NotReadyError, match="the uri of the catalog is no address of a REST catalog"):
        resolve(uri="sqlite:////data/c.db")


def test_sql_catalogs() -> None:
    conn = connection("postgresql://db.example.com:5433/lake", login="u", password=SECRET, extra={"type": "sql"})
    settings = resolve(conn, name="prod")
    catalog: Any = open_catalog(settings)
    assert catalog.name == "SQL catalog postgresql+psycopg://u:***@db.example.com:5433/lake"
    url = catalog._engine.url
    assert url.password == SECRET and url.query["sslmode"] == "verify-full", "as for the state database"
    assert catalog._catalog_name == "prod"
    local: Any = open_catalog(resolve(type="sql", uri="postgresql+psycopg://127.0.0.1/lake"))
    assert dict(local._engine.url.query) == {} and local._catalog_name == "iceberg"
    assert resolve(type="sql", uri="sqlite:////data/c.db").uri == "sqlite:////data/c.db"


@pytest.mark.parametrize(
    ("catalog", "message", "remedy"),
    [
        ({"type": "glue", "uri": URI}, "sink.catalog.type: 'glue' is not supported yet", "Use type rest with the REST"),
        ({"type": "x", "uri": URI}, "sink.catalog.type is 'x'", "It must be one of rest, sql"),
        (
            {"type": "rest", "uri": "catalog.example.com"},
            "sink.catalog.uri is no address of a REST catalog",
            "Write it as https://",
        ),
        (
            {"type": "rest", "uri": f"https://u:{SECRET}@x"},
            "sink.catalog.uri has a login in it",
            "Put login and password into",
        ),
        ({"type": "sql", "uri": URI}, "sink.catalog.uri is no address of a SQL catalog", "Write it as postgresql://"),
        ({"type": "sql", "uri": "mysql://x/y"}, "sink.catalog.uri is no address of a SQL catalog", "Write it as"),
        (
            {"type": "sql", "uri": "sqlite:///c.db"},
            "sink.catalog.uri names no absolute path",
            "Write it as sqlite:////",
        ),
        ({"type": "sql", "uri": f"postgresql://h/d?password={SECRET}"}, "has a login in it", "Put login and password"),
        ({"uri": URI, "token": SECRET}, "sink.catalog.token belongs in a connection", "Put it into the extra of a"),
        ({"uri": URI, "header.Authorization": SECRET}, "sink.catalog.header.Authorization belongs in", "Put it into"),
        ({"uri": URI, "s3.endpoint": "http://x"}, "sink.catalog.s3.endpoint belongs in a connection", "Put it into"),
        ({"uri": URI, "wharehouse": "x"}, "unknown key sink.catalog.wharehouse", "The keys here are type, uri"),
        ({"type": "sql", "uri": "sqlite:////c", "warehouse": "x"}, "unknown key sink.catalog.warehouse", "The keys"),
        ({"uri": URI, "warehouse": ["x"]}, "sink.catalog: 'warehouse' has no usable value", "Write it as pyiceberg"),
        ("sql", "sink.catalog is 'sql'", "It must be a mapping such as"),
        ("postgresql://u:sesame@h/d", "sink.catalog is 'str'", "It must be a mapping such as"),
    ],
)
def test_settings_that_are_refused(catalog: Any, message: str, remedy: str) -> None:
    with pytest.raises(NotReadyError) as error:
        check_catalog(catalog)
    assert message in error.value.message and error.value.remedy.startswith(remedy)
    assert SECRET not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("conn", "message"),
    [
        (connection(conn_type="mysql"), "connection lake is of type mysql"),
        (connection(login="id"), "connection lake has only one of login"),
        (connection(password=SECRET), "connection lake has only one of login"),
        (connection(extra={"type": "hive"}), "connection lake: extra 'type': 'hive' is not supported yet"),
        (connection(extra={"py-io-impl": "x"}), "connection lake: extra 'py-io-impl' is not supported"),
        (connection(f"https://u:{SECRET}@x"), "connection lake: its uri has a login in it"),
        (connection("nothing"), "connection lake: its uri is no address of a REST catalog"),
        (connection(extra={"ssl": "/x"}), "connection lake: 'ssl' has no usable value"),
        (connection(extra={"s3.access-key-id": "AKIA"}), "connection lake needs both a login (access key id)"),
    ],
)
def test_connections_that_are_refused(conn: ResolvedConnection, message: str) -> None:
    with pytest.raises(NotReadyError) as error:
        parse_catalog_connection(conn)
    assert message in error.value.message and error.value.remedy
    assert SECRET not in str(error.value) and "\n" not in str(error.value)


def test_the_same_connection_opens_the_store() -> None:
    extra = {
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.access-key-id": "AKIA",
        "s3.secret-access-key": SECRET,
        "s3.region": "eu-west-1",
        "s3.force-virtual-addressing": False,
    }
    settings = resolve(connection(extra=extra), path="s3://bucket/lake")
    assert settings.store is not None and settings.store.aws_keys == ("AKIA", SECRET, None)
    assert dict(settings.store.config) == {
        "region": "eu-west-1",
        "endpoint": "http://127.0.0.1:9000",
        "virtual_hosted_style_request": False,
    }
    settings.store.check_path("s3://bucket/lake")
    with pytest.raises(NotReadyError, match="connection lake is not for the store that sink.path names"):
        settings.store.check_path("gs://bucket/lake")
    shared = {
        "client.access-key-id": "AKIA",
        "client.secret-access-key": SECRET,
        "client.region": "r",
        "s3.region": "q",
    }
    store = resolve(connection(extra=shared), path="s3://bucket/lake").store
    assert store is not None and store.aws_keys == ("AKIA", SECRET, None) and dict(store.config)["region"] == "q"


def test_a_connection_without_a_store_leaves_it_to_the_environment() -> None:
    settings = resolve(connection(), path="s3://bucket/lake")
    assert settings.store is None and settings.access is not None
    for path in ("s3://bucket/lake", "gs://bucket/lake", "/lake"):
        settings.access.check_path(path)
    storage: Any = open_storage("s3://bucket/lake", settings.access)
    assert storage.access is None


def test_secrets_are_shown_nowhere() -> None:
    extra = {"token": SECRET + "1", "header.X-Key": SECRET + "2", "client.secret-access-key": SECRET + "3"}
    conn = connection(login="id", password=SECRET, extra=extra)
    settings = resolve(conn)
    assert SECRET not in repr(settings) and SECRET not in repr(settings.access)
    assert settings.access is not None
    for secrets in (settings.access.secrets, conn.secrets):
        assert {SECRET, SECRET + "1", SECRET + "2", SECRET + "3"} <= {*secrets}
    pickler = SecretFreePickler()
    packed = pickler.pack({"sink": settings})
    assert SECRET.encode() not in packed and SECRET.encode() in pickle.dumps(settings)
    assert pickler.unpack(packed) == {"sink": settings}
    assert hash(settings) == hash(dataclasses.replace(settings))


def test_a_catalog_without_encryption_is_a_risk() -> None:
    for uri, is_risk in (("http://catalog.example.com", True), (URI, False), ("http://127.0.0.1:8181", False)):
        access = parse_catalog_connection(connection(uri))
        assert bool(access.risk and "nothing is encrypted" in access.risk) == is_risk
    assert StoreAccess("s3", "x").risk is None


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINK_KINDS, "listed", LISTED_KIND)


def test_a_sink_with_a_catalog(listed: None) -> None:
    assert Sink("/lake", kind="listed").catalog == {}
    assert Sink("/lake", kind="listed", catalog={"type": "rest", "uri": URI}).has_catalog
    with pytest.raises(NotReadyError, match="sink.path is in an object store, and there is no catalog"):
        Sink("s3://bucket/lake", kind="listed")
    with pytest.raises(NotReadyError, match="sink.catalog.token belongs in a connection"):
        Sink("/lake", kind="listed", catalog={"uri": URI, "token": SECRET})
    in_folder = Sink("/lake", kind="listed", conn_id="lake")
    assert in_folder.parse_connection(connection()).catalog == (("uri", URI),)
    with pytest.raises(NotReadyError, match="the catalog has no uri"):
        in_folder.parse_connection(connection(None))
    with pytest.raises(NotReadyError, match="connection lake is not for the store that sink.path names"):
        in_folder.parse_connection(connection(None, conn_type="aws"))
    in_store = Sink("s3://bucket/lake", kind="listed", conn_id="lake", catalog={"type": "rest", "uri": URI})
    keys = {"login": "AKIA", "password": SECRET}
    assert in_store.parse_connection(connection(None, conn_type="aws", **keys)).aws_keys == ("AKIA", SECRET, None)
    with pytest.raises(NotReadyError, match="connection lake is of type iceberg"):
        Sink("s3://bucket/lake", conn_id="lake").parse_connection(connection())


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from airflow_provider_cdc.sinks.iceberg.catalogs import rest_client, sql_tables
    from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import TableIdentifier

    for module in (rest_client, sql_tables):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    catalog = open_catalog(resolve(connection()))
    with pytest.raises(NotReadyError, match=f"the REST catalog {URI} needs pyiceberg") as error:
        catalog.load_table(TableIdentifier(("a",), "b"))
    assert error.value.remedy == 'Run on every host: pip install "airflow-provider-cdc[iceberg]"'
    with pytest.raises(NotReadyError, match="a SQL catalog in PostgreSQL needs psycopg"):
        open_catalog(resolve(type="sql", uri="postgresql://127.0.0.1/lake"))
    assert open_catalog(resolve(path=str(tmp_path))).load_table(TableIdentifier(("a",), "b")) is None
