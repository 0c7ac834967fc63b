"""A batch that several tasks read, each a piece of it: together they are what one task would have read."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.apply.task import merge_manifests
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.stream.epoch import Epoch
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.stream.spark_source import BinlogStreamReader
from tests.support.cli import Cli
from tests.support.oracle import compare_all, compare_database
from tests.support.servers import MySQLServer


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]) -> Cli:
    mysql_server.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, v INT)")
    mysql_server.execute(f"CREATE TABLE `{database}`.gone LIKE `{database}`.t")
    mysql_server.execute(f"CREATE TABLE `{database}`.wide (id INT PRIMARY KEY, v LONGTEXT)")
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (1, 1), (2, 1)")
    mysql_server.execute(f"INSERT INTO `{database}`.gone VALUES (1, 1), (2, 1)")
    made = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database, user=cdc_user, stream={"parallelism": 3})
    made.snapshot()
    return made


@contextlib.contextmanager
def reader(cli: Cli, piece_bytes: int = 1, seconds: float = 0) -> Iterator[tuple[Epoch, BinlogStreamReader]]:
    """An epoch, and its source as Spark has it.

    :param seconds: least time between the starts of two batches.
    """
    with cli.opened() as (context, store):
        epoch = begin_epoch(context, store, catch_up=True)
        epoch.job = replace(epoch.job, min_range_bytes=piece_bytes)
        source = BinlogStreamReader(epoch.job, epoch.section_start, cli.folder / "section", seconds)
        try:
            yield epoch, source
        finally:
            source.stop()
            store.end_epoch(context.pipeline.name, epoch.number, "stopped")


def read(source: BinlogStreamReader, piece: object) -> dict[str, object]:
    (batch,) = source.read(piece)  # type: ignore[arg-type]
    found: dict[str, object] = json.loads(batch.column(0)[0].as_py())
    return found


def write(server: MySQLServer, database: str) -> None:
    """Changes that cannot be put together wrongly without a trace, at about the same distance from each other."""
    server.session(
        database,
        "INSERT INTO gone VALUES (3, 1)",
        "UPDATE t SET v = 2 WHERE id = 1",
        "INSERT INTO t VALUES (7, 1)",
        "XA START 'x'",
        "INSERT INTO t VALUES (8, 1)",
        "XA END 'x'",
        "XA PREPARE 'x'",
        "UPDATE t SET v = 3 WHERE id = 1",
        "TRUNCATE gone",
        "INSERT INTO gone VALUES (4, 1)",
        "DELETE FROM t WHERE id = 7",
        "XA COMMIT 'x'",
        "INSERT INTO gone VALUES (5, 1)",
        "UPDATE t SET v = 4 WHERE id = 1",
    )


def test_the_pieces_are_the_batch(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    write(mysql_server, database)
    with reader(cli) as (epoch, source):
        start = source.initialOffset()
        end = source.latestOffset(start, None)
        (all_at_once,) = BinlogStreamReader(epoch.job, epoch.section_start, cli.folder / "section").partitions(
            start, end
        )
        whole = read(source, all_at_once)
        staging = cli.context.sink.change_staging()

        def there(index: int, name: str) -> bool:
            table = epoch.plan.tables[index]
            home = (
                f"{cli.context.layout.table_folder(table)}/changes"
                if table.key
                else cli.context.layout.change_staging_folder
            )
            return cli.context.storage.size(f"{home}/{name}.parquet") is not None

        def changes(entry: dict[str, Any]) -> list[dict[str, Any]]:
            return staging.read_changes(epoch.plan.tables[entry["table"]], entry["staged"]).to_pylist()  # type: ignore[no-any-return]

        expected = [(entry, changes(entry)) for entry in whole["tables"]]  # type: ignore[attr-defined]
        pieces = source.partitions(start, end)
        # In the order in which Spark likes to end them.
        manifests = [read(source, piece) for piece in reversed(pieces)]
        assert len(pieces) == 3 and len({str(m["start"]) for m in manifests}) == 3
        # Each is a connection of its own: two with the same replication server id would end each other.
        assert len({epoch.job.reader_replicas[piece.reader_index] for piece in pieces}) == 3  # type: ignore[attr-defined]
        batch = merge_manifests(manifests)
        assert (batch["start"], batch["end"]) == (whole["start"], whole["end"])
        for entry, (told, rows) in zip(batch["tables"], expected, strict=True):
            assert changes(entry) == rows
            assert {**entry, "staged": 0} == {**told, "staged": 0}
        assert all(there(*staged) for staged in batch["staged"])
        assert len(batch["staged"]) > sum(len(entry["staged"]) for entry in batch["tables"]), (
            "some are of no use any more"
        )
        epoch.apply_batch(batch)
        used = {name for entry in batch["tables"] for name in entry["staged"] if epoch.plan.tables[entry["table"]].key}
        assert {name for index, name in batch["staged"] if there(index, name)} <= used, "rows of tables stay"
    assert compare_database(mysql_server, database, cli.sink) == []


def test_a_piece_that_is_missing(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    write(mysql_server, database)
    with reader(cli) as (_, source):
        start = source.initialOffset()
        first, _, last = source.partitions(start, source.latestOffset(start, None))
        with pytest.raises(TerminalError, match="a batch range begins at .* but the one before it ends at"):
            merge_manifests([read(source, first), read(source, last)])


def test_a_little_is_one_piece(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    write(mysql_server, database)
    with reader(cli, piece_bytes=16 << 20) as (_, source):
        start = source.initialOffset()
        end = source.latestOffset(start, None)
        assert len(source.partitions(start, end)) == 1
        assert source.latestOffset(end, None) == end and source.partitions(end, end) == []


def test_bytes_end_a_batch(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """Of a backlog in one file each reader gets its share of a batch, not one of them all of it."""
    for number in range(10, 40):
        mysql_server.execute(f"INSERT INTO `{database}`.wide VALUES ({number}, REPEAT('x', 10000))")
    with reader(cli) as (epoch, source):
        source._job = replace(epoch.job, max_batch_bytes=90_000)
        end, rows = source.initialOffset(), list[list[int]]()
        while (start := end) != (end := source.latestOffset(start, None)):
            manifests = [read(source, piece) for piece in source.partitions(start, end)]
            rows.append([sum(entry["rows"] for entry in m["tables"]) for m in manifests])  # type: ignore[attr-defined]
            epoch.apply_batch(merge_manifests(manifests))
    assert rows == [[3, 3, 3]] * 3 + [[1, 1, 1]]
    assert compare_database(mysql_server, database, cli.sink) == []


def test_a_batch_begins_with_a_change(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """While nothing is new the source waits, and lets Spark look again; a change is taken although it has just begun
    to wait. The next one has to wait for its time, and even that does not hold Spark up."""
    with reader(cli, seconds=3) as (_, source):
        start = source.initialOffset()
        assert source.latestOffset(start, None) == start
        writer = threading.Timer(0.3, mysql_server.execute, (f"UPDATE `{database}`.t SET v = 2",))
        began = time.monotonic()
        writer.start()
        end = source.latestOffset(start, None)
        assert end != start
        writer.join()
        mysql_server.execute(f"UPDATE `{database}`.t SET v = 3")
        looks = 1
        while source.latestOffset(end, None) == end:
            looks += 1
        assert time.monotonic() - began > 3 and looks > 1


def test_what_is_full_is_followed_at_once(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    with reader(cli, seconds=3600) as (epoch, source):
        source._job = replace(epoch.job, max_batch_rows=1000, min_range_bytes=16 << 20)
        for first in range(1000, 3500, 500):
            values = ", ".join(f"({n}, 0)" for n in range(first, first + 500))
            mysql_server.execute(f"INSERT INTO `{database}`.t VALUES {values}")
        ends = [source.initialOffset()]
        for _ in range(4):
            ends.append(source.latestOffset(ends[-1], None))
        assert ends[1] != ends[0] and ends[2] != ends[1], "there is more"
        mysql_server.execute(f"UPDATE `{database}`.t SET v = 2")
        assert ends[4] == ends[3] == source.latestOffset(ends[3], None), "that was all, and the next hour has not begun"


@pytest.mark.parametrize("compressed", [False, True])
def test_rows_end_a_batch(cli: Cli, mysql_server: MySQLServer, database: str, compressed: bool) -> None:
    """Transactions of 100 rows: a batch of 1000 has ten of them, or as many pieces with their share of it."""
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE not_captured (id INT PRIMARY KEY, v INT)")
        cursor.execute(f"SET binlog_transaction_compression = {compressed:d}")
        for first in range(1000, 3500, 100):
            values = ", ".join(f"({n}, 0)" for n in range(first, first + 100))
            cursor.execute(f"INSERT INTO t VALUES {values}")
            cursor.execute(f"INSERT INTO not_captured VALUES {values}")
    found: list[list[int]] = []
    with reader(cli) as (epoch, source):
        source._job = replace(epoch.job, max_batch_rows=1000, min_range_bytes=16 << 20)
        end = source.initialOffset()
        while (start := end) != (end := source.latestOffset(start, None)):
            manifests = [read(source, piece) for piece in source.partitions(start, end)]
            found.append([sum(entry["rows"] for entry in m["tables"]) for m in manifests])  # type: ignore[attr-defined]
            epoch.apply_batch(merge_manifests(manifests))
    # A share is 334 rows, which four transactions have.
    assert found == [[400, 400, 400], [400, 400, 400], [100]]
    assert compare_database(mysql_server, database, cli.sink, ("t", "gone", "wide")) == []


def test_a_transaction_that_only_unpacked_is_larger_than_a_batch(
    mariadb_server: MySQLServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the open transaction ends MariaDB does not tell: it counts as the last one by its size in the binlog."""
    monkeypatch.setattr("airflow_provider_cdc.mysql.binlog.walk.changes.MAX_HELD_BYTES", 1 << 16)
    server = mariadb_server
    with contextlib.ExitStack() as stack:
        server.execute("CREATE DATABASE pieces")
        stack.callback(server.execute, "DROP DATABASE pieces")
        server.execute("CREATE TABLE pieces.wide (id INT PRIMARY KEY, v LONGTEXT)")
        cli = Cli(tmp_path, server, r"pieces\..*", name="pieces")
        cli.snapshot()
        server.execute("SET GLOBAL log_bin_compress = ON")
        stack.callback(server.execute, "SET GLOBAL log_bin_compress = OFF")
        wide = [f"INSERT INTO wide VALUES ({n}, REPEAT('x', 1 << 20))" for n in range(40)]
        server.session("pieces", "BEGIN", *wide, "COMMIT", "INSERT INTO wide VALUES (100, 'y')")
        with cli.epoch(batch_bytes=1 << 20) as epoch, contextlib.closing(epoch.job.make_planner()) as planner:
            (end,) = epoch.job.find_range_ends(planner, epoch.section_start)
            epoch.apply_batch(epoch.job.stage_range(epoch.section_start, end, "0"))
        assert compare_database(server, "pieces", cli.sink) == []


