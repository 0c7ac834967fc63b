"""Partitioned tables from end to end: a real server, snapshot and stream, and what other programs read of them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables
from airflow_provider_cdc.maintenance.table_maintenance import compact_table
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.verify.run import verify_tables
from tests.sinks.lake.test_partitions import READERS
from tests.support.cli import Cli
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer
from tests.support.spark_delta import spark_delta

COUNTRIES = ("DE", "FR", "United Kingdom", "a/b", None)


@pytest.fixture(params=["deletion_vectors", "copy_on_write"])
def cli(request: pytest.FixtureRequest, mysql_server: MySQLServer, database: str, tmp_path: Path) -> Iterator[Cli]:
    chance = random.Random(1)
    mysql_server.session(
        database,
        "CREATE TABLE orders (id INT PRIMARY KEY, country VARCHAR(30), at DATETIME(6), v INT)",
        "CREATE TABLE visits (country VARCHAR(30) NOT NULL, no INT, day DATE, v INT, PRIMARY KEY (country, no))",
        "CREATE TABLE log (kind ENUM('a', 'b'), v INT)",
        "INSERT INTO orders VALUES " + ",".join(order(n, chance) for n in range(300)),
        "INSERT INTO visits VALUES " + ",".join(f"('c{n % 4}', {n}, '2024-0{n % 3 + 1}-01', 0)" for n in range(60)),
        "INSERT INTO log VALUES " + ",".join(f"({('NULL', 1, 2)[n % 3]}, {n % 5})" for n in range(60)),
    )
    by: dict[str, list[Any]] = {
        f"{database}[.]orders": ["country", {"month": "at"}],
        f"{database}[.]visits": ["country", {"year": "day"}],
        f"{database}[.]log": ["kind"],
    }
    sink = {"merge": request.param, "partition_by": by}
    yield Cli(tmp_path, mysql_server, rf"{database}\..*", name=database, snapshot={"chunk_rows": 50}, sink=sink)


def query(server: MySQLServer, database: str, statement: str) -> list[Any]:
    with contextlib.closing(server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def order(key: int, chance: random.Random) -> str:
    country, month = chance.choice(COUNTRIES), chance.choice([1, 2, 12, None])
    at = "NULL" if month is None else f"'2024-{month:02}-15 23:59:59.999999'"
    return f"({key}, {'NULL' if country is None else repr(country)}, {at}, {chance.randrange(100)})"


def changes(seed: int) -> list[str]:
    """Keys come, go, and move between partitions, also more than once in a transaction."""
    chance = random.Random(seed)
    found = ["BEGIN"]
    for n in range(25):
        key = chance.randrange(330)
        found.append(f"REPLACE INTO orders VALUES {order(key, chance)}")
        found.append(f"UPDATE orders SET country = 'FR', at = at + INTERVAL 1 MONTH WHERE id = {chance.randrange(330)}")
        found.append(f"DELETE FROM orders WHERE id = {chance.randrange(330)}")
        found.append(f"UPDATE orders SET id = {1000 * seed + n} WHERE id = {chance.randrange(330)}")
    found += [
        f"UPDATE visits SET country = 'c{seed}', day = '202{seed}-01-01' WHERE no % 10 = {seed}",
        f"UPDATE log SET kind = 'b' WHERE v = {seed} LIMIT 3",
        "DELETE FROM log WHERE kind IS NULL LIMIT 2",
        "COMMIT",
    ]
    return found


def test_from_end_to_end(cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to the source for each reader, the columns that are not the source's included."""
    monkeypatch.setattr(compaction, "FANOUT", 2)
    monkeypatch.setattr(compaction, "MIN_FANOUT", 2)
    assert cli.call("check").code == 0
    cli.snapshot()
    for seed in range(1, 5):
        mysql_server.session(database, *changes(seed))
        cli.catch_up()
        if seed == 2:
            tables = open_sink_tables(cli.context, cli.context.plans.require())
            count = sum(compact_table(table, lambda work: [c.run() for c in work]) for table in tables)
            assert count > 3 or cli.value["sink"]["merge"] == "copy_on_write"
        if seed == 3:
            mysql_server.session(database, "TRUNCATE TABLE visits", "INSERT INTO visits VALUES ('d', 1, NULL, 1)")
    for table in open_sink_tables(cli.context, cli.context.plans.require()):
        table.clean_up()
    assert [str(d) for d in compare_database(mysql_server, database, cli.sink)] == []
    verdicts = verify_tables(cli.context)
    assert len(verdicts) == 3 and all(v.is_equal and v.rows for v in verdicts)

    path = cli.sink / database / "orders"
    statement = "SELECT id, country, at, v, DATE_FORMAT(at, '%Y-%m') AS at_month FROM orders"
    source = sorted(query(mysql_server, database, statement), key=repr)
    assert len({row[1:3] for row in source}) > 10
    for name, read in READERS.items():
        seen = read(path).select(["id", "country", "at", "v", "at_month"]).to_pylist()
        assert sorted((tuple(row.values()) for row in seen), key=repr) == source, name
    assert DeltaTable(path).metadata().partition_columns == ["country", "at_month"]


