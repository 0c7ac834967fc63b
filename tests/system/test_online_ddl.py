"""Tables that people alter online, with the real tools, while writers and the stream go on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.resnapshot import worker as rereading
from tests.resnapshot.test_membership import ALL, captures, copied, events
from tests.resnapshot.test_suspension import equal
from tests.support.chance import Threads
from tests.support.online_ddl import TOOLS
from tests.support.packages import ServerUnavailable
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.three_tables import TABLES, run, three_tables

pytestmark = pytest.mark.long

#: Two in a row; the second one changes values that are there.
CHANGES = ("ADD COLUMN w INT NOT NULL DEFAULT 3", "MODIFY v VARCHAR(90) CHARACTER SET latin1, ADD KEY (v)")


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with three_tables(server) as name:
        values = ", ".join(f"({n}, 'row {n}')" for n in range(1000, 3000))
        run(server, f"INSERT INTO keyed VALUES {values}")
        yield name


def write(draw: random.Random, number: int, cursor: Any) -> None:
    """Changes of all kinds."""
    key = draw.randint(1, 3500)
    cursor.execute(f"REPLACE INTO keyed (id, v) VALUES ({key}, 'new {number}')")
    cursor.execute(f"UPDATE keyed SET v = CONCAT(LEFT(v, 9), '.') WHERE id BETWEEN {key} AND {key + 9}")
    cursor.execute(f"DELETE FROM keyed WHERE id = {draw.randint(1, 3500)}")
    cursor.execute(f"UPDATE quiet SET v = 'at {key}' WHERE id = {key % 30}")


@pytest.mark.parametrize("patterns", ["captured", "excluded"])
@pytest.mark.parametrize("tool", TOOLS)
def test_altered_online(
    server: MySQLServer,
    database: str,
    tool: str,
    patterns: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice in a row. The tool's own tables match the patterns, or do not; none of them is copied."""
    if tool == "gh-ost" and server.execute("SELECT VERSION() LIKE '%MariaDB%'")[0][0]:
        pytest.skip("gh-ost reads the binlog of MySQL alone")
    monkeypatch.setattr(rereading, "_CATALOG_SECONDS", 0.2)
    cli = copied(server, tmp_path, ALL)
    if patterns == "excluded":
        captures(cli, ALL, exclude=(r"d\._.*",))
    try:
        with cli.streaming(), Threads(server, 1, "d", [write] * 3, "autocommit = 1"):
            for change in CHANGES:
                TOOLS[tool](server, "keyed", change)
            wait_for("the table to rejoin", lambda: "table_rejoined" in events(cli), 180)
            wait_for("all tables", lambda: len(cli.context.plans.require().active_tables) == 3, 180)
    except ServerUnavailable as error:
        pytest.skip(str(error))
    cli.catch_up()
    equal(server, cli, *TABLES)
    assert {table.name for table in cli.context.plans.require().tables} == {*TABLES}
    assert {"w", "v"} <= {*cli.rows("d", "keyed").column_names}
    assert "table_added" not in events(cli)
