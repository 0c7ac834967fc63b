"""The captured tables and their definitions, read from ``information_schema``."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from itertools import count, islice
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.ddl.column_names import column_name_problem
from airflow_provider_cdc.model.errors import NotReadyError, TableAlteredError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.schema import HIDDEN_SUFFIX, KEY_TYPES, MEMBER_TYPES, Column, TableSchema
from airflow_provider_cdc.mysql.client.identity import is_mariadb
from airflow_provider_cdc.mysql.client.key_sql import text_literal
from airflow_provider_cdc.mysql.client.session import query_rows, query_value

ALTERED_REMEDY = "Start with a fresh sink.path (or remove the old one) and run again"
_SYSTEM = "('mysql', 'sys', 'information_schema', 'performance_schema')"
_QUOTED_MEMBER = re.compile(r"'((?:[^']|'')*)'")
#: Returns the definition of a table with what the copy has of it: its columns, their policies, the condition.
ApplyRules = Callable[[TableSchema], TableSchema]
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\0": "\0", "''": "'"}


def read_captured_schemas(
    connection: Connection[Any], captures: Callable[[str, str], bool], apply_rules: ApplyRules
) -> list[TableSchema]:
    """Return the schemas of all captured tables.

    :param apply_rules: as for :func:`read_schema`.
    :raises NotReadyError: if no table matches, or a table cannot be copied exactly.
    """
    tables = find_tables(connection, captures)
    if not tables:
        raise NotReadyError(
            "no table matches source.tables",
            "Check the patterns (anchored, database.table) and that the user has SELECT on the tables",
        )
    return [read_schema(connection, database, table, engine, apply_rules) for database, table, engine in tables]


def find_tables(connection: Connection[Any], captures: Callable[[str, str], bool]) -> list[tuple[str, str, str]]:
    """Return (database, table, engine) of the base tables that a pipeline captures, ordered by name.

    :param captures: whether a (database, table) is captured; see
        :meth:`airflow_provider_cdc.config.pipeline.Pipeline.captures`.
    """
    tables = query_rows(
        connection,
        # Row events of a system-versioned table (MariaDB) contain more than SELECT shows: this "engine" is rejected.
        "SELECT table_schema, table_name, IF(table_type = 'BASE TABLE', engine, 'system versioning') "
        f"FROM information_schema.tables WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') "
        f"AND table_schema NOT IN {_SYSTEM} ORDER BY table_schema, table_name",
    )
    return [(str(d), str(t), str(e)) for d, t, e in tables if captures(str(d), str(t))]


def list_columns(connection: Connection[Any], tables: Collection[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield database, table and name of each column of some tables.

    :param tables: database and name of each.
    """
    databases = ", ".join(sorted({text_literal(database) for database, _ in tables}))
    if not databases:
        return
    for database, table, column in query_rows(
        connection,
        f"SELECT table_schema, table_name, column_name FROM information_schema.columns WHERE table_schema IN "
        f"({databases})",
    ):
        if (str(database), str(table)) in tables:
            yield str(database), str(table), str(column)


def current_fingerprint(connection: Connection[Any], table: TableSchema) -> str:
    """Return the fingerprint of a captured table as it is now, with the rules that its copy had before."""
    return read_schema(
        connection, table.database, table.name, apply_rules=lambda current: current.with_rules_of(table)
    ).fingerprint()


def read_schema(
    connection: Connection[Any],
    database: str,
    table: str,
    engine: str = "InnoDB",
    apply_rules: ApplyRules = lambda table: table.select_columns(lambda _: True),
) -> TableSchema:
    """Return the schema of one table.

    :param apply_rules: returns the definition of a table with what the copy has of it; by default, all columns.
    :returns: the schema, with an empty ``key`` if the table has no usable key.
    :raises NotReadyError: if the table cannot be copied exactly, such as for an unsupported engine or column type.
    """
    label = f"{database}.{table}"
    if engine != "InnoDB":
        raise NotReadyError(
            f"table {label} uses engine {engine}",
            "Only InnoDB tables can be read at a watermark: convert the table or exclude it",
        )
    columns, comments = _read_columns(connection, database, table)
    if not columns:
        raise NotReadyError(f"table {label} no longer exists", "Plan again, or exclude it")
    for column in columns:
        reason = column.unsupported_reason()
        if reason:
            raise NotReadyError(f"table {label}, column {column.name}: {reason}", "Exclude the table in source.exclude")
    indexes = _unique_indexes(connection, database, table)
    zoned = _time_zone_dependent(connection, database, table, columns)
    index, key, _ = _choose_key(indexes, columns, zoned)
    columns += _hidden_columns(indexes, columns)
    schema = apply_rules(TableSchema(database, table, columns, key, key_index=index, comments=comments))
    if not schema.copied_columns:
        raise NotReadyError(
            f"table {label} has no usable key, and none of its columns is copied",
            "Copy some columns (source.include_columns, source.exclude_columns), or exclude the table",
        )
    for column in schema.read_columns:
        if column.name in zoned:
            raise NotReadyError(
                f"table {label}, column {column.name}: it is VIRTUAL, and its value depends on the session's time "
                "zone: the snapshot would contain it in UTC, and the binlog in the time zone of each writer",
                "Leave it out with source.exclude_columns, make it STORED, or name the zone: CAST(... AT TIME ZONE "
                "'+00:00' AS DATETIME)",
            )
    if wrong := column_name_problem(schema):
        raise NotReadyError(f"table {label}, {wrong[0]}", wrong[1])
    return schema.replace(collation=_table_collation(connection, database, table))


