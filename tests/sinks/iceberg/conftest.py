"""Servers that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.iceberg_rest import IcebergRest, running_rest_catalog
from tests.support.postgres import Postgres


@pytest.fixture(scope="package")
def iceberg_rest() -> Iterator[IcebergRest]:
    with running_rest_catalog() as server:
        yield server


@pytest.fixture(scope="package")
def iceberg_postgres() -> Iterator[Postgres]:
    with Postgres(["iceberg"]) as server:
        yield server
