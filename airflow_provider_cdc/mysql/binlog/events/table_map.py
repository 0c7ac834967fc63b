"""The table map event: how the rows that follow it are laid out, compared with what is known of the table.

The event always tells type and size of each column, and mostly signedness; with ``binlog_row_metadata=FULL`` also
names and the members of ENUM and SET columns. Whatever it tells must agree with the captured schema, or the stream
stops: rows decoded with a wrong layout would be wrong values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

from airflow_provider_cdc.core.schema import ADDRESS_TYPES, GEOMETRY_TYPES, INTEGER_TYPES, Column, TableSchema
from airflow_provider_cdc.exceptions import REPORT, TerminalError
from airflow_provider_cdc.mysql.server.charsets import Decoders

# Column types of the binlog.
TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT = 10, 11, 12, 13, 14, 15, 16
TIMESTAMP2, DATETIME2, TIME2, VECTOR, JSON, NEWDECIMAL = 17, 18, 19, 242, 245, 246
ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 247, 248, 252, 253, 254, 255
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141  # MariaDB

_ONE_BYTE_META = frozenset({FLOAT, DOUBLE, BLOB, BLOB_COMPRESSED, JSON, GEOMETRY, VECTOR, TIMESTAMP2, DATETIME2, TIME2})
_TWO_BYTE_META = frozenset({VARCHAR, VARCHAR_COMPRESSED, BIT, NEWDECIMAL, VAR_STRING, STRING, ENUM, SET})
_NO_META = frozenset({TINY, SHORT, LONG, LONGLONG, INT24, DATE, NEWDATE, YEAR, TIMESTAMP, TIME, DATETIME})
_HAS_SIGN = frozenset({TINY, SHORT, LONG, LONGLONG, INT24, YEAR, NEWDECIMAL, FLOAT, DOUBLE})
_META_SIGNEDNESS, _META_NAMES, _META_SET, _META_ENUM = 1, 4, 5, 6

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
#: BLOB and TEXT types by the size of their length field, in bytes.
_BLOBS = {"tiny": 1, "": 2, "medium": 3, "long": 4}
#: Types of MariaDB 5.3, whose table map does not tell the digits of a fraction.
OLD_TYPES = {"timestamp": TIMESTAMP, "time": TIME, "datetime": DATETIME}
_TYPE_NAMES = {wire: name for name, wire in _WIRE_TYPES.items()} | {
    BLOB: "text or blob",
    GEOMETRY: "geometry",
    STRING: "char or binary",
    BLOB_COMPRESSED: "compressed text or blob",
    VARCHAR_COMPRESSED: "compressed varchar or varbinary",
    **{wire: f"{name} of the old format" for name, wire in OLD_TYPES.items()},
}

REMEDY = (
    "the table was changed where the stream could not see it (a DDL with sql_log_bin=0, or before the start position): "
    "to take the new definition, start with a fresh sink.path and run again"
)


class WireColumn(NamedTuple):
    """A column as the binlog lays it out.

    :param type: column type code, ENUM and SET already told from STRING.
    :param size: by type: most bytes of a string, bytes of a length field, fractional digits, bytes of an ENUM or SET,
        bits of a BIT.
    :param precision: digits of a decimal.
    :param scale: digits behind its point.
    """

    type: int
    size: int = 0
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, eq=False)
class TableMap:
    """A captured table and the layout of its row events.

    :param schema: the captured table.
    :param columns: layout of each column, in the schema's order.
    :param members: the bytes of the members of ENUM and SET columns, if the server tells them: exact, unlike those of
        the catalog.
    :param where: place for messages.
    """

    schema: TableSchema
    columns: tuple[WireColumn, ...]
    members: Mapping[str, tuple[bytes, ...]]
    where: str


def table_of(body: memoryview) -> tuple[int, tuple[str, str], int]:
    """The head of a table map event: table id, (database, table), and where the columns begin."""
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


def read_table_map(body: memoryview, at: int, schema: TableSchema, where: str) -> TableMap:
    """Read the columns of a table map event and compare them with the schema.

    :param body: the event.
    :param at: where the columns begin, from :func:`table_of`.
    :param schema: the table that is named in it.
    :param where: place for messages.
    :raises TerminalError: if anything differs; the message names the column.
    """
    try:
        count, at = packed_int(body, at)
        types = bytes(body[at : at + count])
        at += count
        meta_size, at = packed_int(body, at)
        meta = body[at : at + meta_size]
        at += meta_size + (count + 7) // 8  # nullable columns: rows say for themselves what is NULL
        if at > len(body):
            raise IndexError
        if count != len(schema.columns):
            _differs(schema, f"has {count} columns in the binlog and {len(schema.columns)} in the catalog", where)
        columns = tuple(_wire_columns(types, meta, schema, where))
        for column, wire in zip(schema.columns, columns, strict=True):
            _compare_layout(column, wire, schema, where)
        members = _compare_metadata(body[at:], columns, schema, where)
    except (IndexError, ValueError):
        raise TerminalError(f"cut off table map of {schema.label} at {where}", REPORT) from None
    return TableMap(schema, columns, members, where)


def packed_int(body: memoryview, at: int) -> tuple[int, int]:
    """A length-encoded integer and the offset behind it."""
    first = body[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first] if first in (252, 253, 254) else 0
    if not size or at + 1 + size > len(body):
        raise IndexError
    return int.from_bytes(body[at + 1 : at + 1 + size], "little"), at + 1 + size


def _differs(schema: TableSchema, text: str, where: str) -> NoReturn:
    raise TerminalError(f"table {schema.label} {text}, at {where}", REMEDY, table=schema.label)


def _wire_columns(types: bytes, meta: memoryview, schema: TableSchema, where: str) -> Iterator[WireColumn]:
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
                # Lengths above 255 borrow two bits of the type byte, upside down.
                yield WireColumn(kind, second | ((first & 0x30) ^ 0x30) << 4)
            else:
                yield WireColumn(kind, first | second << 8)
        elif kind in _NO_META:
            yield WireColumn(kind)
        else:
            _differs(schema, f"has a column {column.name} of the unknown type {kind} in the binlog", where)


def _expected(column: Column, mariadb_vector: bool) -> WireColumn:
    kind = column.data_type
    for suffix in ("text", "blob"):
        if kind.endswith(suffix):
            return WireColumn(BLOB_COMPRESSED if column.compressed else BLOB, _BLOBS[kind.removesuffix(suffix)])
    if column.old_format:
        return WireColumn(OLD_TYPES[kind])
    wire = VARCHAR if mariadb_vector else _WIRE_TYPES[kind]
    if column.compressed:  # a byte in front tells how
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
    # One of MariaDB is logged as bytes.
    expected = _expected(column, mariadb_vector=column.data_type == "vector" and wire.type == VARCHAR)
    if wire.type == NEWDATE:
        wire = wire._replace(type=DATE)
    if wire.type != expected.type:
        found = _TYPE_NAMES.get(wire.type, f"type {wire.type}")
        _differs(
            schema, f"has column {column.name} as {found} in the binlog and {column.column_type} in the catalog", where
        )
    if wire != expected:
        text = f"{wire.precision},{wire.scale}" if wire.type == NEWDECIMAL else str(wire.size)
        _differs(
            schema,
            f"has column {column.name} with size {text} in the binlog and {column.column_type} in the catalog",
            where,
        )


def _compare_metadata(
    rest: memoryview, columns: tuple[WireColumn, ...], schema: TableSchema, where: str
) -> dict[str, tuple[bytes, ...]]:
    """Compare what the server adds by ``binlog_row_metadata``: a list of (kind, length, value).

    :return: the members of the ENUM and SET columns, if the server tells them.
    """
    at, told = 0, dict[str, tuple[bytes, ...]]()
    while at < len(rest):
        kind = rest[at]
        size, at = packed_int(rest, at + 1)
        value = rest[at : at + size]
        at += size
        if at > len(rest):
            raise IndexError
        if kind == _META_SIGNEDNESS:
            signed = [c for c, wire in zip(schema.columns, columns, strict=True) if wire.type in _HAS_SIGN]
            for i, column in enumerate(signed):
                unsigned = bool(value[i // 8] & 0x80 >> i % 8)
                if column.data_type in INTEGER_TYPES and unsigned != column.unsigned:
                    word = "unsigned" if unsigned else "signed"
                    _differs(schema, f"has column {column.name} {word} in the binlog, not in the catalog", where)
        elif kind == _META_NAMES:
            for column, name in zip(schema.columns, _strings(value), strict=True):
                if name != column.name:
                    _differs(schema, f"has column {column.name} under the name {name} in the binlog", where)
        elif kind in (_META_ENUM, _META_SET):
            wanted = ENUM if kind == _META_ENUM else SET
            lists = [c for c, wire in zip(schema.columns, columns, strict=True) if wire.type == wanted]
            told.update((c.name, members) for c, members in zip(lists, _members(value), strict=True))
    return told


def _as_catalog(member: str) -> str:
    """The catalog keeps its texts in three-byte UTF-8: characters beyond are a question mark there."""
    return "".join(c if c <= "\uffff" else "?" for c in member)


def with_members(column: Column, table: TableMap, texts: Decoders) -> Column:
    """An ENUM or SET column with the members of the event, which are exact, in place of the catalog's.

    :param texts: how text is decoded.
    :raises TerminalError: if the members differ, or if the catalog's may be inexact and there are no others.
    """
    schema, kind, told = table.schema, column.data_type.upper(), table.members.get(column.name)
    if told is None:
        if any("?" in m for m in column.members):
            raise TerminalError(
                f"a member of {kind} column {column.name} of {schema.label} has a question mark in the catalog, which "
                f"may be a character that the catalog cannot hold, and the binlog does not tell its members at "
                f"{table.where}",
                "SET PERSIST binlog_row_metadata = 'FULL' on the server, then start with a fresh sink.path",
                table=schema.label,
            )
        return column
    decode = texts[column.charset or "utf8mb4"]
    try:
        members = tuple(decode(member) for member in told)
    except UnicodeDecodeError:
        members = ()
    if tuple(_as_catalog(m) for m in members) != column.members:
        _differs(schema, f"has other {kind} members in the binlog for column {column.name}", table.where)
    return replace(column, members=members)


def _strings(value: memoryview) -> Iterator[str]:
    at = 0
    while at < len(value):
        size, at = packed_int(value, at)
        yield bytes(value[at : at + size]).decode("utf-8", "surrogateescape")
        at += size


def _members(value: memoryview) -> Iterator[tuple[bytes, ...]]:
    at = 0
    while at < len(value):
        count, at = packed_int(value, at)
        members = []
        for _ in range(count):
            size, at = packed_int(value, at)
            members.append(bytes(value[at : at + size]))
            at += size
        yield tuple(members)
