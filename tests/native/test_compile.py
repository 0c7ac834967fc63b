"""Machine code and its cache: who compiles, who waits, and what is said about it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_cdc.system.notices import NOTICE_PREFIX
from tests import ROOT

NOTICE = f"{NOTICE_PREFIX}compiling machine code, once per machine"
#: Prints how many functions were loaded from the cache, and how many were compiled.
PROGRAM = """
from airflow_provider_cdc.native import siphash
functions = [siphash.add_words, siphash.add_bytes, siphash._finish_rows]
hits, misses = ([sum(getattr(f.stats, name).values()) for f in functions] for name in ("cache_hits", "cache_misses"))
print(sum(hits), sum(misses))
"""


def begin_process(cache: Path) -> subprocess.Popen[str]:
    """Start a process that needs machine code."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    """One compiles each function, the others wait for it and load it; later ones say nothing."""
    together = [process.communicate() for process in [begin_process(tmp_path) for _ in range(3)]]
    counts = [[int(number) for number in out.split()] for out, _ in together]
    assert [sum(column) for column in zip(*counts, strict=True)] == [6, 3], together
    said = [err.splitlines() for _, err in together]
    assert all(lines in ([], [NOTICE]) for lines in said) and [NOTICE] in said
    assert begin_process(tmp_path).communicate() == ("3 0\n", "")


def obey_permissions() -> None:
    """Let a process of root's get no further than the permissions of files allow its owner."""
    if os.geteuid() == 0:
        drop_from_bounding_set, dac_override = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
        assert ctypes.CDLL(None).prctl(drop_from_bounding_set, dac_override, 0, 0, 0) == 0


def test_a_read_only_cache_is_used(tmp_path: Path) -> None:
    """What an image brings along is loaded from where it is, unless others could have changed it."""
    cache, temporary = tmp_path / "cache", tmp_path / "tmp"
    assert begin_process(cache).communicate()[1] == f"{NOTICE}\n"
    temporary.mkdir()
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)

    def run() -> tuple[str, str]:
        env = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "TMPDIR": str(temporary), "HOME": "/proc/none"}
        env.pop("XDG_CACHE_HOME", None)
        program = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(program, env=env, capture_output=True, text=True, cwd=ROOT, preexec_fn=obey_permissions)
        return done.stdout, done.stderr

    assert run() == ("3 0\n", "")
    assert not [*temporary.iterdir()]
    for folder in (cache / "airflow-provider-cdc").iterdir():
        folder.chmod(0o577)
    assert run() == ("0 3\n", f"{NOTICE}\n")


def test_code_for_another_processor_is_not_taken_for_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numba compiles for the processor that its settings name, and would do so without a word."""
    for expected in (NOTICE, ""):
        assert begin_process(tmp_path).communicate()[1].strip() == expected
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert begin_process(tmp_path).communicate() == ("0 3\n", f"{NOTICE}\n")


def test_an_index_without_its_code_is_not_taken_for_cached(tmp_path: Path) -> None:
    begin_process(tmp_path).communicate()
    for path in tmp_path.rglob("*.nbc"):
        path.unlink()
    assert begin_process(tmp_path).communicate() == ("0 3\n", f"{NOTICE}\n")


def test_a_folder_that_is_named_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if there is machine code in the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    user, named = tmp_path / "airflow-provider-cdc", tmp_path / "named"
    begin_process(tmp_path).communicate()
    user.rename(tmp_path / "machine-code")
    user.mkdir(mode=0o700)
    (tmp_path / "machine-code").rename(user / "machine-code")
    assert begin_process(named).communicate() == ("0 3\n", f"{NOTICE}\n")
    assert len([*named.rglob("*.nbi")]) == 3
