"""Decode row images in plain Python, written for clarity rather than speed: what the machine code is held against.

Values are those that the server shows, ready for ``pyarrow.array(values, type=column.arrow_type)``. A stored value that
has no such representation (a zero date, bytes that are not valid text) raises an error and never silently becomes NULL.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

from airflow_provider_cdc.model.errors import TerminalError, UnfitError
from airflow_provider_cdc.model.schema import (
    ADDRESS_TYPES,
    BINARY_TYPES,
    GEOMETRY_TYPES,
    INTEGER_TYPES,
    MEMBER_TYPES,
    TEXT_TYPES,
    Column,
    unknown_type_error,
)
from airflow_provider_cdc.model.unsupported_values import UnsupportedReason, binlog_value_error
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.events.table_map import TableMap, with_exact_members
from airflow_provider_cdc.mysql.binlog.events.wire_types import BLOB, BLOB_COMPRESSED, VECTOR, WireColumn
from airflow_provider_cdc.mysql.binlog.plain.jsonb import json_text
from airflow_provider_cdc.mysql.binlog.plain.mariadb_values import decompress_column, inet_text
from airflow_provider_cdc.mysql.binlog.plain.values import (
    OLD_TEMPORAL_SIZES,
    DateTimeParts,
    decimal_size,
    decimal_text,
    unpack_datetime,
    unpack_old_datetime,
    unpack_time,
)
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS, CharsetDecoders, NoRoundTripError, TextDecoder

RowImage = tuple[Any, ...]
#: Reads one value: (event data, offset) -> (value, offset after it).
ValueReader = Callable[[bytes, int], tuple[Any, int]]

_INTEGER_SIZES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DATES = ("date", "datetime", "timestamp")
_DAY = 86_400
_SECOND = 1_000_000
#: Seconds added to a TIME with a fraction in the format of MariaDB 5.3, so that it is never negative: one more than its
#: maximum.
_OLD_TIME_SHIFT = 838 * 3600 + 59 * 60 + 60


class _InvalidDate(Exception):
    """A stored date is invalid; the text names it."""


def decode_rows(
    event: RowsEvent, decoders: CharsetDecoders = UNICODE_DECODERS
) -> list[tuple[RowImage | None, RowImage | None]]:
    """Decode the rows of an event.

    :param event: a rows event of a captured table.
    :param decoders: text decoders.
    :returns: (before, after) for each row, each a tuple of values in the order of the schema's columns; an insert has
        no before, a delete no after. Integers and YEAR are int, DECIMAL is Decimal (str above 38 digits), FLOAT and
        DOUBLE are float, text, ENUM, SET and JSON are str, binary, BIT and geometry are bytes, VECTOR is a list of
        float, DATE is int days since 1970-01-01, DATETIME and TIMESTAMP are int microseconds since 1970-01-01 00:00:00
        (without a time zone, and UTC), TIME is int microseconds. Invalid dates in the table's ``null_date_columns`` and
        columns that are absent from an image are ``None``.
    :raises TerminalError: for other invalid dates, bytes that are not valid text, and damaged data; it names the table,
        the column and the position.
    """
    data = bytes(event.images)
    readers = _value_readers(event.table, decoders)
    every = range(len(readers))
    size = (len(readers) + 7) // 8
    parts = [event.present_columns[i : i + size] for i in range(0, len(event.present_columns), size)]
    present = [[i for i in every if part[i >> 3] >> (i & 7) & 1] for part in parts] or [[*every]]
    images: list[RowImage] = []
    at = 0
    while at < len(data):
        image, at = _read_image(data, at, event, readers, present[len(images) % len(present)])
        images.append(image)
    if event.operation == "insert":
        return [(None, image) for image in images]
    if event.operation == "delete":
        return [(image, None) for image in images]
    if len(images) % 2:
        raise _damaged_rows(event, "an update without an after image")
    return list(zip(images[::2], images[1::2], strict=True))


def _damaged_rows(event: RowsEvent, what: str) -> TerminalError:
    label = event.schema.label
    return TerminalError.for_table(f"damaged rows of {label} at {event.location}: {what}", label, place=event.location)


def _read_image(
    data: bytes, at: int, event: RowsEvent, readers: tuple[ValueReader, ...], present: list[int]
) -> tuple[RowImage, int]:
    """Return the values of an image and where it ends.

    :param present: indexes of the columns in the image.
    """
    size = (len(present) + 7) // 8
    nulls = int.from_bytes(data[at : at + size], "little")
    at += size
    if at > len(data):
        raise _damaged_rows(event, "cut off")
    values: list[Any] = [None] * len(readers)
    for bit, i in enumerate(present):
        if nulls >> bit & 1:
            if not event.schema.columns[i].nullable:
                raise _value_error(ValueError("NULL"), event, event.schema.columns[i])
            continue
        try:
            values[i], at = readers[i](data, at)
        except (_InvalidDate, UnicodeDecodeError, ValueError, IndexError, struct.error) as error:
            raise _value_error(error, event, event.schema.columns[i]) from None
    return tuple(values), at


def _value_error(error: Exception, event: RowsEvent, column: Column) -> UnfitError:
    reason, what = _classify_error(error)
    return binlog_value_error(event.schema, column, reason, what, event.location)


def _classify_error(error: Exception) -> tuple[UnsupportedReason, str]:
    """Return the reason why a value is unsupported, and its description."""
    if isinstance(error, _InvalidDate):
        return "date", str(error)
    if isinstance(error, NoRoundTripError):
        return "key", str(error)
    if isinstance(error, UnicodeDecodeError):
        return "text", "bytes that are not valid text"
    return "damaged", "damaged value"


@lru_cache(maxsize=1024)
def _value_readers(table: TableMap, decoders: CharsetDecoders) -> tuple[ValueReader, ...]:
    # The cache works because table maps and decoders are compared by identity, and reused for a table's events.
    nulls = table.schema.null_date_columns
    readers = []
    for known, wire in zip(table.schema.columns, table.columns, strict=True):
        column = with_exact_members(known, table, decoders) if known.data_type in MEMBER_TYPES else known
        read = _value_reader(column, wire, decoders.for_keys if column.name in table.schema.key else decoders)
        readers.append(
            _null_if_invalid(read, wire, column) if column.name in nulls and column.data_type in _DATES else read
        )
    return tuple(readers)


def _null_if_invalid(read: ValueReader, wire: WireColumn, column: Column) -> ValueReader:
    size = {"date": 3, "datetime": 5, "timestamp": 4}[column.data_type] + (wire.size + 1) // 2
    if column.has_old_temporal_format:
        size = OLD_TEMPORAL_SIZES[column.data_type][column.fsp]

    def read_or_null(data: bytes, at: int) -> tuple[Any, int]:
        try:
            return read(data, at)
        except _InvalidDate:
            return None, at + size

    return read_or_null


def _value_reader(column: Column, wire: WireColumn, texts: Mapping[str, TextDecoder]) -> ValueReader:
    kind = column.data_type
    if kind in INTEGER_TYPES:
        return _read_integer(_INTEGER_SIZES[kind], signed=not column.is_unsigned)
    if kind == "decimal":
        return _read_decimal(column, wire)
    if kind == "float":
        return _read_fixed(4, lambda raw: struct.unpack("<f", raw)[0])
    if kind == "double":
        return _read_fixed(8, lambda raw: struct.unpack("<d", raw)[0])
    unpack = decompress_column if column.is_compressed else bytes
    if kind in TEXT_TYPES:
        decode = texts[column.charset or "utf8mb4"]
        return _read_sized(_length_size(wire), lambda raw: decode(unpack(raw)))
    if kind == "binary":
        # The server removes trailing zeros.
        return _read_sized(_length_size(wire), lambda raw: raw.ljust(wire.size, b"\0"))
    if kind in BINARY_TYPES:
        return _read_sized(_length_size(wire), unpack)
    if kind in ADDRESS_TYPES:  # without trailing zeros, too
        text = (lambda raw: str(UUID(bytes=raw))) if kind == "uuid" else inet_text
        return _read_sized(1, lambda raw: text(raw.ljust(wire.size, b"\0")))
    if kind == "json":
        return _read_sized(4, json_text)
    if kind in GEOMETRY_TYPES:
        return _read_sized(4, bytes)
    if kind == "vector":
        return _read_sized(_length_size(wire), lambda raw: list(struct.unpack(f"<{len(raw) // 4}f", raw)))
    if kind == "bit":
        return _read_fixed(((column.precision or 1) + 7) // 8, bytes)
    if kind == "set":
        return _read_fixed(wire.size, lambda raw: _set_members(int.from_bytes(raw, "little"), column))
    if kind == "enum":
        return _read_fixed(wire.size, lambda raw: _enum_member(int.from_bytes(raw, "little"), column))
    if kind == "year":
        if column.is_two_digit_year:
            return _read_fixed(1, lambda raw: raw[0] % 100)
        return _read_fixed(1, lambda raw: 1900 + raw[0] if raw[0] else 0)
    if kind == "date":
        return _read_fixed(3, _unpack_date)
    if column.has_old_temporal_format:
        return _read_fixed(OLD_TEMPORAL_SIZES[kind][column.fsp], _old_temporal_reader(kind, column.fsp))
    fraction = (wire.size + 1) // 2
    if kind == "datetime":
        return _read_fixed(5 + fraction, lambda raw: _unpack_datetime(raw, fraction))
    if kind == "timestamp":
        return _read_fixed(4 + fraction, lambda raw: _unpack_timestamp(raw, fraction))
    if kind == "time":
        return _read_fixed(3 + fraction, lambda raw: _unpack_time(raw, fraction))
    raise unknown_type_error(column)


def _read_fixed(size: int, convert: Callable[[bytes], Any]) -> ValueReader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        raw = data[at : at + size]
        if len(raw) != size:
            raise IndexError
        return convert(raw), at + size

    return read


def _read_sized(length_size: int, convert: Callable[[bytes], Any]) -> ValueReader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + length_size
        end = start + int.from_bytes(data[at:start], "little")
        if end > len(data) or start > len(data):
            raise IndexError
        return convert(data[start:end]), end

    return read


def _length_size(wire: WireColumn) -> int:
    """Return the size of a string's length prefix in bytes."""
    if wire.type in (BLOB, BLOB_COMPRESSED, VECTOR):
        return wire.size
    return 1 if wire.size < 256 else 2


