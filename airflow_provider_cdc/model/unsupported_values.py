"""Values of the source that cannot be copied exactly: what is wrong with them, and what to do."""

from __future__ import annotations

from typing import Literal

from airflow_provider_cdc.model.column_policy import KEEP
from airflow_provider_cdc.model.errors import UnfitError
from airflow_provider_cdc.model.schema import Column, TableSchema

#: An invalid date; bytes that are not text; a key that cannot be converted back from Unicode; corrupt bytes.
UnsupportedReason = Literal["date", "text", "key", "damaged"]

_FIX_KEY = "Give the row another key in the source, or convert the column to utf8mb4"
KEY_REMEDY = f"{_FIX_KEY}, then start with a fresh sink.path; or exclude the table in source.exclude"
DATE_REMEDY = (
    "Set source.zero_dates: null to copy such dates as NULL (not in a key), or correct the rows; then run again. "
    "A change that is already in the binlog can only be copied as NULL"
)
#: For rows in the binlog: what must be done before the table is re-snapshotted.
_BINLOG_REMEDIES: dict[UnsupportedReason, str] = {
    "date": "Set source.zero_dates: null to copy such dates as NULL (not in a key), or correct the rows in the source",
    "text": "Correct the row in the source",
    "key": _FIX_KEY,
    "damaged": "",
}
#: For rows read by a SELECT.
_SELECT_REMEDIES: dict[UnsupportedReason, str] = {
    **dict.fromkeys(("text", "damaged"), "Correct the rows, or exclude the table"),
    "date": DATE_REMEDY,
    "key": KEY_REMEDY,
}
#: What is said of values that no message may show.
_WITHOUT_VALUE: dict[UnsupportedReason, str] = {
    "date": "an invalid date",
    "text": "bytes that are not valid text",
    "key": "a key with no way back from Unicode",
    "damaged": "damaged value",
}


class UnsupportedValue(Exception):
    """A value that its Arrow type cannot hold.

    :param column: number of the column.
    :param reason: what is wrong with the value.
    :param description: the same in words.
    :param seq: ``_cdc_seq`` of the row, if it has one.
    """

    def __init__(self, column: int, reason: UnsupportedReason, description: str, seq: int = 0) -> None:
        super().__init__(description)
        self.column, self.reason, self.description, self.seq = column, reason, description, seq


def shows_values(table: TableSchema, name: str) -> bool:
    """Return whether messages may show values of a column: whether the copy has them as they are."""
    changed = (policy.column for policy in table.policies if policy.action != KEEP)
    return name not in table.excluded and name not in changed


def describe_key(table: TableSchema, name: str, error: Exception) -> str:
    """Return what is wrong with the value of a key column, with the value if it may be shown."""
    return str(error) if shows_values(table, name) else _WITHOUT_VALUE["key"]


def binlog_value_error(
    table: TableSchema, column: Column | None, reason: UnsupportedReason, description: str, place: str
) -> UnfitError:
    """Make the error for a value in the binlog.

    :param column: the value's column; ``None`` if it cannot be determined.
    :param description: what is wrong with the value, in words. It is not shown if the copy does not have the values.
    :param place: position in the binlog.
    """
    name = "a row" if column is None else f"column {column.name}"
    if column is not None and not shows_values(table, column.name):
        description = _WITHOUT_VALUE[reason]
    return UnfitError.for_table(
        f"{description} in {name} of {table.label}, at {place}{', cannot be copied' if reason == 'date' else ''}",
        table.label,
        place=place,
        first=_BINLOG_REMEDIES[reason],
        column=None if column is None else column.name,
        reason=reason,
    )


def select_value_error(table: TableSchema, column: Column, error: UnsupportedValue) -> UnfitError:
    """Make the error for a value read by a SELECT."""
    description = error.description if shows_values(table, column.name) else _WITHOUT_VALUE[error.reason]
    return UnfitError(
        f"table {table.label}, column {column.name} ({column.column_type}): a value cannot be copied: {description}",
        _SELECT_REMEDIES[error.reason],
        table=table.label,
        column=column.name,
        reason=error.reason,
    )
