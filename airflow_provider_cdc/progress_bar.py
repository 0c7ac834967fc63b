"""Progress for people: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

#: Seconds between two lines about the same table where there is no terminal.
_PAUSE = 2.0


def reporter() -> Lines | Bars:
    """Reporter that suits standard error."""
    return Bars() if sys.stderr.isatty() else Lines()


class Lines:
    """Writes lines with the time."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def line(self, text: str) -> None:
        """Write a line."""
        click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)

    def progress(self, table: str, done: int, total: int, rows: int) -> None:
        """Write a line if enough has happened since the last."""
        at, before = self._told.get(table, (0.0, -1))
        if done != before and (done == total or time.monotonic() - at > _PAUSE):
            self._told[table] = time.monotonic(), done
            self.line(f"{table}: {done}/{total} chunks, {rows} rows")


class Bars:
    """Shows a bar a table."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("chunks, {task.fields[rows]} rows"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def line(self, text: str) -> None:
        """Write a line above the bars."""
        self._bars.console.print(f"{time.strftime('%H:%M:%S')} {text}", highlight=False, markup=False)

    def progress(self, table: str, done: int, total: int, rows: int) -> None:
        """Move a table's bar."""
        if table not in self._tasks:
            self._tasks[table] = self._bars.add_task(table, total=total, rows=rows)
        self._bars.update(self._tasks[table], completed=done, total=total, rows=rows)
