"""What every catalog must do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import Catalog, CommitOutcome, TableIdentifier
from airflow_provider_cdc.sinks.iceberg.catalogs.rest_catalog import RestCatalog
from airflow_provider_cdc.sinks.iceberg.catalogs.sql_catalog import SqlCatalog
from airflow_provider_cdc.sinks.iceberg.format.snapshots import TableSnapshot, make_snapshot, new_snapshot_id
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.format.table_updates import (
    add_snapshot,
    remove_properties,
    require_ref,
    require_uuid,
    set_properties,
    set_snapshot_ref,
)
from tests.support.iceberg_catalogs import SHOP, CatalogFolderTable, empty_metadata, some_rows
from tests.support.iceberg_rest import IcebergRest
from tests.support.postgres import Postgres

Opener = Callable[[], Catalog]


@pytest.fixture(params=["SQLite", "PostgreSQL", "REST"])
def open_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens an empty catalog, as often as it is called."""
    if request.param == "REST":
        rest: IcebergRest = request.getfixturevalue("iceberg_rest")
        rest.forget_all()
        return lambda: RestCatalog({"uri": rest.uri})
    if request.param == "PostgreSQL":
        postgres: Postgres = request.getfixturevalue("iceberg_postgres")
        postgres.execute("DROP OWNED BY CURRENT_USER", database="iceberg")
        return lambda: SqlCatalog(postgres.sqlalchemy_url("iceberg"), "iceberg")
    return lambda: SqlCatalog(f"sqlite:///{tmp_path}/catalog.db", "iceberg")


@pytest.fixture
def location(tmp_path: Path) -> str:
    return f"file://{tmp_path}/shop/customer"


def empty_snapshot(metadata: TableMetadata) -> TableSnapshot:
    """One more of `main`, without any files."""
    number, parent = new_snapshot_id(metadata.snapshots), metadata.current_snapshot
    return make_snapshot(
        number,
        parent.snapshot_id if parent else None,
        metadata.last_sequence_number + 1,
        metadata.last_updated_ms + 1,
        f"{metadata.location}/metadata/{number}.avro",
        "append",
        metadata.current_schema.schema_id,
        first_row_id=metadata.next_row_id,
        added_rows=0,
    )


def commit(catalog: Catalog, table: TableIdentifier = SHOP, **properties: str) -> CommitOutcome:
    """Load a table, and commit a snapshot with properties."""
    base = catalog.load_table(table)
    assert base is not None
    snapshot = empty_snapshot(base.metadata)
    updates = [add_snapshot(snapshot), set_snapshot_ref(snapshot.snapshot_id), set_properties(properties)]
    requirements = [require_uuid(base.metadata), require_ref(base.metadata)]
    return catalog.commit_table(table, base, requirements, updates)[0]


def test_a_table_from_its_creation_to_its_end(open_catalog: Opener, location: str) -> None:
    catalog = open_catalog()
    assert catalog.load_table(SHOP) is None
    created = catalog.create_table(SHOP, empty_metadata(location, properties={"owner": "p"}))
    assert created is not None
    assert created.metadata.properties["owner"] == "p"
    assert (created.metadata.format_version, created.metadata.current_snapshot) == (3, None)
    assert catalog.create_table(SHOP, empty_metadata(location + "2")) is None, "the name is taken"
    other = open_catalog()
    loaded = other.load_table(SHOP)
    assert loaded is not None and loaded.metadata.json == created.metadata.json
    assert loaded.metadata.current_schema.columns.keys() == {"id", "name"}
    catalog.drop_table(SHOP)
    catalog.drop_table(SHOP)
    assert catalog.load_table(SHOP) is None and other.load_table(SHOP) is None
    assert catalog.create_table(SHOP, empty_metadata(location)) is not None


def test_a_commit_is_what_others_load(open_catalog: Opener, location: str) -> None:
    table = CatalogFolderTable.make(open_catalog(), location)
    table.commit(table.write_rows(some_rows(1, 2)), properties={"airflow-cdc.stream": "1"})
    assert table.outcome is CommitOutcome.DONE
    loaded = open_catalog().load_table(SHOP)
    assert loaded is not None and loaded.metadata.json == table.metadata.json
    assert loaded.metadata.properties["airflow-cdc.stream"] == "1"
    assert loaded.metadata.next_row_id == 2
    assert len(loaded.metadata.json["metadata-log"]) == 1
    assert [entry.file.record_count for entry in table.entries()] == [2]


