"""What ``bench/snapshot.py`` compares: each arm reads one table, in a process of its own.

An arm is a context manager: entering makes it ready (Python, numba, a JVM are started), and gives a function that reads
the table ``customer`` of a database, into files below a folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench import debezium
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.transforms import HASH_CONNECTION, HASH_ENV

TABLE = "customer"
#: (database, folder) -> rows; ``None``: to be counted in the files.
Arm = Callable[[str, Path], int | None]


class Source(MySQLServer):
    """The server that the parent runs, as a child sees it: only the address and the login."""

    def __init__(self) -> None:
        super().__init__()
        known = json.loads(os.environ["CDC_BENCH_SERVER"])
        self.host, self.port, self.user, self.password = (known[k] for k in ("host", "port", "user", "password"))

    def count(self, database: str) -> int:
        return int(self.execute(f"SELECT COUNT(*) FROM {database}.{TABLE}")[0][0])


#: Rules for columns and rows, which some arms have.
FILTER: dict[str, Any] = {"where": {rf".*\.{TABLE}": "c_birth_day <= 3"}}
HASHES: dict[str, Any] = {
    "hash_key_conn_id": HASH_CONNECTION,
    "columns": {rf".*\.{TABLE}\.(c_last_name|c_email_address)": "hash"},
}


def _pipeline(
    database: str, folder: Path, chunk_rows: int, sink: str = "delta", transforms: dict[str, Any] | None = None
) -> Cli:
    snapshot, tables = {"chunk_rows": chunk_rows, "parallelism": 2}, rf"{database}\.{TABLE}"
    rules = {} if transforms is None else {"transforms": transforms}
    cli = Cli(folder, Source(), tables, name=database, snapshot=snapshot, sink={"kind": sink}, **rules)
    cli.env |= HASH_ENV
    return cli


@contextlib.contextmanager
def own_in_threads(chunk_rows: int, transforms: dict[str, Any] | None = None) -> Iterator[Arm]:
    yield lambda database, folder: _pipeline(database, folder, chunk_rows, transforms=transforms).snapshot()


@contextlib.contextmanager
def own_on_spark(chunk_rows: int, sink: str = "delta") -> Iterator[Arm]:
    from airflow_provider_cdc.chunk_groups.spark_job import spark_runner
    from airflow_provider_cdc.snapshot.run import run_snapshot
    from airflow_provider_cdc.spark.session import start_session

    spark = start_session("bench", "local[2]")

    def run(database: str, folder: Path) -> None:
        with _pipeline(database, folder, chunk_rows, sink).opened() as (context, store):
            run_snapshot(context, store, context.plans.ensure(store), spark_runner(spark, print))

    try:
        yield run
    finally:
        spark.stop()


@contextlib.contextmanager
def connectorx() -> Iterator[Arm]:
    import connectorx as cx
    import pyarrow.parquet as pq

    server = Source()
    login = f"{quote(server.user)}:{quote(server.password)}@{server.host}:{server.port}"

    def run(database: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        found = cx.read_sql(f"mysql://{login}/{database}", f"SELECT * FROM {TABLE}", return_type="arrow")
        pq.write_table(found, folder / f"{TABLE}.parquet")

    yield run


@contextlib.contextmanager
def spark_jdbc() -> Iterator[Arm]:
    from airflow_provider_cdc.spark.session import start_session

    server = Source()
    spark = start_session("bench", "local[2]", {"spark.driver.extraClassPath": str(debezium.driver())})

    def run(database: str, folder: Path) -> None:
        with contextlib.closing(server.connect(database=database)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT MIN(c_customer_sk), MAX(c_customer_sk) FROM {TABLE}")
            low, high = cursor.fetchone() or (0, 0)
        reader = spark.read.format("jdbc").option("driver", "com.mysql.cj.jdbc.Driver")
        # Rows are streamed; the driver would hold all of a partition's in memory otherwise.
        for name, value in {
            "url": f"jdbc:mysql://{server.host}:{server.port}/{database}?sslMode=DISABLED&allowPublicKeyRetrieval=true",
            "user": server.user,
            "password": server.password,
            "dbtable": TABLE,
            "partitionColumn": "c_customer_sk",
            "lowerBound": str(low),
            "upperBound": str(high),
            "numPartitions": "2",
            "fetchsize": str(-(2**31)),
        }.items():
            reader = reader.option(name, value)
        reader.load().write.parquet(str(folder))

    try:
        yield run
    finally:
        spark.stop()


@contextlib.contextmanager
def debezium_engine(threads: int) -> Iterator[Arm]:
    server = Source()
    scratch = Path(os.environ["CDC_BENCH_SCRATCH"])
    engine = debezium.Engine(server.connect_args(), scratch)
    sizes = {database: server.count(database) for database in ("warm", "shop")}

    def run(database: str, folder: Path) -> int:
        engine.snapshot(database, TABLE, sizes[database], threads)
        return sizes[database]

    yield run
    engine.settle()
