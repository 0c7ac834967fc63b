"""Partitions by columns that the copy has masked, hashed, truncated, or under another name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.oracle import compare_database, open_copy
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, ICEBERG
from tests.support.transforms import HASH_CONNECTION, HASH_ENV, hmac_sql, make_view, mask_sql

pytestmark = pytest.mark.one_of("server", "kind")

COLUMNS: dict[str, Any] = {
    "mail": {"hash": "hex", "rename": "mail_hash"},
    "zip": {"mask": 2, "rename": "zip_end"},
    "country": {"truncate": 1},
    "made": {"rename": "made_at"},
    "raw": {"hash": "binary"},
    "gone": "exclude",
}
VIEW = {
    "id": "id",
    "mail_hash": hmac_sql("mail"),
    "zip_end": mask_sql("zip", 2),
    "country": "LEFT(country, 1)",
    "made_at": "made",
    "raw": f"UNHEX({hmac_sql('raw')})",
    "v": "v",
}


@pytest.fixture(params=[DELTA, ICEBERG])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database() as name:
        server.session(
            name,
            "CREATE TABLE t (id INT PRIMARY KEY, mail VARCHAR(20), zip VARCHAR(9), country VARCHAR(9), "
            "made DATETIME(6), raw INT, gone INT, v INT)",
            *(
                f"INSERT INTO t VALUES ({n}, 'mail{n % 3}', '{100 + n % 4}', '{('de', 'dk', 'fr')[n % 3]}', "
                f"'2024-0{1 + n % 3}-01 10:00:00', {n}, {n}, {n})"
                for n in range(1, 20)
            ),
        )
        make_view(server, name, "copy_of_t", "t", "v <> 5", **VIEW)
        yield name


def pipeline(folder: Path, server: MySQLServer, database: str, kind: str, by: list[Any]) -> Cli:
    transforms = {
        "hash_key_conn_id": HASH_CONNECTION,
        "columns": {rf"{database}\.t\.{name}": policy for name, policy in COLUMNS.items()},
        "where": {rf"{database}\.t": "v <> 5"},
    }
    sink = {"kind": kind, "partition_by": {rf"{database}\.t": by}}
    cli = Cli(folder, server, rf"{database}\.t", name=database, sink=sink, transforms=transforms)
    cli.env |= HASH_ENV
    return cli


@pytest.mark.parametrize("by", [["mail_hash"], ["zip_end", {"month": "made_at"}], ["country"]], ids=str)
def test_values_of_the_copy(server: MySQLServer, database: str, tmp_path: Path, kind: str, by: list[Any]) -> None:
    cli = pipeline(tmp_path, server, database, kind, by)
    cli.snapshot()
    server.session(
        database,
        "UPDATE t SET mail = 'other', zip = '99', country = 'xx', made = '2020-02-02' WHERE id < 4",
        "UPDATE t SET v = 5 WHERE id = 4",
        "UPDATE t SET v = 6, zip = NULL, mail = NULL, country = NULL, made = NULL WHERE id = 5",
        "DELETE FROM t WHERE id = 6",
    )
    cli.catch_up()
    with cli.streaming():
        assert cli.resnapshot(f"{database}.t", "id < 8") == "replaced"
    cli.catch_up()
    assert compare_database(server, database, cli.sink, ["t"], views={"t": ("copy_of_t", ["id"])}) == []
    assert {verdict.verdict for verdict in verify_tables(cli.context)} == {"equal"}
    copy = open_copy(cli.sink / database / "t")
    assert copy is not None
    paths = [str(path.relative_to(cli.sink)) for path in cli.sink.rglob("*=*")]
    assert (kind == ICEBERG or paths) and not any(
        text in path for path in paths for text in ("=mail", "zip_end=1", "=dk", "=fr")
    )


@pytest.mark.parametrize("by", ["mail", "zip", "gone", "raw", {"month": "mail_hash"}], ids=str)
def test_what_check_refuses(server: MySQLServer, database: str, tmp_path: Path, kind: str, by: Any) -> None:
    """Names of the source that the copy does not have, and types that cannot be partitions."""
    found = pipeline(tmp_path, server, database, kind, [by]).call("check").found
    assert len(found) == 1 and "sink.partition_by" in found[0], found
