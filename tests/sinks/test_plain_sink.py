"""The second sink is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_cdc.config.delete_policy import DeletePolicy
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN
from airflow_provider_cdc.sinks.protocol import PipelineSink, SinkTable
from tests.sinks.conformance import SinkConformance, failing, preceded_by
from tests.support.plain_sink import NarrowSink, PlainSink, States, WriteOnlyTable


class TestPlainSink(SinkConformance):
    def open(self, folder: Path) -> PipelineSink:
        return PlainSink(str(folder), "p")

    def open_keeping_deletes(self, folder: Path, deletes: DeletePolicy) -> PipelineSink:
        if not isinstance(self.open(folder), PlainSink):
            pytest.skip("it does not keep deleted rows")
        return PlainSink(str(folder), "p", deletes)

    def read_all_rows(self, target: SinkTable) -> Counter[tuple[int, str | None, int, bool]]:
        assert isinstance(target, WriteOnlyTable)
        found = target._rows(target.newest()[1])
        return Counter((r["id"], r["v.w"], r[SEQ_COLUMN], r[OP_COLUMN] == "d") for r in found.to_pylist())

    @contextmanager
    def failing_commit(self, monkeypatch: pytest.MonkeyPatch, *, made: bool) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(States, "put", failing(States.put, made=made))
            yield

    @contextmanager
    def concurrent_writer(self, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(States, "put", preceded_by(States.put, work))
            yield


class TestNarrowSink(TestPlainSink):
    """One that can do no more than it must, and cannot be read back: its tests know where its rows are."""

    def open(self, folder: Path) -> PipelineSink:
        return NarrowSink(str(folder), "p")

    def held(self, target: SinkTable) -> Counter[tuple[int, str | None, int]]:
        assert isinstance(target, WriteOnlyTable)
        found = target._rows(target.newest()[1])
        return Counter((r["id"], r["v.w"], r[SEQ_COLUMN]) for r in found.to_pylist())
