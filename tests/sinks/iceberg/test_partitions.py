"""Partitions by buckets and by truncated values: a row is where readers look for it, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo, IsNull, Reference
from pyiceberg.table import StaticTable

from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.preflight.run import run_preflight
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.iceberg import read_with_duckdb
from tests.support.iceberg_sink import metadata_file
from tests.support.servers import MySQLServer

#: Columns, and a value that a row gets later.
COLUMNS: dict[str, tuple[str, Any]] = {
    "small": ("TINYINT", -128),
    "big": ("BIGINT UNSIGNED", 2**64 - 1),
    "amount": ("DECIMAL(20,4)", Decimal("-12345.6789")),
    "name": ("VARCHAR(40)", "\U0001f600\u00e9 tail"),
    "day": ("DATE", date(1969, 12, 31)),
    "at": ("DATETIME(6)", datetime(1969, 12, 31, 23, 59, 59, 999999)),
}
BUCKETS = [{"bucket[7]": name} for name in COLUMNS]
TRUNCATED = [{"truncate[3]": name} for name in ("small", "big", "amount", "name")]


def pipeline(folder: Path, server: MySQLServer, database: str, merge: str, by: Sequence[dict[str, str]]) -> Cli:
    sink = {"kind": "iceberg", "merge": merge, "partition_by": {r".*\.t": list(by)}}
    return Cli(folder, server, rf"{database}\..*", name=database, sink=sink, snapshot={"chunk_rows": 30})


def sink_table(cli: Cli) -> IcebergSinkTable:
    context = cli.context
    target = context.sink.table(context.plans.require().tables[0])
    assert isinstance(target, IcebergSinkTable)
    return target


@pytest.mark.parametrize("merge", ["deletion_vectors", "copy_on_write"])
@pytest.mark.parametrize("by", [BUCKETS, TRUNCATED], ids=["bucket", "truncate"])
def test_rows_are_where_readers_look_for_them(
    mysql_server: MySQLServer, database: str, tmp_path: Path, merge: str, by: list[dict[str, str]]
) -> None:
    """By snapshot and by stream, and after a compaction: a condition on a column leads readers to its partitions."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    mysql_server.session(
        database,
        f"CREATE TABLE t (id INT PRIMARY KEY, {columns})",
        "INSERT INTO t VALUES (0, 1, 1, 1.5, 'abc', '2026-01-01', '2026-01-01 00:00:01'),"
        " (1, -1, 10, -1.5, 'abd', '2026-01-02', '1969-12-31 00:00:00.5'), (2, 0, 0, 0, '', NULL, NULL),"
        " (3, NULL, NULL, NULL, NULL, '2026-01-01', '2026-01-01 00:00:01')",
    )
    cli = pipeline(tmp_path, mysql_server, database, merge, by)
    cli.snapshot()
    with mysql_server.connect(database=database) as connection, connection.cursor() as cursor:
        values = [value for _, value in COLUMNS.values()]
        cursor.execute(f"UPDATE t SET {', '.join(f'{name} = %s' for name in COLUMNS)} WHERE id = 1", values)
        cursor.execute("INSERT INTO t SELECT 4, small, big, amount, name, day, at FROM t WHERE id = 3")
        cursor.execute("DELETE FROM t WHERE id = 0")
        connection.commit()
    cli.catch_up()
    assert [str(one) for one in verify_tables(cli.context, show_values=True) if not one.is_equal] == []
    target = sink_table(cli)
    assert len({tuple(file.partition.values()) for file in target.load_log().files.values()}) >= 3
    table = StaticTable.from_metadata(metadata_file(target).as_uri())
    rows = {row["id"]: row for row in read_with_duckdb(metadata_file(target)).to_pylist()}
    assert rows.keys() == {1, 2, 3, 4}
    for part in by:
        (name,) = part.values()
        for row in rows.values():
            value = row[name]
            found = (
                table.scan(
                    IsNull(term=Reference(name)) if value is None else EqualTo(term=Reference(name), value=value)
                )
                .to_arrow()["id"]
                .to_pylist()
            )
            assert sorted(found) == [key for key, one in rows.items() if one[name] == value], (name, value)


def test_what_cannot_be_partitioned_so(mysql_server: MySQLServer, database: str, tmp_path: Path) -> None:
    mysql_server.session(
        database, "CREATE TABLE t (id INT PRIMARY KEY, f DOUBLE, b VARBINARY(9), d DATE, v INT, v_bucket INT)"
    )
    for part, message in (
        ({"bucket[4]": "f"}, "partitioned by bucket[4] of f: the column is double"),
        ({"truncate[4]": "b"}, "partitioned by truncate[4] of b: the column is varbinary(9)"),
        ({"truncate[4]": "d"}, "partitioned by truncate[4] of d: the column is date"),
        ({"bucket[4]": "v"}, "partitioned by bucket[4] of v: the table has a column v_bucket of its own"),
        ({"bucket[4]": "w"}, "partitioned by bucket[4] of w: it has no column w that is copied"),
    ):
        cli = pipeline(tmp_path / str(len(message)), mysql_server, database, "deletion_vectors", [part])
        found = [f for f in run_preflight(cli.context, spark=False) if f.level == "error"]
        assert any(message in f.message for f in found), (found, message)


def test_the_number_of_buckets_does_not_change(mysql_server: MySQLServer, database: str, tmp_path: Path) -> None:
    mysql_server.session(database, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    pipeline(tmp_path, mysql_server, database, "deletion_vectors", [{"bucket[4]": "id"}]).snapshot()
    cli = pipeline(tmp_path, mysql_server, database, "deletion_vectors", [{"bucket[8]": "id"}])
    mysql_server.session(database, "INSERT INTO t VALUES (2)")
    with pytest.raises(
        (TerminalError, NotReadyError), match=r"is partitioned by id_bucket\[4\], but .* id_bucket\[8\]"
    ):
        cli.catch_up()
