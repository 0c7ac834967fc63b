"""The clock of a host jumps in the middle of each phase, by two days in either direction."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest

from tests import ROOT
from tests.support.phases import Fault, World, failed
from tests.support.servers import MySQLServer

PACKAGE = ROOT / "airflow_provider_cdc"


class Clock:
    """The clock of this process, which can be moved: all that the package asks for the time of day."""

    def __init__(self) -> None:
        self._time, self._stack = time.time, ExitStack()
        self.shift = 0.0

    def __enter__(self) -> Clock:
        clock = self

        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.now(tz) + timedelta(seconds=clock.shift)

        self._stack.enter_context(patch.object(time, "time", lambda: self._time() + self.shift))
        for module in _modules_that_ask():
            self._stack.enter_context(patch.object(module, "datetime", Shifted))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def jump(self, seconds: float) -> Callable[[], None]:
        def move() -> None:
            self.shift += seconds

        return move


def _modules_that_ask() -> list[ModuleType]:
    """Modules that ask for the date, without those of Airflow's own processes."""
    asking = [path for path in PACKAGE.rglob("*.py") if "datetime.now(" in path.read_text()]
    paths = [path.relative_to(ROOT).with_suffix("").parts for path in asking]
    return [importlib.import_module(".".join(parts)) for parts in paths if parts[1] not in ("airflow", "ui")]


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
