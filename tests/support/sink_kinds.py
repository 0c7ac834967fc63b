"""Schedules by chance, with each kind of sink."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

DELTA, ICEBERG = "delta", "iceberg"


def seeds_by_kind(few: Iterable[int], many: Iterable[int], iceberg: Iterable[int] = (0,)) -> list[Any]:
    """Values of the parameters ``seed`` and ``kind``. Those of Delta have the seed alone as their id.

    :param few: seeds with Delta tables of every run of the tests.
    :param many: seeds of the long suite, with either kind.
    :param iceberg: seeds with Iceberg tables of every run of the tests.
    """
    few, many, iceberg = [*few], [*many], [*iceberg]
    long = pytest.mark.long
    return [
        *(pytest.param(n, DELTA, id=str(n)) for n in few),
        *(pytest.param(n, DELTA, marks=long, id=str(n)) for n in many),
        *(pytest.param(n, ICEBERG, id=f"{n}-iceberg") for n in iceberg),
        *(pytest.param(n, ICEBERG, marks=long, id=f"{n}-iceberg") for n in (*few, *many) if n not in iceberg),
    ]
