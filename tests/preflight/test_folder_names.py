"""Folders that some readers do not find, or that are one where case does not count: ``check`` warns of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_cdc.preflight.run import run_preflight
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.three_tables import run, three_tables

pytestmark = pytest.mark.one_of("server")


def test_check_warns_of_folders(server: MySQLServer, tmp_path: Path) -> None:
    with three_tables(server):
        run(server, "CREATE TABLE Keyed LIKE keyed", "CREATE TABLE `q#` LIKE keyed")
        cli = Cli(tmp_path / "a b", server, r"d\..*")
        warned = {f.message: f.remedy for f in run_preflight(cli.context, spark=False) if f.level == "warning"}
    assert "Polars and Daft" in warned[f"sink.path {cli.sink} has ' ' in it"]
    assert "Polars and Daft" in warned["table d.q#: its folder has '#' in its name"]
    (twins,) = (text for text in warned if "differ only in case" in text)
    assert {"d.Keyed", "d.keyed"} < {*twins.replace(":", "").split()} and "sink.table_path" in warned[twins]
    assert not [text for text in warned if text.startswith(("table d.keyed: its folder", "table d.quiet: its folder"))]
