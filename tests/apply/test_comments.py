"""What the catalog says of columns, in the sink."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.cli import Cli
from tests.support.servers import MySQLServer

pytestmark = pytest.mark.one_of("server")


def test_comments_and_types(server: MySQLServer, tmp_path: Path) -> None:
    server.execute("CREATE DATABASE d")
    try:
        server.session(
            "d",
            "CREATE TABLE t (id INT UNSIGNED PRIMARY KEY COMMENT 'Zahl, größer als ''0''', v ENUM('a','b') COMMENT '', "
            "w INT COMMENT '€')",
            "INSERT INTO t VALUES (1, 'a', 1)",
        )
        cli = Cli(tmp_path, server, r"d\.t", sink={"table_properties": {"owner": "shop"}})
        cli.snapshot()
        server.session("d", "UPDATE t SET v = 'b'")
        cli.catch_up()
        table = DeltaTable(str(cli.sink / "d" / "t"))
        fields = {field.name: field.metadata for field in table.schema().fields}
        assert fields["id"]["comment"] == "Zahl, größer als '0'" and fields["w"]["comment"] == "€"
        assert "unsigned" in fields["id"]["airflow-cdc.type"] and "comment" not in fields["v"]
        assert fields["v"]["airflow-cdc.type"] == "enum('a','b')"
        found = table.metadata().configuration
        assert found["airflow-cdc.source"] == "d.t" and found["owner"] == "shop"
    finally:
        server.execute("DROP DATABASE d")
