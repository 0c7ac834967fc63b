"""How far a pipeline lags behind its source, and how long the source keeps the binlog that was not read yet."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.comparison import CopyPosition
from airflow_provider_cdc.model.errors import CdcError, TerminalError
from airflow_provider_cdc.model.offset import Offset
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.mysql.binlog.events.xa import parse_xa_entry
from airflow_provider_cdc.mysql.client.identity import check_same_server, server_identity
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import oldest_unread_commit, server_time, unread_bytes
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.snapshot.retention_guard import PurgeWatch
from airflow_provider_cdc.state.models import BatchRow

#: Seconds over which a rate is computed, unless a batch takes longer.
_RATE_SECONDS = 60.0


@dataclass(frozen=True)
class Lag:
    """Lag of a position behind the source; ``None`` for what is not known.

    :param seconds: how long ago the oldest transaction after the position was committed; 0 if there is none.
    :param bytes: bytes of binlog after the position.
    :param seconds_to_purge: seconds until the server may remove binlog that is needed from there on; 0 if it is gone,
        ``None`` also for never.
    :param unknown: one-line reason why values are unknown; ``None`` if none is.
    """

    seconds: float | None = None
    bytes: int | None = None
    seconds_to_purge: float | None = None
    unknown: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the plain JSON value that ``status`` shows."""
        return {
            "lag_seconds": None if self.seconds is None else round(self.seconds, 3),
            "lag_bytes": self.bytes,
            "purge_in_hours": None if self.seconds_to_purge is None else round(self.seconds_to_purge / 3600, 2),
            "lag_unknown": self.unknown,
        }


def measure_lag(context: RunContext, offset: Offset, slot: int = slots.LAG) -> Lag:
    """Query the source. If it cannot be reached, the lag is unknown.

    :param offset: the resume point.
    :param slot: server id slot to read with, one of :mod:`~airflow_provider_cdc.model.server_id_slots`.
    """
    try:
        return _query_lag(context, offset, slot)
    except CdcError as error:
        return Lag(unknown=" ".join(error.message.split()))


def read_copy_position(context: RunContext, plan: Plan) -> CopyPosition:
    """Return the position of the copy and its lag, for a comparison.

    :raises CdcError: if the source cannot be reached, or is another server.
    """
    offset = context.resume_state(plan)[0]
    with closing(connect(context.connect_args)) as connection:
        check_same_server(server_identity(connection), offset.server)
        size = unread_bytes(connection, offset.at)
        if size is None:  # the file is gone: reading from there raises the error
            return CopyPosition(offset.at)
        committed = oldest_unread_commit(context.binlog_opener(slots.VERIFY), offset.at) if size else None
        if committed is None:
            return CopyPosition(offset.at, None, 0.0)
        since = datetime.fromtimestamp(committed, UTC).isoformat(timespec="seconds")
        return CopyPosition(offset.at, since, max(0.0, server_time(connection) - committed))


def _query_lag(context: RunContext, offset: Offset, slot: int) -> Lag:
    open_at = context.binlog_opener(slot)
    # Rows of open XA transactions are read again from where they were prepared.
    needed = min([offset.at, *(at for _, at in map(parse_xa_entry, offset.open_xa) if at is not None)])
    with closing(connect(context.connect_args)) as connection:
        check_same_server(server_identity(connection), offset.server)
        size = unread_bytes(connection, offset.at)
        try:
            purge_in = PurgeWatch(offset.replace(file=needed.file, position=needed.position), slot).seconds_to_purge_on(
                context, connection
            )
        except TerminalError as error:
            return Lag(None, size, 0.0, error.message)
        committed = oldest_unread_commit(open_at, offset.at) if size else None
        age = 0.0 if committed is None else max(0.0, server_time(connection) - committed)
    return Lag(age, size, purge_in)


def changes_per_second(batches: Sequence[BatchRow], began: datetime, until: datetime) -> float:
    """Return the rate over the newest batches of one run.

    :param batches: its newest batches, newest first; those of the last minute before the newest commit count.
    :param began: when the run began.
    :param until: now, or, for a run that is over, the time of its last commit.
    """
    if not batches:
        return 0.0
    times = [b.committed_at for b in batches]
    count = sum((times[0] - at).total_seconds() < _RATE_SECONDS for at in times)
    first = batches[count - 1]
    before = times[count] if count < len(times) else began
    # A burst after an hour without changes must show as a rate of the last minute, not of the hour.
    seconds = min((first.committed_at - before).total_seconds(), max(_RATE_SECONDS, first.seconds))
    seconds += (until - first.committed_at).total_seconds()
    return round(sum(b.changes for b in batches[:count]) / max(seconds, 1e-3), 1)
