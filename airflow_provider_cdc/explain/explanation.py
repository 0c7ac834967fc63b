"""The explanation of a row, and its human-readable form.

It contains values of the row. They are only for the user who gave the key, and never go into a log, page or message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from airflow_provider_cdc.ddl.key_predicate import InvalidKeyPredicate
from airflow_provider_cdc.model.offset import Position

#: How a row got into the copy: with a chunk of the snapshot, with a re-snapshot of its whole table or of a key range,
#: or only by the stream.
SNAPSHOT, TABLE, KEYS, NOTHING = "snapshot", "table", "keys", "nothing"
#: State of a read: not done yet, read, waiting for the stream to publish it, part of the copy.
WAITING, READ, STAGED, PUBLISHED = "waiting", "read", "staged", "published"
#: Name of each ``_cdc_op`` value; ``t`` is a TRUNCATE, or the CREATE TABLE that the table began with.
OPERATION_NAMES = {"c": "insert", "u": "update", "d": "delete", "r": "read", "t": "empty"}
_HOW_TEXTS = {
    SNAPSHOT: "by the snapshot: group {group}, chunk {chunk}",
    TABLE: "by a re-snapshot of the table: group {group}, chunk {chunk}",
    KEYS: "by a re-snapshot of key ranges: group {group}, chunk {chunk}",
}
_STATE_TEXTS = {
    WAITING: ", not read yet",
    READ: ", read but not published",
    STAGED: "; the stream has not published it yet",
    PUBLISHED: "",
}
RowValues = Mapping[str, Any]


@dataclass(frozen=True)
class ReadRecord:
    """A read that includes the key.

    :param how: one of :data:`SNAPSHOT`, :data:`TABLE`, :data:`KEYS` and :data:`NOTHING`.
    :param state: one of :data:`WAITING`, :data:`READ`, :data:`STAGED` and :data:`PUBLISHED`.
    :param group: number of the chunk group; ``None`` if the key lies outside all chunks, below the smallest key that
        existed or above the largest one.
    :param chunk: number of the chunk; ``None`` like ``group``.
    :param attempt: the attempt at the group that was read.
    :param attempts: how many attempts were read completely.
    :param low: low watermark.
    :param high: high watermark.
    :param rows: rows in the chunk.
    :param corrected: how many of its keys were corrected from the binlog.
    :param seconds: how long reading it took.
    :param server: identity of the server that it was read from.
    """

    how: str
    state: str
    group: int | None = None
    chunk: int | None = None
    attempt: int | None = None
    attempts: int = 0
    low: Position | None = None
    high: Position | None = None
    rows: int | None = None
    corrected: int | None = None
    seconds: float | None = None
    server: str | None = None

    def __str__(self) -> str:
        if self.how == NOTHING:
            return "never: the pipeline began without a snapshot. Its rows come only from the binlog"
        if self.chunk is None and self.state == WAITING:
            return "not yet: the table was added to the pipeline"
        if self.chunk is None:
            where = "of the snapshot" if self.how == SNAPSHOT else "of the re-snapshot"
            return f"in no chunk {where}: no key was that low or that high. The row comes only from the binlog"
        text = _HOW_TEXTS[self.how].format(**self.__dict__)
        if self.low is not None:
            text += (
                f", attempt {self.attempt}, between {self.low} and {self.high} (rows: {self.rows:,}, "
                f"corrected keys: {self.corrected:,}, {self.seconds:.2f} s)"
            )
        if self.attempts > 1:
            text += f"; the group was read completely {self.attempts} times"
        return text + _STATE_TEXTS[self.state]

    def to_json(self) -> dict[str, Any]:
        """Return a plain JSON value."""
        return {**self.__dict__, "low": _position_text(self.low), "high": _position_text(self.high)}


@dataclass(frozen=True)
class RowChange:
    """What a transaction did to the row.

    :param at: position at which the transaction ends.
    :param operation: one of the values of :data:`OPERATION_NAMES`. A change of the key is a delete of the old key and
        an update of the new one.
    :param time: when it was committed, in ISO 8601.
    :param gtid: its GTID; empty if the server has none.
    :param row: the row after the change, or, for a delete, before it; ``None`` if the table was emptied or created, or
        the copy has no such row.
    :param is_left_out: whether ``transforms.where`` leaves the row out of the copy.
    """

    at: Position
    operation: str
    time: str
    gtid: str = ""
    row: RowValues | None = None
    is_left_out: bool = False

    def __str__(self) -> str:
        gtid_text = f", GTID {self.gtid}" if self.gtid else ""
        row = "" if self.row is None else f": {format_row(self.row)}"
        row = ": a row that transforms.where leaves out of the copy" if self.is_left_out else row
        return f"{self.operation} at {self.at} ({self.time}{gtid_text}){row}"

    def to_json(self) -> dict[str, Any]:
        """Return a plain JSON value."""
        values = {**self.__dict__, "at": str(self.at), "row": row_to_json(self.row)}
        left_out = values.pop("is_left_out")
        return values | ({"left_out": True} if left_out else {})


@dataclass(frozen=True)
class ChangeSummary:
    """The changes of the row in a part of the binlog.

    :param count: number of changes.
    :param latest: the latest of them, in order.
    :param unknown_reason: why they are not known; empty if they are.
    """

    count: int = 0
    latest: tuple[RowChange, ...] = ()
    unknown_reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a plain JSON value."""
        return {"count": self.count, "last": [c.to_json() for c in self.latest], "unknown": self.unknown_reason or None}


