"""Which definition of a table holds where."""

from __future__ import annotations

import json

import pytest

from airflow_provider_cdc.model.definition_history import DefinitionHistory, histories_by_table
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.schema import Column, TableSchema


def place(file: int, position: int) -> Position:
    return Position(f"binlog.{file:06}", position)


def table(*columns: str) -> TableSchema:
    return TableSchema("d", "t", tuple(Column(c, "int", "int", False) for c in columns), ("k",), key_index="PRIMARY")


ONE, TWO, THREE = table("k"), table("k", "a"), table("k", "a", "b")


def test_one_definition_holds_everywhere() -> None:
    found = DefinitionHistory.from_single(ONE)
    assert found.at(place(1, 4)) is found.at(place(99, 4)) is found.newest is ONE
    assert found.start is None and histories_by_table([found]) == {("d", "t"): found}


def test_each_holds_from_its_place_on() -> None:
    found = DefinitionHistory.from_single(ONE).with_change(place(1, 500), TWO).with_change(place(2, 4), THREE)
    held = [found.at(place(*at)) for at in ((1, 4), (1, 499), (1, 500), (1, 9999), (2, 4), (3, 4))]
    assert held == [ONE, ONE, TWO, TWO, THREE, THREE] and found.newest is THREE
    for late in (place(2, 4), place(1, 501)):
        with pytest.raises(ValueError, match="cannot follow"):
            found.with_change(late, ONE)


def test_planned_again_nothing_before_is_of_concern() -> None:
    found = DefinitionHistory.from_single(ONE).with_change(place(1, 500), TWO).replanned(place(2, 70), THREE)
    assert [found.at(place(*at)) for at in ((1, 600), (2, 69), (2, 70))] == [None, None, THREE]
    assert (found.revision, found.start) == (1, place(2, 70))
    assert found.replanned(place(3, 4), ONE).revision == 2 == found.replanned(place(3, 4), ONE).revision


def test_they_survive_json() -> None:
    for found in (
        DefinitionHistory.from_single(ONE),
        DefinitionHistory.from_single(ONE).with_change(place(1, 500), TWO),
        DefinitionHistory.from_single(ONE).replanned(place(2, 70), THREE).with_change(place(2, 90), ONE),
    ):
        value = json.loads(json.dumps(found.to_json()))
        assert value["version"] == 1 and DefinitionHistory.from_json(value) == found


def test_of_a_newer_version() -> None:
    with pytest.raises(TerminalError, match=r"DefinitionHistory in here cannot be read: Invalid value 2 - at `\$.vers"):
        DefinitionHistory.from_json({"version": 2, "versions": []}, "here")