def _table_collation(connection: Connection[Any], database: str, table: str) -> str | None:
    return query_value(
        connection,
        "SELECT table_collation FROM information_schema.tables "
        f"WHERE table_schema = {text_literal(database)} AND table_name = {text_literal(table)}",
    )


def check_same_definition(connection: Connection[Any], table: TableSchema, at: Position) -> None:
    """Check that a table still has the definition that it was planned with.

    :param at: position up to which the binlog is known, for the message.
    :raises TableAlteredError: if the definition has changed.
    """
    if current_fingerprint(connection, table) != table.fingerprint():
        raise table_altered_error(table, f"at or before {at}", at)


def table_altered_error(table: TableSchema, where_seen: str, at: Position) -> TableAlteredError:
    """Return the error for a table that no longer has the definition that it was planned with.

    :param where_seen: where and how the change was noticed.
    """
    message = f"table {table.label} was altered while it was read, {where_seen}"
    return TableAlteredError(message, ALTERED_REMEDY, table=table.label, place=str(at))


def _read_columns(
    connection: Connection[Any], database: str, table: str
) -> tuple[tuple[Column, ...], tuple[tuple[str, str], ...]]:
    """Return the columns of a table, and (column, comment) of those with a comment."""
    catalog_rows = query_rows(
        connection,
        "SELECT column_name, data_type, column_type, is_nullable, character_maximum_length, character_octet_length, "
        "character_set_name, collation_name, numeric_precision, numeric_scale, datetime_precision, column_comment "
        "FROM information_schema.columns "
        f"WHERE table_schema = {text_literal(database)} AND table_name = {text_literal(table)} "
        "ORDER BY ordinal_position",
    )
    columns, comments = [], []
    for name, kind, full, nullable, length, octets, charset, collation, precision, scale, fsp, comment in catalog_rows:
        if comment:
            comments.append((str(name), str(comment)))
        data_type = str(kind).lower()
        # Only digits and members matter below: ZEROFILL and display widths do not change a value.
        members = tuple(_unescape(m) for m in _QUOTED_MEMBER.findall(str(full))) if data_type in MEMBER_TYPES else ()
        columns.append(
            Column(
                name=str(name),
                data_type=data_type,
                column_type=str(full),
                nullable=nullable == "YES",
                length=_int_or_none(length),
                octets=_int_or_none(octets),
                charset=charset,
                collation=collation,
                precision=_int_or_none(precision) if data_type in ("decimal", "bit") else None,
                scale=_int_or_none(scale) if data_type == "decimal" else None,
                fsp=_int_or_none(fsp) or 0,
                members=members,
            )
        )
    return tuple(columns), tuple(comments)


def _time_zone_dependent(
    connection: Connection[Any], database: str, table: str, columns: tuple[Column, ...]
) -> frozenset[str]:
    """Return the names of generated columns whose values depend on the time zone of the session that reads them.

    Stored columns do not: their values were computed once, by the session that wrote them.
    """
    catalog_rows = query_rows(
        connection,
        "SELECT column_name, generation_expression FROM information_schema.columns "
        f"WHERE table_schema = {text_literal(database)} AND table_name = {text_literal(table)} "
        "AND extra LIKE '%VIRTUAL GENERATED%' ORDER BY ordinal_position",
    )
    moments, dependent = {c.name for c in columns if c.data_type == "timestamp"}, set[str]()
    for name, expression in catalog_rows:  # a column that is computed from another comes after it
        text = str(expression).lower()
        for moment in moments - dependent:  # UNIX_TIMESTAMP(column) and column AT TIME ZONE are the same everywhere
            quoted = re.escape(_lower_quoted(moment))
            text = re.sub(rf"unix_timestamp\({quoted}\)|{quoted} at time zone", "", text)
        calls = re.search(r"\b(from_unixtime|unix_timestamp)\(", text)
        if name in moments or calls or any(_lower_quoted(n) in text for n in moments | dependent):
            dependent.add(str(name))
    return frozenset(dependent)


