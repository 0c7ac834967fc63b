"""Low and high watermarks: positions that bound what a SELECT sees from below and from above.

A transaction is in the binlog before its rows are visible, because the server writes the binlog first and then commits
in the engine. A position read just before a SELECT may therefore be after a transaction that the SELECT does not see.
Replaying from there would lose its rows forever. How the gap is closed depends on the server (docs/correctness.md):

- MySQL with ``gtid_mode`` ON uses the **barrier**: wait for the owner of every GTID that is owned when the position is
  read. It needs no grant.
- MySQL otherwise, or if an owner does not end, uses ``performance_schema.log_status`` or ``FLUSH BINARY LOGS``. Both
  wait for all commits between binlog and engine, except those of XA transactions, which are waited for by name.
- MariaDB uses the exact position of a read view. XA transactions are waited for by name.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import NotReadyError, OtherHistoryError, TransientError, UnlistedError
from airflow_provider_cdc.model.gtid import parse_gtid_owned
from airflow_provider_cdc.model.offset import Offset, Position
from airflow_provider_cdc.mysql.client.binlog_headers import CheckpointedFile, checkpointed_file, gtids_at_position
from airflow_provider_cdc.mysql.client.gtids import query_executed_gtids
from airflow_provider_cdc.mysql.client.identity import (
    binlog_end,
    check_same_server,
    is_gtid_mode_on,
    is_mariadb,
    open_xa_transactions,
    server_identity,
)
from airflow_provider_cdc.mysql.client.session import query_pairs, query_rows, query_value

#: Seconds to wait for transactions between binlog and engine.
BARRIER_SECONDS = 30.0
#: A new binlog file is begun for a low watermark only after the last one has grown by this much. An older low watermark
#: is as good as a newer one, except that there is more to replay.
FLUSH_BYTES = 4 << 20
#: Seconds during which the end of one read can serve as the beginning of the next.
_REUSE_SECONDS = 1.0
_CLOCK = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)"
_GRANTS = (
    "GRANT BACKUP_ADMIN ON *.* and GRANT SELECT ON performance_schema.log_status (or GRANT RELOAD ON *.*) TO the user "
    "of the connection, or set gtid_mode=ON on the server"
)

#: For MariaDB with a new binlog file in which nothing follows the event that states what is committed.
_IMPRECISE = (
    "At {at}, near the beginning of a binlog file, the server does not report the exact position of a read view until "
    "the next transaction: write anything, run FLUSH BINARY LOGS, or GRANT RELOAD ON *.* TO the user of the connection"
)


class Watermarks(ABC):
    """Takes the watermarks of reads that go over one connection: :meth:`low`, the SELECT, :meth:`high`, in turn.

    :param connection: autocommit connection.
    :param server: expected identity of the server; ``None`` accepts any.
    """

    #: Why the last low watermark is further back than necessary, and the remedy; empty if it is not.
    imprecision = ""

    def __init__(self, connection: Connection[Any], server: str | None = None) -> None:
        self.connection = connection
        self._server = server

    @abstractmethod
    def low(self, timeout: float = BARRIER_SECONDS, *, force_new: bool = False) -> Position:
        """Return a position such that the following SELECT sees every transaction at or before it.

        :param timeout: seconds to wait for transactions between binlog and engine.
        :param force_new: whether to take a new position, even if one that was taken for an earlier read would do.
        :raises TransientError: if a transaction does not end in time; there is no low watermark then.
        :raises NotReadyError: if the user lacks the grants for every method that the server supports.
        """

    def high(self) -> tuple[Position, int]:
        """Return a position at or after every transaction that the SELECT saw, and the server time in microseconds UTC.

        The binlog is written before the engine commits, so the end of the binlog after a read bounds what was read.
        """
        return self.high_in_view()

    @abstractmethod
    def hold_view(self) -> None:
        """After :meth:`low`, keep one read view for all SELECTs up to :meth:`release_view`."""

    def high_in_view(self) -> tuple[Position, int]:
        """Like :meth:`high`, but keep the view from :meth:`hold_view` open."""
        at = binlog_end(self.connection)
        check_same_server(server_identity(self.connection), self._server)
        return at, int(query_value(self.connection, f"SELECT {_CLOCK}") or 0)

    def release_view(self) -> None:
        """Close the view from :meth:`hold_view`, and end its transaction."""
        query_rows(self.connection, "COMMIT")

    def _wait_for_xa(self, noted: frozenset[str], end: float) -> None:
        """Wait until none of the noted XA transactions is open.

        :raises TransientError: if one is still open after ``end``.
        """
        left = wait_until_gone(noted, lambda: open_xa_transactions(self.connection), end)
        if left:
            raise TransientError(
                f"XA transactions {', '.join(sorted(left)[:3])} are prepared and do not end: this server does not show "
                "whether they are between binlog and engine",
                "Commit or roll them back (XA RECOVER lists them), then run again",
            )


@dataclass(frozen=True)
class _EndObservation:
    """A position, and the transactions that were in progress there.

    :param owned: owners of GTIDs, queried after the position: every invisible transaction at or before the position
        belongs to one of them.
    :param observed_at: time of the observation.
    """

    at: Position
    mode: str
    owned: str
    observed_at: float


class _MySqlWatermarks(Watermarks):
    """MySQL: the barrier, or else a position that the server itself takes under lock.

    The position of a high watermark can serve as the next low watermark. Its owners have had the time in between to
    end, so there is hardly ever a wait for them.
    """

    def __init__(self, connection: Connection[Any], server: str | None = None) -> None:
        super().__init__(connection, server)
        self._stuck_gtids: frozenset[str] = frozenset()  # their owners did not end in time: do not wait for them again
        self._flushed_at: Position | None = None
        self._last_end: _EndObservation | None = None
        self._may_read_log_status = True

    def low(self, timeout: float = BARRIER_SECONDS, *, force_new: bool = False) -> Position:
        """See :meth:`Watermarks.low`."""
        end = time.monotonic() + timeout
        if force_new:
            self._flushed_at = None
        seen, self._last_end = self._last_end, None
        if force_new or seen is None or time.monotonic() - seen.observed_at > _REUSE_SECONDS:
            seen = self._observe_end()[0]
        position, mode = seen.at, seen.mode
        if mode != "ON":
            at = self._position_under_lock()
            if at is None:
                raise NotReadyError(
                    f"gtid_mode is {mode}, and the user has no grant for a low watermark without GTIDs", _GRANTS
                )
            self._wait_for_xa(open_xa_transactions(self.connection), end)
            return at
        noted = frozenset(parse_gtid_owned(seen.owned))
        still_owned = noted and (noted & self._stuck_gtids or wait_until_gone(noted, self._owned_gtids, end))
        if not still_owned:
            return position
        self._stuck_gtids |= still_owned
        locked_position = self._position_under_lock()
        if locked_position is None:
            raise self._timeout_error(still_owned, position, timeout)
        self._wait_for_xa(open_xa_transactions(self.connection), time.monotonic() + timeout)
        return locked_position

    def hold_view(self) -> None:
        """See :meth:`Watermarks.hold_view`."""
        query_rows(self.connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    def high_in_view(self) -> tuple[Position, int]:
        """See :meth:`Watermarks.high_in_view`."""
        self._last_end, clock = self._observe_end()
        return self._last_end.at, clock

    def _observe_end(self) -> tuple[_EndObservation, int]:
        """Query the end of the binlog, then the owners of GTIDs and the time.

        The order matters: an invisible transaction at or before the position still owns its GTID afterwards. And if
        GTIDs are on at that time, no transaction without one can be in progress.
        """
        when, at = time.monotonic(), binlog_end(self.connection)
        sql = f"SELECT @@server_uuid, @@global.gtid_mode, @@global.gtid_owned, {_CLOCK}"
        server, mode, owned, clock = query_rows(self.connection, sql)[0]
        check_same_server(str(server), self._server)
        return _EndObservation(at, mode or "", owned or "", when), int(clock or 0)

    def _owned_gtids(self) -> frozenset[str]:
        return frozenset(parse_gtid_owned(query_value(self.connection, "SELECT @@global.gtid_owned") or ""))

    def _timeout_error(self, left: frozenset[str], at: Position, timeout: float) -> TransientError:
        owners = parse_gtid_owned(query_value(self.connection, "SELECT @@global.gtid_owned") or "")
        named = [
            f"{gtid} (connection {', '.join(map(str, owners[gtid]))})" if owners.get(gtid) else gtid
            for gtid in sorted(left)[:3]
        ]
        return TransientError(
            f"{', '.join(named)} stood between binlog and engine for {timeout:g} s at {at}",
            "Look for a stalled commit (semi-sync, disk) or a session with gtid_next set (SHOW PROCESSLIST lists the "
            f"connection), then run again. To continue anyway, {_GRANTS.rpartition(', or set')[0]}",
        )

    def _position_under_lock(self) -> Position | None:
        """Return a position before which only ends of XA transactions can be invisible; ``None`` without the grants."""
        if self._may_read_log_status:
            try:
                log_status = query_rows(
                    self.connection,
                    "SELECT JSON_UNQUOTE(local->'$.binary_log_file'), local->'$.binary_log_position' "
                    "FROM performance_schema.log_status",
                )
                return Position(str(log_status[0][0]), int(log_status[0][1] or 0))
            except NotReadyError:
                self._may_read_log_status = False
        now = binlog_end(self.connection)
        if self._flushed_at and self._flushed_at.file == now.file and now.position < FLUSH_BYTES:
            return self._flushed_at
        if not _flush_binlog(self.connection):
            return None
        # Whichever file is in use now, it was begun only after all commits in earlier files were complete.
        self._flushed_at = Position(binlog_end(self.connection).file, 4)
        return self._flushed_at


class _MariaDbWatermarks(Watermarks):
    """MariaDB: the SELECT runs in a read view whose exact position the server reports. It is both watermarks.

    The position is exact with two exceptions. In these cases, a lower bound is taken, and then another view is opened.
    (Nothing can be done about a third one, transactions that also change an Aria table: the binlog reader stops.)

    - An XA COMMIT can be before the position and invisible in the view. This does not matter if none was in progress
      while the view was opened. Otherwise the position becomes the lower bound, once the XA transactions that were open
      at that time have ended.
    - After beginning a new binlog file, the server reports a position in it while transactions in the previous file are
      still invisible. The position is exact after the event that states that they are complete. Before that event, the
      head of the file is the bound.
    """

    _view_position: Position | None = None
    _checkpointed: CheckpointedFile | None = None
    _has_flushed = False

    def low(self, timeout: float = BARRIER_SECONDS, *, force_new: bool = False) -> Position:
        """See :meth:`Watermarks.low`."""
        check_same_server(server_identity(self.connection), self._server)
        end = time.monotonic() + timeout
        at, xa_committed = self._open_view()
        if not (self._checkpointed and self._checkpointed.is_exact_at(at)):
            # This closes the view. It is known before the next one is opened which of its positions would be exact.
            self._checkpointed = self._wait_for_checkpoint(end)
            at, xa_committed = self._open_view()
        if (
            force_new
            and not self._checkpointed.is_exact_at(at)
            and not self._has_flushed
            and _flush_binlog(self.connection)
        ):
            self._has_flushed = True  # once is enough: if the server is written to, the next transaction helps
            self._checkpointed = self._wait_for_checkpoint(end)
            at, xa_committed = self._open_view()
        is_exact = self._checkpointed.is_exact_at(at)
        self.imprecision = "" if is_exact else _IMPRECISE.format(at=at)
        self._view_position = at
        if xa_committed or not is_exact:
            self._view_position = None
            self._wait_for_xa(open_xa_transactions(self.connection), end)
            self._start_view()
        return at if is_exact else self._checkpointed.start

    def _open_view(self) -> tuple[Position, bool]:
        """Open a view; return its reported position, and whether an XA COMMIT may have been in progress."""
        # Count first, then list: an XA COMMIT in neither ended before the view or began after the second count.
        begun, going_on = self._count_xa_commits(), open_xa_transactions(self.connection)
        at = self._start_view()
        return at, bool(going_on) or self._count_xa_commits() != begun

    def _wait_for_checkpoint(self, end: float) -> CheckpointedFile:
        if query_value(self.connection, "SELECT @@global.binlog_optimize_thread_scheduling") != "1":
            raise NotReadyError(
                "binlog_optimize_thread_scheduling is OFF: the transactions of a group become visible one by one, so "
                "the positions of read views are not exact",
                "Start the server with binlog_optimize_thread_scheduling=ON, its default",
            )
        query_rows(self.connection, "COMMIT")
        while (checkpointed := self._find_checkpoint()) is None:
            if time.monotonic() > end:
                raise TransientError(
                    "the newest binlog file does not record yet that the transactions in earlier files are committed "
                    "(SHOW BINLOG EVENTS then lists a Binlog_checkpoint)",
                    "Look for a stalled commit (semi-sync, disk), increase max_binlog_size, then run again",
                )
            time.sleep(0.05)
        return checkpointed

    def _find_checkpoint(self) -> CheckpointedFile | None:
        file = binlog_end(self.connection).file
        try:
            return checkpointed_file(self.connection, file)
        except UnlistedError as error:
            # From 11.7 on, a large transaction gets its own file, in which it precedes the wanted event.
            if _flush_binlog(self.connection):
                return None
            raise TransientError(
                f"the events in binlog file {file} cannot be listed, because one of them is larger than "
                f"max_allowed_packet ({error.message})",
                "Run FLUSH BINARY LOGS, GRANT RELOAD ON *.* TO the user of the connection, or SET GLOBAL "
                "max_allowed_packet to more than the old and new image of the largest row together, then run again",
            ) from None

    def high(self) -> tuple[Position, int]:
        """See :meth:`Watermarks.high`."""
        high = self.high_in_view()
        self.release_view()
        return high

    def hold_view(self) -> None:
        """See :meth:`Watermarks.hold_view`. The view has been open since :meth:`low`."""

    def high_in_view(self) -> tuple[Position, int]:
        """See :meth:`Watermarks.high_in_view`."""
        at, clock = super().high_in_view()
        if self._view_position and at < self._view_position:
            raise OtherHistoryError(
                f"the binlog of the server ends at {at}, but had already reached {self._view_position}"
            )
        return self._view_position or at, clock

    def _count_xa_commits(self) -> str:
        """Return how many XA COMMIT statements have begun on the server."""
        return query_pairs(self.connection, "SHOW GLOBAL STATUS LIKE 'Com_xa_commit'")["Com_xa_commit"]

    def _start_view(self) -> Position:
        query_rows(self.connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        status = query_pairs(self.connection, "SHOW STATUS LIKE 'binlog\\_snapshot\\_%'")
        return Position(status["Binlog_snapshot_file"], int(status["Binlog_snapshot_position"]))


def make_watermarks(connection: Connection[Any], server: str | None = None) -> Watermarks:
    """Return the watermarks for the product of the server.

    :param connection: autocommit connection; reads between a low and a high watermark must use it.
    :param server: expected identity of the server; ``None`` accepts any.
    """
    return (_MariaDbWatermarks if is_mariadb(connection) else _MySqlWatermarks)(connection, server)


def take_low_watermark(
    connection: Connection[Any], server: str | None = None, timeout: float = BARRIER_SECONDS
) -> Offset:
    """Take a low watermark without a read, as an offset to start from.

    Parameters and errors are those of :class:`Watermarks`.
    """
    marks, numbered = make_watermarks(connection, server), is_gtid_mode_on(connection)
    at = marks.low(timeout)
    marks.high()
    return Offset(server_identity(connection), at.file, at.position, _gtids_at(connection, at), gtid_mode_on=numbered)


def _gtids_at(connection: Connection[Any], at: Position) -> str:
    if is_mariadb(connection):
        return gtids_at_position(connection, at)
    # It is read after the low watermark, so it includes every GTID at or before the position, and possibly later ones.
    return str(query_executed_gtids(connection))


def _flush_binlog(connection: Connection[Any]) -> bool:
    """Begin a new binlog file; return whether the user has the privilege."""
    try:
        query_rows(connection, "FLUSH LOCAL BINARY LOGS")
    except NotReadyError:
        return False
    return True


def wait_until_gone(noted: frozenset[str], present: Callable[[], frozenset[str]], end: float) -> frozenset[str]:
    """Poll until each noted name has been absent once, or the time is up. Return the remaining names.

    A name that reappears belongs to another transaction, which began later.
    """
    left, polls = noted, 0
    while left and (left := left & present()):
        polls += 1
        if time.monotonic() > end:
            break
        if polls > 20:
            time.sleep(min(0.05, polls * 0.0005))
    return left
