"""Which changes of an existing column are certain and leave all rows unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_cdc.ddl.column_parser import ColumnDefinition
from airflow_provider_cdc.ddl.token_cursor import DdlNotFollowed, ServerTraits
from airflow_provider_cdc.model.schema import INTEGER_TYPES, Column, TableSchema

#: Most bytes of a key, and of a unique index: for longer ones, MariaDB adds a column of hashes to row events.
_LONGEST_KEY, _LONGEST_INDEX = 767, 3072
_INTEGERS_BY_SIZE = ("tinyint", "smallint", "mediumint", "int", "bigint")


def check_null_is_explicit(column_definition: ColumnDefinition, where: str) -> None:
    """Check that it is certain whether a column may be NULL.

    :raises DdlNotFollowed: if a setting of the server decides.
    """
    if column_definition.column.data_type == "timestamp" and column_definition.nullability is None:
        raise DdlNotFollowed(f"{where}: whether it may be NULL depends on explicit_defaults_for_timestamp")


def check_nullability(before: TableSchema, old: Column, column_definition: ColumnDefinition, where: str) -> None:
    """Check that the NULL attribute of a statement changes no row, and set it in the column's definition.

    :param before: the table before the statement.
    :param old: the table's column.
    :param column_definition: the column as the statement defines it.
    :raises DdlNotFollowed: if that is not certain.
    """
    check_null_is_explicit(column_definition, where)
    if column_definition.nullability is False:
        if old.nullable:
            raise DdlNotFollowed(f"{where}: NULL values change because it becomes NOT NULL")
        column_definition.column = column_definition.column.replace(nullable=False)
    elif old.name in before.key:
        raise DdlNotFollowed(f"{where}: a nullable key column is not followed")
    elif not old.nullable and before.key_index != "PRIMARY":
        # A primary key that cannot be the copy's key keeps its columns NOT NULL, whatever the statement says.
        raise DdlNotFollowed(f"{where}: whether it becomes nullable is not known in a table without a primary key")


def check_type_change(
    before: TableSchema,
    columns: Sequence[Column],
    index: int,
    new: Column,
    server: ServerTraits,
    where: str,
    *,
    may_widen: bool = False,
) -> None:
    """Check that a change of a column's type leaves each value unchanged.

    :param before: the table before the statement.
    :param columns: the columns after the previous clauses.
    :param index: index of the changed column.
    :param new: its new definition.
    :param may_widen: whether it may get a type that has all values of the old one.
    :raises DdlNotFollowed: if that is not certain.
    """
    old = columns[index]
    if old.replace(nullable=new.nullable) == new:
        return
    if may_widen and is_exactly_wider(old, new):
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
            raise DdlNotFollowed(f"{where}: a unique index on it would become one of hashes")
        return
    if new.data_type in ("enum", "set") and new.members[: len(old.members)] == old.members:
        if old.name in before.key:
            raise DdlNotFollowed(f"{where}: other members of a key column are not followed")
        return
    raise DdlNotFollowed(f"{where}: another type is not followed")


def is_exactly_wider(old: Column, new: Column) -> bool:
    """Return whether each value of a number column is the same number under another type."""
    if old.is_compressed or old.is_hidden or old.is_unsigned != new.is_unsigned:
        return False
    if " zerofill" in old.column_type or " zerofill" in new.column_type:
        return False
    if old.data_type in INTEGER_TYPES and new.data_type in INTEGER_TYPES:
        return _INTEGERS_BY_SIZE.index(old.data_type) <= _INTEGERS_BY_SIZE.index(new.data_type)
    if (old.column_type, new.column_type) == ("float", "double"):
        return True
    is_decimal = old.data_type == new.data_type == "decimal"
    return is_decimal and old.scale == new.scale and (old.precision or 0) <= (new.precision or 0)


def check_column_drop(before: TableSchema, column: Column, where: str) -> None:
    """Check that a table keeps its key when a column is dropped.

    :raises DdlNotFollowed: if that is not certain.
    """
    if column.name in before.key:
        raise DdlNotFollowed(f"{where}: it is part of the key")
    if before.key_index != "PRIMARY":  # an index on this column and others may become the key
        raise DdlNotFollowed(f"{where}: it may change the key of a table without a primary key")
    if any(c.is_hidden for c in before.columns):
        raise DdlNotFollowed(f"{where}: a unique index of hashes has a column in row events")
