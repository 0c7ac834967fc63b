"""Takes the rules out of the code, one after the other, and demands that the test that is named for each fails.

The lists are ``tests/mutations/*.toml``. A list may begin with ``section``, the heading of docs/correctness.md (or a
title of its own) under which the list of rules shows it, which ``make docs`` makes. Each ``[[mutation]]`` has

- ``rule``: what holds, in one sentence,
- ``find``, ``replace``: the text that stands exactly once in the package, and the text that takes the rule out,
- ``file``: where the text stands in several files, the one that is meant,
- ``test``: a test that fails then and passes otherwise, or a list of such tests,
- ``section``: where it differs from the list's, and ``trap``: the traps of docs/traps.md that it belongs to,
- ``timeout``: seconds after which a test that hangs counts as failed; without it a hanging test proves nothing,
- ``quick``: whether it is tried in every run of the tests, and not only in the long one.

The checkout is never changed: a copy of it is, in a folder for temporary files. ``python -m tests.mutate`` tries all.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests import ROOT

LISTS = ROOT / "tests" / "mutations"
_PACKAGE = "airflow_provider_cdc/"
_TEXTS = ("rule", "file", "find", "replace", "section", "trap")
#: What is not copied. Tests that need it are none that notice a rule.
_LEFT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "out", "*.egg-info")
#: Seconds for one test, and for what a process may take to end after it.
_SECONDS, _GRACE = 300.0, 60.0
#: A test that fails like this has met code that cannot run, not a rule that is gone.
_BROKEN = re.compile(r"(\w+\.)*(NameError|UnboundLocalError|ImportError|ModuleNotFoundError|SyntaxError)\b")
_TIMEOUT = re.compile(r"Failed: Timeout \(|(\w+\.)*DeadlineExceeded\b")


class MutationError(Exception):
    """A list is wrong, or a mutation was not noticed."""


@dataclass(frozen=True)
class Mutation:
    """One rule, and how it is taken out; see the module."""

    list: str
    rule: str
    named: str
    find: str
    replace: str
    tests: tuple[str, ...]
    section: str
    trap: str = ""
    timeout: float | None = None
    quick: bool = False

    @property
    def id(self) -> str:
        """Name for people and for ``--only``."""
        return f"{self.list}:{re.sub('[^a-z0-9]+', '-', self.rule.lower()).strip('-')[:80]}"

    @property
    def needs_kubernetes(self) -> bool:
        """Whether its tests run only where they are asked for: ``-m kubernetes``."""
        return any("kubernetes" in test.partition("::")[0] for test in self.tests)

    @cached_property
    def file(self) -> str:
        """The file that has the text, as a path in the checkout.

        :raises MutationError: if the entry is stale: the text is not there exactly once.
        """
        texts = {file: text for file, text in _sources().items() if self.named in ("", file)}
        places = [file for file, text in texts.items() for _ in range(text.count(self.find))]
        if len(places) != 1:
            raise MutationError(
                f"{self.id}: the entry is stale: {self.find!r} stands {len(places)} times in "
                f"{self.named or 'the package'}, not once. Find the line of the rule and mend "
                f"tests/mutations/{self.list}.toml"
            )
        return places[0]

    def mutated(self) -> str:
        """The text of the file without the rule.

        :raises MutationError: if the entry is stale.
        """
        return _sources()[self.file].replace(self.find, self.replace)


@cache
def _sources() -> dict[str, str]:
    """The text of each file of the package, and of what the page is made of."""
    files = [file for file in (ROOT / _PACKAGE).rglob("*.*") if file.suffix in (".py", ".js", ".css")]
    return {str(file.relative_to(ROOT)): file.read_text() for file in sorted(files)}


def read(path: Path) -> list[Mutation]:
    """The mutations of one list.

    :raises MutationError: if it is not of the form that the module describes.
    """
    try:
        content = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise MutationError(f"{path.name}: {error}") from None
    section = content.pop("section", path.stem.replace("_", " ").capitalize())
    entries = content.pop("mutation", [])
    if content or not entries:
        raise MutationError(f"{path.name}: a list has [[mutation]] tables, and may have a section; not {[*content]}")
    return [_mutation(path.stem, section, number, entry) for number, entry in enumerate(entries, 1)]


def _mutation(name: str, section: str, number: int, entry: dict[str, Any]) -> Mutation:
    where = f"{name}.toml, mutation {number}"
    wrong = {k for k in _TEXTS if not isinstance(entry.get(k, ""), str)}
    wrong |= entry.keys() - {*_TEXTS, "test", "timeout", "quick"}
    lacking = [key for key in ("rule", "find", "test") if not entry.get(key)]
    if wrong or lacking or "replace" not in entry:
        raise MutationError(f"{where}: {', '.join(lacking) or 'replace'} is missing, or wrong: {sorted(wrong)}")
    tests = (entry["test"],) if isinstance(entry["test"], str) else tuple(entry["test"])
    named = entry.get("file", "")
    if (named and not named.startswith(_PACKAGE)) or entry["find"] == entry["replace"]:
        raise MutationError(f"{where}: it changes nothing of the package")
    return Mutation(
        name,
        entry["rule"].strip().rstrip("."),
        named,
        entry["find"],
        entry["replace"],
        tests,
        entry.get("section", section),
        entry.get("trap", ""),
        entry.get("timeout"),
        entry.get("quick", False),
    )


def mutations(folder: Path = LISTS) -> list[Mutation]:
    """The mutations of all lists.

    :raises MutationError: if a list is wrong, or two mutations have one name.
    """
    found = [mutation for path in sorted(folder.glob("*.toml")) for mutation in read(path)]
    names = [mutation.id for mutation in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise MutationError(f"two mutations say the same rule: {', '.join(twice)}")
    return found


# ------------------------------------------------------------ trying them


@dataclass(frozen=True)
class _Run:
    """How some tests ended: names of those that failed, with what pytest says of it, and of those that passed."""

    failed: dict[str, str]
    passed: frozenset[str]
    output: str


class Workshop:
    """A copy of the checkout in which rules are taken out.

    :param wanted: the mutations that are going to be tried. Their tests are run without any as well, those of one file
        together and before the first mutation that names one of them.
    """

    def __init__(self, folder: Path, wanted: Iterable[Mutation]) -> None:
        self.root = folder / ROOT.name
        self._tests = {test for mutation in wanted for test in mutation.tests}
        self._sound: dict[str, str] = {}
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=_LEFT)
        (self.root / ".venv").symlink_to(ROOT / ".venv")

    def attempt(self, mutation: Mutation) -> str:
        """Take a rule out, and see its test fail.

        :returns: the test that failed, and what it said.
        :raises MutationError: if none did, or for another reason.
        """
        for test in mutation.tests:
            self._prove(test)
        with self._applied(mutation):
            run = self.run(mutation.tests, mutation.timeout or _SECONDS, stop=True)
        noticed = [name for name, why in run.failed.items() if mutation.timeout or not _TIMEOUT.match(why)]
        broken = [why for why in run.failed.values() if _BROKEN.match(why)]
        if broken:
            raise MutationError(f"{mutation.id}: the code without the rule does not run: {broken[0]}")
        if not noticed:
            ended = "ran into the time limit" if run.failed else "did not fail"
            raise MutationError(
                f"{mutation.id}: {', '.join(mutation.tests)} {ended} without the rule in {mutation.file}:\n{run.output}"
            )
        return f"{noticed[0]} ({run.failed[noticed[0]].partition(chr(10))[0][:160]})"

    def run(self, tests: Sequence[str], seconds: float, *, stop: bool = False) -> _Run:
        """Run tests in the copy, in a process of their own.

        :param seconds: time limit of one test.
        :param stop: at the first that fails.
        :raises MutationError: if they could not be run.
        """
        report = self.root / "report.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        if any("kubernetes" in test.partition("::")[0] for test in tests):
            command += ["-m", "kubernetes"]
        command += ["-o", "junit_family=xunit1", f"--timeout={seconds:g}", *(["-x"] if stop else []), *tests]
        code, output = _finished(command, self.root, self._environment(), seconds * len(tests) + _GRACE)
        if code is None:
            return _Run({tests[0]: "Failed: Timeout (of the process)"}, frozenset(), output)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
        told = [(f"{case.get('file')}::{case.get('name')}", {part.tag: part for part in case}) for case in cases]
        failed = {name: str(parts["failure"].get("message")) for name, parts in told if "failure" in parts}
        passed = frozenset(name for name, parts in told if not parts.keys() & {"failure", "error", "skipped"})
        # 0: all passed, 1: some failed. An error of a fixture is 1 as well, and none of the failed ones.
        if code not in (0, 1) or not cases or (code == 1 and not failed):
            raise MutationError(f"{', '.join(tests)} could not be run (pytest ended with {code}):\n{output}")
        return _Run(failed, passed, output)

    def _prove(self, test: str) -> None:
        """Make sure that a test passes as long as no rule is taken out."""
        if test not in self._sound:
            file = test.partition("::")[0]
            together = sorted(t for t in {*self._tests, test} if t.partition("::")[0] == file and t not in self._sound)
            self._sound |= self._told(together)
            if self._sound[test] and len(together) > 1:  # perhaps one of the others was in its way
                self._sound |= self._told([test])
        if why := self._sound[test]:
            raise MutationError(f"{test} does not pass, although no rule was taken out: {why}")

    def _told(self, tests: Sequence[str]) -> dict[str, str]:
        """Of each test, why it does not pass; an empty text if it does."""
        run = self.run(tests, _SECONDS)
        found = {}
        for test in tests:
            bad = [f"{name}: {why}" for name, why in run.failed.items() if _is_of(name, test)]
            passed = any(_is_of(name, test) for name in run.passed)
            found[test] = "; ".join(bad) or ("" if passed else "it was skipped, or there is none")
        return found

    def _environment(self) -> dict[str, str]:
        """What makes every Python process import the copy: the installation of the checkout comes later in its path.

        Machine code is kept with the copy. It is told apart by its sources, so that without a rule it is made anew.
        """
        known = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
        return known | {"PYTHONPATH": str(self.root), "NUMBA_CACHE_DIR": str(self.root / "machine-code")}

    @contextmanager
    def _applied(self, mutation: Mutation) -> Iterator[None]:
        path = self.root / mutation.file
        text = mutation.mutated()
        try:
            path.write_text(text)
            _forget_bytecode(path)
            yield
        finally:
            shutil.copy2(ROOT / mutation.file, path)
            _forget_bytecode(path)


def _forget_bytecode(path: Path) -> None:
    """Python tells what it has compiled by size and second of the source: too little for two changes in one second."""
    for made in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        made.unlink()


def _finished(command: list[str], folder: Path, env: dict[str, str], seconds: float) -> tuple[int | None, str]:
    """Exit code and end of the output of a process; no code if it did not end in time."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(seconds)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(0)
        return code, log.read()[-4000:]


