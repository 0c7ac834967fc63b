"""How rows of a Delta table are stored: columns for parts of dates, and what some readers of Delta do not support."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from airflow_provider_cdc.sinks.delta.log.features import GENERATION_EXPRESSION
from airflow_provider_cdc.sinks.lake.merge.partitions import (
    NULL_FOLDER,
    PartitionField,
    TableFormat,
    partition_value_error,
)

#: Types of the columns for parts of dates, and Spark expressions for their values.
_DATE_UNIT_TYPES = {"year": pa.int32(), "month": pa.string(), "day": pa.date32(), "hour": pa.string()}
_EXPRESSIONS = {"year": "YEAR({})", "month": "DATE_FORMAT({}, 'yyyy-MM')", "day": "CAST({} AS DATE)"}
#: Paths that are unchanged when escaped in a URL.
_UNESCAPED_PATH = re.compile(r"[A-Za-z0-9/_.=~-]*")


@dataclass(frozen=True)
class DeltaTableFormat(TableFormat):
    """How the rows of a Delta table are stored in its files."""

    @cached_property
    def table_schema(self) -> pa.Schema:
        """Schema of the table as readers see it."""
        return pa.schema([*self.schema, *(self._generated_field(part) for part in self.fields if part.unit)])

    def _generated_field(self, part: PartitionField) -> pa.Field:
        """Return the column for a part of a date.

        It has a generation expression only for a DATE, because Spark evaluates other types in the session's time zone.
        """
        assert part.unit is not None
        name, expression = part.column.replace("`", "``"), _EXPRESSIONS.get(part.unit)
        exact = expression is not None and pa.types.is_date(self.schema.field(part.column).type)
        metadata = {GENERATION_EXPRESSION: str(expression).format(f"`{name}`")} if exact else None
        return pa.field(part.column_name, _DATE_UNIT_TYPES[part.unit], metadata=metadata)

    def check_value(self, name: str, value: str | None) -> None:
        """Refuse a partition value that readers of Delta would not read as it is."""
        if value == "" or value == NULL_FOLDER:
            raise partition_value_error(
                f"a row has {'an empty text' if value == '' else NULL_FOLDER} in partition column {name}: "
                "Delta readers would read it as NULL"
            )
        super().check_value(name, value)

    def supports_vectors(self, path: str) -> bool:
        """Return whether rows of a file may be deleted by a deletion vector.

        Not if its path contains escaped characters: Polars looks up the vector by the file's URL, in which they are
        escaped again, and treats dead rows as alive. Such files are rewritten instead.
        """
        return _UNESCAPED_PATH.fullmatch(path) is not None
