"""The second sink is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_cdc.sinks.protocol import Sink
from tests.sinks.conformance import SinkConformance, failing
from tests.support.plain_sink import PlainSink, States


class TestPlainSink(SinkConformance):
    def open(self, folder: Path) -> Sink:
        return PlainSink(str(folder), "p")

    @contextmanager
    def broken(self, monkeypatch: pytest.MonkeyPatch, *, made: bool) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(States, "put", failing(States.put, made=made))
            yield
