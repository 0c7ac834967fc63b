"""The clock of a host jumps in the middle of each phase, by two days in either direction."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

import airflow_provider_cdc.state
from airflow_provider_cdc.state.models import utc_now
from tests.support.phases import Fault, World, failed
from tests.support.servers import MySQLServer


class Clock:
    """The clock of this process, which can be moved."""

    def __init__(self) -> None:
        self._time, self._now, self._stack = time.time, utc_now, ExitStack()
        self.shift = 0.0

    def __enter__(self) -> Clock:
        self._stack.enter_context(patch.object(time, "time", lambda: self._time() + self.shift))
        for module in _modules_with("utc_now"):
            self._stack.enter_context(patch.object(module, "utc_now", self._shifted))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _shifted(self) -> datetime:
        return self._now() + timedelta(seconds=self.shift)

    def jump(self, seconds: float) -> Callable[[], None]:
        def move() -> None:
            self.shift += seconds

        return move


def _modules_with(name: str) -> list[ModuleType]:
    package: Any = airflow_provider_cdc.state
    found = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    return [module for module in found if hasattr(module, name)]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("days", [2, -2], ids=["forward", "backward"])
def test_in_each_phase(mysql_server: MySQLServer, database: str, tmp_path: Path, days: int, kind: str) -> None:
    """Nothing ends for it: what waits counts by a clock that only grows, and files are dated by their storage."""
    with Clock() as clock:
        jump = clock.jump(days * 86_400)
        world = World(mysql_server, database, tmp_path, sink={"kind": kind} if kind == "iceberg" else {})
        said = world.carry(Fault(jump, jump))
        assert abs(clock.shift) > 15 * 86_400
    assert failed(said) == set(), said
