"""What the demos have in common as programs: options, what is said when, how they end and what they leave behind.

Exit codes: 0 equal, 1 different or failed, 2 usage, 128 + the signal when interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import NoReturn

from rich.console import Console

from airflow_provider_cdc.model.errors import CdcError
from tests.support.servers import ServerUnavailable

#: Seconds after which waiting for the pipeline is given up, and between two looks at it.
PATIENCE, PAUSE = 600.0, 0.5
#: Where the copy may go.
SINKS = ("folder", "s3", "iceberg")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


class Screen:
    """Says what is being done, with the seconds since the start, and keeps how long each phase took."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.phases: list[tuple[str, float]] = []
        self._start = time.monotonic()

    def say(self, text: str, style: str = "") -> None:
        elapsed = time.monotonic() - self._start
        self.console.print(f"{elapsed:6.1f} s  {text}", style=style, markup=False, soft_wrap=True)

    @contextmanager
    def phase(self, name: str, text: str) -> Iterator[None]:
        self.say(text, "bold")
        began = time.monotonic()
        yield
        self.phases.append((name, time.monotonic() - began))

    def verdict(self, equal: bool) -> None:
        words = "EQUAL: every sink table is its source, row by row" if equal else "DIFFERENT"
        self.say(words, "bold green" if equal else "bold red")


def parser(description: str, customers: int, rate: float) -> argparse.ArgumentParser:
    """The options that every demo has, with the values that they have by default."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--customers", type=int, default=customers, help="rows of the largest table (%(default)s)")
    made.add_argument("--seconds", type=float, default=30, help="how long to stream after the catch-up (%(default)s)")
    made.add_argument("--rate", type=float, default=rate, help="transactions a second of the writers (%(default)s)")
    made.add_argument("--sink", choices=SINKS, default="folder", help="where the copy goes (%(default)s)")
    made.add_argument("--stay", action="store_true", help="let writers and stream go on until Ctrl-C")
    made.add_argument("--keep", action="store_true", help="keep the tables and say where they are")
    made.add_argument("--out", type=Path, help="where to make and keep them; a folder that does not exist yet")
    return made


def perform(made: argparse.ArgumentParser, demo: Callable[[Screen, Path, argparse.Namespace], bool]) -> int:
    """Run a demo from its options to its exit code.

    :param demo: is given a folder of its own, and says whether the copy is equal.
    """
    options = made.parse_args()
    catch_signals()
    keep = options.keep or options.out is not None
    if keep and options.sink != "folder":
        made.error("--keep and --out are for --sink folder: the server of another one ends with the demo")
    if options.out is None:
        folder = Path(tempfile.mkdtemp(prefix="cdc-demo-"))
    else:
        folder = options.out.absolute()
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            made.error(f"--out {folder}: {error.strerror}")
    screen = Screen()
    try:
        equal = demo(screen, folder, options)
        keep = keep or (not equal and options.sink == "folder")
        screen.verdict(equal)
        return 0 if equal else 1
    except (DemoFailed, CdcError, ServerUnavailable, RuntimeError, subprocess.TimeoutExpired) as error:
        screen.say(f"FAILED: {error}", "bold red")
        return 1
    except SystemExit:
        screen.say("Interrupted; everything that was started has been ended")
        raise
    finally:
        if keep:
            screen.say(f"The tables are kept in {folder / 'lake'}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def catch_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP end the program as an exception does."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does
            signal.signal(number, _end_by_signal)


def wait_for_interrupt(look: Callable[[], object]) -> None:
    """Wait until Ctrl-C, which then ends only the waiting.

    :param look: is called again and again meanwhile.
    """
    asked = Event()
    signal.signal(signal.SIGINT, lambda *_: asked.set())
    while not asked.wait(PAUSE):
        look()
    catch_signals()


def ignore_signals() -> None:
    """For the clean-up: a second Ctrl-C during it would leave processes behind."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end_by_signal(number: int, _: object) -> NoReturn:
    ignore_signals()
    sys.exit(128 + number)
