"""Tables are read again, suspended, removed, altered and cleared in any order, by several at a time that are killed or
stand still anywhere, while writers go on: what was done stays done, who has left stays away, and nothing hangs.

The model of what must be is in tests/support/copy_model.py. Each schedule follows from one number, but for the clock.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from airflow_provider_cdc.model.errors import NotComparableError, NotReadyError, TableSuspendedError, TransientError
from airflow_provider_cdc.resnapshot.purged_binlog import replan_if_purged
from airflow_provider_cdc.resnapshot.staged_files import list_pending_reads
from airflow_provider_cdc.sinks.storage.storage import write_json
from airflow_provider_cdc.system.processes import process_start_time
from tests.support.altering import quoted
from tests.support.chance import Threads, run_fresh, seeds_asked_for
from tests.support.cli import Cli
from tests.support.commands import DEADLINE_SECONDS, Commands
from tests.support.copy_model import Copy, difference_of
from tests.support.failpoints import (
    ADDED_TABLE,
    REQUESTS,
    RESNAPSHOT,
    RESNAPSHOT_OUTCOME,
    SCHEMA_CHANGES,
    STREAM,
    SUSPENSION,
)
from tests.support.harness import KILLED, Child, Nursery
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, ICEBERG

_DATABASE = "kill_r"
_COLUMNS = "v VARCHAR(20), n INT NOT NULL, version INT NOT NULL"
#: Captured tables: one that is like most, one whose deleted rows may stay, and one without a key.
_TABLES = {
    "plain": f"(id INT NOT NULL PRIMARY KEY, {_COLUMNS})",
    "keeping": f"(id INT NOT NULL PRIMARY KEY, {_COLUMNS})",
    "loose": "(n INT, v VARCHAR(20))",
}
_KEYS = 40
#: Where a stream dies, and where somebody who reads does, or stands still: the latter has begun there.
_STREAM = (
    *SUSPENSION,
    *SUSPENSION,
    *RESNAPSHOT,
    *RESNAPSHOT_OUTCOME,
    *REQUESTS,
    *SCHEMA_CHANGES,
    *ADDED_TABLE,
    *STREAM,
)
_READER = (
    *("chunk.before_lw", "chunk.after_select", "chunk.after_hw", "file.before_write", "manifest.after_write"),
    *("reread.after_stage", "reread.after_stage"),
)
#: Revisions with which a table may begin: numbers that are made of them must not run into each other.
_REVISIONS = (0, 0, 0, 497, 498, 997, 998, 1999)
#: How often one run of the stream reads a table again that could not be read, here.
_TRIES = 3
_TRANSIENT, _NOT_READY, _TERMINAL = TransientError.exit_code, NotReadyError.exit_code, TableSuspendedError.exit_code
#: What a reading may be refused with: all of it is told, and names the table.
_REFUSED = (
    *("copies no table", "is suspended and is not part of the stream", "the stream has refused it"),
    *("Re-snapshot the whole table", "was altered", "had a column", "no longer exists", "has no usable key"),
)


class Load(Threads):
    """Threads that write."""

    def __init__(self, server: MySQLServer, seed: int, copies: dict[str, Copy]) -> None:
        super().__init__(server, seed, _DATABASE, [self._write, self._write], "sql_mode = ''")
        self._copies = copies

    def _write(self, draw: random.Random, number: int, cursor: Any) -> None:
        """One transaction."""
        statements = [self._change(draw, draw.choice([*_TABLES])) for _ in range(draw.choice((1, 1, 3)))]
        try:
            for statement in ("BEGIN", *statements, "ROLLBACK" if draw.random() < 0.1 else "COMMIT"):
                cursor.execute(statement)
                self.done["statements"] += 1
        except pymysql.MySQLError as error:
            self.done[f"error {error.args[0]}"] += 1
            cursor.execute("ROLLBACK")
        self.over.wait(0.1)  # so many rows are not wanted, and a processor is shared

    def _change(self, draw: random.Random, name: str) -> str:
        key, value, roll = draw.randrange(_KEYS), draw.randrange(1000), draw.random()
        if name == "loose":
            if roll < 0.6:
                return f"INSERT INTO loose (n, v) VALUES ({key}, '{value}')"
            return (
                f"DELETE FROM loose WHERE n = {key}" if roll < 0.8 else f"UPDATE loose SET v = {value} WHERE n = {key}"
            )
        if roll < 0.5:
            listed = f"(id, v, n, version) VALUES ({key}, 'v{value}', {value}, {self._copies[name].version})"
            return f"{draw.choice(('REPLACE', 'INSERT IGNORE'))} INTO `{name}` {listed}"
        if roll < 0.75:
            return f"UPDATE `{name}` SET n = {value} WHERE id BETWEEN {key} AND {key + draw.choice((0, 9))}"
        return f"DELETE FROM `{name}` WHERE id BETWEEN {key} AND {key + draw.choice((0, 3))}"


@dataclass
class Reading:
    """Somebody who reads a table again, or rows of it.

    :param keys: of the rows; ``None``: of all.
    :param version: of the source when it was started.
    :param suspensions: of the table at that moment, and ``changes`` of it.
    :param held: where it stands still, if it does.
    """

    child: Child
    log: Path
    copy: Copy
    keys: range | None
    version: int
    suspensions: int
    changes: int
    held: Path | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it certainly has."""
        return self.held is not None and self.held.with_suffix(".reached").exists()


