"""The upgrade promise: what an older version has left behind is gone on with, and nothing is read again for it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.status import status
from airflow_provider_cdc.phases.verify import verify
from tests.make_state import CONNECTION, FIXTURES, pipeline
from tests.support import harness
from tests.support.servers import MySQLServer

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


def test_status(state: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the server: plan, manifests, resume point and bookkeeping are read."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION}", "mysql://nobody@127.0.0.1:1/")
    said = status(Context.of(pipeline(lake)))
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
    context = Context.of(found)
    before = json.loads((state / "status.json").read_text())
    harness.run(file)
    assert [str(table) for table in verify(context) if not table.equal] == []
    with contextlib.closing(context.store()) as store:
        batches = store.recent_batches("shop", 1)
        assert batches[0].epoch > 2 and batches[0].changes and batches[0].start_offset == before["offset"]
    now = status(context)
    assert now["generation"] == before["generation"]
    assert tables_of(now) == tables_of(before), "nothing was read again"