@dataclass(frozen=True)
class RowSide:
    """The row on one side.

    :param at: binlog position as of which it is the row; ``None`` if unknown.
    :param rows: the row; empty if there is no such row. A wrong copy may have it more than once.
    :param unknown_reason: why it is not known; empty if it is.
    :param written_by: for the copy: the operation that wrote the row, and the position at which its transaction ends.
    :param is_left_out: for the source: whether it has the row, and ``transforms.where`` leaves it out of the copy.
    """

    at: Position | None = None
    rows: tuple[RowValues, ...] = ()
    unknown_reason: str = ""
    written_by: tuple[str, Position] | None = None
    is_left_out: bool = False

    def lines(self) -> Iterator[str]:
        """Yield human-readable lines."""
        if self.unknown_reason:
            yield f"unknown: {self.unknown_reason}"
            return
        state = "has no such row" if not self.rows else "has it"
        state = "has it, and transforms.where leaves it out of the copy" if self.is_left_out else state
        yield state + (f", as of {self.at}" if self.at else "")
        if self.written_by is not None and self.written_by[0] == OPERATION_NAMES["r"]:
            yield f"as read from the source, as of {self.written_by[1]}"
        elif self.written_by is not None:
            yield f"written by the {self.written_by[0]} in the transaction that ends at {self.written_by[1]}"
        yield from map(format_row, self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return a plain JSON value."""
        written = None if self.written_by is None else {"operation": self.written_by[0], "at": str(self.written_by[1])}
        rows = [row_to_json(row) for row in self.rows]
        return {
            "at": _position_text(self.at),
            "rows": rows,
            "unknown": self.unknown_reason or None,
            "written": written,
        } | ({"left_out": True} if self.is_left_out else {})


@dataclass(frozen=True)
class Explanation:
    """Why a row is as it is.

    :param table: ``database.table``.
    :param key: its key, in the types of the source.
    :param reads: the reads that include the key, ordered by high watermark. The copy's row comes from the last
        published one, and from the stream since then.
    :param corrections: changes of the row between the watermarks of that read.
    :param source: the row in the source.
    :param copy: the row in the sink.
    :param suspended: why the table is suspended; empty if it is not.
    :param last_change: the last change of the row, if it was found in the binlog.
    :param searched_from: position from which on the binlog was searched for it; ``None`` if it was not.
    :param search_end_reason: why the search did not go further back, if the change was not found; otherwise empty.
    :param pending_changes: number of changes of the row after the position of the copy, which therefore cannot have
        them yet.
    :param equal: whether both sides are the same at one position; ``None`` if unknown.
    :param not_compared_reason: why that is unknown.
    :param differing_columns: the columns that differ, if both sides have the row.
    """

    table: str
    key: RowValues
    reads: tuple[ReadRecord, ...]
    corrections: ChangeSummary
    source: RowSide
    copy: RowSide
    suspended: str = ""
    last_change: RowChange | None = None
    searched_from: Position | None = None
    search_end_reason: str = ""
    pending_changes: int = 0
    equal: bool | None = None
    not_compared_reason: str = ""
    differing_columns: tuple[str, ...] = field(default=())

    def lines(self) -> Iterator[str]:
        """Yield human-readable lines."""
        yield f"{self.table}, {', '.join(f'{name}={value}' for name, value in self.key.items())}"
        if self.suspended:
            yield from _titled_lines("suspended", [self.suspended])
        yield from _titled_lines("read", map(str, self.reads))
        yield from _titled_lines("corrected", self._correction_lines())
        yield from _titled_lines("last change", self._last_change_lines())
        yield from _titled_lines("source", self.source.lines())
        yield from _titled_lines("copy", self.copy.lines())
        yield from _titled_lines("equal", [self.verdict])

    def _correction_lines(self) -> Iterator[str]:
        corrections = self.corrections
        if corrections.unknown_reason:
            yield f"unknown: {corrections.unknown_reason}"
            return
        yield f"by {_count_text(corrections.count)} between the watermarks" if corrections.count else "by no change"
        if corrections.count > len(corrections.latest):
            yield f"the last {len(corrections.latest)} of them:"
        yield from map(str, corrections.latest)

    def _last_change_lines(self) -> Iterator[str]:
        if self.last_change is not None:
            yield str(self.last_change)
            return
        yield "none found" + (f" from {self.searched_from} on" if self.searched_from else "")
        if self.search_end_reason:
            yield self.search_end_reason

    @property
    def verdict(self) -> str:
        """Whether source and copy are the same, in words."""
        behind = f"{_count_text(self.pending_changes)} of it after that position, not in the copy yet"
        if self.equal is None:
            return f"not compared: {self.not_compared_reason}"
        if not self.equal:
            columns = f", in {', '.join(self.differing_columns)}" if self.differing_columns else ""
            return f"no{columns}" + (f"; nor with {behind}" if self.pending_changes else "")
        return f"yes, with {behind}" if self.pending_changes else "yes"

    def to_json(self) -> dict[str, Any]:
        """Return a plain JSON value."""
        return {
            "table": self.table,
            "key": row_to_json(self.key),
            "suspended": self.suspended or None,
            "reads": [read.to_json() for read in self.reads],
            "corrections": self.corrections.to_json(),
            "last_change": None if self.last_change is None else self.last_change.to_json(),
            "searched": _position_text(self.searched_from),
            "unsearched": self.search_end_reason or None,
            "source": self.source.to_json(),
            "copy": self.copy.to_json(),
            "pending": self.pending_changes,
            "equal": self.equal,
            "why": self.not_compared_reason or None,
            "columns": list(self.differing_columns),
        }


def parse_key_texts(texts: Sequence[str], key: Sequence[str]) -> list[str]:
    """Return the values of a key in key order.

    :param texts: what the user gave: the values in key order, or each as ``column=value``.
    :param key: names of the key's columns.
    :raises InvalidKeyPredicate: if they are not the values of a key.
    """
    names = {name.lower(): name for name in key}
    named = [(names.get(name.lower()), value) for name, mark, value in (t.partition("=") for t in texts) if mark]
    known_names = [name for name, _ in named if name is not None]
    usage = f"the key is ({', '.join(key)}): give {len(key)} values in this order, or each as column=value"
    if not known_names:
        if len(texts) != len(key):
            raise InvalidKeyPredicate(f"{usage}; {len(texts)} given")
        return list(texts)
    if sorted(known_names) != sorted(key) or len(texts) != len(key):
        raise InvalidKeyPredicate(
            f"{usage}; given: {', '.join(known_names)}, and {len(texts) - len(known_names)} without a name"
        )
    value_by_name = dict(named)
    return [value_by_name[name] for name in key]


def format_row(row: RowValues) -> str:
    """Return a row as human-readable text."""
    return ", ".join(f"{name}={_format_value(value)}" for name, value in row.items())


def row_to_json(row: RowValues | None) -> dict[str, Any] | None:
    """Return a row as a plain JSON value."""
    return None if row is None else {name: _json_value(value) for name, value in row.items()}


def _format_value(value: Any) -> str:
    return "NULL" if value is None else repr(value) if isinstance(value, str) else str(_json_value(value))


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, date | Decimal):
        return str(value)
    return value


def _count_text(count: int) -> str:
    return f"{count:,} change{'s' if count > 1 else ''}"


def _position_text(at: Position | None) -> str | None:
    return None if at is None else str(at)


def _titled_lines(title: str, lines: Any) -> Iterator[str]:
    """Yield the lines indented, with the title in front of the first one."""
    for number, line in enumerate(lines):
        yield f"  {title if number == 0 else '':12}{line}"
