"""Catalogs in SQL databases: other clients use the same tables, and what a fault of the database leaves behind."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog as TheirCatalog
from sqlalchemy import URL, event, make_url

from airflow_provider_cdc.model.errors import NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.sinks.iceberg.catalogs import sql_tables
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import CommitOutcome, TableIdentifier
from airflow_provider_cdc.sinks.iceberg.catalogs.sql_catalog import SqlCatalog
from airflow_provider_cdc.sinks.iceberg.format.table_updates import require_uuid, set_properties
from tests.support.iceberg_catalogs import COLUMNS, SHOP, CatalogFolderTable, empty_metadata, some_rows
from tests.support.object_store import access
from tests.support.postgres import Postgres
from tests.support.processes import free_port
from tests.support.proxy import Proxy
from tests.support.s3 import S3


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/catalog.db"


@pytest.fixture
def catalog(url: str) -> SqlCatalog:
    return SqlCatalog(url, "iceberg")


@pytest.fixture
def location(tmp_path: Path) -> str:
    return f"file://{tmp_path}/shop/customer"


def metadata_files(location: str) -> list[str]:
    return sorted(path.name for path in Path(location.removeprefix("file://"), "metadata").glob("*.json"))


def rows_of(table: Any) -> list[dict[str, Any]]:
    found: pa.Table = table.scan().to_arrow()
    return [*found.sort_by("id").to_pylist()]


@pytest.mark.parametrize("version", [2, 3])
def test_pyiceberg_reads_what_this_project_creates(url: str, catalog: SqlCatalog, location: str, version: int) -> None:
    table = CatalogFolderTable.make(catalog, location, version=version)
    table.commit(table.write_rows(some_rows(1, 2)))
    theirs = TheirCatalog("iceberg", uri=url)
    assert theirs.list_namespaces() == [("shop",)]
    assert theirs.list_tables("shop") == [("shop", "customer")]
    assert theirs.load_namespace_properties("shop") == {"exists": "true"}
    assert rows_of(theirs.load_table("shop.customer")) == some_rows(1, 2).to_pylist()
    assert TheirCatalog("other", uri=url).list_namespaces() == []


def test_both_write_to_a_table_that_pyiceberg_has_created(url: str, catalog: SqlCatalog, tmp_path: Path) -> None:
    theirs = TheirCatalog("iceberg", uri=url, warehouse=f"file://{tmp_path}/lake")
    theirs.create_namespace("shop")
    their_table = theirs.create_table("shop.customer", COLUMNS)
    their_table.append(some_rows(1))
    loaded = catalog.load_table(SHOP)
    assert loaded is not None and loaded.metadata.format_version == 2
    ours, stale = (CatalogFolderTable.of(catalog, loaded) for _ in range(2))
    ours.commit(ours.write_rows(some_rows(2)), properties={"airflow-cdc.stream": "2"})
    assert ours.outcome is CommitOutcome.DONE
    their_table.refresh().append(some_rows(3))
    assert rows_of(theirs.load_table("shop.customer")) == some_rows(1, 2, 3).to_pylist()
    assert their_table.refresh().properties["airflow-cdc.stream"] == "2"
    for table in (ours, stale):
        table.commit(table.write_rows(some_rows(4)))
        assert table.outcome is CommitOutcome.CONFLICT
    assert rows_of(theirs.load_table("shop.customer")) == some_rows(1, 2, 3).to_pylist()


def test_a_table_of_version_1_is_refused(url: str, catalog: SqlCatalog, tmp_path: Path) -> None:
    theirs = TheirCatalog("iceberg", uri=url, warehouse=f"file://{tmp_path}/lake")
    theirs.create_namespace("shop")
    theirs.create_table("shop.customer", COLUMNS, properties={"format-version": "1"})
    with pytest.raises(TerminalError, match="has format version 1; this version supports 2 and 3"):
        catalog.load_table(SHOP)


def test_tables_of_an_older_schema_version_are_refused_and_the_remedy_helps(
    url: str, catalog: SqlCatalog, location: str, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "catalog.db") as connection:  # as Java creates them by default
        connection.execute(
            "CREATE TABLE iceberg_tables (catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, "
            "table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), "
            "previous_metadata_location VARCHAR(1000), PRIMARY KEY (catalog_name, table_namespace, table_name))"
        )
        connection.execute(
            "CREATE TABLE iceberg_namespace_properties (catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) "
            "NOT NULL, property_key VARCHAR(255), property_value VARCHAR(1000), "
            "PRIMARY KEY (catalog_name, namespace, property_key))"
        )
    for attempt in (
        lambda: catalog.load_table(SHOP),
        lambda: catalog.create_table(SHOP, empty_metadata(location)),
    ):
        with pytest.raises(NotReadyError, match="has tables of schema version V0") as error:
            attempt()
    assert metadata_files(location) == []
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        connection.execute(error.value.remedy.partition(": ")[2])
        connection.execute("INSERT INTO iceberg_namespace_properties VALUES ('iceberg', 'shop', 'owner', 'x')")
    table = CatalogFolderTable.make(catalog, location)
    table.commit(table.write_rows(some_rows(1)))
    theirs = TheirCatalog("iceberg", uri=url)
    assert rows_of(theirs.load_table("shop.customer")) == some_rows(1).to_pylist()
    assert theirs.load_namespace_properties("shop") == {"owner": "x"}, "a namespace of others stays as it is"


def test_requirements_are_checked(catalog: SqlCatalog, location: str) -> None:
    table = CatalogFolderTable.make(catalog, location)
    of_another_table = require_uuid(empty_metadata(location))
    outcome = catalog.commit_table(SHOP, table.base, [of_another_table], [set_properties({"a": "1"})])
    assert outcome == (CommitOutcome.CONFLICT, None)
    assert catalog.load_table(SHOP) == table.base and len(metadata_files(location)) == 1


def test_a_view_is_no_table(catalog: SqlCatalog, location: str, tmp_path: Path) -> None:
    CatalogFolderTable.make(catalog, location)
    base = catalog.load_table(SHOP)
    assert base is not None
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        connection.execute("UPDATE iceberg_tables SET iceberg_type = 'VIEW'")
    with pytest.raises(TerminalError, match=r"shop.customer in the SQL catalog sqlite:///.*catalog.db is a VIEW"):
        catalog.load_table(SHOP)
    assert catalog.commit_table(SHOP, base, [], [set_properties({"a": "1"})]) == (CommitOutcome.CONFLICT, None)
    assert catalog.create_table(SHOP, empty_metadata(location)) is None


def test_namespaces_that_would_be_ambiguous_are_refused(catalog: SqlCatalog, location: str) -> None:
    for namespace in ((), ("a.b",), ("a", "")):
        with pytest.raises(NotReadyError, match="has a namespace that a SQL catalog cannot have"):
            catalog.create_table(TableIdentifier(namespace, "t"), empty_metadata(location))
    assert metadata_files(location) == []


def test_reading_creates_nothing(catalog: SqlCatalog, tmp_path: Path) -> None:
    assert catalog.load_table(SHOP) is None
    catalog.drop_table(SHOP)
    assert [*tmp_path.iterdir()] == []


def test_metadata_files_are_numbered_and_the_oldest_are_deleted(catalog: SqlCatalog, location: str) -> None:
    table = CatalogFolderTable.make(catalog, location)
    for number in range(1, 4):
        table.commit(properties={"number": str(number)})
    assert [name[:6] for name in metadata_files(location)] == ["00000-", "00001-", "00002-", "00003-"]
    assert all(re.fullmatch(r"\d{5}-[0-9a-f-]{36}\.metadata\.json", name) for name in metadata_files(location))
    limits = {
        "write.metadata.previous-versions-max": "2",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    table.commit(properties=limits)
    table.commit()
    assert [name[:6] for name in metadata_files(location)] == ["00003-", "00004-", "00005-"]
    logged = [entry["metadata-file"] for entry in table.metadata.json["metadata-log"]]
    assert [location.rpartition("/")[2] for location in logged] == metadata_files(location)[:2]


def test_metadata_files_are_where_the_table_wants_them(catalog: SqlCatalog, location: str, tmp_path: Path) -> None:
    created = catalog.create_table(
        SHOP, empty_metadata(location, properties={"write.metadata.path": f"file://{tmp_path}/elsewhere/"})
    )
    assert created is not None and created.metadata_location is not None
    assert created.metadata_location.startswith(f"file://{tmp_path}/elsewhere/00000-")
    assert len([*(tmp_path / "elsewhere").iterdir()]) == 1


def test_a_commit_without_an_answer_is_unknown_and_its_file_stays(
    catalog: SqlCatalog, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = CatalogFolderTable.make(catalog, location)
    monkeypatch.setattr(sql_tables, "_SQLITE_LOCK_SECONDS", 0.1)
    hasty = SqlCatalog(f"sqlite:///{tmp_path}/catalog.db", "iceberg")
    table.catalog = hasty
    reader = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM iceberg_tables").fetchall()  # COMMIT waits for readers
    table.commit(properties={"number": "1"})
    assert table.outcome is CommitOutcome.UNKNOWN
    assert len(metadata_files(location)) == 2
    with pytest.raises(TransientError, match="did not answer whether it has created table shop.other"):
        hasty.create_table(TableIdentifier(("shop",), "other"), empty_metadata(location + "2"))
    assert len(metadata_files(location + "2")) == 1
    reader.close()
    assert hasty.load_table(SHOP) == table.base
    outcome, _ = hasty.commit_table(SHOP, table.base, [], [set_properties({"number": "2"})])
    assert outcome is CommitOutcome.DONE


def test_a_commit_that_never_began_leaves_no_file(
    location: str, tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = CatalogFolderTable.make(catalog, location)
    monkeypatch.setattr(sql_tables, "_SQLITE_LOCK_SECONDS", 0.1)
    table.catalog = SqlCatalog(f"sqlite:///{tmp_path}/catalog.db", "iceberg")
    writer = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(TransientError, match="the SQL catalog .* is not usable: database is locked") as error:
        table.commit()
    assert error.value.remedy
    assert len(metadata_files(location)) == 1
    writer.close()


def test_a_conflict_leaves_no_file(catalog: SqlCatalog, url: str, location: str) -> None:
    first = CatalogFolderTable.make(catalog, location)
    second = CatalogFolderTable.of(SqlCatalog(url, "iceberg"), first.base)
    first.commit()
    files = metadata_files(location)
    second.commit()
    assert second.outcome is CommitOutcome.CONFLICT
    assert metadata_files(location) == files
    assert catalog.create_table(SHOP, empty_metadata(location)) is None
    assert metadata_files(location) == files


def test_a_database_that_cannot_be_used(tmp_path: Path, location: str) -> None:
    (tmp_path / "text.db").write_text("no database" * 1000)
    for name in ("text.db", "missing/catalog.db"):
        with pytest.raises(NotReadyError, match="the SQL catalog sqlite:///.*db is not usable: ") as error:
            SqlCatalog(f"sqlite:///{tmp_path}/{name}", "iceberg").create_table(SHOP, empty_metadata(location))
        assert error.value.remedy.startswith("Correct the uri of the catalog")
        assert metadata_files(location) == []


def test_a_metadata_file_that_is_missing(catalog: SqlCatalog, url: str, location: str) -> None:
    table = CatalogFolderTable.make(catalog, location)
    assert table.base.metadata_location is not None
    Path(table.base.metadata_location.removeprefix("file://")).unlink()
    with pytest.raises(
        TerminalError, match=r"the metadata file file:.*00000-.*json of the Iceberg table shop.customer"
    ):
        SqlCatalog(url, "iceberg").load_table(SHOP)


def test_a_metadata_file_that_another_writer_replaces_meanwhile(catalog: SqlCatalog, url: str, location: str) -> None:
    table = CatalogFolderTable.make(catalog, location)

    class SlowCatalog(SqlCatalog):
        def _find_metadata_location(self, identifier: TableIdentifier) -> str | None:
            found = super()._find_metadata_location(identifier)
            if found == table.base.metadata_location and not table.metadata.snapshots:
                table.commit(properties={"number": "1"})
                Path(str(found).removeprefix("file://")).unlink()
            return found

    loaded = SlowCatalog(url, "iceberg").load_table(SHOP)
    assert loaded is not None and loaded.metadata.properties["number"] == "1"


def test_files_in_an_object_store(url: str, s3: S3) -> None:
    catalog = SqlCatalog(url, "iceberg", access(s3))
    location = f"s3://{s3.bucket}/lake/shop/customer"
    created = catalog.create_table(SHOP, empty_metadata(location))
    assert created is not None
    done, _ = catalog.commit_table(SHOP, created, [], [set_properties({"a": "1"})])
    assert done is CommitOutcome.DONE
    loaded = SqlCatalog(url, "iceberg", access(s3)).load_table(SHOP)
    assert loaded is not None and loaded.metadata_location is not None
    assert loaded.metadata_location.startswith(f"{location}/metadata/00001-")


@pytest.mark.parametrize("form", ["file://{}", "file:{}", "{}"])
def test_forms_of_locations(catalog: SqlCatalog, url: str, tmp_path: Path, form: str) -> None:
    """Hadoop's file system writes one slash, and some clients none of the scheme."""
    location = form.format(tmp_path / "a b%20c" / "customer")
    created = catalog.create_table(SHOP, empty_metadata(location))
    assert created is not None and created.metadata_location is not None
    assert created.metadata_location.startswith(f"{location}/metadata/")
    assert len([*(tmp_path / "a b%20c" / "customer" / "metadata").iterdir()]) == 1
    assert SqlCatalog(url, "iceberg").load_table(SHOP) == created


