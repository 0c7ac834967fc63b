"""A cluster of YARN, and a state database on a server, which the tests of drivers in a cluster share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import Postgres
from tests.support.yarn import Yarn


@pytest.fixture(scope="session")
def yarn() -> Iterator[Yarn]:
    with Yarn() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def state_server() -> Iterator[Postgres]:
    with Postgres(["bookkeeping"]) as server:
        yield server
