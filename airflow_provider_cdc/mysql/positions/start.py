"""Start a stream without a snapshot: find the binlog position for earliest, a GTID set, a time and so on.

The position is always between two transactions. The GTIDs at or before it are known exactly: those that the server
reports for the beginning of the file, and those that are read from there on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import NotReadyError, TornFileError
from airflow_provider_cdc.model.gtid import GtidSet, MariadbGtidPosition
from airflow_provider_cdc.model.offset import Offset, Position, Timeline, split_file
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.start_mode import (
    EARLIEST,
    FIRST_EVENT_POSITION,
    LATEST,
    StreamStart,
    format_start,
    start_timestamp,
)
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction, read_transactions
from airflow_provider_cdc.mysql.binlog.events.xa import format_xa_entry
from airflow_provider_cdc.mysql.client.binlog_headers import gtids_at_position, next_file_after_torn_end, previous_gtids
from airflow_provider_cdc.mysql.client.catalog import ApplyRules, read_captured_schemas
from airflow_provider_cdc.mysql.client.gtids import query_executed_gtids, wait_for_gtids
from airflow_provider_cdc.mysql.client.identity import is_mariadb, server_identity
from airflow_provider_cdc.mysql.client.session import query_value
from airflow_provider_cdc.mysql.positions.binlog_files import (
    file_start_time,
    list_binlog_files,
    server_time,
    with_exact_gtids,
)
from airflow_provider_cdc.mysql.positions.p0 import take_p0, with_open_xa

_SETTING = "stream.start"
#: Whether the place has been found. Called with the place and the next item; if true, that item is not included.
StopCondition = Callable[["BinlogPoint", Transaction | Position], bool]


@dataclass
class BinlogPoint:
    """A place between two transactions, and what is at or before it.

    :param position: position of the place.
    :param gtids: GTIDs at or before it.
    :param open_xa: XA transactions that were prepared in its file and are still open there.
    """

    position: Position
    gtids: GtidSet | MariadbGtidPosition
    open_xa: dict[str, str] = field(default_factory=dict)

    def advance(self, item: Transaction | Position) -> None:
        """Move to the position after an item."""
        self.position = Position(item.file, item.position)
        if isinstance(item, Transaction):
            if item.gtid:
                self.gtids = self.gtids.add(item.gtid)
            if item.xa_prepared is not None:
                began = Position(item.file, item.start_position)
                self.open_xa[item.xa_prepared] = format_xa_entry(item.xa_prepared, began)
            if item.xa_finished is not None:
                self.open_xa.pop(item.xa_finished, None)


def plan_without_snapshot(
    connection: Connection[Any],
    pipeline: str,
    captures: Callable[[str, str], bool],
    *,
    patterns: tuple[tuple[str, ...], ...],
    apply_rules: ApplyRules,
    generation: int,
    start: StreamStart,
    open_at: OpenStreamAt,
) -> Plan:
    """Return a plan that reads no rows. Its P0 is the position where the stream begins.

    Other parameters and errors are those of ``make_plan``.

    :param start: where the stream begins.
    :param open_at: opens a stream that ends where the binlog ends.
    :raises NotReadyError: if there is no such position in the binlog, or it is no longer there.
    """
    if start == LATEST:
        p0, left = take_p0(connection)
        p0 = with_exact_gtids(connection, p0, open_at)
    else:
        p0, left = start_offset(connection, start, open_at), frozenset()
    tables = tuple(read_captured_schemas(connection, captures, apply_rules))
    if without := [table.label for table in tables if not table.key]:
        raise NotReadyError(
            f"{_SETTING}: {', '.join(without[:3])} has no usable key, so a delete of a row that is missing from the "
            "sink cannot be told from an error",
            "Give it a key, leave it out with source.exclude, or begin with a snapshot",
        )
    p0 = with_open_xa(connection, p0, left, tables, open_at)
    over_time, timeline = tuple(map(DefinitionHistory.from_single, tables)), Timeline(p0.server, p0.at.file)
    return Plan(pipeline, generation, p0, timeline, patterns, over_time, (), start=start)


def start_offset(connection: Connection[Any], start: StreamStart, open_at: OpenStreamAt) -> Offset:
    """Return the offset for a start other than latest.

    Parameters and errors are those of :func:`plan_without_snapshot`.
    """
    finder = PositionFinder(connection, open_at)
    if start == EARLIEST:
        place = finder.file_start(finder.files[0])
    elif isinstance(start, Mapping) and "file" in start:
        place = finder.at_position(Position(start["file"], start["position"]))
    elif isinstance(start, Mapping) and "timestamp" in start:
        place = finder.at_time(start_timestamp(start))
    elif isinstance(start, Mapping) and "gtid_set" in start:
        place = finder.at_gtid_set(start["gtid_set"])
    else:
        raise ValueError(f"{format_start(start)} is not a start without a snapshot")
    gtids = gtids_at_position(connection, place.position) if finder.mariadb else str(place.gtids)
    at, xas = place.position, tuple(sorted(place.open_xa.values()))
    return Offset(server_identity(connection), at.file, at.position, gtids, xas)


class PositionFinder:
    """Finds places in a server's binlog by reading from the beginning of a file.

    :param connection: connection to the server.
    :param open_at: opens a stream that ends where the binlog ends.
    :raises NotReadyError: if the server has no binlog.
    """

    def __init__(self, connection: Connection[Any], open_at: OpenStreamAt) -> None:
        self.connection, self.open_at, self.files = connection, open_at, list_binlog_files(connection)
        if not self.files:
            raise NotReadyError("the server has no binary log", "Start it with --log-bin and binlog_format=ROW")
        self.mariadb = is_mariadb(connection)

    def file_start(self, file: str) -> BinlogPoint:
        """Return the beginning of a file."""
        return BinlogPoint(Position(file, FIRST_EVENT_POSITION), previous_gtids(self.connection, file))

    def at_position(self, wanted: Position) -> BinlogPoint:
        """Return the place at a given position.

        :raises NotReadyError: if no transaction ends there.
        """
        if wanted.file not in self.files:
            raise NotReadyError(
                f"{_SETTING}: binlog file {wanted.file} is not on the server",
                f"It has {self.files[0]} to {self.files[-1]}",
            )
        place = self.search_from(wanted.file, lambda place, item: wanted < Position(item.file, item.position))
        if place.position != wanted:
            raise NotReadyError(
                f"{_SETTING}: no transaction ends at {wanted}",
                f"The last one before it ends at {place.position}. SHOW BINLOG EVENTS lists all of them",
            )
        return place

    def at_time(self, wanted: datetime) -> BinlogPoint:
        """Return the place before the first transaction, in binlog order, that was committed at or after a time."""
        seconds = wanted.timestamp()
        if seconds > server_time(self.connection):
            raise NotReadyError(
                f"{_SETTING}: {wanted.isoformat()} is in the future by the server's clock", "Use latest"
            )
        # Transactions committed before a file was begun are in earlier files. The file records whole seconds.
        index = bisect_right(self.files, seconds - 1, key=self._file_start_time) - 1
        first = self.file_start(self.files[0])
        if index < 0 and (split_file(self.files[0])[1] != 1 or str(first.gtids)):
            began = datetime.fromtimestamp(self._file_start_time(self.files[0]), UTC)
            raise NotReadyError(
                f"{_SETTING}: {wanted.isoformat()} is before the first remaining binlog, {self.files[0]}",
                f"It was begun at {began.isoformat()}; use a later time, or earliest",
            )
        micros = round(seconds * 1e6)
        return self.search_from(
            self.files[max(index, 0)],
            lambda place, item: isinstance(item, Transaction) and item.commit_us >= micros,
        )

    def at_gtid_set(self, text: str) -> BinlogPoint:
        """Return the first place at or before which are exactly the GTIDs of a set."""
        try:
            wanted = (MariadbGtidPosition if self.mariadb else GtidSet).parse(text)
        except ValueError:
            raise NotReadyError(
                f"{_SETTING}: {text[:80]} is not in the GTID format of this server",
                "Give a position such as 0-1-100" if self.mariadb else "Give a GTID set such as uuid:1-100",
            ) from None
        if isinstance(wanted, GtidSet):
            self._check_executed(wanted)
        file = self.newest_file_before(wanted)
        if file is None:
            first, gap = self.file_start(self.files[0]), ""
            if isinstance(wanted, GtidSet) and isinstance(first.gtids, GtidSet):
                gap = f"; of these, the set lacks {first.gtids.subtract(wanted)}"
            raise NotReadyError(
                f"{_SETTING}: transactions after {text[:80]} are no longer on the server",
                f"The first remaining binlog, {self.files[0]}, begins after {first.gtids}{gap}",
            )

        def complete(place: BinlogPoint, item: Transaction | Position) -> bool:
            if _is_subset(wanted, place.gtids):
                return True
            # A transaction that is not in the set must not come before one that is: it would never be read.
            if isinstance(item, Transaction) and item.gtid and not _is_subset(place.gtids.add(item.gtid), wanted):
                raise NotReadyError(
                    f"{_SETTING}: {item.gtid} is not in the set, but comes before the last transactions of the set in "
                    "the binlog",
                    f"Give a set that ends at one position in the server's binlog, such as {place.gtids} at "
                    f"{place.position}",
                )
            return False

        place = self.search_from(file, complete)
        if not _is_subset(wanted, place.gtids):
            raise NotReadyError(f"{_SETTING}: the server does not have all of {text[:80]}", f"It has {place.gtids}")
        return place

    def newest_file_before(self, wanted: GtidSet | MariadbGtidPosition) -> str | None:
        """Return the newest file before which there are only GTIDs of a set; ``None`` if there is no such file."""
        return next((f for f in reversed(self.files) if _is_subset(self.file_start(f).gtids, wanted)), None)

    def _check_executed(self, wanted: GtidSet) -> None:
        mode = query_value(self.connection, "SELECT @@global.gtid_mode")
        if mode != "ON":
            raise NotReadyError(f"{_SETTING}: gtid_mode is {mode}", "Use file and position, or a timestamp")
        # Transactions in the binlog may not be committed in the engine yet.
        if missing := wanted.subtract(wait_for_gtids(query_executed_gtids, self.connection, wanted)):
            raise NotReadyError(
                f"{_SETTING}: the server has not executed {missing}",
                "Give a set of this server, such as an earlier @@global.gtid_executed",
            )

    def search_from(self, file: str, is_found: StopCondition) -> BinlogPoint:
        """Read from the beginning of a file; return the place before the item that ``is_found`` accepts, or the end."""
        place = self.file_start(file)
        while True:
            try:
                with closing(self.open_at(place.position)) as stream:
                    for item in read_transactions(stream, {}):
                        if is_found(place, item):
                            break
                        place.advance(item)
                return place
            except TornFileError:
                if (at := next_file_after_torn_end(self.connection, place.position)) is None:
                    raise
                place.position = at

    def _file_start_time(self, file: str) -> float:
        began = file_start_time(self.open_at, file)
        if not began:
            raise NotReadyError(
                f"{_SETTING}: binlog file {file} does not show when it was begun", "Use file and position"
            )
        return began


def _is_subset(part: GtidSet | MariadbGtidPosition, whole: GtidSet | MariadbGtidPosition) -> bool:
    """Return whether everything at or before one place is at or before the other."""
    if isinstance(part, GtidSet) and isinstance(whole, GtidSet):
        return part.issubset(whole)
    assert isinstance(part, MariadbGtidPosition) and isinstance(whole, MariadbGtidPosition)
    return part.issubset(whole)
