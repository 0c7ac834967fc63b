"""The tables of ``docs/faults.md``, from ``tests/faults/faults.toml``."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import ROOT

FILE = ROOT / "tests" / "faults" / "faults.toml"
#: What a cell may say without a test.
UNTESTED, NO_PART = "not tried", "-"
#: Characters of a cell without the numbers of its tests: longer ones make a table that nobody reads.
LONGEST = 48


@dataclass(frozen=True)
class Cell:
    """What happens in one phase.

    :param tests: names of the tests that show it, in the file's list.
    """

    text: str
    tests: tuple[str, ...]

    @classmethod
    def parse(cls, value: str) -> Cell:
        text, _, tests = value.partition(": ")
        return cls(text, (*tests.split(),))


@dataclass(frozen=True)
class Fault:
    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Faults:
    """The list of faults.

    :param tests: path and name of each test, by the name that cells have for it.
    :param groups: the faults by where they are.
    """

    phases: tuple[str, ...]
    tests: dict[str, str]
    groups: dict[str, tuple[Fault, ...]]

    @classmethod
    def load(cls, path: Path = FILE) -> Faults:
        value: dict[str, Any] = tomllib.loads(path.read_text())
        groups = {
            group["title"]: tuple(Fault(name, tuple(map(Cell.parse, cells))) for name, *cells in group["faults"])
            for group in value["group"]
        }
        return cls(tuple(value["phases"]), value["tests"], groups)

    @property
    def all(self) -> Iterator[Fault]:
        for faults in self.groups.values():
            yield from faults

    def lines(self) -> Iterator[str]:
        """The page: a table for each group, with the list of its tests below."""
        for title, faults in self.groups.items():
            used = list(dict.fromkeys(test for fault in faults for cell in fault.cells for test in cell.tests))
            yield from (
                f"## {title}",
                "",
                f"| Fault | {' | '.join(self.phases)} |",
                "|---" * (len(self.phases) + 1) + "|",
            )
            for fault in faults:
                shown = (
                    f"{cell.text} ({', '.join(str(used.index(test) + 1) for test in cell.tests)})"
                    if cell.tests
                    else {NO_PART: ""}.get(cell.text, f"*{cell.text}*")
                    for cell in fault.cells
                )
                yield f"| {fault.name} | {' | '.join(shown)} |"
            yield ""
            yield from (f"{number}. `{self.tests[test]}`" for number, test in enumerate(used, 1))
            yield ""


def exists(test: str) -> bool:
    """Whether there is a test of this path and name."""
    return _definition(test) is not None


def commands(test: str) -> set[str]:
    """The commands by which a test is parametrized; empty if it is not."""
    function = _definition(test)
    decorators = [] if function is None else function.decorator_list
    for call in decorators:
        if isinstance(call, ast.Call) and ast.unparse(call).startswith("pytest.mark.parametrize('command', "):
            return set(ast.literal_eval(call.args[1]))
    return set()


def _definition(test: str) -> ast.FunctionDef | None:
    path, _, name = test.partition("::")
    file = ROOT / path
    body = ast.parse(file.read_text()).body if file.is_file() else []
    return next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == name), None)
