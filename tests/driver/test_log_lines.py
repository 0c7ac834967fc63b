"""What a driver writes to its log, and what its task makes of it."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

import pytest

from airflow_provider_cdc.config.connections import resolve_connection
from airflow_provider_cdc.config.selection import TableSelection
from airflow_provider_cdc.driver.launchers.local import start_attached
from airflow_provider_cdc.driver.request import DriverRequest
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TerminalError
from airflow_provider_cdc.observe.log_lines import parse_log_line, relay_log_lines
from tests.support.cli import Cli
from tests.support.servers import MySQLServer


def requested(cli: Cli, **what: object) -> DriverRequest:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_CDC_SOURCE", cli.env["AIRFLOW_CONN_CDC_SOURCE"])
        connection = resolve_connection("cdc_source")
    return DriverRequest(cli.context.pipeline.to_dict(), {"cdc_source": connection.to_json()}, **what)  # type: ignore[arg-type]


def relayed(lines: list[str], caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Level and text of what a task's log gets."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        relay_log_lines(lines, logging.getLogger("task"))
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_a_line_keeps_its_level_and_loses_its_time() -> None:
    assert parse_log_line("2026-01-02T03:04:05Z WARNING the disk is full") == (logging.WARNING, "the disk is full")
    assert parse_log_line("2026-01-02T03:04:05Z DEBUG ") == (logging.DEBUG, "")
    assert parse_log_line("WARNING: An illegal access has occurred") == (
        logging.WARNING,
        "An illegal access has occurred",
    )
    assert parse_log_line("Fatal Python error: Aborted") == (logging.ERROR, "Fatal Python error: Aborted")
    for text in ("at com.example.Main", "2026-01-02T03:04:05Z LOUD text", ""):
        assert parse_log_line(text) == (logging.INFO, text)


def test_an_error_is_written_once(
    mysql_server: MySQLServer, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver's log has it at ERROR; the task raises it, and so does not write the line."""
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT)")
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, 1), (2, 2)")
    cli = Cli(tmp_path, mysql_server, f"{database}.t")
    cli.snapshot()
    cli.catch_up()
    mysql_server.session(database, "SET sql_log_bin = 0", "UPDATE t SET v = 7 WHERE id = 2")
    request = requested(cli, verify={**asdict(TableSelection()), "show_values": False})
    with start_attached(request) as driver, pytest.raises(TerminalError) as raised:
        lines = list(driver.output_lines())
        driver.wait_for_outcome()
    levels = [parse_log_line(line)[0] for line in lines]
    assert levels.count(logging.ERROR) == 1 and str(raised.value) in lines[-1] and {*levels} <= {20, 30, 40}
    texts = relayed(lines, caplog)
    assert (logging.INFO, f"{database}.t: columns that differ: v (1)") in texts
    assert not [text for level, text in texts if level >= logging.ERROR or raised.value.message in text]


def test_an_unexpected_error_shows_where_it_happened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A request that no operator sends makes the driver fail in its own code."""
    pipeline = {"name": "p", "source": {"conn_id": "c", "tables": ["a.b"]}, "sink": {"path": str(tmp_path)}}
    fields = {"conn_type": "mysql", "host": "127.0.0.1", "port": 1, "login": "u", "password": "p1rate", "schema": None}
    connection = {"conn_id": "c", **fields, "extra": {}}
    request = DriverRequest(pipeline, {"c": connection}, verify={"nonsense": "p1rate"})
    with start_attached(request) as driver, pytest.raises(CdcError, match="unexpected TypeError") as raised:
        lines = list(driver.output_lines())
        driver.wait_for_outcome()
    assert not isinstance(raised.value, NotReadyError) and "p1rate" not in "".join(lines)
    texts = relayed(lines, caplog)
    assert any("driver/carry_out.py" in text for _, text in texts)
    assert {level for level, _ in texts} == {logging.INFO} and not [text for _, text in texts if "TypeError" in text]


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_stream_sums_up(
    mysql_server: MySQLServer, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each batch at DEBUG, a summary at INFO, and nothing of Spark's own start."""
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT)")
    cli = Cli(tmp_path, mysql_server, f"{database}.t")
    cli.snapshot()
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, 1), (2, 2)")
    lines: list[str] = []
    with start_attached(requested(cli, log_level="DEBUG")) as driver:
        for line in driver.output_lines():
            lines.append(line)
            if "rows/s in the last" in line and any("batch to" in earlier for earlier in lines):
                break
    texts = relayed(lines, caplog)
    ((level, _),) = [found for found in texts if "batch to " in found[1]]
    assert level == logging.DEBUG
    summaries = [found for found in texts if "rows/s in the last" in found[1]]
    assert summaries and {level for level, _ in summaries} == {logging.INFO}
    assert all(text.startswith("epoch 1: ") and "; at binlog." in text for _, text in summaries)
    noise = ("Setting default log level", "To adjust logging level", "incubator", "native-hadoop")
    assert not [text for _, text in texts if any(word in text for word in noise)]
