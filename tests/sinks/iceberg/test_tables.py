"""Whole tables in a folder: other readers see the right rows."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap

from airflow_provider_cdc.sinks.iceberg.format import table_updates
from airflow_provider_cdc.sinks.iceberg.format.manifest_list import ManifestContent
from airflow_provider_cdc.sinks.iceberg.format.schema import new_schema
from airflow_provider_cdc.sinks.iceberg.format.schema_changes import SchemaEditor
from tests.support.iceberg import FolderTable, read_with_duckdb, read_with_polars, read_with_pyiceberg

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("small", pa.int8()),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us")),
        ("seen", pa.timestamp("us", tz="UTC")),
        ("v", pa.list_(pa.float32())),
    ]
)
READERS: dict[str, Callable[[Path], pa.Table]] = {
    "pyiceberg": read_with_pyiceberg,
    "DuckDB": read_with_duckdb,
    "Polars": read_with_polars,
}
readers = pytest.mark.parametrize("reader", READERS)


def some_rows(ids: range, suffix: str = "") -> pa.Table:
    return pa.table(
        {
            "id": [*ids],
            "name": [f"n{i}{suffix}" if i % 3 else None for i in ids],
            "small": [i % 100 for i in ids],
            "price": [Decimal(i) / 4 for i in ids],
            "at": [i * 86_400_000_000 for i in ids],
            "seen": [i * 3_600_000_000 for i in ids],
            "v": [[i / 2, 1.0] for i in ids],
        },
        schema=COLUMNS,
    )


def by_id(rows: pa.Table) -> list[dict[str, object]]:
    return sorted(rows.select(COLUMNS.names).to_pylist(), key=lambda row: int(row["id"]))


def same(reader: str, table: FolderTable, expected: pa.Table) -> None:
    assert by_id(READERS[reader](table.metadata_file)) == by_id(expected)


@readers
@pytest.mark.parametrize("version", [2, 3])
def test_files_that_are_added(tmp_path: Path, reader: str, version: int) -> None:
    table = FolderTable.create(tmp_path / "t", new_schema(COLUMNS, version, identifiers=["id"]), version)
    table.commit(table.write_rows(some_rows(range(10))), properties={"airflow-cdc.stream": "1"})
    table.commit([*table.write_rows(some_rows(range(10, 15))), *table.write_rows(some_rows(range(20, 25)))])
    same(reader, table, pa.concat_tables([some_rows(range(15)), some_rows(range(20, 25))]))


@readers
def test_rows_that_die_by_deletion_vectors(tmp_path: Path, reader: str) -> None:
    table = FolderTable.create(tmp_path / "t", new_schema(COLUMNS, 3, identifiers=["id"]))
    first, second = table.write_rows(some_rows(range(10))), table.write_rows(some_rows(range(10, 20)))
    table.commit([*first, *second])
    table.commit(table.write_rows(some_rows(range(3, 5), "x")), {first[0].file_path: BitMap([3, 4])})
    table.commit((), {first[0].file_path: BitMap([9]), second[0].file_path: BitMap([0])})
    expected = [some_rows(range(3)), some_rows(range(3, 5), "x"), some_rows(range(5, 9)), some_rows(range(11, 20))]
    same(reader, table, pa.concat_tables(expected))
    vectors = table.entries(ManifestContent.DELETES)
    assert [(e.file.record_count, e.sequence_number) for e in vectors] == [(3, 3), (1, 3)]
    (deletes,) = [m for m in table.manifests() if m.content is ManifestContent.DELETES]
    assert (deletes.deleted_files_count, deletes.added_files_count, deletes.first_row_id) == (1, 2, None)


def test_row_ids_are_never_used_twice(tmp_path: Path) -> None:
    table = FolderTable.create(tmp_path / "t", new_schema(COLUMNS, 3))
    table.commit([*table.write_rows(some_rows(range(10))), *table.write_rows(some_rows(range(10, 15)))])
    table.commit(table.write_rows(some_rows(range(20, 27))))
    table.commit()
    assert [(e.file.record_count, e.file.first_row_id) for e in table.entries()] == [(10, 0), (5, 10), (7, 15)]
    assert table.metadata.next_row_id == 22
    snapshots = [*table.metadata.snapshots.values()]
    assert [(s.first_row_id, s.json["added-rows"]) for s in snapshots] == [(0, 15), (15, 7), (22, 0)]
    read = read_with_duckdb(table.metadata_file, "id, _row_id")
    rows = sorted(zip(read["id"].to_pylist(), read["_row_id"].to_pylist(), strict=True))
    assert rows == [*[(i, i) for i in range(15)], *[(i, i - 5) for i in range(20, 27)]]


PARTITIONS = [
    [("id", "bucket[4]")],
    [("at", "day")],
    [("at", "month"), ("name", "truncate[2]")],
    [("seen", "hour"), ("price", "truncate[2]")],
    [("at", "year"), ("price", "identity"), ("small", "identity")],
]


@readers
@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_partitions(tmp_path: Path, reader: str, partition: list[tuple[str, str]]) -> None:
    table = FolderTable.create(tmp_path / "t", new_schema(COLUMNS, 3), 3, partition)
    files = table.write_rows(some_rows(range(30)))
    assert len(files) > 1 or partition == [("at", "year")]
    table.commit(files)
    table.commit((), {files[0].file_path: BitMap([0])})
    (gone,) = {row["id"] for row in by_id(some_rows(range(30)))} - {
        row["id"] for row in by_id(READERS[reader](table.metadata_file))
    }
    assert gone is not None
    for number in (0, 7, 29):
        found = read_with_pyiceberg(table.metadata_file, row_filter=f"id = {number}")
        assert found.num_rows == (number != gone), "summaries and bounds exclude no file that has the row"
        at = f"1970-01-{number + 1:02}T00:00:00"
        found = read_with_pyiceberg(table.metadata_file, row_filter=f"at = '{at}'")
        assert found["id"].to_pylist() == ([number] if number != gone else [])


@readers
def test_columns_that_change_are_metadata(tmp_path: Path, reader: str) -> None:
    table = FolderTable.create(tmp_path / "t", new_schema(COLUMNS, 3, identifiers=["id"]))
    table.commit(table.write_rows(some_rows(range(4))))
    change = SchemaEditor(table.metadata.current_schema, table.metadata.last_column_id, 3)
    change.rename_column("name", "label")
    change.drop_column("small")
    change.promote_column("price", pa.decimal128(20, 2))
    change.add_column("small", pa.int32())
    change.add_column("n", pa.int64(), required=True, default=7)
    added = table_updates.add_schema(change.build_schema(1), change.last_column_id)
    table.update([added, table_updates.set_current_schema()])
    new = pa.table(
        {"id": [9], "label": ["x"], "price": [Decimal("123456789012345678.25")], "at": [0], "seen": [0], "v": [None]}
    )
    new = new.append_column("small", [pa.array([5], pa.int32())]).append_column("n", [pa.array([1], pa.int64())])
    table.commit(table.write_rows(new))
    read = READERS[reader](table.metadata_file).sort_by("id")
    assert read["label"].to_pylist() == [None, "n1", "n2", None, "x"]
    assert read["small"].to_pylist() == [None] * 4 + [5], "the values of the column that was dropped do not come back"
    assert read["n"].to_pylist() == [7, 7, 7, 7, 1]
    assert read["price"].to_pylist()[3:] == [Decimal("0.75"), Decimal("123456789012345678.25")]
