"""The throttle of a reader of chunks: it keeps to its limits, and waits while others have much to do.

All waiting is done between two chunks, where nothing is held: no read view, no lock, no half-read result. But a table
without a key is one chunk: there the rates are kept to between two pieces of its rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.config.load_limits import LoadLimits, RateLimiter
from airflow_provider_cdc.mysql.client.identity import product_of
from airflow_provider_cdc.mysql.client.session import query_dicts, query_pairs

#: Seconds between two looks at the server's load.
CHECK_SECONDS = 1.0


class Throttle:
    """Says when the next chunk may be read.

    :param connection: the reader's connection, used between chunks.
    :param limits: this reader's share.
    :param on_pause: hears why the reader waits for others, and ``None`` when it goes on.
    """

    def __init__(
        self, connection: Connection[Any], limits: LoadLimits, on_pause: Callable[[str | None], None] = lambda _: None
    ) -> None:
        self._connection, self._limits, self._on_pause = connection, limits, on_pause
        self._row_limiter, self._byte_limiter = (
            RateLimiter(limits.rows_per_second),
            RateLimiter(limits.bytes_per_second),
        )
        self._last_check = float("-inf")

    def wait_for_turn(self, check: Callable[[], None] = lambda: None) -> None:
        """Return when the next chunk may be begun.

        :param check: called now and then; what it raises ends the waiting.
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
        """Return when the rates allow for more. The connection is not used.

        :param check: see :meth:`wait`.
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
        """A chunk has been read.

        :param began: ``time.monotonic()`` at its beginning.
        :param rows: its rows.
        :param size: its bytes.
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
    """How many threads of the server are at work, the one that asks included."""
    return int(query_pairs(connection, "SHOW GLOBAL STATUS LIKE 'Threads_running'")["Threads_running"])


def replica_channels(connection: Connection[Any]) -> list[dict[str, str | None]]:
    """What the server says of each source that it replicates from; none if it is no replica.

    :raises NotReadyError: if the user may not look (``REPLICATION CLIENT``; on MariaDB ``REPLICA MONITOR``).
    """
    return query_dicts(connection, product_of(connection).replica_status_sql)


def replica_lag(connection: Connection[Any]) -> tuple[bool, int | None]:
    """Whether the server is a replica, and how many seconds it is behind; ``None`` if a source of it stands still."""
    channels = replica_channels(connection)
    lags = [row.get("Seconds_Behind_Source", row.get("Seconds_Behind_Master")) for row in channels]
    known = [int(lag) for lag in lags if lag is not None]
    return bool(lags), max(known) if known and len(known) == len(lags) else None
