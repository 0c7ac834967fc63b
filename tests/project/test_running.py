"""How the suite is run: shares of the long tests, what is said at the end, and what a failing test says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import ROOT
from tests.support.running import AIRFLOW_TURNS, ALWAYS, SLOW, TOGETHER, in_share, in_turn, share_of, shorten

#: Tests as they are found below ``tests/``, of which one fails.
PROGRAM = """
import pytest

@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.long) for n in range(40)])
def test_of_chance(seed):
    pass

def test_of_every_run():
    pass

@pytest.fixture(params=["A", "B", "C"])
def server(request):
    pass

@pytest.mark.one_of("server")
@pytest.mark.parametrize("n", range(10))
def test_on_several(server, n):
    pass

@pytest.mark.one_of("server", "how")
@pytest.mark.parametrize("how", [1, 2])
@pytest.mark.parametrize("n", range(10))
def test_both(server, n, how):
    pass

@pytest.mark.parametrize("seed", ["it's 7"])
def test_that_fails(seed):
    raise AssertionError

@pytest.mark.kubernetes
def test_in_a_cluster():
    pass
"""

#: A test whose process crashes in one of several threads.
CRASH = """
import ctypes, threading

def idle():
    threading.Event().wait()

def culprit():
    ctypes.string_at(0)

def test_it():
    for target in (idle, idle, culprit):
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
    thread.join()
