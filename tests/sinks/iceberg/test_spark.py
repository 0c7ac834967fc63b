"""Spark SQL reads what this project writes, and what both write stays right. Spark has a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyroaring import BitMap

from airflow_provider_cdc.config.catalog_settings import SQL, CatalogSettings
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import Catalog, CommitOutcome, TableIdentifier
from airflow_provider_cdc.sinks.iceberg.catalogs.rest_catalog import RestCatalog
from airflow_provider_cdc.sinks.iceberg.catalogs.sql_catalog import SqlCatalog
from airflow_provider_cdc.sinks.iceberg.log.folder_owner import OWNER_FILE
from airflow_provider_cdc.sinks.iceberg.sink import IcebergSink
from tests.sinks.conformance import KEYED
from tests.support.iceberg_catalogs import CatalogFolderTable, some_rows
from tests.support.iceberg_rest import IcebergRest
from tests.support.spark_iceberg import SparkIceberg, SparkIcebergError, spark_iceberg

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Place:
    """Spark, and a folder for tables, whose catalogs it knows as `sql` and `rest`."""

    spark: SparkIceberg
    folder: Path
    catalogs: dict[str, Catalog]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, iceberg_rest: IcebergRest) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("spark-iceberg")
    iceberg_rest.forget_all()
    settings = {
        "sql": {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{folder}/catalog.db",
            "warehouse": f"file://{folder}/lake",
            "jdbc.schema-version": "V1",
        },
        "rest": {"type": "rest", "uri": iceberg_rest.uri},
    }
    catalogs: dict[str, Catalog] = {
        "sql": SqlCatalog(f"sqlite:///{folder}/catalog.db", "sql"),
        "rest": RestCatalog({"uri": iceberg_rest.uri}),
    }
    with spark_iceberg(settings) as spark:
        yield Place(spark, folder, catalogs)


def rows(*ids: int) -> list[tuple[object, ...]]:
    return [(row["id"], row["name"]) for row in some_rows(*ids).to_pylist()]


@pytest.mark.parametrize("name", ["sql", "rest"])
@pytest.mark.parametrize("version", [2, 3])
def test_spark_reads_and_writes_a_table_of_this_project(place: Place, name: str, version: int) -> None:
    identifier = TableIdentifier(("shop",), f"customer_v{version}")
    location = f"file://{place.folder}/{name}/{identifier.name}"
    table = CatalogFolderTable.make(place.catalogs[name], location, identifier, version)
    files = table.write_rows(some_rows(*range(1, 7)))
    table.commit(files, properties={"airflow-cdc.stream": "1"})
    full_name = f"{name}.shop.{identifier.name}"
    select = f"SELECT id, name FROM {full_name} ORDER BY id"
    assert place.spark(select) == rows(1, 2, 3, 4, 5, 6)
    expected = [1, 2, 3, 4, 5, 6]
    if version == 3:
        table.commit(table.write_rows(some_rows(8)), {files[0].file_path: BitMap([0, 2])})
        assert table.outcome is CommitOutcome.DONE
        expected = [2, 4, 5, 6, 8]
        place.spark(f"REFRESH TABLE {full_name}")
        assert place.spark(select) == rows(*expected)
        ids = place.spark(f"SELECT id, _row_id FROM {full_name} ORDER BY id")
        assert ids == [(2, 1), (4, 3), (5, 4), (6, 5), (8, 6)]
    place.spark(f"INSERT INTO {full_name} VALUES (9, 'n9')")
    table.commit(table.write_rows(some_rows(10)))
    assert table.outcome is CommitOutcome.CONFLICT, "Spark was faster"
    loaded = place.catalogs[name].load_table(identifier)
    assert loaded is not None and loaded.metadata.properties["airflow-cdc.stream"] == "1"
    again = CatalogFolderTable.of(place.catalogs[name], loaded, identifier)
    again.commit(again.write_rows(some_rows(10)))
    assert again.outcome is CommitOutcome.DONE
    place.spark(f"REFRESH TABLE {full_name}")
    assert place.spark(select) == rows(*expected, 9, 10)


@pytest.mark.parametrize("name", ["sql", "rest"])
def test_this_project_loads_what_spark_has_created(place: Place, name: str) -> None:
    identifier = TableIdentifier(("made",), "by_spark")
    place.spark(f"CREATE NAMESPACE IF NOT EXISTS {name}.made")
    place.spark(
        f"CREATE TABLE {name}.made.by_spark (id BIGINT, name STRING) USING iceberg "
        f"LOCATION 'file://{place.folder}/{name}/by_spark' TBLPROPERTIES ('format-version' = '3')"
    )
    place.spark(f"INSERT INTO {name}.made.by_spark VALUES (1, 'n1')")
    loaded = place.catalogs[name].load_table(identifier)
    assert loaded is not None
    assert loaded.metadata.current_schema.arrow_schema().names == ["id", "name"]
    table = CatalogFolderTable.of(place.catalogs[name], loaded, identifier)
    table.commit(table.write_rows(some_rows(2)))
    assert table.outcome is CommitOutcome.DONE
    place.spark(f"REFRESH TABLE {name}.made.by_spark")
    assert place.spark(f"SELECT id, name FROM {name}.made.by_spark ORDER BY id") == rows(1, 2)


def test_spark_removes_files_that_no_snapshot_has(place: Place) -> None:
    """But not the file that says to which table the folder belongs."""
    lake = place.folder / "lake"
    target = IcebergSink(
        str(lake), "p", catalog=CatalogSettings(SQL, f"sqlite:///{place.folder}/catalog.db", (("name", "sql"),))
    )
    table = target.table(KEYED)
    table.create("p")
    orphan = "metadata/1-m0.avro"
    table.storage.write(orphan, b"")
    for name, _ in table.storage.list(""):
        os.utime(f"{table.storage.location()}/{name}", (0, 0))
    removed = place.spark("CALL sql.system.remove_orphan_files(table => 'shop.orders')")
    assert len(removed) == 1 and str(removed[0][0]).endswith(orphan)
    assert table.storage.size(OWNER_FILE) is not None


def test_what_spark_says_of_a_wrong_statement(place: Place) -> None:
    with pytest.raises(SparkIcebergError, match="TABLE_OR_VIEW_NOT_FOUND"):
        place.spark("SELECT * FROM sql.shop.nothing")
    assert place.spark("SELECT 1") == [(1,)]
