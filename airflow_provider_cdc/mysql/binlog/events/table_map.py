"""Table map events: the layout of the rows that follow, compared with the table's definition.

The event always contains the type and size of each column; ``table_metadata`` parses its optional content. All of it
must match the captured schema, because rows decoded with a wrong layout would yield wrong values. A mismatch is an
error for the table. Nullability is not compared: rows mark their own NULLs, and a NULL in a column that does not allow
it is an error for the table at that value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import ADDRESS_TYPES, GEOMETRY_TYPES, Column, TableSchema
from airflow_provider_cdc.mysql.binlog.events.table_metadata import MetadataMismatch, compare_metadata
from airflow_provider_cdc.mysql.binlog.events.wire_types import (
    BIT,
    BLOB,
    BLOB_COMPRESSED,
    DATE,
    DATETIME,
    DATETIME2,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INT24,
    JSON,
    LONG,
    LONGLONG,
    NEWDATE,
    NEWDECIMAL,
    SET,
    SHORT,
    STRING,
    TIME,
    TIME2,
    TIMESTAMP,
    TIMESTAMP2,
    TINY,
    VAR_STRING,
    VARCHAR,
    VARCHAR_COMPRESSED,
    VECTOR,
    YEAR,
    WireColumn,
    read_length_encoded,
)
from airflow_provider_cdc.mysql.client.charsets import CharsetDecoders
from airflow_provider_cdc.mysql.client.collations import Collations

_ONE_BYTE_META = frozenset({FLOAT, DOUBLE, BLOB, BLOB_COMPRESSED, JSON, GEOMETRY, VECTOR, TIMESTAMP2, DATETIME2, TIME2})
_TWO_BYTE_META = frozenset({VARCHAR, VARCHAR_COMPRESSED, BIT, NEWDECIMAL, VAR_STRING, STRING, ENUM, SET})
_NO_META = frozenset({TINY, SHORT, LONG, LONGLONG, INT24, DATE, NEWDATE, YEAR, TIMESTAMP, TIME, DATETIME})

_WIRE_TYPES = {
    "tinyint": TINY,
    "smallint": SHORT,
    "mediumint": INT24,
    "int": LONG,
    "bigint": LONGLONG,
    "decimal": NEWDECIMAL,
    "float": FLOAT,
    "double": DOUBLE,
    "char": STRING,
    "binary": STRING,
    "varchar": VARCHAR,
    "varbinary": VARCHAR,
    "date": DATE,
    "datetime": DATETIME2,
    "timestamp": TIMESTAMP2,
    "time": TIME2,
    "year": YEAR,
    "enum": ENUM,
    "set": SET,
    "bit": BIT,
    "json": JSON,
    "vector": VECTOR,
    **dict.fromkeys(sorted(GEOMETRY_TYPES), GEOMETRY),
    **dict.fromkeys(ADDRESS_TYPES, STRING),
}
#: Size of the length field of BLOB and TEXT types, in bytes.
_BLOB_LENGTH_SIZES = {"tiny": 1, "": 2, "medium": 3, "long": 4}
#: Types of MariaDB 5.3, whose table map does not contain the number of fractional digits.
OLD_TEMPORAL_TYPES = {"timestamp": TIMESTAMP, "time": TIME, "datetime": DATETIME}
_TYPE_NAMES = {wire: name for name, wire in _WIRE_TYPES.items()} | {
    BLOB: "text or blob",
    GEOMETRY: "geometry",
    STRING: "char or binary",
    BLOB_COMPRESSED: "compressed text or blob",
    VARCHAR_COMPRESSED: "compressed varchar or varbinary",
    **{wire: f"{name} of the old format" for name, wire in OLD_TEMPORAL_TYPES.items()},
}


@dataclass(frozen=True, eq=False)
class TableMap:
    """A captured table and the layout of its row events.

    :param schema: the captured table.
    :param columns: layout of each column, in the schema's order.
    :param member_bytes: members of ENUM and SET columns as bytes, if the server sends them. Unlike those of the
        catalog, they are exact.
    :param location: location for messages.
    """

    schema: TableSchema
    columns: tuple[WireColumn, ...]
    member_bytes: Mapping[str, tuple[bytes, ...]]
    location: str


def parse_table_map_head(body: memoryview) -> tuple[int, tuple[str, str], int]:
    """Parse the head of a table map event.

    :returns: table id, (database, table), and the offset of the columns.
    :raises IndexError: if it is cut off.
    """
    table_id = int.from_bytes(body[:6], "little")
    at = 8
    names = []
    for _ in range(2):
        size = body[at]
        names.append(bytes(body[at + 1 : at + 1 + size]).decode("utf-8", "surrogateescape"))
        at += size + 2  # the length, the name and a zero byte
    if at > len(body):
        raise IndexError
    return table_id, (names[0], names[1]), at


def parse_table_map(body: memoryview, at: int, schema: TableSchema, where: str, collations: Collations) -> TableMap:
    """Parse the columns of a table map event and compare them with the schema.

    :param body: body of the event.
    :param at: offset of the columns, from :func:`parse_table_map_head`.
    :param schema: the table that the event names.
    :param where: location for messages.
    :param collations: the server's collations.
    :raises TerminalError: if anything differs; the message names the column and both values. Also if the event is cut
        off.
    """
    try:
        count, at = read_length_encoded(body, at)
        types = bytes(body[at : at + count])
        at += count
        meta_size, at = read_length_encoded(body, at)
        meta = body[at : at + meta_size]
        at += meta_size + (count + 7) // 8  # skips the nullable columns: rows mark their own NULLs
        if at > len(body):
            raise IndexError
        if count != len(schema.columns):
            _fail_mismatch(schema, f"has {count} columns in the binlog and {len(schema.columns)} in the catalog", where)
        columns = tuple(_parse_wire_columns(types, meta, schema, where))
        for column, wire in zip(schema.columns, columns, strict=True):
            _compare_layout(column, wire, schema, where)
        members = compare_metadata(body[at:], columns, schema, collations)
    except MetadataMismatch as error:
        _fail_mismatch(schema, str(error), where)
    except (IndexError, ValueError):
        message = f"cut off table map of {schema.label} at {where}"
        raise TerminalError.for_table(message, schema.label, place=where) from None
    return TableMap(schema, columns, members, where)


def _fail_mismatch(schema: TableSchema, text: str, where: str) -> NoReturn:
    message = (
        f"table {schema.label} {text}, at {where}: it was changed where the stream could not see it (a DDL with "
        "sql_log_bin=0, or before the start position)"
    )
    raise TerminalError.for_table(message, schema.label, place=where)


def _parse_wire_columns(types: bytes, meta: memoryview, schema: TableSchema, where: str) -> Iterator[WireColumn]:
    at = 0
    for kind, column in zip(types, schema.columns, strict=True):
        if kind in _ONE_BYTE_META:
            yield WireColumn(kind, meta[at])
            at += 1
        elif kind in _TWO_BYTE_META:
            first, second = meta[at], meta[at + 1]
            at += 2
            if kind == NEWDECIMAL:
                yield WireColumn(kind, precision=first, scale=second)
            elif kind in (STRING, ENUM, SET) and first in (ENUM, SET):
                yield WireColumn(first, second)
            elif kind == STRING:
                # Lengths above 255 use two bits of the type byte, inverted.
                yield WireColumn(kind, second | ((first & 0x30) ^ 0x30) << 4)
            else:
                yield WireColumn(kind, first | second << 8)
        elif kind in _NO_META:
            yield WireColumn(kind)
        else:
            _fail_mismatch(schema, f"has a column {column.name} of the unknown type {kind} in the binlog", where)


def _expected_layout(column: Column, mariadb_vector: bool) -> WireColumn:
    kind = column.data_type
    for suffix in ("text", "blob"):
        if kind.endswith(suffix):
            return WireColumn(
                BLOB_COMPRESSED if column.is_compressed else BLOB, _BLOB_LENGTH_SIZES[kind.removesuffix(suffix)]
            )
    if column.has_old_temporal_format:
        return WireColumn(OLD_TEMPORAL_TYPES[kind])
    wire = VARCHAR if mariadb_vector else _WIRE_TYPES[kind]
    if column.is_compressed:  # one more byte, for the compression method
        return WireColumn(VARCHAR_COMPRESSED, (column.octets or 0) + 1)
    if kind in ADDRESS_TYPES:
        return WireColumn(wire, ADDRESS_TYPES[kind])
    if wire == NEWDECIMAL:
        return WireColumn(wire, precision=column.precision or 10, scale=column.scale or 0)
    if wire in (DATETIME2, TIMESTAMP2, TIME2):
        return WireColumn(wire, column.fsp)
    if wire in (STRING, VARCHAR):
        return WireColumn(wire, column.octets or 0)
    if wire == BIT:  # bits of the odd byte, whole bytes
        return WireColumn(wire, (column.precision or 1) % 8 | (column.precision or 1) // 8 << 8)
    if wire == SET:
        return WireColumn(wire, next(size for size in (1, 2, 3, 4, 8) if len(column.members) <= 8 * size))
    sizes = {FLOAT: 4, DOUBLE: 8, JSON: 4, GEOMETRY: 4, VECTOR: 4, ENUM: 1 if len(column.members) < 256 else 2}
    return WireColumn(wire, sizes.get(wire, 0))


def _compare_layout(column: Column, wire: WireColumn, schema: TableSchema, where: str) -> None:
    # MariaDB logs a VECTOR as bytes.
    expected = _expected_layout(column, mariadb_vector=column.data_type == "vector" and wire.type == VARCHAR)
    if wire.type == NEWDATE:
        wire = wire._replace(type=DATE)
    if wire.type != expected.type:
        type_name = _TYPE_NAMES.get(wire.type, f"type {wire.type}")
        _fail_mismatch(
            schema,
            f"has column {column.name} as {type_name} in the binlog and {column.column_type} in the catalog",
            where,
        )
    if wire != expected:
        text = f"{wire.precision},{wire.scale}" if wire.type == NEWDECIMAL else str(wire.size)
        _fail_mismatch(
            schema,
            f"has column {column.name} with size {text} in the binlog and {column.column_type} in the catalog",
            where,
        )


def _as_catalog(member: str) -> str:
    """Return a member as the catalog shows it: in three-byte UTF-8, with question marks for other characters."""
    return "".join(c if c <= "\uffff" else "?" for c in member)


def with_exact_members(column: Column, table: TableMap, decoders: CharsetDecoders) -> Column:
    """Return an ENUM or SET column with the exact members of the table map in place of the catalog's.

    :param decoders: text decoders.
    :raises TerminalError: if the members differ, or if those of the catalog may be inexact and the table map has none.
    """
    schema, kind, member_bytes = table.schema, column.data_type.upper(), table.member_bytes.get(column.name)
    if member_bytes is None:
        if any("?" in m for m in column.members):
            raise TerminalError.for_table(
                f"a member of {kind} column {column.name} of {schema.label} has a question mark in the catalog, which "
                f"may stand for a character that the catalog cannot store, and the binlog does not contain the members "
                f"at {table.location}",
                schema.label,
                place=table.location,
                first="SET PERSIST binlog_row_metadata = 'FULL' on the server",
            )
        return column
    decode = decoders[column.charset or "utf8mb4"]
    try:
        members = tuple(decode(member) for member in member_bytes)
    except UnicodeDecodeError:
        members = ()
    if tuple(_as_catalog(m) for m in members) != column.members:
        binlog_members = ", ".join(member.decode("utf-8", "backslashreplace") for member in member_bytes)
        known = ", ".join(column.members)
        _fail_mismatch(
            schema,
            f"has other {kind} members in the binlog for column {column.name}: ({binlog_members}), and ({known}) in "
            "the catalog",
            table.location,
        )
    return column.replace(members=members)