@dataclass
class Request:
    """What somebody wants through the bookkeeping, and the version of the source at that moment."""

    copy: Copy
    keys: range | None
    version: int


class World(Commands):
    """A pipeline, what happens to it by chance, and what must be."""

    def __init__(self, server: MySQLServer, nursery: Nursery, folder: Path, seed: int, kind: str) -> None:
        self.server, self.folder, self.draw = server, folder, random.Random(seed)
        draw, keeps = self.draw, self.draw.choice(("hard", "soft", "ignore"))
        sink: dict[str, Any] = {"kind": kind, "merge": {"copy_on_write": [_pattern(draw.choice([*_TABLES]))]}}
        if keeps != "hard":
            sink["deletes"] = {keeps: [_pattern("keeping")]}
        settings: dict[str, Any] = {
            "snapshot": {"chunk_rows": 5, "group_rows": draw.choice((5, 20))},
            "stream": {"on_table_error": "suspend", "fail_on_suspended": draw.random() < 0.5},
        }
        super().__init__(nursery, Cli(folder / "p", server, sink=sink, **settings), folder / "log")
        self.checked, self.constants = False, {"resnapshot.worker._MAX_TRIES": _TRIES}
        self.copies = {
            name: Copy(
                _DATABASE,
                name,
                self.cli.sink / _DATABASE / name,
                keeps if name == "keeping" else "hard",
                keyed=name != "loose",
            )
            for name in _TABLES
        }
        self.focus = self.copies[draw.choice(("plain", "keeping"))]
        self.load = Load(server, seed, self.copies)
        self.streaming: Child | None = None
        self.stream_log = folder / "none"
        self.paused = False
        self.readings: list[Reading] = []
        self.requests: dict[int, Request] = {}
        #: Chunk groups as they were planned: of each the tables and the bounds of their keys.
        self.groups: dict[int, list[tuple[str, int, int]]] = {}
        self.done: Counter[str] = Counter()
        self.number = 0

    # ---------------------------------------------------------------- what there is

    def fill(self) -> None:
        """Make the tables, with rows."""
        for name, definition in _TABLES.items():
            rows = ", ".join(f"({n}, 'v', {n}, 0)" for n in range(0, _KEYS, 2))
            listed = "(n, v) VALUES (1, 'a'), (2, 'b')" if name == "loose" else f"(id, v, n, version) VALUES {rows}"
            self.server.session(_DATABASE, f"CREATE TABLE `{name}` {definition}", f"INSERT INTO `{name}` {listed}")

    def copy(self) -> None:
        """Take the snapshot. Some tables begin with revisions that others get after years."""
        self.captures([*_TABLES])
        with self.cli.opened() as (context, store):
            plan = replan_if_purged(context, store)
            for chunk in plan.chunks:
                if (name := plan.tables[chunk.table].name) != "loose":
                    bounds = name, int(chunk.lower[0]), int(chunk.upper[0]) + chunk.includes_upper
                    self.groups.setdefault(chunk.group, []).append(bounds)
            revisions = [self.draw.choice(_REVISIONS) for _ in plan.definitions]
            begun = zip(plan.definitions, revisions, strict=True)
            aged = plan.replace(definitions=tuple(found.replace(revision=revision) for found, revision in begun))
            write_json(context.storage, context.layout.plan, aged.to_json())
            self.notes(f"revisions {revisions}")
        assert self.run("run", "--catch-up") == 0, self.said()

    def captures(self, names: Sequence[str]) -> None:
        """Write the pipeline's file with these tables."""
        self.cli.value["source"]["tables"] = [_pattern(name) for name in names]
        self.cli.write()

    def notes(self, what: str) -> None:
        """Write down what happens, among the logs of the commands."""
        self.number += 1
        (self.folder / f"log-{self.number:03}").write_text(f"===== {what}\n")

    def begin(self, *command: str, failpoint: str = "", **options: Any) -> tuple[Child, Path]:
        """Start a command with a log of its own."""
        self.number += 1
        log = self.folder / f"log-{self.number:03}"
        log.write_text(f"--- {' '.join(command) or options} {failpoint}\n")
        return self.start(*command, failpoint=failpoint, log=log, **options), log

    def run(self, *command: str, **options: Any) -> int:
        """A command to its end; its exit code."""
        return self.ended(self.begin(*command, **options)[0])

    def said(self) -> str:
        return "\n".join(log.read_text() for log in sorted(self.folder.glob("log-*")))[-60_000:]

    def any(self, keyed: bool = False) -> Copy:
        """A table; mostly that of which the schedule is."""
        if self.draw.random() < 0.75:
            return self.focus
        return self.draw.choice([copy for copy in self.copies.values() if copy.keyed or not keyed])

    def keys(self, copy: Copy) -> range | None:
        """Of the whole table, or of a part."""
        if not copy.keyed or self.draw.random() < 0.6:
            return None
        low = self.draw.randrange(-3, _KEYS)
        return range(low, low + self.draw.choice((1, 8, 20)))

    def is_running(self) -> bool:
        if self.streaming is not None and not process_start_time(self.streaming.pid):
            self.stream_ended()
        return self.streaming is not None

    # ---------------------------------------------------------------- the stream

    def stream(self) -> None:
        """It goes on, or catches up; it may die at a failpoint, or a place that it stands still at for a while."""
        if self.is_running():
            return
        draw, failpoint, hold = self.draw, "", None
        if draw.random() < 0.5:
            failpoint = f"{draw.choice(_STREAM)}:{draw.choice((1, 1, 2, 3))}"
            hold = (self.folder / f"hold-{self.number}", draw.uniform(0.5, 2)) if draw.random() < 0.3 else None
        if draw.random() < 0.5:
            self.caught_up(self.run("stream", "--catch-up", failpoint=failpoint, hold=hold))
        else:
            self.streaming, self.stream_log = self.begin("stream", failpoint=failpoint, hold=hold)
            self.began(self.streaming)

    def caught_up(self, code: int) -> None:
        """Hear how a stream has ended: one that was not killed has seen which tables the pipeline captures."""
        self.done[f"stream {code}"] += 1
        assert code in (0, KILLED, _TRANSIENT, _NOT_READY, _TERMINAL), self.said()
        if code in (_NOT_READY, _TERMINAL):
            last = self.last_line()
            assert any(text in last for text in ("the stream continued without table", "copies no table any more")), (
                last
            )
        if code in (0, _TERMINAL):
            self.captured()

    def captured(self) -> None:
        """Hear that the stream copies what the file says."""
        for copy in self.copies.values():
            captured = _pattern(copy.name) in self.cli.value["source"]["tables"]
            if copy.captured is None or copy.captured != captured:
                copy.captured = captured
            if not captured:
                copy.leaves()

    def last_line(self) -> str:
        return (self.folder / f"log-{self.number:03}").read_text().splitlines()[-1]

    def stream_ended(self) -> None:
        assert self.streaming is not None
        child, paused, self.streaming, self.paused = self.streaming, self.paused, None, False
        code = self.ended(child)
        if paused:  # the next run would be, too
            self.run("resume")
        self.done[f"stream {code}"] += 1
        assert code in (0, KILLED, _TRANSIENT, _NOT_READY, _TERMINAL), f"{code}: {self.said()}"

    def ends(self, child: Child | None = None) -> int:
        """The stream ends, as people want it, or it is killed."""
        if self.is_running():
            assert self.streaming is not None
            if self.draw.random() < 0.4:
                time.sleep(self.draw.uniform(0, 1))
                self.streaming.kill()
            else:
                self.run("stop")
            self.stream_ended()
        return 0

    def pauses(self) -> None:
        if self.is_running():
            self.paused = not self.paused
            self.run("pause" if self.paused else "resume")

    # ---------------------------------------------------------------- readings

    def reads(self) -> None:
        """Somebody reads a table again, or a part: to the end, in the background, or until it stands still or dies."""
        draw, copy = self.draw, self.any()
        self.read(copy, self.keys(copy), holds=draw.random() < 0.35, dies=draw.random() < 0.15)

    def read(self, copy: Copy, keys: range | None, *, holds: bool = False, dies: bool = False) -> None:
        command = ["resnapshot", "--table", copy.label]
        if keys is not None:
            command += ["--where-key", f"id >= {keys.start} AND id < {keys.stop}"]
            copy.changes += 1
        elif copy.captured is not False:  # else it is refused
            copy.suspended = None if copy.suspended else copy.suspended
            copy.may_come_back()
        held, failpoint = None, ""
        if holds or dies:
            failpoint = f"{self.draw.choice(_READER)}:{self.draw.choice((1, 1, 2))}"
            held = self.folder / f"hold-{self.number}" if holds else None
        version, suspensions, changes = copy.version, copy.suspensions, copy.changes
        child, log = self.begin(*command, failpoint=failpoint, hold=held and (held, DEADLINE_SECONDS))
        reading = Reading(child, log, copy, keys, version, suspensions, changes, held)
        self.readings.append(reading)
        if held is not None:
            end = time.monotonic() + DEADLINE_SECONDS
            while process_start_time(child.pid) and not reading.has_begun and time.monotonic() < end:
                if self.is_running() and time.monotonic() > end - DEADLINE_SECONDS + 2:
                    break  # it has passed the place, and waits for the stream
                time.sleep(0.02)
        elif not self.paused and self.draw.random() < 0.6:
            self.finish(reading)

    def finish(self, reading: Reading) -> None:
        """Wait for the end of a reading, and hear what has become of it."""
        if reading.held is not None:
            reading.held.with_suffix(".continue").touch()
        self.readings.remove(reading)
        code = self.ended(reading.child)
        said = reading.log.read_text()
        self.done[f"reading {code}"] += 1
        assert code in (0, KILLED, _TRANSIENT, _NOT_READY), f"{reading}: {self.said()}"
        if code == _NOT_READY:
            assert any(text in said for text in _REFUSED), f"{reading}: {said}"
        copy = reading.copy
        if code == 0 and "no stream is running" not in said:
            copy.is_read(reading.version, reading.keys)
            if reading.keys is None and reading.suspensions == copy.suspensions and copy.captured is not False:
                copy.suspended = False
            copy.check()
        elif code == 0 and reading.keys is None:
            copy.staged.append((reading.version, reading.changes))

    def reaps(self) -> None:
        for reading in [*self.readings]:
            if not process_start_time(reading.child.pid):
                self.finish(reading)

    def releases(self) -> None:
        """Somebody who stands still continues, or dies there."""
        held = [reading for reading in self.readings if reading.held is not None]
        if held:
            reading = self.draw.choice(held)
            if self.draw.random() < 0.2:
                reading.child.kill()
            elif reading.held is not None:
                reading.held.with_suffix(".continue").touch()
            if not self.paused:
                self.finish(reading)

    def clears(self) -> None:
        """Somebody clears the task of a chunk group: it is read again."""
        if self.paused:
            return
        group = self.draw.choice([*self.groups])
        versions = {copy.name: copy.version for copy in self.copies.values()}
        for name, _, _ in self.groups[group]:
            self.copies[name].changes += 1
        dies = f"{self.draw.choice(_READER)}:1" if self.draw.random() < 0.2 else ""
        child, log = self.begin(group=(group, f"task-{group}"), failpoint=dies)
        code = self.ended(child)
        self.done[f"group {code}"] += 1
        there = any(self.copies[name].is_in for name, _, _ in self.groups[group])
        assert code in (0, KILLED, _TRANSIENT) or (code == _NOT_READY and not there), self.said()
        if f"group {group}: replaced" in log.read_text():
            for name, low, high in self.groups[group]:
                if not self.copies[name].is_out:
                    self.copies[name].is_read(versions[name], range(low, high))

    # ---------------------------------------------------------------- who is part of the stream

    def asks(self) -> None:
        """Somebody wants a table to be read again, through the bookkeeping, and does not wait."""
        copy = self.any()
        keys = self.keys(copy)
        condition = None if keys is None else f"id >= {keys.start} AND id < {keys.stop}"
        copy.changes += keys is not None
        with self.cli.opened() as (_, store):
            if keys is None and copy.captured is not False:
                copy.suspended = None if copy.suspended else copy.suspended
                copy.may_come_back()
            number = store.add_request("p", "reread", copy.label, "ann", condition)
        self.requests[number] = Request(copy, keys, copy.version)

    def suspends(self) -> None:
        if self.paused:
            return
        copy = self.any()
        copy.suspensions += 1
        copy.changes += 1
        before = copy.suspended
        copy.suspended = None
        child, log = self.begin("suspend", "--table", copy.label)
        code, said = self.ended(child), log.read_text()
        assert code in (0, _NOT_READY, _TRANSIENT), self.said()
        self.done[f"suspend {code}"] += 1
        if code == _NOT_READY:
            copy.suspended = before
        elif (
            code == 0
            and f"table {copy.label} is suspended at" in said
            # Who has begun before must not bring it back; of others nobody knows whether they have.
            and all(one.has_begun for one in self.readings if one.copy is copy and one.keys is None)
        ):
            copy.suspended = True
            copy.leaves()

    def resumes(self) -> None:
        if self.paused:
            return
        copy = self.any()
        if copy.captured is not False:
            copy.suspended = None if copy.suspended else copy.suspended
            copy.may_come_back()
        version, suspensions = copy.version, copy.suspensions
        child, log = self.begin("resume", "--table", copy.label)
        code = self.ended(child)
        self.done[f"resume {code}"] += 1
        assert code in (0, _NOT_READY, _TRANSIENT), self.said()
        if (
            code == 0
            and "no stream is running" not in log.read_text()
            and "is part of the stream from" in log.read_text()
        ):
            copy.is_read(version)
            if suspensions == copy.suspensions:
                copy.suspended = False

    def removes(self) -> None:
        """The pipeline copies other tables; a stream that runs hears of it, or the next one does."""
        names = self.draw.sample([*_TABLES], self.draw.choice((1, 2, 2, 3)))
        self.lets_in(names)
        if not self.is_running() or self.paused:
            return
        child, log = self.begin("reload")
        code = self.ended(child)
        self.done[f"reload {code}"] += 1
        assert code in (0, _TRANSIENT), self.said()
        if code == 0 and "no stream is running" not in log.read_text():
            self.captured()

    def lets_in(self, names: Sequence[str]) -> None:
        self.captures(names)
        for copy in self.copies.values():
            if copy.name in names and copy.captured is not True:
                if copy.captured is False and copy.suspended is False:
                    copy.expected.append(copy.version)
                if copy.suspended is not True:
                    copy.may_come_back()
                copy.captured = None
            elif copy.name not in names and copy.captured is not False:
                copy.captured = None
                copy.changes += 1

    # ---------------------------------------------------------------- the source

    def hides(self) -> None:
        """All rows of a table get another version, and the binlog does not say so."""
        copy = self.any(keyed=True)
        with self.load.still():
            copy.version += 1
            self.notes(f"version {copy.version} of {copy.name}")
            sql = f"UPDATE `{copy.name}` SET version = {copy.version}"
            self.server.session(_DATABASE, "SET SESSION sql_log_bin = 0", sql)

    def alters(self) -> None:
        """A DDL, of those that are followed, and of those that are not: then the table is read again."""
        copy = self.any()
        name, number = quoted(copy.name), self.number
        followed = [f"ALTER TABLE {name} ADD COLUMN c{number} INT NULL"]
        # Rows that stay although they are deleted have no other type: a table is left suspended rather than lose them.
        types = ("VARBINARY(30)", "VARCHAR(40)", "VARCHAR(20)") if copy.deletes == "hard" else ()
        kinds = [
            *([f"ALTER TABLE {name} MODIFY v {kind}"] for kind in types),
            [f"ALTER TABLE {name} ADD COLUMN d{number} INT NOT NULL DEFAULT 7"],
            *(followed, followed, [f"TRUNCATE TABLE {name}"]),
            [
                f"CREATE TABLE _other LIKE {name}",
                f"INSERT INTO _other SELECT * FROM {name}",
                f"RENAME TABLE {name} TO _gone, _other TO {name}",
                "DROP TABLE _gone",
            ],
        ]
        statements = self.draw.choice(kinds)
        copy.changes += 1
        with self.load.still(), suppress(pymysql.MySQLError):
            for _ in range(self.draw.choice((1, 1, 1, 3)) if "MODIFY" in statements[0] else 1):
                self.server.session(_DATABASE, *statements)
        self.notes("; ".join(statements))

    def alters_often(self) -> None:
        """One DDL after the other, each when the stream has read the table again that the last one has suspended."""
        copy = self.any()
        for number in range(_TRIES + 2):
            if not self.is_running() or self.paused or not copy.is_in:
                return
            index = next(i for i, t in enumerate(self.cli.context.plans.require().tables) if t.name == copy.name)
            before = self.cli.context.plans.require().revision_of(index)
            copy.changes += 1
            with self.load.still():
                added = f"ADD COLUMN e{self.number}_{number} INT NOT NULL DEFAULT {number}"
                self.server.session(_DATABASE, f"ALTER TABLE `{copy.name}` {added}")
            end = time.monotonic() + DEADLINE_SECONDS
            while self.is_running() and self.cli.context.plans.require().revision_of(index) == before:
                step = self.cli.context.plans.require().suspension_of(index)
                if (
                    step is not None and step.kind == "asked"
                ) or "is not re-snapshotted by" in self.stream_log.read_text():
                    return
                assert time.monotonic() < end, f"{copy.label} is not read again, and nobody says so: {self.said()}"
                time.sleep(0.2)
            self.done["altered often"] += 1

    def rests(self) -> None:
        time.sleep(self.draw.uniform(0, 1))

    def verifies(self) -> None:
        """Source and copy are compared: only rows of another version may differ."""
        code = self.run("verify", "--json")
        self.done[f"verify {code}"] += 1
        assert code in (0, _TRANSIENT, NotComparableError.exit_code) or (
            code == _TERMINAL and any(copy.may_differ for copy in self.copies.values())
        ), self.said()

    # ---------------------------------------------------------------- what must be

    def step(self) -> None:
        """Something by chance; then what always holds."""
        (act,) = self.draw.choices([act for act, _ in self._acts()], [weight for _, weight in self._acts()])
        self.notes(act.__name__)
        act()
        self.reaps()
        for copy in self.copies.values():
            if copy.is_out or self.draw.random() < 0.3:
                copy.check()

    def _acts(self) -> list[tuple[Callable[[], object], float]]:
        return [
            *((self.reads, 6), (self.hides, 4), (self.stream, 4), (self.asks, 2), (self.suspends, 2)),
            *(
                (self.resumes, 2),
                (self.removes, 2),
                (self.alters, 2),
                (self.alters_often, 0.7),
                (self.clears, 2),
                (self.releases, 2),
            ),
            *((self.ends, 2), (self.pauses, 1), (self.rests, 2), (self.verifies, 0.5)),
        ]

    def settle(self) -> None:
        """Nobody writes any more, and nobody is held up: all ends, and each table is where it must be."""
        self.notes("settle")
        if self.is_running():
            if self.paused:
                self.pauses()
            self.run("stop")
            self.stream_ended()
        for reading in [*self.readings]:
            self.finish(reading)
        with self.load.still():
            for _ in range(3):
                code = self.run("stream", "--catch-up")
                self.caught_up(code)
                if code in (0, _NOT_READY) and not self.lacks():
                    break
            assert code in (0, _NOT_READY, _TERMINAL), self.said()
            self.hears()
            plan = self.cli.context.plans.require()
            out = {plan.tables[step.table].name: step for step in plan.suspensions}
            for copy in self.copies.values():
                step = out.get(copy.name)
                if copy.is_out:
                    assert step is not None, f"{copy.label} has come back"
                elif copy.is_in:
                    assert step is None, f"{copy.label} is left out: {step}"
                elif copy.captured:
                    copy.suspended = step is not None
                    if step is not None:
                        assert step.kind == "asked", step
                        copy.leaves()
                copy.check()
                if step is None:
                    copy.settles()
                    copy.check_rows(self.server, self.folder)
                copy.expected.clear()
                copy.staged.clear()

    def lacks(self) -> list[str]:
        """Tables that are no part of the stream, and should be."""
        plan = self.cli.context.plans.require()
        out = {plan.tables[step.table].name for step in plan.suspensions}
        return [copy.name for copy in self.copies.values() if copy.is_in and copy.name in out]

    def hears(self) -> None:
        """Each request has ended, and nothing waits for a stream."""
        with self.cli.opened() as (context, store):
            rows = {row.id: row for row in store.last_requests("p", 1000)}
            open_ = [f"{row.kind} {row.table}: {row.state}" for row in rows.values() if row.finished_at is None]
            assert not open_, f"requests without an outcome: {open_}"
            left = list_pending_reads(context, context.plans.require())
            assert not left, f"what was read waits for ever: {left}"
        for number, request in [*self.requests.items()]:
            if rows[number].state == "done":
                request.copy.is_read(request.version, request.keys)
            self.done[f"request {rows[number].state}"] += 1
            del self.requests[number]

    def end(self) -> None:
        """All tables come back, and are read again: then nothing differs."""
        self.settle()
        self.lets_in([*_TABLES])
        for copy in self.copies.values():
            copy.may_come_back()
            assert self.run("resnapshot", "--table", copy.label) == 0, self.said()
            copy.suspended, copy.captured = False, True
            copy.expected.append(copy.version)
        self.settle()
        for copy in self.copies.values():
            if copy.deletes == "hard":
                assert difference_of(copy, self.server) is None
        assert self.run("verify") == 0, self.said()


