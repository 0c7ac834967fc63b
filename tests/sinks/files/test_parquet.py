"""How data files are written."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.sinks.files.parquet import ChangeFileWriter, read_file, read_row_groups, write_file
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage

ROWS = 3000


def _table() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "key": [f"key {n:05d}" for n in range(ROWS)],
            "with.dot": pa.array([Decimal(n % 7) for n in range(ROWS)], pa.decimal128(20, 0)),
            "town": [f"town {n % 50}" if n % 3 else None for n in range(ROWS)],
            "note": [f"{n * 7919 % 100_003}" for n in range(ROWS)],
            "vector": pa.array([[float(n)] for n in range(ROWS)], pa.list_(pa.float32())),
        }
    )


def test_dictionaries_and_statistics_only_where_they_are_of_use(tmp_path: Path) -> None:
    rows = _table()
    storage = LocalStorage(tmp_path)
    file = write_file(
        storage, "a/b.parquet", rows.schema, [rows.slice(0, 10), rows.slice(10)], "id", ordered_by=["key"]
    )
    assert (file.rows, file.low, file.high) == (ROWS, 0, ROWS - 1)
    with pq.ParquetFile(tmp_path / "a/b.parquet") as parquet:
        assert parquet.read() == rows
        columns = [parquet.metadata.row_group(0).column(i) for i in range(rows.num_columns)]
    assert {c.path_in_schema for c in columns if c.has_dictionary_page} == {"with.dot", "town"}
    assert {c.path_in_schema for c in columns if c.is_stats_set} == {"id", "key", "with.dot"}
    assert file.size == storage.size("a/b.parquet") == (tmp_path / "a/b.parquet").stat().st_size


@pytest.mark.parametrize("columns", [None, ["with.dot", "id"]])
def test_rows_are_read_as_they_were_written(tmp_path: Path, columns: list[str] | None) -> None:
    """Whole, some columns (a dot is no path into a struct), or row group by row group."""
    storage, rows = LocalStorage(tmp_path), _table()
    with storage.open("f", "wb") as file, pq.ParquetWriter(file, rows.schema) as writer:
        for begin in range(0, ROWS, ROWS // 3):
            writer.write_table(rows.slice(begin, ROWS // 3))
    wanted = rows if columns is None else rows.select(columns)
    assert read_file(storage, "f", rows.schema, columns) == wanted
    portions = list(read_row_groups(storage, "f", rows.schema, columns))
    assert len(portions) > 2 and pa.concat_tables(portions) == wanted


def test_changes_are_written_in_the_same_way(tmp_path: Path) -> None:
    """The first of them tell how; they are in no order, so no text has statistics."""
    storage, rows = LocalStorage(tmp_path), _table()
    file = ChangeFileWriter(storage, "f", rows.schema)
    for batch in rows.to_batches(max_chunksize=100):
        file.add(batch)
    file.close()
    with pq.ParquetFile(tmp_path / "f") as parquet:
        assert parquet.read() == rows
        columns = [parquet.metadata.row_group(0).column(i) for i in range(rows.num_columns)]
    assert {c.path_in_schema for c in columns if c.has_dictionary_page} == {"with.dot", "town"}
    assert {c.path_in_schema for c in columns if c.is_stats_set} == {"id", "with.dot"}


def test_changes_before_a_truncate_do_not_count(tmp_path: Path) -> None:
    storage, rows = LocalStorage(tmp_path), _table()
    file = ChangeFileWriter(storage, "f", rows.schema)
    file.add(rows.to_batches()[0].slice(0, 5))
    file.truncate()
    for n in range(5, 8):
        file.add(rows.to_batches()[0].slice(n, 1))
    file.close()
    assert read_file(storage, "f", rows.schema) == rows.slice(5, 3)
    file = ChangeFileWriter(storage, "none", rows.schema)
    file.close()
    assert read_file(storage, "none", rows.schema) == rows.slice(0, 0)


def test_no_rows_at_all(tmp_path: Path) -> None:
    schema = _table().schema
    assert write_file(LocalStorage(tmp_path), "none.parquet", schema, [], "id").rows == 0
    assert write_file(LocalStorage(tmp_path), "empty.parquet", schema, [schema.empty_table()], "id").low is None
    assert pq.read_schema(tmp_path / "none.parquet") == pq.read_schema(tmp_path / "empty.parquet") == schema