@pytest.mark.spark
def test_much_is_read_by_several_tasks(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """60 MB of changes through Spark: three tasks, each of which begins at another place."""
    dumps = "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log WHERE command_type LIKE 'Binlog Dump%'"
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT NOW(6)")
        began = cursor.fetchall()[0]
        for number in range(10, 70):
            cursor.execute(f"INSERT INTO wide VALUES ({number}, REPEAT(CHAR(32 + {number}), 1 << 20))")
        try:
            cursor.execute("SET GLOBAL log_output = 'TABLE', GLOBAL general_log = ON, GLOBAL log_error_verbosity = 3")
            ran = cli.run("stream", "--catch-up")
        finally:
            cursor.execute("SET GLOBAL general_log = OFF, GLOBAL log_output = 'FILE', GLOBAL log_error_verbosity = 2")
        assert ran.code == 0, ran
        cursor.execute(
            "SELECT data FROM performance_schema.error_log WHERE logged > %s AND data LIKE '%%zombie%%'", began
        )
        assert cursor.fetchall() == (), "two readers had one name, and the server threw one of them out"
        cursor.execute(dumps)
        places = {re.search(r"Pos: (\d+)", text)[1] for (text,) in cursor.fetchall()}  # type: ignore[index]
        assert len(places - {"4"}) == 3, "beside the look at the beginning of the file"
        cursor.execute("TRUNCATE mysql.general_log")
        assert compare_all(connection, database, cli.sink) == []
