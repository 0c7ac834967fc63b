"""The list of rules is true: each of its entries fits the code, and its test fails without the rule."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT, mutate
from tests.mutate import LISTS, Mutation, MutationError, Workshop, mutations, workshop

LISTED = mutations()


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest) -> Iterator[Workshop]:
    """One copy of the checkout for all mutations of this run."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = [call.params["mutation"] for call in calls if call and "mutation" in call.params]
    with workshop(wanted) as made:
        yield made


def cases(*, quick: bool) -> list[object]:
    return [
        pytest.param(mutation, id=mutation.id, marks=[pytest.mark.kubernetes] if mutation.needs_kubernetes else [])
        for mutation in LISTED
        if mutation.quick is quick
    ]


@pytest.mark.one_of("mutation")
@pytest.mark.parametrize("mutation", cases(quick=True))
def test_a_rule_that_is_quickly_tried(place: Workshop, mutation: Mutation) -> None:
    place.attempt(mutation)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mutation", cases(quick=False))
def test_a_rule(place: Workshop, mutation: Mutation) -> None:
    place.attempt(mutation)


def test_every_entry_fits_the_code() -> None:
    for mutation in LISTED:
        text = mutation.mutated()
        if mutation.file.endswith(".py"):
            compile(text, mutation.file, "exec")


def test_every_test_that_is_named_exists() -> None:
    named = sorted({test for mutation in LISTED for test in mutation.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_the_page_has_every_rule() -> None:
    text = mutate.page(LISTED)
    rules, _, traps = text.partition("\n## By trap\n")
    assert rules.count("\n| ") - rules.count("\n| Rule | ") == len(LISTED)
    assert {*re.findall(r"^## (.*)$", rules, re.MULTILINE)} == {m.section for m in LISTED}
    assert traps.count("\n| [") == len([h for h in mutate.headings("traps.md") if re.match(r"[TSVP]\d+ ", h)])


def test_every_claim_and_every_trap_has_rules() -> None:
    told = set(mutate.headings("correctness.md")) - {m.section for m in LISTED}
    traps = {found[1] for heading in mutate.headings("traps.md") if (found := re.match(r"([TSVP]\d+) ", heading))}
    named = {trap for m in LISTED for trap in m.trap.replace(",", " ").split()}
    assert not told and not traps - named
    assert named <= traps


# ------------------------------------------------------------ the runner itself

ENTRY = {
    "rule": "The version is told",
    "file": "airflow_provider_cdc/__init__.py",
    "find": '__version__ = "',
    "replace": '__version__ = "9',
}
VERSION = (ROOT / "airflow_provider_cdc/__init__.py").read_text().partition('__version__ = "')[2].partition('"')[0]
#: Three ways in which a process finds the package: the test's own, and programs that it starts.
PROGRAM = f"""
import subprocess, sys
from pathlib import Path

import airflow_provider_cdc

def version(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

def test_here():
    assert airflow_provider_cdc.__version__ == "{VERSION}"

def test_module():
    assert version(sys.executable, "-m", "airflow_provider_cdc", "--version").split()[-1] == "{VERSION}"

def test_script():
    assert version(Path(sys.executable).with_name("airflow-cdc"), "--version").split()[-1] == "{VERSION}"

def test_elsewhere(tmp_path):
    code = "import airflow_provider_cdc as cdc; print(cdc.__version__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{VERSION}"

def test_that_cannot_fail():
    pass

def test_that_is_broken():
    from airflow_provider_cdc import __version__
    assert __version__

def test_that_fails_anyway():
    raise AssertionError

def test_that_needs_what_fails(nothing_of_the_kind):
    pass

def test_that_hangs():
    import time
    if airflow_provider_cdc.__version__ != "{VERSION}":
        time.sleep(60)
"""
HERE = "test_of_the_runner.py"


@pytest.fixture(scope="module")
def bench() -> Iterator[Workshop]:
    """A copy with tests that are only for the runner."""
    with workshop([]) as made:
        (made.root / HERE).write_text(PROGRAM)
        yield made


def entry(test: str, **changes: object) -> Mutation:
    return mutate._mutation("list", "Section", 1, {**ENTRY, "test": f"{HERE}::{test}", **changes})


@pytest.mark.one_of("test")
@pytest.mark.parametrize("test", ["test_here", "test_module", "test_script", "test_elsewhere"])
def test_every_process_runs_the_code_without_the_rule(bench: Workshop, test: str) -> None:
    assert test in bench.attempt(entry(test))
    assert (bench.root / ENTRY["file"]).read_text() == (ROOT / ENTRY["file"]).read_text()


@pytest.mark.parametrize(
    ("test", "changes", "said"),
    [
        ("test_that_cannot_fail", {}, "did not fail without the rule"),
        ("test_that_fails_anyway", {}, "does not pass, although"),
        pytest.param("test_that_needs_what_fails", {}, "could not be run", marks=pytest.mark.long),
        pytest.param("test_that_is_not_there", {}, "could not be run", marks=pytest.mark.long),
        pytest.param("test_that_hangs", {"timeout": 0.0}, "ran into the time limit", marks=pytest.mark.long),
        ("test_that_is_broken", {"find": "__version__ =", "replace": "_version_ ="}, "does not run"),
        ("test_here", {"find": "no such text"}, "stale"),
        pytest.param("test_here", {"find": "_"}, "stale", marks=pytest.mark.long),
    ],
)
def test_what_proves_nothing_is_said(
    bench: Workshop, monkeypatch: pytest.MonkeyPatch, test: str, changes: dict[str, object], said: str
) -> None:
    monkeypatch.setattr(mutate, "_SECONDS", 5.0)
    with pytest.raises(MutationError, match=said):
        bench.attempt(entry(test, **changes))


def test_a_hanging_test_counts_where_the_list_says_so(bench: Workshop) -> None:
    assert "Timeout" in bench.attempt(entry("test_that_hangs", timeout=3))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "not"),
        ("[[mutation]", "list.toml"),
        ('rule = "A"', "test is missing"),
        ('rule = "A"\nfile = "tests/x.py"\ntest = "t"', "nothing of the package"),
        ('rule = "A"\nfile = "airflow_provider_cdc/x.py"\ntest = "t"\nx = 1', "wrong"),
    ],
)
def test_a_list_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    listed = f'[[mutation]]\nfind = "a"\nreplace = "b"\n{text}' if text.startswith("rule") else text
    (tmp_path / "list.toml").write_text(listed)
    with pytest.raises(MutationError, match=said):
        mutations(tmp_path)


def test_lists_are_found() -> None:
    assert {m.list for m in LISTED} == {path.stem for path in LISTS.glob("*.toml")}
