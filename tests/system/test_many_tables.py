"""What a pipeline asks for, writes and opens grows as its tables do, and not faster: ``make bench-scale``, small."""

from __future__ import annotations

from typing import Any

import pytest

from bench.scale import Step, taken
from tests.support.servers import MySQLServer

#: Numbers of tables, of which each has 20 chunks.
SIZES = (20, 40, 80)
#: Chunks of a group, so that there are many groups: each of them would show what grows with all tables.
IN_GROUP = 20
#: What is counted in each step. Seconds are not: they depend on the machine.
COUNTS = ("source", "state", "opened", "written", "grew", "state_grew")
#: By how much a count may be above its share: what is there once, and what the server's statistics differ by.
ALLOWED = {"grew": 40_000, "state_grew": 100_000}
#: Steps that ask neither the source nor the sink, whatever the number of tables.
CONSTANT = ("the page, first look", "the page, next look")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    with MySQLServer({"tls_version": ""}) as server:
        user = server.create_cdc_user("cdc_scale")
        return {size: taken(server, user, size, tmp_path_factory.mktemp(f"tables{size}"), IN_GROUP) for size in SIZES}


def steps(found: dict[str, Any]) -> dict[str, Step]:
    return {one["name"]: Step(**one) for one in found["steps"]}


def test_costs_grow_as_the_tables_do(measured: dict[int, dict[str, Any]]) -> None:
    few, some, many = (steps(measured[size]) for size in SIZES)
    assert list(few) == list(some) == list(many) and [measured[size]["tables"] for size in SIZES] == [*SIZES]
    told = []
    for name, step in many.items():
        for count in COUNTS:
            first, second, third = (getattr(found[name], count) for found in (few, some, many))
            # Four times as many tables as at first: what each costs is what twice as many have shown.
            each = (second - first) / (SIZES[1] - SIZES[0])
            expected = first + each * (SIZES[2] - SIZES[0])
            if third > expected * 1.1 + ALLOWED.get(count, 12):
                told.append(f"{name}: {count}: {first}, {second}, {third}")
        if name in CONSTANT:
            assert step.source == 0 and step.opened < 5, name
    assert told == []


def test_memory_and_page_do_not(measured: dict[int, dict[str, Any]]) -> None:
    """A table takes a few KB of the driver, and nothing of the page."""
    assert measured[SIZES[2]]["page bytes"] < 1.5 * measured[SIZES[1]]["page bytes"]
    few, many = (steps(measured[size])["track and publish"].peak for size in (SIZES[0], SIZES[2]))
    assert many - few < 60, "MB for 60 tables"
