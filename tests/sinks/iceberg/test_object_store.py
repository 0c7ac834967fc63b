"""A whole pipeline into Iceberg tables whose files are in an object store, through a REST catalog that writes there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from tests.support.cli import Cli, tree
from tests.support.iceberg_rest import IcebergRest, running_rest_catalog
from tests.support.s3 import REGION, S3
from tests.support.servers import MySQLServer


@pytest.fixture
def catalog(s3: S3) -> Iterator[IcebergRest]:
    with running_rest_catalog(s3) as server:
        yield server


def store_properties(s3: S3) -> dict[str, str]:
    """Properties of the store by pyiceberg's names."""
    return {
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.key,
        "s3.secret-access-key": s3.secret,
        "s3.region": REGION,
    }


@pytest.mark.parametrize("merge", ["deletion_vectors", "copy_on_write"])
def test_snapshot_and_stream(
    mysql_server: MySQLServer, database: str, s3: S3, catalog: IcebergRest, tmp_path: Path, merge: str
) -> None:
    """One connection has the catalog and the keys of the store. Nothing of the tables is on this host."""
    mysql_server.session(
        database,
        "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(20), d DATE)",
        "INSERT INTO a VALUES " + ",".join(f"({n}, 'v{n}', '2026-0{n % 3 + 1}-01')" for n in range(100)),
        "CREATE TABLE log (v INT)",
        "INSERT INTO log VALUES (1), (1), (NULL)",
    )
    sink = {
        "kind": "iceberg",
        "path": s3.uri("lake"),
        "conn_id": "lake",
        "merge": merge,
        "partition_by": {r".*\.a": [{"month": "d"}]},
    }
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*", sink=sink, snapshot={"chunk_rows": 30})
    connection = {"conn_type": "iceberg", "host": catalog.uri, "extra": store_properties(s3)}
    cli.env |= {"AIRFLOW_CONN_LAKE": json.dumps(connection), "AIRFLOW_CDC_STATE_DIR": str(tmp_path / "state")}
    checked = cli.call("check")
    assert checked.code == 0, checked
    assert f"sink {s3.uri('lake')} is writable" in checked.out
    cli.snapshot()
    mysql_server.session(
        database,
        "UPDATE a SET v = 'new' WHERE id < 5",
        "UPDATE a SET d = '2026-09-09' WHERE id = 5",
        "DELETE FROM a WHERE id = 99",
        "DELETE FROM log WHERE v = 1 LIMIT 1",
    )
    cli.catch_up()
    verified = cli.call("verify")
    assert verified.code == 0, verified
    maintained = cli.call("maintain")
    assert maintained.code == 0, maintained

    with closing(load_catalog("reader", type="rest", uri=catalog.uri, **store_properties(s3))) as reader:
        found = reader.load_table((database, "a")).scan(selected_fields=("id", "v")).to_arrow()
        location = reader.load_table((database, "a")).location()
        rows = {row["id"]: row["v"] for row in found.to_pylist()}
        assert rows == {n: "new" if n < 5 else f"v{n}" for n in range(99)} and found.num_rows == 99
        assert reader.load_table((database, "log")).scan(selected_fields=("v",)).to_arrow().num_rows == 2
    assert location == s3.uri(f"lake/{database}/a")
    kinds = {key.rsplit(".", 1)[-1] for key in s3.keys(f"lake/{database}/a/")}
    assert kinds >= {"parquet", "avro", "json"}
    assert ("puffin" in kinds) == (merge == "deletion_vectors")
    assert not (tmp_path / "lake").exists()
    assert s3.secret.encode() not in b"".join(data for data in tree(tmp_path).values() if data)
    forgotten = cli.call("forget", "--tables", "--yes")
    assert forgotten.code == 0, forgotten
    assert [key for key in s3.keys("lake/") if key.endswith(".parquet")] == []
