"""Clusters of YARN and Kubernetes, and a state database on a server, which the tests of drivers in a cluster share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.postgres import Postgres
from tests.support.yarn import Yarn

if TYPE_CHECKING:
    from tests.support.kubernetes import Kubernetes


@pytest.fixture(scope="session")
def yarn() -> Iterator[Yarn]:
    with Yarn() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Kubernetes]:
    from tests.support.kubernetes import Kubernetes

    with Kubernetes() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def state_server() -> Iterator[Postgres]:
    with Postgres(["bookkeeping"]) as server:
        yield server
