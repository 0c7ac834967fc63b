"""Names that columns of a copy must not have, in any case.

Readers of Delta tables ignore case in column names, and use some names for columns of their own.
"""

from __future__ import annotations

from collections import Counter

from airflow_provider_cdc.model.schema import TableSchema

#: Prefix of the columns that this project adds.
_OWN_PREFIX = "_cdc_"
#: Columns of Spark's Parquet reader: the file of a row, and its number in it. Both are needed for deletion vectors.
_SPARK_NAMES = {"_metadata", "_tmp_metadata_row_index"}
#: Prefix of columns that Delta Lake adds to read deletion vectors.
_DELTA_PREFIX = "__delta_internal_"
#: Prefix of columns that delta-rs adds to read, merge or update.
_DELTA_RS_PREFIX = "__delta_rs_"
_REMEDY = "Rename it in the source or in the copy (transforms.columns), or leave it out with source.exclude_columns"


def column_name_problem(table: TableSchema) -> tuple[str, str] | None:
    """Return why a table's copied columns cannot have their names in a copy, and the remedy; ``None`` if they can."""
    for column in table.sink_columns:
        if reason := _reserved_reason(column.name.lower()):
            return f"column {column.name}: {reason}", _REMEDY
    names = Counter(column.name for column in table.sink_columns)
    if twice := [name for name, count in names.items() if count > 1]:
        return f"column {twice[0]}: more than one column of the copy would have this name", _REMEDY
    lowered = Counter(name.lower() for name in names)
    if twice := [column.name for column in table.sink_columns if lowered[column.name.lower()] > 1]:
        return f"columns {' and '.join(twice)}: they differ in case only", _REMEDY
    return None


def _reserved_reason(name: str) -> str | None:
    if name.startswith(_OWN_PREFIX):
        return f"the prefix {_OWN_PREFIX} is used in the sink, in whatever case"
    if name in _SPARK_NAMES or name.startswith(_DELTA_PREFIX):
        return "Spark uses this name for a column of its own, and could not read the copy"
    if name.startswith(_DELTA_RS_PREFIX):
        return f"delta-rs uses the prefix {_DELTA_RS_PREFIX} for columns of its own, and might not read the copy"
    return None