def test_a_location_in_an_unknown_store(catalog: SqlCatalog) -> None:
    with pytest.raises(TerminalError, match="which is in no supported store"):
        catalog.create_table(SHOP, empty_metadata("hdfs://host/lake/customer"))


# ---------------------------------------------------------------- PostgreSQL


@pytest.fixture
def postgres_url(iceberg_postgres: Postgres) -> URL:
    iceberg_postgres.execute("DROP OWNED BY CURRENT_USER", database="iceberg")
    return make_url(iceberg_postgres.sqlalchemy_url("iceberg"))


def end_connections(server: Postgres) -> None:
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'iceberg'")


def test_pyiceberg_shares_a_catalog_in_postgresql(postgres_url: URL, location: str) -> None:
    table = CatalogFolderTable.make(SqlCatalog(postgres_url, "iceberg"), location, version=2)
    table.commit(table.write_rows(some_rows(1)))
    theirs = TheirCatalog("iceberg", uri=postgres_url.render_as_string(hide_password=False))
    their_table = theirs.load_table("shop.customer")
    assert rows_of(their_table) == some_rows(1).to_pylist()
    their_table.transaction().set_properties(owner="x").commit_transaction()
    table.commit()
    assert table.outcome is CommitOutcome.CONFLICT


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_made", [False, True])
def test_a_commit_whose_answer_is_lost(
    iceberg_postgres: Postgres, postgres_url: URL, location: str, is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection falls silent at COMMIT, or the answer to it is damaged."""
    monkeypatch.setattr(sql_tables, "SILENCE_SECONDS", 1.0)
    assert postgres_url.port
    with Proxy(postgres_url.port) as proxy:
        catalog = SqlCatalog(postgres_url.set(port=proxy.port), "iceberg")
        table = CatalogFolderTable.make(catalog, location)
        if is_made:
            proxy.replace(b"C\0\0\0\x0bCOMMIT\0", b"!\0\0\0\x0bCOMMIT\0", times=1)
        else:
            event.listen(catalog._engine, "commit", lambda _: proxy.silence(), once=True)
        table.commit(properties={"number": "1"})
        assert table.outcome is CommitOutcome.UNKNOWN
        assert len(metadata_files(location)) == 2
        loaded = catalog.load_table(SHOP)
        assert loaded is not None and (loaded.metadata.properties.get("number") == "1") == is_made
        end_connections(iceberg_postgres)  # the server holds the lock of the row until it notices
        table.commit(properties={"number": "2"})
        assert table.outcome is (CommitOutcome.CONFLICT if is_made else CommitOutcome.DONE)


def test_a_connection_that_is_lost_before_the_commit(
    postgres_url: URL, location: str, iceberg_postgres: Postgres
) -> None:
    catalog = SqlCatalog(postgres_url, "iceberg")
    table = CatalogFolderTable.make(catalog, location)
    event.listen(catalog._engine, "begin", lambda _: end_connections(iceberg_postgres), once=True)
    with pytest.raises(TransientError, match="the SQL catalog postgresql.*127.0.0.1.* is not usable: "):
        table.commit(properties={"number": "1"})
    assert len(metadata_files(location)) == 1
    table.commit(properties={"number": "2"})
    assert table.outcome is CommitOutcome.DONE, "the connection of the pool that has ended is replaced"


def test_what_a_postgresql_server_refuses(postgres_url: URL, location: str, iceberg_postgres: Postgres) -> None:
    wrong = {
        "password authentication failed": postgres_url.set(password="wrong"),
        'database "nothing" does not exist': postgres_url.set(database="nothing"),
    }
    iceberg_postgres.execute("CREATE ROLE reader LOGIN PASSWORD 'reader'")
    iceberg_postgres.execute("CREATE SCHEMA closed AUTHORIZATION iceberg", database="iceberg")
    wrong["no schema has been selected|permission denied"] = postgres_url.set(username="reader", password="reader")
    for text, url in wrong.items():
        with pytest.raises(NotReadyError, match=f"the SQL catalog postgresql.* is not usable: .*({text})") as error:
            SqlCatalog(url, "iceberg").create_table(SHOP, empty_metadata(location))
        assert error.value.remedy.startswith("Correct the uri of the catalog")
        assert "\n" not in str(error.value) and "***" in str(error.value)
    assert metadata_files(location) == []
    with pytest.raises(TransientError, match="refused"):
        SqlCatalog(postgres_url.set(port=free_port()), "iceberg").load_table(SHOP)
    with pytest.raises(NotReadyError, match="in mysql, which is not supported"):
        SqlCatalog("mysql://a:b@c/d", "iceberg")
