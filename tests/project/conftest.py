"""Fixtures of tests that start a pytest of their own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def without_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that someone adds to a run of the suite by ``PYTEST_ADDOPTS`` do not reach the runs that tests start."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
