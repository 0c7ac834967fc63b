"""Delta is a sink."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.protocol import Sink
from tests.sinks.conformance import SinkConformance, failing


class TestDeltaSink(SinkConformance):
    def open(self, folder: Path) -> Sink:
        return DeltaSink(str(folder), "p")

    @contextmanager
    def broken(self, monkeypatch: pytest.MonkeyPatch, *, made: bool) -> Iterator[None]:
        with monkeypatch.context() as patch:
            real = DeltaTable.create_write_transaction
            patch.setattr(DeltaTable, "create_write_transaction", failing(real, made=made))
            yield
