"""A pipeline whose commands are processes that a test may kill at a failpoint, or at any moment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_cdc.system.processes import process_start_time
from tests.support.cli import Cli
from tests.support.harness import Child, Nursery

#: What a command may end with when tables are altered and killed by chance: nothing that a person would have to mend.
EXCUSES = (
    *("the stream continued without table", "copies no table", "would copy no table", "no longer exists"),
    "no table matches source.tables",  # all of them are dropped at this moment
    *("no captured table", "was altered", "could not take its place", "does not exist"),
)
#: Seconds after which a command hangs that nothing holds up.
DEADLINE_SECONDS = 120.0


class Commands:
    """Starts commands of one pipeline, and waits for them.

    :param cli: the pipeline; its name is ``p``.
    :param log: file that gets the output of all commands that have no file of their own.
    """

    def __init__(self, nursery: Nursery, cli: Cli, log: Path) -> None:
        self.nursery, self.cli, self.log = nursery, cli, log
        #: Constants of the package that have another value in each process.
        self.constants: dict[str, Any] = {}
        #: Whether each of them checks server and tables first.
        self.checked = True

    def start(
        self,
        *command: str,
        failpoint: str = "",
        group: tuple[int, str] | None = None,
        hold: tuple[Path, float] | None = None,
        log: Path | None = None,
    ) -> Child:
        """Start a command, or a task that reads a chunk group; parameters as of :meth:`Nursery.start`."""
        with self.log.open("a") as said:
            said.write(f"--- {' '.join(command) or group} {failpoint}{' (waits there)' if hold else ''}\n")
        options: Mapping[str, Any] = {"command": command, "group": group, "hold": hold, "constants": self.constants}
        options = {**options, "checked": self.checked}
        return self.nursery.start(self.cli.file, self.cli.env, failpoint, log=log or self.log, **options)

    def go(self, *command: str) -> int:
        """Run a command to its end; its exit code."""
        return self.start(*command).wait()

    def began(self, child: Child) -> None:
        """Wait until a stream that was started runs, or has died."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with self.cli.opened() as (_, store):
                run = store.newest_epoch("p")
            if not process_start_time(child.pid) or (
                run is not None and run.state == "running" and run.pid == child.pid
            ):
                return
            time.sleep(0.2)
        raise AssertionError(f"the stream did not begin:\n{self.said()}")

    def ends(self, child: Child) -> int:
        """Stop a stream that goes on, as people do."""
        assert self.go("stop") == 0, self.said()
        return self.ended(child)

    def ended(self, child: Child, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait for the end of a process; its exit code.

        :raises AssertionError: if it hangs. Its log then says where each of its threads is.
        """
        end = time.monotonic() + seconds
        while process_start_time(child.pid):
            if time.monotonic() > end:
                os.kill(child.pid, signal.SIGABRT)  # faulthandler writes all stacks
                child.wait()
                raise AssertionError(f"a process did not end within {seconds:g} s:\n{self.said()}")
            time.sleep(0.02)
        return child.wait()

    def said(self) -> str:
        """The end of what commands have written."""
        return self.log.read_text()[-20_000:]