def _pattern(name: str) -> str:
    return rf"{_DATABASE}[.]{name}"


def carry_out(
    server: MySQLServer, nursery: Nursery, folder: Path, seed: int, steps: int, kind: str = DELTA
) -> Counter[str]:
    """A schedule; what has been done."""
    server.execute(f"DROP DATABASE IF EXISTS {_DATABASE}")
    server.execute(f"CREATE DATABASE {_DATABASE} CHARACTER SET utf8mb4")
    world, began = World(server, nursery, folder, seed, kind), time.monotonic()
    try:
        world.fill()
        with world.load:
            world.copy()
            for number in range(steps):
                world.step()
                if number % 8 == 7:
                    world.settle()
        world.end()
    except BaseException as error:
        print(world.said(), f"seed {seed}: {str(error)[:1000]}", sep="\n")
        raise
    finally:
        for child in filter(None, (world.streaming, *(reading.child for reading in world.readings))):
            child.kill()
            child.wait()
        print(f"seed {seed}, {time.monotonic() - began:.0f} s: {dict(world.done)}, {dict(world.load.done)}")
        server.execute(f"DROP DATABASE {_DATABASE}")
    return world.done


#: Seeds of every run of the tests, and those of the long ones.
_FEW, _MANY = range(2), range(2, 100)
#: Steps of a long one.
_STEPS = 32


