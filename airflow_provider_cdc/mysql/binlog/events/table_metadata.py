"""Compare the optional metadata of a table map with the definition in force.

It contains signs, character sets, geometry types and vector dimensions, and with ``binlog_row_metadata=FULL`` also
column names, members of ENUM and SET columns, the primary key, and column visibility. Visibility is not compared: it
does not affect rows, and definitions do not include it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_cdc.model.schema import INTEGER_TYPES, MEMBER_TYPES, TEXT_TYPES, Column, TableSchema
from airflow_provider_cdc.mysql.binlog.events.wire_types import (
    BLOB,
    BLOB_COMPRESSED,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INT24,
    LONG,
    LONGLONG,
    NEWDECIMAL,
    SET,
    SHORT,
    STRING,
    TINY,
    VAR_STRING,
    VARCHAR,
    VARCHAR_COMPRESSED,
    VECTOR,
    YEAR,
    WireColumn,
    read_length_encoded,
)
from airflow_provider_cdc.mysql.client.collations import Collations, canonical_charset

_SIGNS, _CHARSET, _CHARSETS, _NAMES, _SET_MEMBERS, _ENUM_MEMBERS, _GEOMETRIES = 1, 2, 3, 4, 5, 6, 7
_KEY, _KEY_OF_PREFIXES, _MEMBERS_CHARSET, _MEMBERS_CHARSETS, _DIMENSIONS = 8, 9, 10, 11, 13

_HAS_SIGN = frozenset({TINY, SHORT, LONG, LONGLONG, INT24, YEAR, NEWDECIMAL, FLOAT, DOUBLE})
_SIGNED_TYPES = INTEGER_TYPES | {"decimal", "float", "double"}
#: Types of columns that are listed with a collation, which is ``binary`` for those without text.
_HAS_COLLATION = frozenset({STRING, VAR_STRING, VARCHAR, BLOB, VECTOR})
_HAS_COLLATION_ON_MARIADB = _HAS_COLLATION | {GEOMETRY, BLOB_COMPRESSED, VARCHAR_COMPRESSED}
_HAS_MEMBERS = frozenset({ENUM, SET})
#: Geometry types by number; the last one has two names.
_GEOMETRY_NAMES = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
)


class MetadataMismatch(Exception):
    """A table map differs from the definition; the text names both values."""


def compare_metadata(
    rest: memoryview, columns: Sequence[WireColumn], schema: TableSchema, collations: Collations
) -> dict[str, tuple[bytes, ...]]:
    """Compare the optional metadata of a table map with the schema.

    :param rest: the metadata, a list of (kind, length, value).
    :param columns: layout of the columns.
    :returns: members of the ENUM and SET columns by column name, if present; they are not compared, because they are
        not decoded yet.
    :raises MetadataMismatch: if anything else differs.
    :raises IndexError, ValueError: if the list is cut off.
    """

    def of(types: frozenset[int]) -> list[Column]:
        return [column for column, wire in zip(schema.columns, columns, strict=True) if wire.type in types]

    fields = dict(_parse_fields(rest))
    for kind, value in fields.items():
        if kind == _SIGNS:
            _compare_signs(value, of(_HAS_SIGN))
        elif kind in (_CHARSET, _CHARSETS):
            text_columns = of(_HAS_COLLATION_ON_MARIADB if collations.mariadb else _HAS_COLLATION)
            _compare_charsets(value, kind == _CHARSET, text_columns, collations)
        elif kind in (_MEMBERS_CHARSET, _MEMBERS_CHARSETS):
            _compare_charsets(value, kind == _MEMBERS_CHARSET, of(_HAS_MEMBERS), collations)
        elif kind == _NAMES:
            for column, name in zip(schema.columns, _parse_strings(value), strict=True):
                if name != column.name:
                    raise MetadataMismatch(f"has column {column.name} under the name {name} in the binlog")
        elif kind == _GEOMETRIES:
            for column, number in zip(of(frozenset({GEOMETRY})), _parse_numbers(value), strict=True):
                _check_equal(column, _GEOMETRY_NAMES[number], column.data_type.replace("geomcoll", "geometrycoll"))
        elif kind == _DIMENSIONS:
            for column, number in zip(of(frozenset({VECTOR})), _parse_numbers(value), strict=True):
                _check_equal(column, f"vector({number})", column.column_type)
    if _NAMES in fields and schema.key_index == "PRIMARY":  # else the server may choose another index as the key
        _compare_key(fields.get(_KEY), fields.get(_KEY_OF_PREFIXES), schema)
    members = dict[str, tuple[bytes, ...]]()
    for kind, wanted in ((_ENUM_MEMBERS, ENUM), (_SET_MEMBERS, SET)):
        if kind in fields:
            lists = zip(of(frozenset({wanted})), _parse_members(fields[kind]), strict=True)
            members |= {column.name: texts for column, texts in lists}
    return members


def _check_equal(column: Column, in_binlog: str, in_catalog: str) -> None:
    if in_binlog != in_catalog:
        raise MetadataMismatch(f"has column {column.name} as {in_binlog} in the binlog and {in_catalog} in the catalog")


def _compare_signs(value: memoryview, columns: Sequence[Column]) -> None:
    for i, column in enumerate(columns):
        unsigned = bool(value[i // 8] & 0x80 >> i % 8)
        if column.data_type in _SIGNED_TYPES and unsigned != column.is_unsigned:
            words = ("unsigned", "signed") if unsigned else ("signed", "unsigned")
            _check_equal(column, *words)


def _compare_charsets(value: memoryview, is_default: bool, columns: Sequence[Column], collations: Collations) -> None:
    """Compare character sets: a default followed by pairs of column index and exception, or one for each column."""
    numbers = list(_parse_numbers(value))
    if is_default:
        pairs = numbers[1:]
        others = dict(zip(pairs[::2], pairs[1::2], strict=True))
        numbers = [others.pop(i, numbers[0]) for i in range(len(columns))]
        if others:  # these columns do not exist
            raise IndexError
    for column, number in zip(columns, numbers, strict=True):
        has_text = column.data_type in TEXT_TYPES | MEMBER_TYPES
        known = canonical_charset(str(column.charset)) if has_text else "binary"
        if (charset := collations.charset_of(number)) != known:
            raise MetadataMismatch(
                f"has column {column.name} in character set {charset} in the binlog and {known} in the catalog"
            )


def _compare_key(whole: memoryview | None, prefixes: memoryview | None, schema: TableSchema) -> None:
    numbers = list(_parse_numbers(whole or memoryview(b"")))
    parts = [(number, 0) for number in numbers]
    if prefixes is not None:
        numbers = list(_parse_numbers(prefixes))
        parts = list(zip(numbers[::2], numbers[1::2], strict=True))
    key_in_binlog = [schema.columns[number].name + (f"({size})" if size else "") for number, size in parts]
    if key_in_binlog != [*schema.key]:
        raise MetadataMismatch(
            f"has the primary key ({', '.join(key_in_binlog)}) in the binlog and ({', '.join(schema.key)}) in the "
            "catalog"
        )


def _parse_fields(rest: memoryview) -> Iterator[tuple[int, memoryview]]:
    at = 0
    while at < len(rest):
        kind = rest[at]
        size, at = read_length_encoded(rest, at + 1)
        value = rest[at : at + size]
        at += size
        if at > len(rest):
            raise IndexError
        yield kind, value


def _parse_numbers(value: memoryview) -> Iterator[int]:
    at = 0
    while at < len(value):
        number, at = read_length_encoded(value, at)
        yield number


def _parse_strings(value: memoryview) -> Iterator[str]:
    at = 0
    while at < len(value):
        size, at = read_length_encoded(value, at)
        yield bytes(value[at : at + size]).decode("utf-8", "surrogateescape")
        at += size


def _parse_members(value: memoryview) -> Iterator[tuple[bytes, ...]]:
    at = 0
    while at < len(value):
        count, at = read_length_encoded(value, at)
        members = []
        for _ in range(count):
            size, at = read_length_encoded(value, at)
            members.append(bytes(value[at : at + size]))
            at += size
        yield tuple(members)
