"""What a snapshot takes of memory: bounded by a chunk, however many rows a table has and however large they are."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from bench.memory import MB, make_large, rows_of, take
from tests.support.servers import MySQLServer
from tests.support.workload_tables import make_shop

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROWS, LARGE = 1_000_000, 300


def test_many_rows_and_large_rows(mysql_server: MySQLServer, cdc_user: dict[str, str], tmp_path: Path) -> None:
    """``python -m bench.memory --rows 10000000`` is the same with more of them."""
    with closing(mysql_server.connect()) as connection:
        make_shop(connection, "memory_rows", ROWS, addresses=1, orders=1)
    make_large(mysql_server, "memory_large", LARGE)
    try:
        for database, expected in (("memory_rows", ROWS + 2), ("memory_large", 2 * LARGE)):
            (tmp_path / database).mkdir()
            peaks, lake, seconds = take(mysql_server, cdc_user, database, tmp_path / database)
            rows, largest = rows_of(lake)
            print(database, peaks, f"{seconds:.1f} s, largest chunk {largest / MB:.1f} MB")
            assert rows == expected
            assert peaks.workers and max(peaks.workers.values()) < 600, "MB at the peak of a Python worker"
            assert peaks.driver < peaks.started + 100, "the driver holds manifests, not rows"
            assert largest < 3 * 16 * MB, "a chunk far above the planner's aim"
    finally:
        for database in ("memory_rows", "memory_large"):
            mysql_server.execute(f"DROP DATABASE IF EXISTS {database}")