def _lower_quoted(name: str) -> str:
    return "`{}`".format(name.lower().replace("`", "``"))


def find_key_index(connection: Connection[Any], table: TableSchema) -> str:
    """Return the name of the index that is the table's key.

    :raises NotReadyError: if there is no such index any more.
    """
    for name, parts in _unique_indexes(connection, table.database, table.name).items():
        if _why_unusable(parts, {c.name: c for c in table.columns}) is None and table.key == tuple(
            c for c, *_ in parts
        ):
            return name
    raise NotReadyError(f"the key ({', '.join(table.key)}) of table {table.label} is gone", "Plan again, or exclude it")


#: For each part of an index: column, prefix length, whether the index is visible, whether it is a hash index.
_IndexParts = list[tuple[str | None, ...]]


def _unique_indexes(connection: Connection[Any], database: str, table: str) -> dict[str, _IndexParts]:
    """Return the parts of each unique index, by name. The primary key comes first."""
    visible = "IF(ignored = 'YES', 'NO', 'YES')" if is_mariadb(connection) else "is_visible"
    hashed = "index_type = 'HASH' AND index_name <> 'PRIMARY'"  # a primary key is only declared as HASH
    catalog_rows = query_rows(
        connection,
        f"SELECT index_name, column_name, sub_part, {visible}, {hashed} FROM information_schema.statistics "
        f"WHERE table_schema = {text_literal(database)} AND table_name = {text_literal(table)} AND non_unique = 0 "
        "ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index",
    )
    indexes: dict[str, _IndexParts] = {}
    for index, *part in catalog_rows:
        indexes.setdefault(str(index), []).append(tuple(part))
    return indexes


def _hidden_columns(indexes: dict[str, _IndexParts], columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the columns that MariaDB adds, one for each hash index. Only row events contain them."""
    used_names, numbers = {c.name.lower() for c in columns}, count(1)
    names = (name for n in numbers if (name := f"DB_ROW_HASH_{n}").lower() not in used_names)
    hashes = sum(1 for parts in indexes.values() if parts[0][-1] == "1")
    return tuple(Column(name, "bigint", f"bigint unsigned {HIDDEN_SUFFIX}", True) for name in islice(names, hashes))


def why_no_key(connection: Connection[Any], table: TableSchema) -> str:
    """Return why no unique index of a table is its key, in parentheses; empty if there is no unique index."""
    indexes, zoned = _unique_indexes(connection, *table.id), _time_zone_dependent(connection, *table.id, table.columns)
    reasons = _choose_key(indexes, table.columns, zoned)[2]
    return f" ({'; '.join(reasons)})" if reasons else ""


def _choose_key(
    indexes: dict[str, _IndexParts], columns: tuple[Column, ...], zoned: Collection[str]
) -> tuple[str | None, tuple[str, ...], list[str]]:
    """Return the index and columns of the first usable key, if any, and why each index before it is unusable."""
    by_name = {c.name: c for c in columns}
    reasons: list[str] = []
    for index, parts in indexes.items():
        reason = _why_unusable(parts, by_name, zoned)
        if reason is None:
            return index, tuple(str(column) for column, *_ in parts), reasons
        reasons.append(f"{index}: {reason}")
    return None, (), reasons


def _why_unusable(parts: _IndexParts, columns: dict[str, Column], zoned: Collection[str] = ()) -> str | None:
    for name, part, visible, hashed in parts:
        if hashed == "1":
            return "a hash index has no order"
        if name is None:
            return "indexes an expression"
        if (column := columns.get(name)) is None:
            return f"column {name} has just been added"
        if name in zoned:
            return f"{name} is computed in the time zone of each session"
        if part is not None:
            return f"only a prefix of {name} is indexed"
        if column.nullable:
            return f"{name} may be NULL"
        if visible == "NO":
            return "the index is invisible"
        if column.is_two_digit_year:
            return f"{name} is of type {column.column_type}, in which two values are shown as 00"
        if column.data_type not in KEY_TYPES:
            return f"{name} is of type {column.data_type}"
        if column.data_type == "char" and "_nopad_" in str(column.collation):  # MariaDB, seen with a\0 and a
            return f"CHAR in {column.collation} has another order in the index than in a comparison"
        if len(set(column.members)) < len(column.members):
            return f"two members of {name} have the same text"
        if any("?" in member for member in column.members):
            return f"a member of {name} has a question mark, or a character that the catalog cannot hold"
    return None


def _unescape(member: str) -> str:
    return re.sub(r"\\[\\nr0]|''", lambda m: _ESCAPES[m[0]], member)


def _int_or_none(text: str | None) -> int | None:
    return None if text is None else int(text)
