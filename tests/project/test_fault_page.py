"""The page of faults says of each fault and phase what a test shows, and of nothing else."""

from __future__ import annotations

from collections import Counter

from tests.support.fault_page import LONGEST, NO_PART, UNTESTED, Faults, commands, exists
from tests.support.generated import held_by
from tests.support.phases import MIDDLE

FAULTS = Faults.load()


def test_the_page_is_what_the_list_says() -> None:
    written = held_by("docs/faults.md", "faults", [*FAULTS.lines()][:-1])
    assert written, "CDC_WRITE_DOCS=1 .venv/bin/python -m pytest tests/project/test_fault_page.py writes it"


def test_each_cell_names_a_test_or_says_that_there_is_none() -> None:
    assert len(FAULTS.phases) == 6
    for fault in FAULTS.all:
        assert len(fault.cells) == len(FAULTS.phases), fault.name
        for cell in fault.cells:
            assert bool(cell.tests) == (cell.text not in (UNTESTED, NO_PART)), f"{fault.name}: {cell.text}"
            assert set(cell.tests) <= FAULTS.tests.keys(), f"{fault.name}: {cell.tests}"
            assert len(cell.text) <= LONGEST, f"{fault.name}: {cell.text}"


def test_each_test_exists_and_is_named() -> None:
    assert [test for test in FAULTS.tests.values() if not exists(test)] == []
    named = {name for fault in FAULTS.all for cell in fault.cells for name in cell.tests}
    assert FAULTS.tests.keys() - named == set()


def test_tests_have_the_phases_for_which_they_are_named() -> None:
    """Those that carry a fault through all phases, and those that are parametrized by command."""
    assert [phase.lower() for phase in FAULTS.phases] == [*MIDDLE]
    for fault in FAULTS.all:
        for phase, cell in zip(MIDDLE, fault.cells, strict=True):
            for test in cell.tests:
                found = commands(FAULTS.tests[test])
                assert not found or phase.replace("-", "") in found, f"{fault.name}, {phase}: {test}"


def test_names_stand_once() -> None:
    names = Counter(fault.name for group in FAULTS.groups.values() for fault in group)
    assert len(names) >= 45
    assert [group for group, faults in FAULTS.groups.items() if len({f.name for f in faults}) < len(faults)] == []
    assert len(set(FAULTS.tests.values())) == len(FAULTS.tests)
