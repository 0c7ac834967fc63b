"""Rows events: changed rows of one captured table, and which of its columns they contain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent, fail_table_at_event
from airflow_provider_cdc.mysql.binlog.events.event_types import (
    DELETE_ROWS,
    DELETE_ROWS_V1,
    ROWS_EVENTS_V1,
    UNCOMPRESSED_TYPES,
    UPDATE_ROWS,
    UPDATE_ROWS_V1,
    WRITE_ROWS,
    WRITE_ROWS_V1,
)
from airflow_provider_cdc.mysql.binlog.events.query import decompress_mariadb
from airflow_provider_cdc.mysql.binlog.events.table_map import TableMap
from airflow_provider_cdc.mysql.binlog.events.wire_types import read_length_encoded

RowsOperation = Literal["insert", "update", "delete"]

_OPERATIONS: dict[int, RowsOperation] = {
    **dict.fromkeys((WRITE_ROWS_V1, WRITE_ROWS), "insert"),
    **dict.fromkeys((UPDATE_ROWS_V1, UPDATE_ROWS), "update"),
    **dict.fromkeys((DELETE_ROWS_V1, DELETE_ROWS), "delete"),
}
#: Operations by event type, including the compressed types.
ROWS_OPERATIONS = _OPERATIONS | {kind: _OPERATIONS[written] for kind, written in UNCOMPRESSED_TYPES.items()}


@dataclass(frozen=True, slots=True)
class RowsEvent:
    """Changed rows of one captured table, not decoded yet.

    :param table: schema and layout.
    :param operation: what happened to the rows.
    :param images: concatenated row images; for updates, before and after images alternate.
    :param location: location for messages.
    :param present_columns: bitmap of the columns in the images, for an update one for the before images followed by one
        for the after images; empty if all columns are present.
    """

    table: TableMap
    operation: RowsOperation
    images: memoryview
    location: str
    present_columns: bytes = b""

    @property
    def schema(self) -> TableSchema:
        """The captured table."""
        return self.table.schema


def parse_rows_event(event: BinlogEvent, table: TableMap) -> RowsEvent:
    """Parse the part of a rows event before its row images.

    :raises TerminalError: if the event is cut off, or its images lack required columns.
    """
    body, label, operation = event.body, table.schema.label, ROWS_OPERATIONS[event.type]
    try:
        written = UNCOMPRESSED_TYPES.get(event.type, event.type)
        at = 8 if written in ROWS_EVENTS_V1 else 8 + int.from_bytes(body[8:10], "little")
        count, at = read_length_encoded(body, at)
    except IndexError:
        fail_table_at_event(event, label, f"a cut off rows event of {label}")
    if count != len(table.columns):
        fail_table_at_event(event, label, f"rows of {label} with {count} columns, {len(table.columns)} expected")
    size, all_columns = (count + 7) // 8, (1 << count) - 1
    needs = {"insert": "a", "update": "ba", "delete": "b"}[operation]
    present = bytes(body[at : at + size * len(needs)])
    bitmaps = [int.from_bytes(present[i * size : (i + 1) * size], "little") for i in range(len(needs))]
    for need, bitmap in zip(needs, bitmaps, strict=True):
        needed = table.schema.required_before_image if need == "b" else table.schema.required_after_image
        _check_required_columns(
            event, table.schema, [c.name for i, c in enumerate(table.schema.columns) if bitmap >> i & 1], needed
        )
    if all(bitmap & all_columns == all_columns for bitmap in bitmaps):
        present = b""
    data = body[at + size * len(needs) :]
    if event.type in UNCOMPRESSED_TYPES:
        try:
            data = memoryview(decompress_mariadb(data, event))
        except TerminalError as error:
            raise TerminalError.for_table(f"{error.message} of {label}", label, place=event.location) from None
    return RowsEvent(table, operation, data, event.location, present)


def _check_required_columns(
    event: BinlogEvent, schema: TableSchema, present_names: Sequence[str], needed: frozenset[str]
) -> None:
    """Raise an error unless the images contain all required columns."""
    missing = [c.name for c in schema.columns if c.name in needed.difference(present_names)]
    if missing:
        fail_table_at_event(
            event,
            schema.label,
            f"row images of {schema.label} are not full: they lack {', '.join(missing)}",
            "Set binlog_row_image=FULL in the sessions that write (their value can differ from the global one); if "
            "these are generated columns, which MariaDB 11.8 and later omits from updates even then, exclude them from "
            "the copy (source.exclude_columns)",
        )
