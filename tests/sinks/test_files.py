"""How data files are written."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_cdc.sinks.files import write_file

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
    file = write_file(
        tmp_path, "a/b.parquet", rows.schema, [rows.slice(0, 10), rows.slice(10)], "id", ordered_by=["key"]
    )
    assert (file.rows, file.low, file.high) == (ROWS, 0, ROWS - 1)
    with pq.ParquetFile(tmp_path / "a/b.parquet") as parquet:
        assert parquet.read() == rows
        columns = [parquet.metadata.row_group(0).column(i) for i in range(rows.num_columns)]
    assert {c.path_in_schema for c in columns if c.has_dictionary_page} == {"with.dot", "town"}
    assert {c.path_in_schema for c in columns if c.is_stats_set} == {"id", "key", "with.dot"}


def test_no_rows_at_all(tmp_path: Path) -> None:
    schema = _table().schema
    assert write_file(tmp_path, "none.parquet", schema, [], "id").rows == 0
    assert write_file(tmp_path, "empty.parquet", schema, [schema.empty_table()], "id").low is None
    assert pq.read_schema(tmp_path / "none.parquet") == pq.read_schema(tmp_path / "empty.parquet") == schema
