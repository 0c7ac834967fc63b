"""Claims of chunk groups, their heartbeats, and waiting for the claims of other processes.

Claims only avoid duplicate work. If two processes read the same group, the marker in the sink lets only one commit.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup, TaskRequest, chunk_entries, to_chunk_results
from airflow_provider_cdc.model.errors import CdcError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.progress import ChunkProgress
from airflow_provider_cdc.model.supervision import HEARTBEAT_SECONDS, LOST_AFTER_SECONDS, HeartbeatMonitor
from airflow_provider_cdc.runtime.background import BackgroundLoop
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.sinks.storage.storage import read_json
from airflow_provider_cdc.state import ChunkGroupRow, StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint
from airflow_provider_cdc.system.processes import has_died_here, pid_scope_id, process_start_time

_POLL_SECONDS = 0.5
#: End of a holder's text in the state database: host, machine id (its process ids are per machine), process id, start.
_HOLDER_PROCESS = re.compile(r" \[(\S+) (?:(\S+) )?(\d+) (\d+)\]$")


class GroupClaim(BackgroundLoop):
    """An attempt at a group that this process has claimed. While it is entered, it sends the heartbeat.

    :param attempt: number of the attempt.
    :param row_before: the group's row as it was before the claim.
    :param published_attempt: lowest attempt that was published then; ``None`` if the group is read for the first time.
    """

    def __init__(
        self,
        group: ChunkGroup,
        store: StateDatabase,
        attempt: int,
        row_before: ChunkGroupRow,
        published_attempt: int | None,
    ) -> None:
        super().__init__("group-claim", HEARTBEAT_SECONDS)
        self.attempt, self.row_before, self.published_attempt = attempt, row_before, published_attempt
        self.store = store
        self._group = group
        self._key = group.plan.pipeline, group.plan.generation, group.number
        #: Files of attempts up to this one are not reused.
        self.last_stale_attempt = 0
        if published_attempt is not None:
            # Files that an earlier try of the same request has read are reused, those of earlier requests are not.
            self.last_stale_attempt = (
                max(group.published_by_table().values()) if row_before.state == "rereading" else attempt - 1
            )
        self._seen_manifests: set[str] = set()
        self._began = time.monotonic()
        self._progress = ChunkProgress(f"group {group.plan.group_label(group.chunks)}", 0, len(group.chunks), 0)
        self._notes = group.signals(attempt)
        self._report_lock = threading.Lock()
        self._taken_over = threading.Event()
        self._progress_reports = _ProgressReports(self)

    def __enter__(self) -> Self:
        self._progress_reports.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self._progress_reports.__exit__()
        super().__exit__()
        if error[0] is not None:
            with tolerate_outage():
                self.store.release_group(*self._key, self.attempt, _group_error_text(error[1]))

    def check_still_held(self) -> None:
        """Raise an error if another process has taken over the group.

        :raises TransientError: if so; it names that process.
        """
        if self._taken_over.is_set():
            row = self.store.group(*self._key)
            raise TransientError(
                f"group {self._group.number} was taken over by {_holder_name(row.holder)} (attempt {row.attempt}) "
                f"while attempt {self.attempt} was read",
                "Run again to adopt its result",
            )

    def report_reused(self, reused: Iterable[tuple[int, dict[str, Any]]]) -> None:
        """Record and report the files of earlier attempts that are reused.

        :param reused: attempt and manifest of each file.
        """
        plan = self._group.plan
        with self._report_lock:
            if self.published_attempt is None:
                with tolerate_outage():
                    self.store.reset_unpublished_chunks(plan.pipeline, plan.generation, self._group.number)
            self._report(reused)

    def report_progress(self) -> None:
        """Record and report the files that were finished since the last call."""
        with self._report_lock:
            fresh = {
                name: (attempt, read_json(self._group.context.storage, name))
                for attempt, name in self._group.list_finished_slices(self.attempt - 1)
                if name not in self._seen_manifests
            }
            self._seen_manifests.update(fresh)
            self._report(fresh.values())

    def _report(self, files: Iterable[tuple[int, dict[str, Any]]]) -> None:
        fresh: list[dict[str, Any]] = []
        for attempt, manifest in files:
            chunks = chunk_entries(attempt, manifest)
            fresh += chunks
            self._count_chunks(chunks, attempt == self.attempt)
        was_paused, paused = self._progress.paused, self._notes.pause_reason()
        self._progress = replace(self._progress, seconds=time.monotonic() - self._began, paused=paused)
        reporter = self._group.context.reporter
        if paused and not was_paused:
            reporter.line(f"{self._progress.label}: paused: {paused}")
        elif was_paused and not paused:
            reporter.line(f"{self._progress.label}: continues")
        reporter.progress(self._progress)
        if fresh and self.published_attempt is None:  # else the state database shows what is published
            with tolerate_outage():  # an outage of the state database only hides progress
                self.store.record_read_chunks(*self._key[:2], to_chunk_results(fresh))
                failpoint("books.after_chunks")

    def _count_chunks(self, chunks: list[dict[str, Any]], is_own_attempt: bool) -> None:
        p, rows = self._progress, sum(int(c["rows"]) for c in chunks)
        self._progress = replace(
            p,
            chunks_done=p.chunks_done + len(chunks),
            rows=p.rows + rows,
            corrected=p.corrected + sum(int(c["corrected"]) for c in chunks),
            fresh_chunks=p.fresh_chunks + is_own_attempt * len(chunks),
            fresh_rows=p.fresh_rows + is_own_attempt * rows,
        )

    def _step(self) -> None:
        with tolerate_outage():
            if not self.store.record_group_heartbeat(*self._key, self.attempt):
                self._taken_over.set()


class _ProgressReports(BackgroundLoop):
    """Reports the progress of a claimed group.

    This is not done by the thread of the heartbeat: a store that does not respond would make the reader look dead.
    """

    def __init__(self, group_claim: GroupClaim) -> None:
        super().__init__("group-progress", _POLL_SECONDS)
        self._group_claim = group_claim

    def _step(self) -> None:
        with suppress(CdcError, OSError):  # only for display: those who read the group report what is wrong
            self._group_claim.report_progress()


def claim_group(
    group: ChunkGroup, store: StateDatabase, holder: str, requested_by: TaskRequest | None
) -> GroupClaim | None:
    """Claim a group, after waiting for processes that are reading it; ``None`` if nothing is left to read.

    :param holder: human-readable name of the claiming process.
    :param requested_by: the requesting task; if it has finished the group for another request, it is re-snapshotted.
    :raises NotReadyError: if the state database has no such group.
    :raises TransientError: if the state database cannot be read, or accepts no writes while this process waits: a
        missing heartbeat proves nothing then.
    """
    plan = group.plan
    pulse, waited_attempt, fetch_row = HeartbeatMonitor(LOST_AFTER_SECONDS), 0, store.group
    while True:
        row = fetch_row(plan.pipeline, plan.generation, group.number)
        published, being_read = group.published_attempt(), _is_being_read(row, pulse)
        # What another process has finished in the meantime is as good as an attempt of this one.
        requested = _is_read_requested(group, row, requested_by) and not (waited_attempt and row.state == "done")
        if published is not None and not requested and not (being_read and row.state == "rereading"):
            return None
        if being_read:
            fetch_row = store.probe_group
            if waited_attempt != row.attempt:
                waited_attempt = row.attempt
                group.context.reporter.line(
                    f"group {group.number} is being read by {_holder_name(row.holder)} (attempt {row.attempt}); waiting"
                )
            time.sleep(_POLL_SECONDS)
            continue
        attempt = store.claim_group(
            plan.pipeline,
            plan.generation,
            group.number,
            expected_attempt=row.attempt,
            newest_in_sink=group.newest_attempt(),
            holder=_holder_text(holder),
            readers=group.context.pipeline.snapshot.parallelism,
            state="running" if published is None else "rereading",
        )
        if attempt:
            failpoint("claim.after_write")
            return GroupClaim(group, store, attempt, row, published)


def is_left_to_read(group: ChunkGroup, store: StateDatabase, requested_by: TaskRequest | None) -> bool:
    """Return whether a group has to be read, or is being re-snapshotted, as far as is known without waiting.

    :param requested_by: as in :func:`claim_group`.
    :raises NotReadyError: if the state database has no such group.
    :raises TransientError: if the state database cannot be read.
    """
    # The manifest is written before the first commit: without one there is no need to read the tables.
    if not group.count_complete_attempts() or group.published_attempt() is None:
        return True
    row = store.group(group.plan.pipeline, group.plan.generation, group.number)
    return row.state == "rereading" or _is_read_requested(group, row, requested_by)


def find_active_reader(store: StateDatabase, plan: Plan) -> ChunkGroupRow | None:
    """Return a group that is being read now, if any; wait as long as it takes to be certain."""
    for number in [row.group_no for row in store.groups(plan.pipeline, plan.generation)]:
        pulse = HeartbeatMonitor(LOST_AFTER_SECONDS)
        while _is_being_read(row := store.probe_group(plan.pipeline, plan.generation, number), pulse):
            if pulse.observe((row.attempt, row.heartbeat_at), time.monotonic()):
                row.holder = _holder_name(row.holder)
                return row
            time.sleep(_POLL_SECONDS)
    return None


def _is_read_requested(group: ChunkGroup, row: ChunkGroupRow, requested_by: TaskRequest | None) -> bool:
    """Return whether a group is to be re-snapshotted, or its re-snapshot completed, although it is published."""
    finished = None if requested_by is None else group.finished_request(requested_by.task)
    if requested_by is None or finished is None:
        return False
    # A try that died after writing its note, but before updating the state database, has left the group in this state.
    return finished != requested_by.number or row.state == "rereading"


def _is_being_read(row: ChunkGroupRow, pulse: HeartbeatMonitor) -> bool:
    """Return whether a group is being read, as far as is known from the heartbeats seen so far."""
    if row.state not in ("running", "rereading") or row.heartbeat_at is None or _holder_died_here(row.holder or ""):
        return False
    return pulse.observe((row.attempt, row.heartbeat_at), time.monotonic()) is not False


def _group_error_text(error: object) -> str | None:
    """Return why a group could not be read, or ``None`` if its process was only asked to end."""
    if not isinstance(error, Exception):
        return None
    return str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}"


def _holder_text(holder: str) -> str:
    pid = os.getpid()
    return f"{holder[:350]} [{socket.gethostname()} {pid_scope_id() or '-'} {pid} {process_start_time(pid):.0f}]"


def _holder_name(holder: str | None) -> str:
    return _HOLDER_PROCESS.sub("", holder or "another process")


def _holder_died_here(holder: str) -> bool:
    """Return whether the holder was a process of this host that is gone, so that there is no need to wait for it."""
    match = _HOLDER_PROCESS.search(holder)
    return match is not None and has_died_here(match[1], match[2], int(match[3]), float(match[4]))