def _is_of(name: str, test: str) -> bool:
    """Whether a test that has run is, or is a case of, one that is named."""
    return name == test or name.startswith(f"{test}[")


@contextmanager
def workshop(wanted: Iterable[Mutation]) -> Iterator[Workshop]:
    """A :class:`Workshop` in a folder for temporary files."""
    with tempfile.TemporaryDirectory(prefix="mutations-", ignore_cleanup_errors=True) as folder:
        yield Workshop(Path(folder), wanted)


# ------------------------------------------------------------ the page

_HEAD = """\
# The rules, and the tests that notice

Each rule of [correctness.md](correctness.md) and [traps.md](traps.md) is a line or two of the code. This is the list of
these lines, made from `tests/mutations/*.toml`. `python -m tests.mutate` takes each of them out of a copy of the code:
the test in its row must fail then, and pass otherwise. `make mutations` tries all of them, and so does the long suite;
every run of the tests tries a few (*quick*) and makes sure that the list fits the code.
"""


def page(found: Sequence[Mutation]) -> str:
    """The list of rules, as a page of the documentation's site."""
    order = {heading: number for number, heading in enumerate(headings("correctness.md"))}
    sections = sorted({m.section for m in found}, key=lambda s: (order.get(s, len(order)), s))
    parts = [_HEAD]
    for section in sections:
        parts.append(f"\n## {section}\n\n| Rule | Taken out of | Test that fails |\n|---|---|---|\n")
        for m in found:
            if m.section == section:
                rule = f"{_cell(m.rule)}{f' ({m.trap})' if m.trap else ''}{' *quick*' if m.quick else ''}"
                tests = "<br>".join(f"`{_cell(test)}`" for test in m.tests)
                parts.append(f"| {rule} | `{m.file.removeprefix(_PACKAGE)}`: {_quoted(m.find)} | {tests} |\n")
    parts.append("\n## By trap\n\n| Trap | Rules | Code | Tests |\n|---|--:|---|---|\n")
    for trap in (heading.partition(" ")[0] for heading in headings("traps.md")):
        if rules := [m for m in found if trap in m.trap.replace(",", " ").split()]:
            code = "<br>".join(sorted({f"`{m.file.removeprefix(_PACKAGE)}`" for m in rules}))
            tests = "<br>".join(sorted({f"`{test.partition('::')[0]}`" for m in rules for test in m.tests}))
            parts.append(f"| [{trap}](traps.md) | {len(rules)} | {code} | {tests} |\n")
    return "".join(parts)


