"""Fixtures of the restart tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.harness import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where runs without a JVM come from."""
    with Nursery() as found:
        yield found
