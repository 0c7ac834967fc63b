"""What a driver reports while it starts, before it has read the first row."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from airflow_provider_cdc.airflow.operators.base import make_driver_request
from airflow_provider_cdc.driver.launchers.local import start_attached
from airflow_provider_cdc.observe.log_lines import parse_log_line
from tests.support.cli import Cli
from tests.support.servers import MySQLServer


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_each_slow_part_of_the_start_has_a_line(
    mysql_server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an empty cache, the machine code is compiled; the second driver has it, and says nothing about it."""
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT)")
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
    cli = Cli(tmp_path, mysql_server, f"{database}.t", snapshot={"group_rows": 2, "chunk_rows": 2})
    with cli.opened() as (context, store):
        first, second = sorted(context.plans.ensure(store).groups())
    monkeypatch.setenv("AIRFLOW_CONN_CDC_SOURCE", cli.env["AIRFLOW_CONN_CDC_SOURCE"])
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))

    def lines_of(group: int) -> list[str]:
        with start_attached(make_driver_request(context.pipeline, groups=[group], holder="test")) as driver:
            lines = [parse_log_line(line) for line in driver.output_lines()]
            assert driver.wait_for_outcome()["groups"][0]["outcome"] == "published"
        assert {level for level, _ in lines} <= {logging.INFO, logging.WARNING}  # a busy machine waits for Spark
        return [re.sub(r"\d+\.\d s", "x s", text) for _, text in lines]

    cold, warm = lines_of(first), lines_of(second)
    parts = [
        "starting Java",
        "Java runs after x s",
        "Spark runs after x s",
        "Python workers run after x s",
        f"group {first}: {database}.t: reading 1 chunks",
    ]
    assert [cold.count(part) for part in parts] == [1] * len(parts)
    assert cold.count("compiling machine code, once per machine") == 1
    assert not [text for text in warm if "machine code" in text]
    assert [warm.count(part) for part in parts[:4]] == [1, 1, 1, 1]
