"""The throttle of a chunk reader: it respects the load limits and waits while the server is busy.

It waits only between two chunks, when the reader holds nothing: no read view, no lock, no half-read result. A table
without a key, however, is a single chunk; there the rates are enforced between two parts of its rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.config.load_limits import LoadLimits, RateLimiter
from airflow_provider_cdc.mysql.client.identity import product_of
from airflow_provider_cdc.mysql.client.session import query_dicts, query_pairs

#: Seconds between two checks of the server's load.
CHECK_SECONDS = 1.0


class Throttle:
    """Delays a reader until the next chunk may be read.

    :param connection: the reader's connection, used between chunks.
    :param limits: this reader's share of the limits.
    :param on_pause: called with the reason when the reader pauses because of the server's load, and with ``None`` when
        it continues.
    """

    def __init__(
        self, connection: Connection[Any], limits: LoadLimits, on_pause: Callable[[str | None], None] = lambda _: None
    ) -> None:
        self._connection, self._limits, self._on_pause = connection, limits, on_pause
        self._row_limiter, self._byte_limiter = map(RateLimiter, (limits.rows_per_second, limits.bytes_per_second))
        self._last_check = float("-inf")

    def wait_for_turn(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait until the next chunk may be read.

        :param check: called regularly; an exception from it ends the wait.
        """
        self.wait_for_rates(check)
        paused = False
        while (reason := self._pause_reason()) is not None:
            if not paused:
                self._on_pause(reason)
            paused = True
            time.sleep(CHECK_SECONDS)
            check()
        if paused:
            self._on_pause(None)

    def wait_for_rates(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait until the rates allow more rows and bytes. The connection is not used.

        :param check: see :meth:`wait_for_turn`.
        """
        check()
        while (
            pause := max(
                self._row_limiter.seconds_to_wait(now := time.monotonic()), self._byte_limiter.seconds_to_wait(now)
            )
        ) > 0:
            time.sleep(min(pause, CHECK_SECONDS))
            check()

    def record_chunk(self, began: float, rows: int, size: int) -> None:
        """Record that a chunk was read.

        :param began: ``time.monotonic()`` when the read began.
        :param rows: number of rows.
        :param size: number of bytes.
        """
        self._row_limiter.record_use(began, rows)
        self._byte_limiter.record_use(began, size)

    def _pause_reason(self) -> str | None:
        limits = self._limits
        if limits.threads_running is None and limits.replica_lag_seconds is None:
            return None
        if time.monotonic() - self._last_check < CHECK_SECONDS:
            return None
        threads = None if limits.threads_running is None else threads_running(self._connection)
        replica, lag = (False, None) if limits.replica_lag_seconds is None else replica_lag(self._connection)
        why = limits.exceeded_reason(threads, lag, replica)
        if why is None:
            self._last_check = time.monotonic()
        return why


def threads_running(connection: Connection[Any]) -> int:
    """Return the number of running threads of the server, including the one that runs this query."""
    return int(query_pairs(connection, "SHOW GLOBAL STATUS LIKE 'Threads_running'")["Threads_running"])


def replica_channels(connection: Connection[Any]) -> list[dict[str, str | None]]:
    """Return the server's replica status, one row per channel; empty if it is not a replica.

    :raises NotReadyError: if the user lacks ``REPLICATION CLIENT`` (on MariaDB ``REPLICA MONITOR``).
    """
    return query_dicts(connection, product_of(connection).replica_status_sql)


def replica_lag(connection: Connection[Any]) -> tuple[bool, int | None]:
    """Return whether the server is a replica, and its lag in seconds; ``None`` if the lag of a channel is unknown."""
    channels = replica_channels(connection)
    lags = [row.get("Seconds_Behind_Source", row.get("Seconds_Behind_Master")) for row in channels]
    known = [int(lag) for lag in lags if lag is not None]
    return bool(lags), max(known) if known and len(known) == len(lags) else None