"""

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run these tests with the suite's own conftest.py."""
    file = tmp_path / "test_program.py"
    file.write_text(PROGRAM)

    def found(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
        command += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", str(file), *options]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout

    return found


def names(output: str) -> list[str]:
    return [line.partition("::")[2] for line in output.splitlines() if "::" in line]


def test_a_cluster_is_started_only_if_it_is_asked_for(run: Run) -> None:
    for options in ((), ("--share=1/1",), ("-m", "not long"), ("--turn=1/1",)):
        found = names(run("--collect-only", "-q", *options))
        assert found and "test_in_a_cluster" not in found
    assert names(run("--collect-only", "-q", "-m", "kubernetes")) == ["test_in_a_cluster"]


def test_each_long_test_is_in_one_share(run: Run) -> None:
    shares = [names(run("--collect-only", "-q", f"--share={k}/3")) for k in (1, 2, 3)]
    found = sorted(name for share in shares for name in share if "chance" in name)
    assert all(shares) and found == sorted(f"test_of_chance[{n}]" for n in range(40))
    assert names(run("--collect-only", "-q", "--share=2/3")) == shares[1]


def test_each_value_has_its_turn(run: Run) -> None:
    kept = [name for name in names(run("--collect-only", "-q", "-m", "not long")) if "several" in name]
    assert sorted(name[-2] for name in kept) == [str(n) for n in range(10)]
    assert {name.partition("[")[2][0] for name in kept} == {"A", "B", "C"}
    left = [name for name in names(run("--collect-only", "-q", "--share=1/1")) if "several" in name]
    assert len(left) == 20 and not set(left) & set(kept)


def test_values_of_two_parameters_have_their_turn(run: Run) -> None:
    kept = [name.partition("[")[2] for name in names(run("--collect-only", "-q", "-m", "not long")) if "both" in name]
    assert len(kept) == 10 and {name[0] for name in kept} == {"A", "B", "C"}


def test_shares_are_about_the_same() -> None:
    sizes = [sum(in_share(f"tests/a.py::test[seed-{n}]", k, 20) for n in range(2000)) for k in range(1, 21)]
    assert sum(sizes) == 2000 and min(sizes) > 60 and max(sizes) < 140


def test_tests_of_slow_folders_take_turns() -> None:
    """Each of them is in one turn of three, a third or so in each, and what is not slow is in all."""
    slow = [f"{folder}test_a.py::test[seed-{n}]" for folder in SLOW for n in range(200)]
    turns = [{name for name in slow if in_turn(name, k, 3)} for k in (1, 2, 3)]
    assert sum(map(len, turns)) == len(slow) == len(set.union(*turns)) and min(map(len, turns)) > len(slow) / 4
    every = (f"{ALWAYS[0]}::test", "tests/model/test_a.py::test")
    assert all(in_turn(name, k, 3) for k in (1, 2, 3) for name in every)
    assert all(in_turn(name, 1, 1) for name in slow)
    assert all((ROOT / name).exists() for name in (*SLOW, *ALWAYS))


def test_each_turn_has_an_airflow() -> None:
    files = {name: group for name, group in TOGETHER.items() if name.startswith("tests/in_airflow/")}
    assert {*files.values()} == AIRFLOW_TURNS.keys() and {*AIRFLOW_TURNS.values()} == {1, 2, 3}
    for file, group in files.items():
        assert [k for k in (1, 2, 3) if in_turn(f"{file}::test", k, 3)] == [AIRFLOW_TURNS[group]]


def test_a_turn_is_taken(run: Run, tmp_path: Path) -> None:
    """Through pytest: what has no turn is left out."""
    file = tmp_path / SLOW[1] / "test_it.py"
    file.parent.mkdir(parents=True)
    file.write_text("import pytest\n@pytest.mark.parametrize('n', range(40))\ndef test_it(n):\n    pass\n")
    found = [names(run("--collect-only", "-q", f"--turn={k}/2", str(file))) for k in (1, 2)]
    inside = sorted(name for names in found for name in names if name.startswith("test_it"))
    assert inside == sorted(f"test_it[{n}]" for n in range(40)) and all("test_of_every_run" in names for names in found)


def test_files_share_an_airflow() -> None:
    """One that is forgotten would start an Airflow of its own."""
    folders = (ROOT / "tests" / name for name in ("in_airflow", "ui"))
    files = [file for folder in folders for file in folder.glob("test_*.py")]
    own = {file for file in files if "pytest.mark.kubernetes" in file.read_text()}
    assert {str(file.relative_to(ROOT)) for file in {*files} - own} == TOGETHER.keys()


def test_each_airflow_belongs_to_one_worker(tmp_path: Path) -> None:
    program = "import os\ndef test_it():\n    line = f'{__file__} {os.environ[\"PYTEST_XDIST_WORKER\"]} '\n"
    program += "    open('ran', 'a').write(line)\n"
    for name in TOGETHER:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(program)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", "2"]
    command += ["--dist", "loadfile", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    words = (tmp_path / "ran").read_text().split()
    workers = dict(zip(words[::2], words[1::2], strict=True))
    groups = {(TOGETHER[str(Path(file).relative_to(tmp_path))], worker) for file, worker in workers.items()}
    assert len(workers) == len(TOGETHER) and len(groups) == len({*TOGETHER.values()}), done.stdout


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        share_of(text)


def test_a_test_that_fails_says_how_to_repeat_it(run: Run) -> None:
    said = run("-m", "not long")
    command = next(line for line in said.splitlines() if line.startswith(".venv/bin/python -m pytest "))
    assert command.partition(" pytest ")[2] == """'test_program.py::test_that_fails[it'"'"'s 7]'"""
    assert "seconds by folder" in said and "2 tests" in said


def test_a_worker_that_crashes_says_where_at_the_end(run: Run, tmp_path: Path) -> None:
    """First the thread that crashed, whatever other threads there are."""
    (file := tmp_path / "test_crash.py").write_text(CRASH)
    options = ("-n", "2", "--max-worker-restart=0", f"--basetemp={tmp_path / 'run'}", "-k", "test_it or every_run")
    said = run(*options, str(file))
    assert said.count(" crash of gw") == 1, said
    crash = said.partition(" crash of gw")[2].splitlines()[1:]
    assert crash[0].startswith("Fatal Python error: ") and crash[2].startswith("Current thread "), said
    assert any("in culprit" in line for line in crash[3:6]), said


def test_a_long_failure_is_shown_in_short(tmp_path: Path) -> None:
    """What it begins with, what it ends with, and where all of it stands."""
    report = SimpleNamespace(
        longrepr=f"first{'.' * 50_000}middle{'.' * 50_000}last", sections=[("log", "x" * 9000 + "end")]
    )
    shorten(report, file := tmp_path / "all")
    shown = "".join((report.longrepr, *(text for _, text in report.sections)))
    assert len(shown) < 10_000 and "middle" not in shown and "middle" in file.read_text()
    assert all(word in shown for word in ("first", "last", "end", str(file)))
    shorten(short := SimpleNamespace(longrepr="as it is", sections=[]), tmp_path / "none")
    assert short.longrepr == "as it is" and not (tmp_path / "none").exists()


def test_the_share_of_a_commit_is_the_same_each_time(tmp_path: Path) -> None:
    """.ci/run with a make that only says what it was asked for."""

    def asked() -> list[str]:
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        done = subprocess.run([str(ROOT / ".ci/run")], env=path, capture_output=True, text=True, check=True)
        return [line.removeprefix("asked: ") for line in done.stdout.splitlines() if line.startswith("asked: ")]

    make = tmp_path / "make"
    make.write_text("#!/bin/sh\necho asked: $*\n")
    make.chmod(0o700)
    first, second = asked(), asked()
    assert first == second and first[0] == "test" and first[1].startswith("test-long SHARE=")
    share_of(first[1].partition("=")[2])


def test_make_takes_the_turn_of_the_commit_unless_it_is_told() -> None:
    def turn(*options: str) -> str:
        done = subprocess.run(["make", "-n", "test", *options], cwd=ROOT, capture_output=True, text=True, check=True)
        return next(word for word in done.stdout.split() if word.startswith("--turn=")).partition("=")[2]

    assert turn() == turn() and share_of(turn())[1] == 3 and turn("TURN=1/1") == "1/1"
