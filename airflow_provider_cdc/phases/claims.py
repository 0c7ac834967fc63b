"""Who reads a chunk group: claims, their heartbeats, and waiting for those of others.

Nothing here decides about rows: of two that read one group at the same time the marker in the sink lets one win.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.core.supervision import HEARTBEAT_SECONDS, LOST_SECONDS
from airflow_provider_cdc.exceptions import CdcError, TransientError
from airflow_provider_cdc.phases.groups import Group, chunk_rows, chunks_done
from airflow_provider_cdc.processes import died_here, start_time
from airflow_provider_cdc.sinks.layout import read_json
from airflow_provider_cdc.store import GroupRow, Store

_POLL_SECONDS = 0.5
#: How a holder's own text ends in the bookkeeping: host, process, and when that started.
_PROCESS = re.compile(r" \[(\S+) (\d+) (\d+)\]$")


class Pulse:
    """Whether those who hold a group are alive: their heartbeat must move, on the watcher's own clock."""

    def __init__(self) -> None:
        self._seen: tuple[int, datetime] | None = None
        self._since = 0.0

    def beats(self, row: GroupRow) -> bool:
        """Whether the group is being read, as far as the looks so far can tell."""
        if row.state not in ("running", "rereading") or row.heartbeat_at is None or _died_here(row.holder or ""):
            return False
        seen = (row.attempt, row.heartbeat_at)
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        return time.monotonic() - self._since <= LOST_SECONDS


class Claim:
    """An attempt at a group that this process holds. A context manager, which keeps its heartbeat going.

    :param group: the group.
    :param attempt: number of the attempt.
    :param before: the group's row as it was before the claim.
    :param published: lowest attempt that was published then; ``None`` if the group is read for the first time.
    """

    def __init__(self, group: Group, store: Store, attempt: int, before: GroupRow, published: int | None) -> None:
        self.attempt, self.before, self.published = attempt, before, published
        self._group, self._store = group, store
        self._key = group.plan.pipeline, group.plan.generation, group.number
        #: Files of attempts up to this one are not used again.
        self.above = 0
        if published is not None:
            # What an earlier try of the same request has read already counts; what was asked for before it does not.
            self.above = max(group.markers().values()) if before.state == "rereading" else attempt - 1
        self._seen: set[Path] = set()
        self._done: dict[int, list[int]] = {}
        self._looking = threading.Lock()
        self._taken, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._loop, name="group-claim", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is not None:
            with suppress(CdcError, SQLAlchemyError):
                self._store.release_group(*self._key, self.attempt)

    def check(self) -> None:
        """Make sure that nobody else has taken the group.

        :raises TransientError: naming who has.
        """
        if self._taken.is_set():
            row = self._store.group(*self._key)
            raise TransientError(
                f"group {self._group.number} was taken over by {_name(row.holder)} (attempt {row.attempt}) while "
                f"attempt {self.attempt} was read",
                "Run again: the result of that one is adopted then",
            )

    def look(self) -> None:
        """Tell bookkeeping and reporter of the files that were finished since the last look."""
        with self._looking:
            self._tell()

    def _tell(self) -> None:
        fresh: list[dict[str, Any]] = []
        for path in self._group.sidecars(self.above):
            if path not in self._seen:
                self._seen.add(path)
                manifest = read_json(path)
                fresh += chunk_rows(manifest)
                done = self._done.setdefault(manifest["table"], [0, 0])
                done[0] += len(manifest["chunks"])
                done[1] += manifest["file"]["rows"]
        if not fresh:
            return
        plan, reporter = self._group.plan, self._group.context.reporter
        if self.published is not None:  # until it is published the bookkeeping tells of what is
            for index, (done_chunks, rows) in self._done.items():
                total = sum(c.table == index for c in self._group.chunks)
                reporter.progress(plan.tables[index].label, done_chunks, total, rows)
            return
        with suppress(CdcError, SQLAlchemyError):  # an outage of the bookkeeping hides progress, it does not stop it
            chunks_done(self._store, plan, self.attempt, fresh)
            for row in self._store.progress(plan.pipeline, plan.generation):
                reporter.progress(f"{row.database}.{row.table}", row.done, row.chunks, row.rows)

    def _loop(self) -> None:
        beat = time.monotonic()
        while not self._stop.wait(_POLL_SECONDS):
            self.look()
            if time.monotonic() - beat >= HEARTBEAT_SECONDS - _POLL_SECONDS / 2:
                beat = time.monotonic()
                with suppress(CdcError, SQLAlchemyError):
                    if not self._store.group_heartbeat(*self._key, self.attempt):
                        self._taken.set()


def claim(group: Group, store: Store, holder: str, requested_by: str) -> Claim | None:
    """Claim a group, after waiting for those who read it; ``None`` if there is nothing left to read.

    :param holder: who claims it, for people.
    :param requested_by: identity of the task; one that has finished the group before reads it again.
    :raises NotReadyError: if the bookkeeping has no such group.
    """
    plan = group.plan
    pulse, waited = Pulse(), 0
    while True:
        row = store.group(plan.pipeline, plan.generation, group.number)
        published, read = group.published(), pulse.beats(row)
        # What somebody else has finished in the meantime is as good as the own attempt would be.
        asked = bool(requested_by) and row.finished_for == requested_by and not (waited and row.state == "done")
        if published is not None and not asked and not (read and row.state == "rereading"):
            return None
        if read:
            if waited != row.attempt:
                waited = row.attempt
                group.context.reporter.line(
                    f"group {group.number} is being read by {_name(row.holder)} (attempt {row.attempt}); waiting"
                )
            time.sleep(_POLL_SECONDS)
            continue
        attempt = store.claim_group(
            plan.pipeline,
            plan.generation,
            group.number,
            seen=row.attempt,
            at_least=group.newest_attempt(),
            holder=_sign(holder),
            state="running" if published is None else "rereading",
        )
        if attempt:
            return Claim(group, store, attempt, row, published)


def _sign(holder: str) -> str:
    return f"{holder[:400]} [{socket.gethostname()} {os.getpid()} {start_time(os.getpid()):.0f}]"


def _name(holder: str | None) -> str:
    return _PROCESS.sub("", holder or "somebody")


def _died_here(holder: str) -> bool:
    """Whether the holder was a process of this host that is gone: no need to wait for its heartbeat to stand still."""
    found = _PROCESS.search(holder)
    return found is not None and died_here(found[1], int(found[2]), float(found[3]))
