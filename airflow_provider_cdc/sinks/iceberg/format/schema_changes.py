"""Changes of a schema that are metadata only: existing files are read as before.

A file lacks the fields that were added after it was written; readers return their ``initial-default``, or NULL.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema, check_column_names
from airflow_provider_cdc.sinks.iceberg.format.types import (
    NestedField,
    PrimitiveType,
    check_type,
    is_promotion,
    type_of_arrow,
    walk_fields,
)
from airflow_provider_cdc.sinks.iceberg.format.values import value_to_json

#: Ids from here on are those of columns that readers add.
_RESERVED_FROM = 2_147_483_447
_RESNAPSHOT_REMEDY = "Re-snapshot the table, so that all of its rows are written again"


class SchemaEditor:
    """Changes a schema step by step.

    :param schema: the current schema.
    :param last_column_id: the highest field id that the table has ever had, including dropped fields.
    :param format_version: version of the table's format.
    :param used_in_partitions: ids of fields that a partition spec uses.
    """

    def __init__(
        self,
        schema: IcebergSchema,
        last_column_id: int,
        format_version: int,
        used_in_partitions: Sequence[int] = (),
    ) -> None:
        self._schema = schema
        self._fields = {nested.name: nested for nested in schema.fields}
        self._format_version = format_version
        self._used_in_partitions = frozenset(used_in_partitions)
        #: The highest field id that the table has ever had.
        self.last_column_id = max(last_column_id, schema.highest_field_id)

    def add_column(
        self,
        name: str,
        arrow_type: pa.DataType,
        *,
        required: bool = False,
        default: Any = None,
        doc: str | None = None,
    ) -> None:
        """Add a column behind all others.

        :param arrow_type: type of its values.
        :param required: whether it is never NULL.
        :param default: its value in existing rows, and in new ones of writers that supply none, in the form of
            :mod:`~airflow_provider_cdc.sinks.iceberg.format.values`; ``None`` for NULL.
        :raises NotReadyError: if the type cannot be stored.
        :raises TerminalError: if a default is required and there is none, or the format version has no defaults.
        """
        check_column_names([*self._fields, name])
        column_id = self._next_id()
        kind = type_of_arrow(name, arrow_type, self._next_ids(), self._format_version)
        default_json = None
        if default is not None:
            if self._format_version < 3 or not isinstance(kind, PrimitiveType):
                raise self._refused_change(
                    name, f"a table of format version {self._format_version} has no default of {kind}"
                )
            default_json = value_to_json(kind, default)
        if required and default_json is None:
            raise self._refused_change(name, "it is NOT NULL and has no default for the rows that exist")
        self._fields[name] = NestedField(column_id, name, kind, required, doc, default_json, default_json)

    def drop_column(self, name: str) -> None:
        """Drop a column. A later column of the same name has another field id, so old values do not come back.

        :raises TerminalError: if it identifies rows or partitions them.
        """
        column = self._find_column(name)
        used = {*self._schema.identifier_field_ids} | self._used_in_partitions
        if used & {nested.id for nested in walk_fields((column,))}:
            raise self._refused_change(name, "it identifies rows or partitions the table, so it cannot be dropped")
        del self._fields[name]

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column; its field id stays."""
        self.rename_columns({name: new_name})

    def rename_columns(self, names: Mapping[str, str]) -> None:
        """Rename columns, all at once; their field ids and their order stay.

        :param names: new names by old ones.
        """
        for name in names:
            self._find_column(name)
        renamed = [replace(column, name=names.get(name, name)) for name, column in self._fields.items()]
        check_column_names([column.name for column in renamed])
        self._fields = {column.name: column for column in renamed}

    def promote_column(self, name: str, arrow_type: pa.DataType) -> None:
        """Give a column a wider type.

        :param arrow_type: type of its values from then on.
        :raises TerminalError: if files with values of the old type would not be read as the new one.
        """
        column = self._find_column(name)
        kind = type_of_arrow(name, arrow_type, self._next_ids(), self._format_version)
        if kind == column.type:
            return
        if not is_promotion(column.type, kind, self._format_version):
            raise self._refused_change(name, f"its type cannot become {kind}, it is {column.type}")
        if str(column.type) == "date" and column.id in self._used_in_partitions:
            raise self._refused_change(name, "it partitions the table, and its partitions would be others")
        check_type(name, kind, self._format_version)
        self._fields[name] = replace(column, type=kind)

    def make_optional(self, name: str) -> None:
        """Allow NULL in a column.

        :raises TerminalError: if it identifies rows.
        """
        column = self._find_column(name)
        if column.id in self._schema.identifier_field_ids:
            raise self._refused_change(name, "it identifies rows, so it cannot be NULL")
        self._fields[name] = replace(column, required=False)

    def set_doc(self, name: str, doc: str | None) -> None:
        """Change the comment of a column."""
        self._fields[name] = replace(self._find_column(name), doc=doc)

    def set_write_default(self, name: str, default: Any) -> None:
        """Change the value of a column in new rows of writers that supply none; existing rows are unchanged."""
        column = self._find_column(name)
        if default is not None and (self._format_version < 3 or not isinstance(column.type, PrimitiveType)):
            raise self._refused_change(name, f"a table of format version {self._format_version} has no default of it")
        if default is None and column.required:
            raise self._refused_change(name, "it is NOT NULL, so its default cannot be NULL")
        kind = column.type
        value = value_to_json(kind, default) if default is not None and isinstance(kind, PrimitiveType) else None
        self._fields[name] = replace(column, write_default=value)

    def order_columns(self, names: Sequence[str]) -> None:
        """Change the order of the columns.

        :param names: all columns.
        :raises ValueError: if these are not all columns.
        """
        if sorted(names) != sorted(self._fields):
            raise ValueError(f"not the columns of the table: {names}")
        self._fields = {name: self._fields[name] for name in names}

    def build_schema(self, schema_id: int) -> IcebergSchema:
        """Return the schema with all changes.

        :param schema_id: an unused id.
        """
        return replace(self._schema, schema_id=schema_id, fields=tuple(self._fields.values()))

    def _find_column(self, name: str) -> NestedField:
        if name not in self._fields:
            raise self._refused_change(name, "there is no such column")
        return self._fields[name]

    def _next_id(self) -> int:
        self.last_column_id += 1
        if self.last_column_id >= _RESERVED_FROM:
            raise TerminalError("the Iceberg table has no unused field id", "Start with a fresh table")
        return self.last_column_id

    def _next_ids(self) -> Iterator[int]:
        return (self._next_id() for _ in itertools.count())

    def _refused_change(self, name: str, problem: str) -> TerminalError:
        return TerminalError(f"column {name} of the Iceberg table cannot change: {problem}", _RESNAPSHOT_REMEDY)
