"""Human-readable progress: bars on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import click

from airflow_provider_cdc.model.progress import ChunkProgress
from airflow_provider_cdc.observe.log_lines import LOGGER_NAME

#: Seconds between two lines about the same thing if there is no terminal.
_LINE_SECONDS = 5.0


def make_reporter() -> LineReporter | BarReporter:
    """Return a reporter that suits standard error."""
    return BarReporter() if sys.stderr.isatty() else LineReporter()


def format_line(text: str, level: int) -> str:
    """Return a line for a terminal: time, level if it is worth attention, and text."""
    name = f"{logging.getLevelName(level).lower()}: " if level > logging.INFO else ""
    return f"{time.strftime('%H:%M:%S')} {name}{text}"


class ProgressThrottle:
    """Decides which progress is worth a line: the first, the last, and one every few seconds in between."""

    def __init__(self) -> None:
        self._last_shown: dict[str, tuple[float, int]] = {}

    def should_show(self, progress: ChunkProgress) -> bool:
        """Return whether enough has happened since the last line with this label; if so, it counts as shown."""
        at, before = self._last_shown.get(progress.label, (float("-inf"), 0))
        done = progress.chunks_done
        is_worth_showing = done != before and (done == progress.chunks_total or time.monotonic() - at > _LINE_SECONDS)
        if is_worth_showing:
            self._last_shown[progress.label] = time.monotonic(), done
        return is_worth_showing


class LineReporter:
    """Writes lines with the time to standard error."""

    def __init__(self) -> None:
        self._throttle = ProgressThrottle()

    def __enter__(self) -> LineReporter:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def line(self, text: str, level: int = logging.INFO) -> None:
        """Write a line, except at DEBUG."""
        if level > logging.DEBUG:
            click.echo(format_line(text, level), err=True)

    def progress(self, progress: ChunkProgress) -> None:
        """Write a line if enough has happened since the last."""
        if self._throttle.should_show(progress):
            self.line(f"{progress.label}: {progress}")


class LogReporter(LineReporter):
    """Writes lines to a log.

    :param log: a logger; by default that of a driver.
    """

    def __init__(self, log: Any = None) -> None:
        super().__init__()
        self._log = log or logging.getLogger(LOGGER_NAME)

    def line(self, text: str, level: int = logging.INFO) -> None:
        """Write a line."""
        self._log.log(level, "%s", text)


class BarReporter:
    """Shows a bar for each thing in progress, and replaces it with a line when it is done.

    :param console: console to write to; standard error by default.
    """

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[progress]}", markup=False),
            console=console or Console(stderr=True),
        )
        self._tasks: dict[str, Any] = {}
        self._done: set[str] = set()

    def __enter__(self) -> BarReporter:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def line(self, text: str, level: int = logging.INFO) -> None:
        """Write a line above the bars, except at DEBUG."""
        if level > logging.DEBUG:
            self._bars.console.print(format_line(text, level), highlight=False, markup=False, soft_wrap=True)

    def progress(self, progress: ChunkProgress) -> None:
        """Update a bar, or replace it with a line if it is done."""
        label, total = progress.label, progress.chunks_total
        if label in self._done:
            return
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=total, progress="")
        self._bars.update(self._tasks[label], completed=progress.chunks_done, total=total, progress=str(progress))
        if progress.chunks_done >= total:
            self._done.add(label)
            self._bars.remove_task(self._tasks.pop(label))
            self.line(f"{label}: {progress}")