@pytest.mark.one_of("server")
@pytest.mark.parametrize("seed", [*_FEW, *(pytest.param(n, marks=pytest.mark.long) for n in _MANY), *seeds_asked_for()])
def test_a_schedule(server: MySQLServer, nursery: Nursery, tmp_path: Path, seed: int) -> None:
    carry_out(server, nursery, tmp_path, seed, 10 if seed in _FEW else _STEPS)


@pytest.mark.one_of("server")
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 50))])
def test_a_schedule_with_iceberg(server: MySQLServer, nursery: Nursery, tmp_path: Path, seed: int) -> None:
    carry_out(server, nursery, tmp_path, seed, 10 if seed in _FEW else _STEPS, ICEBERG)


@pytest.mark.long
@pytest.mark.skipif("CDC_CHANCE_SECONDS" not in os.environ, reason="CDC_CHANCE_SECONDS says for how long")
def test_fresh_schedules(server: MySQLServer, nursery: Nursery, tmp_path: Path) -> None:
    """Schedules of seeds that nobody has tried, for as long as is wanted."""

    def schedule(seed: int) -> None:
        folder = tmp_path / str(seed)
        folder.mkdir()
        carry_out(server, nursery, folder, seed, _STEPS)
        shutil.rmtree(folder)

    run_fresh(f"tests/restart/{Path(__file__).name}::test_a_schedule[{server.title}-{{}}]", schedule)
