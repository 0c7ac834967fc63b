"""A small pipeline and its six phases, in each of which something fails at a place of the test's choice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow_provider_cdc.model.errors import CdcError, TransientError
from airflow_provider_cdc.system import failpoints
from tests.support.cli import Cli
from tests.support.oracle import Place, compare_database
from tests.support.servers import MySQLServer

#: Seconds that a phase may take whose fault does not end, with the time limits of ``tests/faults/conftest.py``.
#: Only a hang takes so long.
PATIENCE = 120.0

#: Each phase, and the place in its middle at which the fault begins.
MIDDLE = {
    "plan": "plan.after_write",
    "snapshot": "chunk.after_select:2",
    "handover": "table.after_commit",
    "stream": "table.before_commit:2",
    "re-snapshot": "reread.after_stage",
    "verify": "",
}

#: Phases of which nothing is left to do once they have succeeded.
ONCE = ("plan", "snapshot", "handover")


class World:
    """A table with a key and one without, and a pipeline that copies both.

    :param environment: further connections of the pipeline.
    :param place: where the copies are, if they are not below the pipeline's folder.
    :param settings: sections of the pipeline.
    """

    def __init__(
        self,
        server: MySQLServer,
        database: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        place: Place | None = None,
        **settings: dict[str, Any],
    ) -> None:
        self.server, self.database, self.said = server, database, dict[str, str]()
        self._numbers = iter(range(1, 1 << 30))
        server.session(
            database,
            "CREATE TABLE keyed (id INT PRIMARY KEY, v INT, t TEXT)",
            "CREATE TABLE plain (v INT, t TEXT)",
            *(f"INSERT INTO keyed VALUES ({n}, 0, REPEAT('k', {n * 20}))" for n in range(60)),
            *(f"INSERT INTO plain VALUES ({n % 9}, 'p')" for n in range(60)),
        )
        settings["snapshot"] = {"chunk_rows": 15, "group_rows": 30} | settings.get("snapshot", {})
        self.cli = Cli(folder, server, rf"{database}\..*", name=database, **settings)
        self.cli.env |= environment or {}
        self.place = self.cli.sink if place is None else place

    def write(self, transactions: int = 8) -> None:
        """Change rows of both tables."""
        for _, n in zip(range(transactions), self._numbers, strict=False):
            self.server.session(
                self.database,
                "BEGIN",
                f"REPLACE INTO keyed VALUES ({n % 70}, {n}, REPEAT('w', {n * 37 % 3000}))",
                f"DELETE FROM keyed WHERE id = {n * 7 % 70}",
                f"INSERT INTO plain VALUES ({n % 9}, REPEAT('q', {n * 53 % 3000})), (1, 'p')",
                f"DELETE FROM plain WHERE v = {n % 5} LIMIT 1",
                "COMMIT",
            )

    def differences(self) -> list[str]:
        """How the copies differ from the source."""
        return [str(one) for one in compare_database(self.server, self.database, self.place)]

    # -- the phases

    def run(self, phase: str) -> None:
        """Run a phase to its end.

        :raises CdcError: with which it ends.
        """
        if phase == "plan":
            with self.cli.opened() as (context, store):
                context.plans.ensure(store)
        elif phase == "snapshot":
            self.cli.snapshot()
        elif phase in ("handover", "stream"):
            self.cli.catch_up()
        elif phase == "re-snapshot":
            self.cli.resnapshot(f"{self.database}.keyed")
            self.cli.catch_up()
        else:
            found = self.cli.call("verify")
            if found.code:
                kind = TransientError if found.code == TransientError.exit_code else CdcError
                raise kind(*found.err.removeprefix("error: ").strip().rsplit(". ", 1))

    def carry(self, fault: Fault, phases: Mapping[str, str] = MIDDLE) -> dict[str, str]:
        """Let a fault begin before each phase, and in its middle, and run the phase again when it is over. In the end
        the copies equal their source.

        :returns: of each phase and place, the message with which it ended; empty if it did not fail.
        """
        for phase, middle in phases.items():
            for place in ("", middle) if middle else ("",):
                if phase in ONCE and place and not self.said[f"{phase} at the start"]:
                    continue  # it is done already
                self.write()
                self.said[f"{phase} at {place or 'the start'}"] = self._disturbed(phase, place, fault)
                if phase not in ONCE:
                    self.run(phase)
            self.run(phase)
            if phase in ("handover", "stream", "re-snapshot"):
                assert self.differences() == [], phase
        self.run("stream")
        assert self.differences() == []
        for name, message in self.said.items():
            print(f"{name}: {message or 'goes on'}")
        return self.said

    def _disturbed(self, phase: str, place: str, fault: Fault) -> str:
        """What a phase said of a fault; a mistake of its remedy fails the test."""
        began = time.monotonic()
        try:
            with fault.begin_at(place):
                self.run(phase)
        except TransientError as error:
            assert error.message and error.remedy, error
            return error.message
        finally:
            assert time.monotonic() - began < PATIENCE, (phase, place)
        return ""


@dataclass
class Fault:
    """What fails: how it begins, and how it ends."""

    begin: Callable[[], object]
    end: Callable[[], object]

    @contextmanager
    def begin_at(self, place: str) -> Iterator[None]:
        """Let it begin at a failpoint, or at once, and end it with the block.

        :raises AssertionError: if nothing came by the failpoint.
        """
        begun = threading.Lock()

        def begin(_: object = None) -> None:
            if begun.acquire(blocking=False):
                self.begin()

        if not place:
            begin()
        failpoints._hits.clear()
        armed = {failpoints.ENV_VARIABLE: place}
        with patch.object(failpoints, "kill_session", begin), patch.dict("os.environ", armed):
            try:
                yield
            finally:
                reached = begun.locked()
                if reached:
                    self.end()
        assert reached, f"nothing came by {place}"


def failed(said: Mapping[str, str]) -> set[str]:
    """The phases and places at which a fault ended a run."""
    return {place for place, message in said.items() if message}
