"""Columns that a pipeline leaves out: in the snapshot, in the stream and in verify alike, and never one of the key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.servers import MySQLServer


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database("k") as name:
        yield name


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("key", "patterns"),
    [("exclude_columns", [r"k\.t\.(secret|a|code)"]), ("include_columns", [r"k\.t\.v", r"k\.t\.b"])],
)
def test_columns_that_are_left_out(
    server: MySQLServer,
    tmp_path: Path,
    key: str,
    patterns: list[str],
) -> None:
    """A column of the key, ``a``, is named too and stays."""
    server.execute("CREATE TABLE k.t (secret VARCHAR(50), b INT, v INT, a INT, code ENUM('x','y'), PRIMARY KEY (a, b))")
    server.execute(
        "INSERT INTO k.t VALUES ('canary1', 1, 10, 1, 'x'), ('canary2', 2, 20, 1, NULL), (NULL, 3, 30, 1, 'y')"
    )
    cli = Cli(tmp_path, server, r"k\.t", source={key: patterns})
    assert "table k.t: 3 columns (2 more are left out), key (a, b)" in cli.call("check").out
    cli.snapshot()
    assert cli.rows("k", "t").drop_columns(["_cdc_seq", "_cdc_ts"]).sort_by("b").to_pylist() == [
        {"b": 1, "v": 10, "a": 1, "_cdc_op": "r"},
        {"b": 2, "v": 20, "a": 1, "_cdc_op": "r"},
        {"b": 3, "v": 30, "a": 1, "_cdc_op": "r"},
    ]
    server.execute("UPDATE k.t SET secret = 'canary3', v = 11 WHERE b = 1")
    server.execute("UPDATE k.t SET secret = 'canary4' WHERE b = 2")
    server.execute("UPDATE k.t SET b = 4 WHERE b = 3")
    server.execute("INSERT INTO k.t VALUES ('canary5', 5, NULL, 2, 'y')")
    cli.catch_up()
    assert cli.rows("k", "t").drop_columns(["_cdc_seq", "_cdc_ts"]).sort_by("b").to_pylist() == [
        {"b": 1, "v": 11, "a": 1, "_cdc_op": "u"},
        {"b": 2, "v": 20, "a": 1, "_cdc_op": "u"},
        {"b": 4, "v": 30, "a": 1, "_cdc_op": "u"},
        {"b": 5, "v": None, "a": 2, "_cdc_op": "c"},
    ]
    assert cli.call("verify").code == 0
    held = [p for p in cli.sink.rglob("*.parquet") if b"canary" in p.read_bytes()]
    assert held == []
    server.execute("ALTER TABLE k.t MODIFY secret VARCHAR(60)")
    verified = cli.call("verify")
    assert verified.code == 4 and "its definition" in verified.err
