"""Why a row is as it is: what is known of it, and how that is told to people.

It holds values of the row. They are for the person who has named its key, and for nobody else: no log, page or message
gets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from airflow_provider_cdc.ddl.key_predicate import InvalidKeyPredicate
from airflow_provider_cdc.model.offset import Position

#: How a row got into the copy: with a chunk of the snapshot, with its whole table, or with a range of keys,
#: or by nothing but the stream.
SNAPSHOT, TABLE, KEYS, NOTHING = "snapshot", "table", "keys", "nothing"
#: What has become of what was read: it is not read yet, it is read, it waits for the stream, it is part of the copy.
WAITING, READ, STAGED, PUBLISHED = "waiting", "read", "staged", "published"
#: Names of what ``_cdc_op`` says; and of a TRUNCATE, or of the CREATE TABLE with which it all began.
OPERATION_NAMES = {"c": "insert", "u": "update", "d": "delete", "r": "read", "t": "empty"}
_HOW_TEXTS = {
    SNAPSHOT: "by the snapshot: group {group}, chunk {chunk}",
    TABLE: "when the table was read again: group {group}, chunk {chunk}",
    KEYS: "when some of its keys were read again: group {group}, chunk {chunk}",
}
_STATE_TEXTS = {
    WAITING: ", which is not read yet",
    READ: ", which is read and not published",
    STAGED: "; the stream has not taken it in yet",
    PUBLISHED: "",
}
RowValues = Mapping[str, Any]


@dataclass(frozen=True)
class ReadRecord:
    """Something that was read, and has the key in it.

    :param how: one of :data:`SNAPSHOT`, :data:`TABLE`, :data:`KEYS` and :data:`NOTHING`.
    :param state: one of :data:`WAITING`, :data:`READ`, :data:`STAGED` and :data:`PUBLISHED`.
    :param group: number of the chunk group, and ``chunk``: of the chunk; ``None``: the key lies outside of all chunks,
        below the smallest key that was there or above the largest one.
    :param attempt: the attempt at the group that was read, and ``attempts``: how many were read to their end.
    :param low: low and ``high``: high watermark.
    :param rows: rows of the chunk, and ``corrected``: how many keys of it were corrected from the binlog.
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
            return "by nothing: the pipeline began without a snapshot. Rows come from the binlog alone"
        if self.chunk is None and self.state == WAITING:
            return "not yet: the table was added to the pipeline"
        if self.chunk is None:
            where = "of the snapshot" if self.how == SNAPSHOT else "that was read again"
            return f"in no chunk {where}: there was no key so low or so high. Rows come from the binlog alone"
        text = _HOW_TEXTS[self.how].format(**self.__dict__)
        if self.low is not None:
            text += (
                f", attempt {self.attempt}, between {self.low} and {self.high} (rows: {self.rows:,}, "
                f"corrected keys: {self.corrected:,}, {self.seconds:.2f} s)"
            )
        if self.attempts > 1:
            text += f"; the group was read to its end {self.attempts} times"
        return text + _STATE_TEXTS[self.state]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        return {**self.__dict__, "low": _position_text(self.low), "high": _position_text(self.high)}


@dataclass(frozen=True)
class RowChange:
    """What a transaction did to the row.

    :param at: where the transaction ends.
    :param operation: one of the values of :data:`OPERATIONS`. What changes the key is a delete of one and an update of
        the other.
    :param time: when it was committed, in ISO 8601.
    :param gtid: its GTID; empty if the server gives none.
    :param row: the row behind it; of a delete the one before it; ``None`` where the table
        was emptied or created.
    """

    at: Position
    operation: str
    time: str
    gtid: str = ""
    row: RowValues | None = None

    def __str__(self) -> str:
        gtid_text = f", GTID {self.gtid}" if self.gtid else ""
        row = "" if self.row is None else f": {format_row(self.row)}"
        return f"{self.operation} at {self.at} ({self.time}{gtid_text}){row}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        return {**self.__dict__, "at": str(self.at), "row": row_to_json(self.row)}


@dataclass(frozen=True)
class ChangeSummary:
    """The changes of the row in a part of the binlog.

    :param count: how many there are.
    :param latest: the last ones of them, in order.
    :param unknown_reason: why the binlog does not tell; empty if it does.
    """

    count: int = 0
    latest: tuple[RowChange, ...] = ()
    unknown_reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        return {"count": self.count, "last": [c.to_json() for c in self.latest], "unknown": self.unknown_reason or None}


