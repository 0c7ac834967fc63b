"""The machine code by itself: mangled rows give an error, never a crash; and where the code is kept."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.mangled_results import rows_of_all_kinds


def run(*args: str, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.mangled_results", *args]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "XDG"))}
    out = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env={**clean, **env}, stdout=out, stderr=out, text=True)


def done(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, (process.returncode, err)
    return out


def test_mangled_rows_never_crash() -> None:
    """Each ends right before memory that must not be touched, so reading on is a crash: of the child, which tells."""
    seed = random.randrange(1 << 30)
    print(f"To repeat it: .venv/bin/python -m tests.support.mangled_results mangle {seed}")
    out = done(run("mangle", str(seed)))
    found = dict(line.split() for line in out.splitlines())
    assert int(found["refused"]) > 1000 and int(found["read"]) > 10


def test_rows_are_read_as_they_were_made() -> None:
    """So the mangled ones are refused for what was mangled."""
    assert len(rows_of_all_kinds(random.Random(1))) > 10
    assert done(run("read", "7")).split() == ["equal"]


def test_processes_that_compile_at_once(tmp_path: Path) -> None:
    """All begin with an empty folder; afterwards nothing is compiled any more."""
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    for process in [run("read", "1", **env) for _ in range(2)]:
        assert done(process).split() == ["equal"]
    made = sorted(tmp_path.rglob("*.nbc"))
    assert made and stat.S_IMODE(made[0].parents[1].stat().st_mode) == 0o700
    before = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.nb?")}
    assert done(run("hits", **env)).split() == ["1", "0", "1", "0"]  # found, not made
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.nb?")} == before


def test_where_machine_code_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    nowhere = "/dev/null/nowhere"
    found = done(run("folder", HOME=nowhere, TMPDIR=str(folder))).strip()
    assert Path(found).parent == folder / f"airflow-provider-cdc-{os.geteuid()}-machine-code"
    named = done(run("folder", HOME=nowhere, XDG_CACHE_HOME=str(tmp_path / "xdg"))).strip()
    assert Path(named).parent == tmp_path / "xdg" / "airflow-provider-cdc" / "machine-code"
    chosen = done(run("folder", HOME=nowhere, NUMBA_CACHE_DIR=str(tmp_path / "numba"))).strip()
    assert Path(chosen).parent == tmp_path / "numba" / "airflow-provider-cdc"


@pytest.mark.parametrize("how", ["open", pytest.param("link", marks=pytest.mark.long)])
def test_a_folder_of_others_is_never_used(tmp_path: Path, how: str) -> None:
    """What is in it would be executed. It works without one, only slower."""
    mine = tmp_path / f"airflow-provider-cdc-{os.geteuid()}-machine-code"
    if how == "open":
        mine.mkdir()
        mine.chmod(0o777)
    else:
        (tmp_path / "elsewhere").mkdir()
        mine.symlink_to(tmp_path / "elsewhere")
    env = {"HOME": "/dev/null/nowhere", "TMPDIR": str(tmp_path)}
    assert done(run("folder", **env)).strip() == "None"
    assert done(run("read", "1", **env)).split() == ["equal"]
    assert not list(tmp_path.rglob("*.nb?"))
