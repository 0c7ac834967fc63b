"""Small parts: how many bytes of the binlog a walker reads at a time."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.mysql.binlog.walk.walker import BinlogWalker


def set_byte_budget(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let all walkers stop after so many bytes, also in the middle of a transaction."""
    defaults = BinlogWalker.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "byte_budget", size)