@dataclass(frozen=True)
class RowSide:
    """The row on one side.

    :param at: as of which place in the binlog; ``None`` if that is not known.
    :param rows: the row; none if there is no such row. The copy of a table may have it more than once by mistake.
    :param unknown_reason: why it is not known; empty if it is.
    :param written_by: of the copy's row: by which operation, and where the transaction ends that it is the row of.
    """

    at: Position | None = None
    rows: tuple[RowValues, ...] = ()
    unknown_reason: str = ""
    written_by: tuple[str, Position] | None = None

    def lines(self) -> Iterator[str]:
        """For people."""
        if self.unknown_reason:
            yield f"unknown: {self.unknown_reason}"
            return
        yield ("has no such row" if not self.rows else "has it") + (f", as of {self.at}" if self.at else "")
        if self.written_by is not None and self.written_by[0] == OPERATION_NAMES["r"]:
            yield f"as it was read from the source, as of {self.written_by[1]}"
        elif self.written_by is not None:
            yield f"by the {self.written_by[0]} of the transaction that ends at {self.written_by[1]}"
        yield from map(format_row, self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        written = None if self.written_by is None else {"operation": self.written_by[0], "at": str(self.written_by[1])}
        rows = [row_to_json(row) for row in self.rows]
        return {"at": _position_text(self.at), "rows": rows, "unknown": self.unknown_reason or None, "written": written}


@dataclass(frozen=True)
class Explanation:
    """Why a row is as it is.

    :param table: ``database.table``.
    :param key: its key, as the source's types have it.
    :param suspended: why the stream goes on without the table; empty if it does not.
    :param reads: what was read that has the key in it, in order of their high watermarks: the copy's row comes from the
        last one that is published, and from the stream since.
    :param corrections: what has changed the row between the watermarks of that one.
    :param last_change: the last change of the row, as far as the binlog tells, and ``searched``: from where on it was
        searched; ``None`` if it was not.
    :param search_end_reason: why it was not searched farther back, if the change was not found; else empty.
    :param source: the row in the source, and ``copy``: in the sink.
    :param pending_changes: changes of the row that stand behind the place of the copy, so that it cannot have them yet.
    :param equal: whether both are the same at one place; ``None`` if that cannot be told, and ``why``: why not.
    :param differing_columns: in which columns they differ, if both sides have the row.
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
        """For people."""
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
        yield "none was found" + (f" from {self.searched_from} on" if self.searched_from else "")
        if self.search_end_reason:
            yield self.search_end_reason

    @property
    def verdict(self) -> str:
        """Whether source and copy are the same, in words."""
        behind = f"{_count_text(self.pending_changes)} of it behind that place, not in the copy yet"
        if self.equal is None:
            return f"not compared: {self.not_compared_reason}"
        if not self.equal:
            columns = f", in {', '.join(self.differing_columns)}" if self.differing_columns else ""
            return f"no{columns}" + (f"; nor with {behind}" if self.pending_changes else "")
        return f"yes, with {behind}" if self.pending_changes else "yes"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
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
    """The values of a key in its order, from what a person has written: in this order, or each as ``column=value``.

    :param key: names of the key's columns.
    :raises BadPredicate: if they are not the values of a key.
    """
    names = {name.lower(): name for name in key}
    named = [(names.get(name.lower()), value) for name, mark, value in (t.partition("=") for t in texts) if mark]
    known_names = [name for name, _ in named if name is not None]
    usage = f"the key is ({', '.join(key)}): give {len(key)} values in this order, or each as column=value"
    if not known_names:
        if len(texts) != len(key):
            raise InvalidKeyPredicate(f"{usage}; there are {len(texts)}")
        return list(texts)
    if sorted(known_names) != sorted(key) or len(texts) != len(key):
        raise InvalidKeyPredicate(
            f"{usage}; there are {', '.join(known_names)}, and {len(texts) - len(known_names)} without a name"
        )
    value_by_name = dict(named)
    return [value_by_name[name] for name in key]


def format_row(row: RowValues) -> str:
    """A row for people."""
    return ", ".join(f"{name}={_format_value(value)}" for name, value in row.items())


def row_to_json(row: RowValues | None) -> dict[str, Any] | None:
    """A row as a plain JSON value."""
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
    """Lines with a word before the first one."""
    for number, line in enumerate(lines):
        yield f"  {title if number == 0 else '':12}{line}"
