"""What a statement may make of a column that a table has: which changes are certain, and leave the rows as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_cdc.ddl.column_parser import ColumnDefinition
from airflow_provider_cdc.ddl.token_cursor import DdlNotFollowed, ServerTraits
from airflow_provider_cdc.model.schema import Column, TableSchema

#: Most bytes of a key, and of a unique index before MariaDB makes one of hashes, which adds a column to row events.
_LONGEST_KEY, _LONGEST_INDEX = 767, 3072


def check_null_is_explicit(column_definition: ColumnDefinition, where: str) -> None:
    """Make sure that a statement says whether its column may be NULL.

    :raises NotFollowed: if a setting of the server decides.
    """
    if column_definition.column.data_type == "timestamp" and column_definition.nullability is None:
        raise DdlNotFollowed(f"{where}: whether it may be NULL depends on explicit_defaults_for_timestamp")


def check_nullability(before: TableSchema, old: Column, column_definition: ColumnDefinition, where: str) -> None:
    """Make sure that no row changes with what a statement says of NULL, and write that down.

    :param before: the table before the statement.
    :param old: its column.
    :param column_definition: the column as the statement defines it.
    :raises NotFollowed: if that is not certain.
    """
    check_null_is_explicit(column_definition, where)
    if column_definition.nullability is False:
        if old.nullable:
            raise DdlNotFollowed(f"{where}: NULL gets another value where it becomes NOT NULL")
        column_definition.column = replace(column_definition.column, nullable=False)
    elif old.name in before.key:
        raise DdlNotFollowed(f"{where}: a column of the key that may be NULL is not followed")
    elif not old.nullable and before.key_index != "PRIMARY":
        # A primary key that cannot be the copy's key keeps its columns NOT NULL, whatever is said of them.
        raise DdlNotFollowed(f"{where}: whether it may be NULL then is not known in a table without a primary key")


def check_type_change(
    before: TableSchema, columns: Sequence[Column], index: int, new: Column, server: ServerTraits, where: str
) -> None:
    """Make sure that each value stays what it is.

    :param before: the table before the statement.
    :param columns: the columns as the clauses before have made them.
    :param index: which of them.
    :param new: what becomes of it.
    :raises NotFollowed: if that is not certain.
    """
    old = columns[index]
    if replace(old, nullable=new.nullable) == new:
        return
    if (old.data_type, old.charset, old.collation) != (new.data_type, new.charset, new.collation) or (
        old.is_compressed or old.is_hidden
    ):
        raise DdlNotFollowed(f"{where}: another type or character set is not followed")
    if new.data_type in ("varchar", "varbinary") and (new.octets or 0) >= (old.octets or 0):
        in_key = sum(c.octets or 8 for c in columns if c.name in before.key and c.name != old.name)
        if old.name in before.key and in_key + (new.octets or 0) > _LONGEST_KEY:
            raise DdlNotFollowed(f"{where}: a key that may become too long is not followed")
        if server.mariadb and (new.octets or 0) > _LONGEST_INDEX:
            raise DdlNotFollowed(f"{where}: a unique index of it would become one of hashes")
        return
    if new.data_type in ("enum", "set") and new.members[: len(old.members)] == old.members:
        if old.name in before.key:
            raise DdlNotFollowed(f"{where}: other members of a column of the key are not followed")
        return
    raise DdlNotFollowed(f"{where}: another type is not followed")


def check_column_drop(before: TableSchema, column: Column, where: str) -> None:
    """Make sure that a table without a column has the key that it had.

    :raises NotFollowed: if that is not certain.
    """
    if column.name in before.key:
        raise DdlNotFollowed(f"{where}: it is part of the key")
    if before.key_index != "PRIMARY":  # an index on this column and others may become the key
        raise DdlNotFollowed(f"{where}: a table without a primary key may get another key by it")
    if any(c.is_hidden for c in before.columns):
        raise DdlNotFollowed(f"{where}: a unique index of hashes has a column in row events")