@pytest.mark.spark
@pytest.mark.one_of("cli")
def test_spark_reads_it(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """All rows, and those of some partitions; then it writes some anew, and the stream goes on."""
    cli.snapshot()
    for seed in range(1, 3):
        mysql_server.session(database, *changes(seed))
        cli.catch_up()
    statement = "SELECT id, country, v, DATE_FORMAT(at, '%Y-%m') FROM orders"
    path = cli.sink / database / "orders"

    def source() -> list[Any]:
        return sorted(query(mysql_server, database, statement), key=repr)

    with spark_delta() as spark:
        read = f"SELECT id, country, v, at_month FROM delta.`{path}`"
        assert sorted(spark(read), key=repr) == source()
        for condition in ("country = 'United Kingdom'", "country IS NULL", "country = 'a/b'"):
            kept = sorted(query(mysql_server, database, f"{statement} WHERE {condition}"), key=repr)
            assert kept and sorted(spark(f"{read} WHERE {condition}"), key=repr) == kept
        visits = sorted(spark(f"SELECT country, no, v FROM delta.`{path.parent}/visits` WHERE day < '2024-02-02'"))
        kept = query(mysql_server, database, "SELECT country, no, v FROM visits WHERE day < '2024-02-02'")
        assert visits == sorted(kept)
        (plan,) = spark(f"EXPLAIN FORMATTED SELECT no FROM delta.`{path.parent}/visits` WHERE day < '2024-02-02'")
        filters = [line for line in plan[0].splitlines() if "PartitionFilters" in line]
        assert "day_year" in filters[0], "Spark knows which partitions have such days"
        spark(f"OPTIMIZE delta.`{path}`")
        mysql_server.session(database, *changes(3))
        cli.catch_up()
        assert sorted(spark(read), key=repr) == source()
    assert [str(d) for d in compare_database(mysql_server, database, cli.sink)] == []


def test_check_refuses(mysql_server: MySQLServer, database: str, tmp_path: Path) -> None:
    """In one line, before anything is written."""
    mysql_server.session(database, "CREATE TABLE t (id INT PRIMARY KEY, f FLOAT)")
    by: dict[str, list[Any]] = {f"{database}[.]t": ["nothing"]}
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database, sink={"partition_by": by})
    for column, said in (("nothing", "has no column nothing"), ("f", "values of type float cannot form partitions")):
        by[f"{database}[.]t"] = [column]
        cli.write()
        result = cli.call("check")
        assert result.code == 2 and any(said in line for line in (result.out + result.err).splitlines()), result
    by[f"{database}[.]t"] = ["id"]
    cli.write()
    assert cli.call("check").code == 0