def test_a_commit_that_is_based_on_an_older_snapshot_is_a_conflict(open_catalog: Opener, location: str) -> None:
    ours, theirs = open_catalog(), open_catalog()
    table = CatalogFolderTable.make(ours, location)
    CatalogFolderTable.of(theirs, table.base).commit(properties={"fence": "7"})
    table.commit(table.write_rows(some_rows(1)), properties={"fence": "6"})
    assert table.outcome is CommitOutcome.CONFLICT
    loaded = ours.load_table(SHOP)
    assert loaded is not None and (loaded.metadata.properties["fence"], len(loaded.metadata.snapshots)) == ("7", 1)
    again = CatalogFolderTable.of(ours, loaded)
    again.commit(again.write_rows(some_rows(1)), properties={"fence": "8"})
    assert again.outcome is CommitOutcome.DONE


def test_another_table_of_the_same_name_is_a_conflict(open_catalog: Opener, location: str) -> None:
    catalog = open_catalog()
    table = CatalogFolderTable.make(catalog, location)
    open_catalog().drop_table(SHOP)
    assert open_catalog().create_table(SHOP, empty_metadata(location)) is not None
    table.commit()
    assert table.outcome is CommitOutcome.CONFLICT


def test_a_commit_to_a_table_that_is_gone_is_a_conflict(open_catalog: Opener, location: str) -> None:
    table = CatalogFolderTable.make(open_catalog(), location)
    open_catalog().drop_table(SHOP)
    table.commit()
    assert table.outcome is CommitOutcome.CONFLICT


def test_properties_come_and_go(open_catalog: Opener, location: str) -> None:
    table = CatalogFolderTable.make(open_catalog(), location)
    table.commit(properties={"a": "1", "b": "2"})
    table.commit(properties={"c": "3"}, more=[remove_properties(["a"])])
    loaded = open_catalog().load_table(SHOP)
    assert loaded is not None
    assert {n: v for n, v in loaded.metadata.properties.items() if n in "abc"} == {"b": "2", "c": "3"}


def test_of_several_writers_each_commit_wins_once(open_catalog: Opener, location: str) -> None:
    """Each adds 1 to a number, 8 times. A commit that overwrote another one would lose a step."""
    CatalogFolderTable.make(open_catalog(), location).commit(properties={"number": "0"})
    start = Barrier(4)

    def count_up(_writer: int) -> int:
        catalog, refused, steps = open_catalog(), 0, 0
        start.wait()
        while steps < 8:
            base = catalog.load_table(SHOP)
            assert base is not None
            snapshot = empty_snapshot(base.metadata)
            number = {"number": str(int(base.metadata.properties["number"]) + 1)}
            updates = [add_snapshot(snapshot), set_snapshot_ref(snapshot.snapshot_id), set_properties(number)]
            requirements = [require_uuid(base.metadata), require_ref(base.metadata)]
            outcome, _ = catalog.commit_table(SHOP, base, requirements, updates)
            assert outcome is not CommitOutcome.UNKNOWN
            steps, refused = steps + (outcome is CommitOutcome.DONE), refused + (outcome is CommitOutcome.CONFLICT)
        return refused

    with ThreadPoolExecutor(4) as pool:
        conflicts = sum(pool.map(count_up, range(4)))
    loaded = open_catalog().load_table(SHOP)
    assert loaded is not None and loaded.metadata.properties["number"] == "32"
    assert len(loaded.metadata.snapshots) == 33 and conflicts > 0


def test_of_several_processes_one_creates_a_table(open_catalog: Opener, location: str) -> None:
    start = Barrier(4)

    def create(number: int) -> bool:
        catalog = open_catalog()
        start.wait()
        return catalog.create_table(SHOP, empty_metadata(f"{location}{number}")) is not None

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(create, range(4))) == [False, False, False, True]


def test_of_several_processes_each_creates_a_table_in_a_new_namespace(open_catalog: Opener, location: str) -> None:
    start = Barrier(4)

    def create(number: int) -> bool:
        catalog = open_catalog()
        start.wait()
        table = TableIdentifier(("shop",), f"t{number}")
        return catalog.create_table(table, empty_metadata(f"{location}{number}")) is not None

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(create, range(4)))


def test_namespaces_of_several_levels(open_catalog: Opener, location: str) -> None:
    catalog, table = open_catalog(), TableIdentifier(("lake", "shop"), "customer")
    assert catalog.create_table(table, empty_metadata(location)) is not None
    assert catalog.load_table(TableIdentifier(("shop",), "customer")) is None
    assert commit(catalog, table, a="1") is CommitOutcome.DONE
    assert catalog.create_table(TableIdentifier(("lake", "shop"), "orders"), empty_metadata(location + "2")) is not None
