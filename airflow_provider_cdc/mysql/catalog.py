"""Which tables are captured and what they look like, as ``information_schema`` says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.core.schema import KEY_TYPES, META_COLUMNS, Column, TableSchema
from airflow_provider_cdc.exceptions import NotReadyError
from airflow_provider_cdc.mysql.keys import text_literal
from airflow_provider_cdc.mysql.session import rows

_SYSTEM = "('mysql', 'sys', 'information_schema', 'performance_schema')"
_MEMBER = re.compile(r"'((?:[^']|'')*)'")
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\0": "\0", "''": "'"}


def find_tables(connection: Connection[Any], captures: Callable[[str, str], bool]) -> list[tuple[str, str, str]]:
    """Base tables that a pipeline captures: (database, table, engine), in name order.

    :param captures: the pipeline's patterns, see :meth:`Pipeline.captures`.
    """
    listed = rows(
        connection,
        "SELECT table_schema, table_name, engine FROM information_schema.tables "
        f"WHERE table_type = 'BASE TABLE' AND table_schema NOT IN {_SYSTEM} ORDER BY table_schema, table_name",
    )
    return [(str(d), str(t), str(e)) for d, t, e in listed if captures(str(d), str(t))]


def read_schema(connection: Connection[Any], database: str, table: str, engine: str = "InnoDB") -> TableSchema:
    """Schema of one table, refused by name and with the remedy if it cannot be copied exactly.

    :raises NotReadyError: for an unsupported engine, column type or key.
    """
    label = f"{database}.{table}"
    if engine != "InnoDB":
        raise NotReadyError(
            f"table {label} uses engine {engine}", "Only InnoDB can be read at a watermark: convert it or exclude it"
        )
    columns = _columns(connection, database, table)
    if not columns:
        raise NotReadyError(f"table {label} is gone", "Plan again, or exclude it")
    for column in columns:
        reason = column.refusal()
        if reason:
            raise NotReadyError(f"table {label}, column {column.name}: {reason}", "Exclude the table in source.exclude")
        if column.name in META_COLUMNS or column.name.startswith("_cdc_"):
            raise NotReadyError(
                f"table {label}, column {column.name}: the prefix _cdc_ is used in the sink", "Rename the column"
            )
    lowered = [c.name.lower() for c in columns]
    if len(set(lowered)) != len(lowered):
        raise NotReadyError(f"table {label} has two columns that differ in case only", "Rename one")
    return TableSchema(database, table, columns, _key(connection, database, table, columns))


def _columns(connection: Connection[Any], database: str, table: str) -> tuple[Column, ...]:
    listed = rows(
        connection,
        "SELECT column_name, data_type, column_type, is_nullable, character_maximum_length, character_octet_length, "
        "character_set_name, collation_name, numeric_precision, numeric_scale, datetime_precision "
        "FROM information_schema.columns "
        f"WHERE table_schema = {text_literal(database)} AND table_name = {text_literal(table)} "
        "ORDER BY ordinal_position",
    )
    found = []
    for name, kind, full, nullable, length, octets, charset, collation, precision, scale, fsp in listed:
        data_type = str(kind).lower()
        # Only digits and members matter below; ZEROFILL and display widths change nothing about a value.
        members = tuple(_unescape(m) for m in _MEMBER.findall(str(full))) if data_type == "enum" else ()
        found.append(
            Column(
                name=str(name),
                data_type=data_type,
                column_type=str(full),
                nullable=nullable == "YES",
                length=_int(length),
                octets=_int(octets),
                charset=charset,
                collation=collation,
                precision=_int(precision) if data_type == "decimal" else None,
                scale=_int(scale) if data_type == "decimal" else None,
                fsp=_int(fsp) or 0,
                members=members,
            )
        )
    return tuple(found)


def _key(connection: Connection[Any], database: str, table: str, columns: tuple[Column, ...]) -> tuple[str, ...]:
    label = f"{database}.{table}"
    listed = rows(
        connection,
        "SELECT index_name, column_name, sub_part, is_visible FROM information_schema.statistics "
        f"WHERE table_schema = {text_literal(database)} AND table_name = {text_literal(table)} AND non_unique = 0 "
        "ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index",
    )
    by_name = {c.name: c for c in columns}
    indexes: dict[str, list[tuple[str | None, str | None, str | None]]] = {}
    for index, column, part, visible in listed:
        indexes.setdefault(str(index), []).append((column, part, visible))
    reasons = []
    for index, parts in indexes.items():
        reason = _unusable(parts, by_name)
        if reason is None:
            return tuple(str(column) for column, _, _ in parts)
        reasons.append(f"{index}: {reason}")
    raise NotReadyError(
        f"table {label} has no usable key" + (f" ({'; '.join(reasons)})" if reasons else ""),
        "Add a primary key (or a NOT NULL unique key) of integers, decimals, strings, binaries or dates, or exclude it",
    )


def _unusable(parts: list[tuple[str | None, str | None, str | None]], columns: dict[str, Column]) -> str | None:
    for name, part, visible in parts:
        if name is None:
            return "an expression"
        column = columns[name]
        if part is not None:
            return f"only a prefix of {name} is indexed"
        if column.nullable:
            return f"{name} may be NULL"
        if visible == "NO":
            return "the index is invisible"
        if column.data_type not in KEY_TYPES:
            return f"{name} is of type {column.data_type}"
    return None


def _unescape(member: str) -> str:
    return re.sub(r"\\[\\nr0]|''", lambda m: _ESCAPES[m[0]], member)


def _int(text: str | None) -> int | None:
    return None if text is None else int(text)