def headings(name: str) -> list[str]:
    """Headings of a page of the documentation, but for its title."""
    return re.findall(r"^##+ (.*)$", (ROOT / "docs" / name).read_text(), re.MULTILINE)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _quoted(find: str) -> str:
    """The first line of the text that is taken out, as code."""
    line = next(line.strip() for line in find.splitlines() if line.strip())
    line = line if len(line) <= 60 else f"{line[:57].rstrip()}..."
    ticks = "``" if "`" in line else "`"
    pad = " " if "`" in line else ""
    return f"{ticks}{pad}{_cell(line)}{pad}{ticks}"


# ------------------------------------------------------------ the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a mutation was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", metavar="PATTERN", default="", help="rules whose name, file or test has this in it")
    parser.add_argument("--share", metavar="K/N", default="1/1", help="the K-th of N shares")
    parser.add_argument("--list", action="store_true", help="only print their names")
    chosen = parser.parse_args(arguments)
    share, shares = map(int, chosen.share.split("/"))
    pattern = re.compile(chosen.only, re.IGNORECASE)
    found = [m for m in mutations() if pattern.search(f"{m.id} {m.file} {' '.join(m.tests)}")]
    wanted = sorted(found, key=lambda m: (m.tests, m.id))[share - 1 :: shares]
    if chosen.list:
        print(*(m.id for m in wanted), sep="\n")
        return 0
    missed = 0
    with workshop(wanted) as place:
        for number, mutation in enumerate(wanted, 1):
            began = time.monotonic()
            try:
                said = f"noticed by {place.attempt(mutation)}"
            except MutationError as error:
                missed += 1
                said = f"NOT NOTICED: {error}"
            seconds = time.monotonic() - began
            print(f"[{number}/{len(wanted)}] {mutation.id}: {said} ({seconds:.0f} s)", flush=True)
    print(f"{len(wanted) - missed} of {len(wanted)} mutations were noticed")
    return 1 if missed or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
