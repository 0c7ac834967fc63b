"""The checks of the demos: they see what differs and which step did not happen, and the exit code says so.

Without Spark and Airflow.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.config import Pipeline, Sink
from airflow_provider_cdc.model.errors import UnfitError
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.iceberg.sink import IcebergSink
from airflow_provider_cdc.sinks.protocol import PipelineSink
from airflow_provider_cdc.state.models import ChunkGroupRow
from bench.dag_run import check_read_again, find_failed_group
from bench.demo import CONN_ID, NAME, pipeline_text
from bench.lake import Lake
from bench.screen import SIGNALS, DemoFailed, Screen, parser, perform
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


def test_a_column_that_does_not_come_is_seen(shop: Shop, tmp_path: Path) -> None:
    shop.alter()
    with pytest.raises(DemoFailed, match=r"orders has no column note; it has customer, line, .*status"):
        shop.show_new_column()
    harness.run(tmp_path / "pipeline.yaml")
    shop.show_new_column()


def test_an_order_with_an_invalid_date_fails_until_it_is_corrected(shop: Shop, tmp_path: Path) -> None:
    """It comes with the snapshot here, as in the demo: a new lake, and the server as it is."""
    text = (tmp_path / "pipeline.yaml").read_text()
    (tmp_path / "pipeline.yaml").write_text(text.replace(f"name: {NAME}", "name: again").replace("/lake", "/again"))
    shop.add_invalid_date()
    with pytest.raises(UnfitError, match=r"shop\.orders, column ordered_at .*correct the rows"):
        harness.run(tmp_path / "pipeline.yaml")
    shop.correct_date()
    harness.run(tmp_path / "pipeline.yaml")
    shop.lake = Lake.folder(tmp_path / "again")
    assert shop.prove()


@pytest.mark.parametrize(
    ("lake", "sink_class"),
    [(Lake.folder(Path("/lake")), DeltaSink), (Lake.iceberg(Path("/lake"), "http://127.0.0.1:8181"), IcebergSink)],
    ids=["folder", "iceberg"],
)
def test_the_pipeline_has_the_sink_of_the_lake(tmp_path: Path, lake: Lake, sink_class: type[PipelineSink]) -> None:
    (tmp_path / "pipeline.yaml").write_text(pipeline_text(lake))
    assert Pipeline.load(tmp_path / "pipeline.yaml").sink == Sink(**lake.settings)
    assert isinstance(lake.sink(NAME), sink_class)


def _groups(*states: tuple[str, int]) -> list[ChunkGroupRow]:
    return [ChunkGroupRow(group_no=no, state=state, attempt=attempt) for no, (state, attempt) in enumerate(states)]


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (_groups(("done", 1), ("done", 1)), r"not published: \[\],"),
        (_groups(("running", 1), ("done", 1), ("running", 1)), r"not published: \[0, 2\],"),
    ],
)
def test_other_than_one_failure_is_seen(groups: list[ChunkGroupRow], said: str) -> None:
    with pytest.raises(DemoFailed, match=said):
        find_failed_group(groups)


def test_a_chunk_group_that_is_read_again_is_seen() -> None:
    before = _groups(("done", 1), ("running", 2), ("done", 1))
    attempts = {group.group_no: group.attempt for group in before}
    assert find_failed_group(before).group_no == 1
    check_read_again(attempts, _groups(("done", 1), ("done", 3), ("done", 1)), 1)
    with pytest.raises(DemoFailed, match=r"again: \[1, 2\], and not 1 alone"):
        check_read_again(attempts, _groups(("done", 1), ("done", 3), ("done", 2)), 1)
    with pytest.raises(DemoFailed, match=r"again: \[\], and not 1 alone"):
        check_read_again(attempts, before, 1)
