"""The retention guard: check whether the binlog that the stream must begin with outlives the snapshot.

A snapshot that takes longer than the server keeps its binlogs is useless, which would only become apparent when the
stream begins, hours later. So the driver of a chunk group regularly compares the time left for both.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pymysql.connections import Connection

from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, RetentionError, TerminalError, TransientError
from airflow_provider_cdc.model.offset import Offset, Position
from airflow_provider_cdc.model.plan import CHUNKS_PER_FILE, Plan
from airflow_provider_cdc.model.progress import ChunkProgress, format_duration
from airflow_provider_cdc.mysql.client.identity import check_same_server, server_identity
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import (
    binlog_expire_seconds,
    estimate_table_sizes,
    file_start_time,
    list_binlog_files,
    server_time,
)
from airflow_provider_cdc.runtime.background import BackgroundLoop
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.attempt_signals import AttemptSignals
from airflow_provider_cdc.snapshot.progress import group_progress, snapshot_progress
from airflow_provider_cdc.snapshot.retention import Retention, assess_retention, estimate_seconds, retention_text

if TYPE_CHECKING:
    from airflow_provider_cdc.state import StateDatabase

#: Seconds between two checks, and seconds of reading before an estimate is acted upon.
CHECK_SECONDS = 60.0
MIN_READ_SECONDS = 60.0
_KEEP_BINLOGS_REMEDY = (
    "Keep binlogs longer (binlog_expire_logs_seconds, disk space, the retention hours of a managed service)"
)


class PurgeWatch:
    """Estimates how long a server keeps a position in its binlog, from repeated checks.

    :param offset: the position, and the server that it belongs to.
    :param slot: server id slot for the checks, one of :mod:`~airflow_provider_cdc.model.server_id_slots`.
    """

    def __init__(self, offset: Offset, slot: int) -> None:
        self._offset, self._position, self._slot = offset, offset.at, slot
        self._oldest_file: str | None = None
        self._file_ended: float | None = None
        self._early_ages: list[float] = []  # ages at which files were removed too early
        self.retention = Retention(None)

    def seconds_to_purge(self, context: RunContext) -> float | None:
        """Return the seconds until the position may be removed; ``None`` for never.

        :raises RetentionError: if it is gone.
        """
        with closing(connect(context.connect_args)) as connection:
            return self.seconds_to_purge_on(context, connection)

    def seconds_to_purge_on(self, context: RunContext, connection: Connection[Any]) -> float | None:
        """Do the same as :meth:`seconds_to_purge`, over an open connection."""
        check_same_server(server_identity(connection), self._offset.server)
        files, clock = list_binlog_files(connection), server_time(connection)
        if self._position.file not in files:
            raise RetentionError(
                f"binlog file {self._position.file}, with which the stream has to begin, is no longer on the server",
                f"{_KEEP_BINLOGS_REMEDY}, then start with a fresh sink.path",
            )
        configured = Retention(binlog_expire_seconds(connection))
        if (
            self._oldest_file is not None
            and self._oldest_file not in files
            and (began := self._file_began(context, files[0])) is not None
        ):
            observed = configured.with_observed_purge(clock, began)
            self._early_ages += [observed.observed_seconds] if observed.observed_seconds is not None else []
        self._oldest_file = files[0]
        # A single early purge may have been manual. A repeated one shows how this server is operated.
        self.retention = Retention(
            configured.expire_seconds, min(self._early_ages) if len(self._early_ages) > 1 else None
        )
        following = files.index(self._position.file) + 1
        if self._file_ended is None and following < len(files):
            self._file_ended = self._file_began(context, files[following])
        return self.retention.seconds_to_purge(clock, self._file_ended)

    def _file_began(self, context: RunContext, file: str) -> float | None:
        with suppress(CdcError):  # then the file counts as in use: when in doubt, the snapshot continues
            return file_start_time(context.binlog_opener(self._slot), file) or None
        return None

    def retention_text(self) -> str:
        """Return how long the server keeps its binlogs, as text."""
        is_observed = (
            self.retention.observed_seconds is not None
            and self.retention.observed_seconds == self.retention.keep_seconds
        )
        return retention_text(self.retention.keep_seconds) + (", as observed" if is_observed else "")


@dataclass(frozen=True)
class SnapshotForecast:
    """How long a snapshot may take, and how long the binlog that it needs is kept.

    :param rows: rows of all tables, by the server's statistics.
    :param size: bytes of all tables, by the server's statistics.
    :param seconds: conservative estimate of its duration, before any of it was read.
    :param seconds_to_purge: seconds until the binlog that the stream begins with may be removed; ``None`` for never.
    """

    rows: int
    size: int
    seconds: float
    seconds_to_purge: float | None

    @property
    def verdict(self) -> str:
        """``fine``, ``tight`` or ``lost``."""
        return assess_retention(self.seconds_to_purge, self.seconds)

    def __str__(self) -> str:
        retention = "for ever" if self.seconds_to_purge is None else f"for {format_duration(self.seconds_to_purge)}"
        return (
            f"about {self.rows:,} rows, {format_duration(self.seconds)} at a cautious guess; the binlog is kept "
            f"{retention}"
        )


def forecast_snapshot(
    context: RunContext, connection: Connection[Any], tables: Iterable[tuple[str, str]], plan: Plan | None
) -> SnapshotForecast:
    """Return a forecast, before a snapshot begins or continues.

    :param tables: (database, name) of the captured tables.
    :param plan: the existing plan, if any: the binlog file that it begins with must be kept.
    :raises TerminalError: if this file is gone.
    """
    settings, sizes = context.pipeline.snapshot, estimate_table_sizes(connection, tables)
    count, size = sum(n for n, _ in sizes), sum(n for _, n in sizes)
    seconds = estimate_seconds(
        count, size, settings.parallelism, settings.max_rows_per_second, settings.max_bytes_per_second
    )
    if plan is None:
        return SnapshotForecast(count, size, seconds, binlog_expire_seconds(connection))
    return SnapshotForecast(
        count, size, seconds, PurgeWatch(plan.p0, slots.binlog_guard_slot(0)).seconds_to_purge(context)
    )


@dataclass
class _GuardState:
    """State of the guard of one snapshot; ``estimated_at`` is when it last compared the times (monotonic seconds)."""

    watch: PurgeWatch
    estimated_at: float = float("-inf")
    warned: bool = False


#: By sink, pipeline and P0, so that observations made while one group was read count for the next one in this process.
_guard_states: dict[tuple[str, str, Position], _GuardState] = {}


class RetentionGuard(BackgroundLoop):
    """Ends a group's job early if the snapshot cannot finish in time. A context manager around the job.

    :param store: the state database, which has the rate of the whole snapshot.
    :param group: number of the group that is read.
    :param notes: signals that stop the readers.
    """

    def __init__(
        self, context: RunContext, store: StateDatabase, plan: Plan, group: int, notes: AttemptSignals
    ) -> None:
        super().__init__("retention-guard", CHECK_SECONDS)
        self._context, self._store, self._plan, self._notes = context, store, plan, notes
        state_key = (context.storage.location(), plan.pipeline, plan.p0.at)
        fresh = _GuardState(PurgeWatch(plan.p0, slots.binlog_guard_slot(group)))
        self._state = _guard_states.setdefault(state_key, fresh)

    def __enter__(self) -> Self:
        # Once a stream has begun, the binlog from P0 on is no longer needed.
        if self._context.sink.resume_point().read() is None:
            self.check()
            super().__enter__()
        return self

    def check(self) -> None:
        """Compare the time that the snapshot needs with the time that the binlog is kept.

        :raises RetentionError: if the snapshot cannot finish in time, or the binlog is already gone.
        :raises OtherServerError: if the connection reaches another server.
        """
        state = self._state
        try:
            seconds_left = state.watch.seconds_to_purge(self._context)
        except TerminalError as error:
            raise type(error)(f"{error.message}; so far: {self._progress()[0]}", error.remedy) from None
        except (TransientError, NotReadyError):
            return  # the readers will get the same error
        if seconds_left is None or time.monotonic() - state.estimated_at < CHECK_SECONDS / 2:
            return
        state.estimated_at = time.monotonic()
        progress, eta = self._progress()
        urgency = assess_retention(seconds_left, eta)
        if eta is None or urgency == "fine":
            return
        file = self._plan.p0.at.file
        message = (
            f"the snapshot needs about {format_duration(eta)} more, and binlog file {file}, with which the stream has "
            f"to begin, may be removed in {format_duration(seconds_left)} (binlogs are kept "
            f"{state.watch.retention_text()}); so far: {progress}"
        )
        if urgency == "lost":
            raise RetentionError(
                message, f"{_KEEP_BINLOGS_REMEDY}, or read faster (snapshot.parallelism, its limits), then run again"
            )
        if not state.warned:
            state.warned = True
            self._context.warn(f"{message}. {_KEEP_BINLOGS_REMEDY}")

    def _progress(self) -> tuple[ChunkProgress, float | None]:
        """Return the progress of the snapshot, and the minimum seconds that it still needs (``None`` if unknown)."""
        from sqlalchemy.exc import SQLAlchemyError  # not needed by ``check``, which has no state database

        try:
            groups = group_progress(self._context, self._store, self._plan)
        except (CdcError, SQLAlchemyError):  # an outage of the state database: the binlog is still checked
            return ChunkProgress("snapshot", 0, len(self._plan.chunks), 0), None
        progress = snapshot_progress(groups)
        if not progress.fresh_chunks or progress.seconds < MIN_READ_SECONDS:
            return progress, None
        # Chunks of unfinished files may have been read already, so they count as done.
        readers = self._context.pipeline.snapshot.parallelism * sum(row.state == "running" for row, _ in groups)
        chunks_left = progress.chunks_total - progress.chunks_done
        return progress, progress.projected(min(chunks_left, readers * CHUNKS_PER_FILE)).eta_seconds

    def _step(self) -> None:
        try:
            self.check()
        except TerminalError as error:
            self._stopping.set()
            with suppress(OSError):
                self._notes.stop_readers(error)
