"""The demo, small: it must prove what it says, and leave nothing behind, however it ends."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.spark

Start = Callable[..., "subprocess.Popen[str]"]
#: Every process that the demo starts inherits it.
MARK = f"CDC_DEMO_TEST={secrets.token_hex(8)}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a small demo whose temporary files lie in ``tmp_path``."""
    started: list[subprocess.Popen[str]] = []

    def make(*arguments: str) -> subprocess.Popen[str]:
        name, value = MARK.split("=")
        process = subprocess.Popen(
            [sys.executable, "bench/demo.py", "--customers", "20000", "--seconds", "10", *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path), name: value, "COLUMNS": "120"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield make
    for process in started:
        process.kill()
        process.wait()


def _left() -> list[str]:
    """Command lines of living processes that a demo of this test has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if MARK.encode() in path.read_bytes().split(b"\0"):
                found.append((path.parent / "cmdline").read_text().replace("\0", " "))
    return found


def test_it_ends_equal_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    process = start()
    text, _ = process.communicate()
    assert process.returncode == 0, text
    assert "EQUAL: " in text.splitlines()[-1]
    assert "snapshot rows" in text and "changes applied" in text and "p95" in text
    assert _left() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_interrupted_it_leaves_nothing(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    process = start("--seconds", "600")
    assert process.stdout
    before = "planned" if number == signal.SIGINT else "follows the writers"  # within the snapshot, within the stream
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if before in line:
            break
    assert len(_left()) > 4, "".join(lines)
    process.send_signal(number)
    rest = process.stdout.read()
    assert process.wait() == 128 + number, "".join(lines) + rest
    assert "Interrupted" in rest and "Traceback" not in rest
    assert _left() == []
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_that_fails_fails_the_demo(start: Start, tmp_path: Path) -> None:
    process = start()
    assert process.stdout
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "stream epoch 1 begins" in line:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    ours = MARK.encode() in (path.parent / "environ").read_bytes()
                    if ours and b"\0airflow_provider_cdc\0run\0" in path.read_bytes():
                        os.kill(int(path.parent.name), signal.SIGKILL)
            break
    rest = process.stdout.read()
    assert process.wait() == 1, "".join(lines) + rest
    assert "FAILED: airflow-cdc run ended with exit code -9" in rest
    assert _left() == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    process = start("--out", str(tmp_path / "mine"))
    text, _ = process.communicate()
    assert process.returncode == 2
    assert "File exists" in text and "Traceback" not in text
