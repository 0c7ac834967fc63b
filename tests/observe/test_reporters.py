"""Progress on a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
from airflow_provider_cdc.model.progress import ChunkProgress
from airflow_provider_cdc.observe.reporters import make_reporter

with make_reporter() as reporter:
    reporter.line("a line")
    reporter.progress(ChunkProgress(label="shop.orders", chunks_done=3, chunks_total=10, rows=30, corrected=0))
"""


def written(**env: str) -> str:
    """What a program writes to a terminal."""
    ours, theirs = pty.openpty()
    known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=theirs, stdout=theirs, stderr=theirs, env={**known, **env}
    )
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 65536):
            text += part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(60) == 0, text
    return text.decode()


@pytest.mark.parametrize(
    ("env", "has_color", "moves"),
    [
        ({"TERM": "xterm-256color"}, True, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False, True),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_colors(env: dict[str, str], has_color: bool, moves: bool) -> None:
    text = written(**env)
    assert "a line" in text and "3/10 chunks" in text
    assert ("\x1b[38;" in text, "\x1b[2K" in text) == (has_color, moves)
    assert has_color or "m" not in {part[-1:] for part in text.split("\x1b[")[1:] if part[:-1].isdigit()}