def _read_integer(size: int, signed: bool) -> ValueReader:
    return _read_fixed(size, lambda raw: int.from_bytes(raw, "little", signed=signed))


def _read_decimal(column: Column, wire: WireColumn) -> ValueReader:
    precision, scale = wire.precision, wire.scale

    def convert(raw: bytes) -> Decimal | str:
        text = decimal_text(raw, precision, scale)
        if precision <= 38:
            return Decimal(text)
        # The server pads ZEROFILL numbers when it prints them.
        width = precision + (scale > 0)
        return text.zfill(width) if "zerofill" in column.column_type else text

    return _read_fixed(decimal_size(precision, scale), convert)


def _enum_member(index: int, column: Column) -> str:
    if index == 0:
        return ""  # the value was invalid when it was stored
    if index > len(column.members):
        raise ValueError(f"ENUM index {index}")
    return column.members[index - 1]


def _set_members(bits: int, column: Column) -> str:
    if bits >> len(column.members):
        raise ValueError(f"SET {bits}")
    return ",".join(member for i, member in enumerate(column.members) if bits >> i & 1)


def _days_since_1970(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01.

    :raises _InvalidDate: for zero, partial and impossible dates.
    """
    try:
        return date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        raise _InvalidDate(f"zero, partial or impossible date {year:04d}-{month:02d}-{day:02d}") from None


def _unpack_date(raw: bytes) -> int:
    packed = int.from_bytes(raw, "little")
    return _days_since_1970(packed >> 9, packed >> 5 & 15, packed & 31)


def _fraction_micros(raw: int, size: int) -> int:
    """Return the microseconds of a fraction of 1 byte (two digits), 2 bytes (four) or 3 bytes (six)."""
    return raw * (1, 10_000, 100, 1)[size]


def _unpack_datetime(raw: bytes, fraction: int) -> int:
    packed = int.from_bytes(raw[:5], "big") - (1 << 39)
    return _micros_since_1970(unpack_datetime(packed)) + _fraction_micros(int.from_bytes(raw[5:], "big"), fraction)


def _micros_since_1970(moment: DateTimeParts) -> int:
    seconds = _days_since_1970(moment.year, moment.month, moment.day) * _DAY
    seconds += moment.hour * 3600 + moment.minute * 60 + moment.second
    return seconds * _SECOND + moment.micros


def _unpack_timestamp(raw: bytes, fraction: int) -> int:
    return _timestamp_micros(int.from_bytes(raw[:4], "big"), _fraction_micros(int.from_bytes(raw[4:], "big"), fraction))


def _timestamp_micros(seconds: int, micros: int) -> int:
    if seconds == 0 and micros == 0:
        raise _InvalidDate("zero timestamp 0000-00-00 00:00:00")
    return seconds * _SECOND + micros


def _old_temporal_reader(kind: str, digits: int) -> Callable[[bytes], int]:
    """Return a reader of values in the format of MariaDB 5.3."""
    if kind == "datetime":
        return lambda raw: _micros_since_1970(unpack_old_datetime(raw, digits))
    if kind == "timestamp":
        return lambda raw: _timestamp_micros(*_unpack_old_timestamp(raw, digits))
    return lambda raw: _unpack_old_time(raw, digits)


def _unpack_time(raw: bytes, fraction: int) -> int:
    # Seconds and fraction form one number, offset so that it is never negative.
    packed = int.from_bytes(raw, "big") - (0x80_0000 << 8 * fraction)
    size = abs(packed)
    hours, minutes, seconds = unpack_time(size >> 8 * fraction)
    micros = _fraction_micros(size & ((1 << 8 * fraction) - 1), fraction)
    total = (hours * 3600 + minutes * 60 + seconds) * _SECOND + micros
    return -total if packed < 0 else total


def _unpack_old_timestamp(raw: bytes, digits: int) -> tuple[int, int]:
    """Return seconds since the epoch and microseconds of a TIMESTAMP in the format of MariaDB 5.3."""
    if not digits:
        return int.from_bytes(raw, "little"), 0
    return int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:], "big") * 10 ** (6 - digits)


def _unpack_old_time(raw: bytes, digits: int) -> int:
    """Return the microseconds of a TIME in the format of MariaDB 5.3.

    Without a fraction it is the signed number hhmmss; otherwise seconds and fraction form one number, offset so that it
    is never negative.
    """
    if not digits:
        number = int.from_bytes(raw, "little", signed=True)
        size = abs(number)
        seconds = size // 10_000 * 3600 + size // 100 % 100 * 60 + size % 100
        return (-seconds if number < 0 else seconds) * 1_000_000
    return (int.from_bytes(raw, "big") - _OLD_TIME_SHIFT * int(10**digits)) * int(10 ** (6 - digits))
