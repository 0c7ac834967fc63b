"""The proof at the end of a demo: it sees what differs, and the exit code says so. Without Spark."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from bench.demo import CONN_ID, NAME, pipeline_text
from bench.lake import Lake
from bench.screen import SIGNALS, Screen, parser, perform
from bench.shop import DATABASE, Shop
from tests.support import harness


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A shop and its copy."""
    made = Shop(Screen(), Lake.folder(tmp_path / "lake"), NAME, customers=2_000, rate=100)
    with ExitStack() as stack:
        user = made.open(stack)
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", made.server.uri(**user))
        text = pipeline_text(made.lake)
        (tmp_path / "pipeline.yaml").write_text(text)
        harness.run(tmp_path / "pipeline.yaml")
        yield made


def _exit_code(shop: Shop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(folder)])
    try:
        return perform(parser("", customers=1, rate=1), lambda *_: shop.prove())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_a_row_that_is_missing_is_seen(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code(shop, tmp_path / "equal", monkeypatch) == 0
    assert "EQUAL: " in capsys.readouterr().out
    table = DeltaTable(f"{shop.lake.path}/{DATABASE}/orders")
    key = table.schema().fields[0].name
    value = pa.RecordBatchReader.from_stream(table.scan([key])).read_all()[key][0].as_py()
    assert table.delete(f"{key} = {value!r}")["num_deleted_rows"] == 1
    assert _exit_code(shop, tmp_path / "different", monkeypatch) == 1
    said = capsys.readouterr().out
    assert "DIFFERENT" in said and "EQUAL: " not in said and said.count("rows, all equal") == 3
