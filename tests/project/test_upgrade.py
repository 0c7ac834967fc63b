"""The upgrade promise: what an older version has left behind is gone on with, and nothing is read again for it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.observe.status import read_status
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.verify.run import verify_tables
from tests import ROOT
from tests.make_state import CONNECTION, FIXTURES, pipeline
from tests.support import harness
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.three_tables import TABLES, run, three_tables

STATES = sorted(FIXTURES.glob("state-*"))


class Restored(MySQLServer):
    """The server of a fixture: its identity and its binlogs."""

    state: Path

    def make_data(self, root: Path, data: Path) -> None:
        super().make_data(root, data)
        for part in data.glob("binlog.*"):
            part.unlink()
        shutil.copytree(self.state / "server", data, dirs_exist_ok=True)


@pytest.fixture(params=STATES, ids=lambda state: state.name)
def state(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def lake(state: Path, tmp_path: Path) -> Path:
    return shutil.copytree(state / "lake", tmp_path / "lake")


@pytest.fixture
def restored(state: Path) -> Iterator[MySQLServer]:
    server = Restored()
    if not isinstance(server.find(), Path):
        pytest.skip("the server's data is not at hand: it runs in a container, or elsewhere")
    server.state = state
    with server:
        statements = json.loads((state / "statements.json").read_text())
        server.session("mysql", "SET SESSION sql_log_bin = 0", *statements)
        yield server


def test_the_version_of_today_has_a_fixture() -> None:
    from airflow_provider_cdc import __version__

    assert f"state-{__version__}" in [state.name for state in STATES]


def tables_of(said: dict[str, Any]) -> list[dict[str, Any]]:
    """What the snapshot has read of each table: status had that from the first version on, but for empty tables."""
    names = ("table", "chunks_done", "chunks_total", "rows", "corrected")
    return [{name: table[name] for name in names} for table in said["tables"] if table["chunks_total"]]


_CODE = "import sys; from tests.support.harness import call; sys.exit(call(*sys.argv[1:]))"
_MIGRATIONS = "airflow_provider_cdc/state/migrations/versions"


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The code as it was before the newest migration of the bookkeeping."""

    def git(*words: str) -> bytes:
        found = subprocess.run(["git", "-C", ROOT, *words], capture_output=True)
        if found.returncode:
            pytest.skip(f"there is no history here: {found.stderr.decode()}")
        return found.stdout

    *before, newest_migration = sorted((ROOT / _MIGRATIONS).glob("0*.py"))
    if not before:
        pytest.skip("no migration was added to the first one yet")
    added = ("--diff-filter=A", "--", f"{_MIGRATIONS}/{newest_migration.name}")
    newest = git("log", "-1", "--format=%H", *added).decode().strip()
    code = tmp_path / "older"
    code.mkdir()
    subprocess.run(["tar", "x", "-C", code], input=git("archive", f"{newest}^"), check=True)
    assert len([*(code / _MIGRATIONS).glob("0*.py")]) == len(before)
    return code


@pytest.mark.long
def test_the_bookkeeping_is_migrated_beside_a_stream_of_the_older_version(
    mysql_server: MySQLServer, older: Path, tmp_path: Path
) -> None:
    """As docs/operations.md says: it goes on, can be stopped, and what comes next goes on from there."""
    file, log = tmp_path / "p.yaml", tmp_path / "older.log"
    value = {
        "name": "p",
        "source": {"conn_id": "cdc_source", "tables": ["d..*"]},
        "sink": {"path": str(tmp_path / "lake")},
        "stream": {"trigger_seconds": 0.2},
    }
    file.write_text(json.dumps(value))
    environ = {**os.environ, "AIRFLOW_CONN_CDC_SOURCE": mysql_server.uri()}

    def started(code: Path, command: str, *words: str) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-c", _CODE, command, "-f", str(file), *words]
        with open(log, "a") as written:
            return subprocess.Popen(
                arguments,
                cwd=code,
                env={**environ, "PYTHONPATH": str(code)},
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
            )

    def said(code: Path, command: str, *words: str) -> str:
        with started(code, command, *words) as process:
            out = process.communicate(timeout=120)[0]
        assert process.returncode == 0, f"{command}: {out}\n{log.read_text()}"
        return out

    def changes() -> int:
        with contextlib.closing(sqlite3.connect(tmp_path / "lake/_cdc/p/bookkeeping.db")) as books:
            return int(books.execute("SELECT COALESCE(SUM(changes), 0) FROM streams").fetchone()[0])

    def insert(number: int) -> None:
        run(mysql_server, *(f"INSERT INTO {table} VALUES ({number}, 'on')" for table in TABLES))

    with three_tables(mysql_server):
        said(older, "snapshot")
        stream = started(older, "stream")
        try:
            insert(100)
            wait_for("a batch", lambda: changes() >= 3)
            assert json.loads(said(ROOT, "status", "--json"))["phase"] == "streaming", "it has migrated the bookkeeping"
            insert(101)
            wait_for("what comes behind the migration", lambda: changes() >= 6)
            with started(older, "status") as process:
                assert process.wait(120) == 2
            assert "was made by a newer version" in log.read_text()
            said(ROOT, "stop")
            assert stream.wait(60) == 0, log.read_text()
        finally:
            stream.kill()
        insert(102)
        said(ROOT, "stream", "--catch-up")
        assert all(table["equal"] for table in json.loads(said(ROOT, "verify", "--json")))
        assert json.loads(said(ROOT, "status", "--json"))["stream"]["epoch"] == 2
        assert changes() == 9


def test_status(state: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the server: plan, manifests, resume point and bookkeeping are read."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION}", "mysql://nobody@127.0.0.1:1/")
    said = read_status(RunContext.for_pipeline(pipeline(lake)))
    kept = json.loads((state / "status.json").read_text())
    assert tables_of(said) == tables_of(kept)
    assert {name: said[name] for name in kept if name != "tables"} == {n: v for n, v in kept.items() if n != "tables"}
    assert said["snapshot"]["complete"] and said["lag_unknown"]


def test_the_stream_goes_on(
    state: Path, lake: Path, restored: MySQLServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION}", restored.uri())
    found = pipeline(lake)
    file = tmp_path / "pipeline.yaml"
    file.write_text(found.to_yaml())
    context = RunContext.for_pipeline(found)
    before = json.loads((state / "status.json").read_text())
    harness.run(file)
    assert [str(table) for table in verify_tables(context) if not table.is_equal] == []
    with contextlib.closing(context.open_state_database()) as store:
        batches = store.last_batches("shop", 1)
        assert batches[0].epoch > 2 and batches[0].changes and batches[0].start_offset == before["offset"]
    now = read_status(context)
    assert now["generation"] == before["generation"]
    assert tables_of(now) == tables_of(before), "nothing was read again"
