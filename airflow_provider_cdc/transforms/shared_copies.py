"""Which tables can be copied into one: what their definitions, and the settings for them, must have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_provider_cdc.config.patterns import matches_any
from airflow_provider_cdc.config.sink_section import Sink
from airflow_provider_cdc.config.table_properties import TableProperties
from airflow_provider_cdc.model.column_policy import UNIQUE_KEY
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import TableSchema


def check_shared_copies(sink: Sink, tables: Iterable[TableSchema]) -> None:
    """Refuse tables that are to be copied into one and cannot be.

    They need the same key, and the same types of the columns that they share; other columns are NULL in the rows of
    tables that lack them. All settings of the copy must be the same for them.

    :param sink: the settings.
    :param tables: captured tables, with what their copies have of them.
    :raises NotReadyError: naming two of them, and what differs.
    """
    earlier_by_path: dict[str, list[TableSchema]] = {}
    for table in tables:
        if not table.shared:
            continue
        if table.shared == UNIQUE_KEY and not table.key:
            raise NotReadyError(
                f"sink.routes: table {table.label} has no usable key, and its route says `unique`",
                "Remove `unique`, or add a key to the table",
                table=table.label,
            )
        earlier = earlier_by_path.setdefault(sink.table_paths.path_of(*table.id), [])
        for other in earlier:
            if difference := _find_difference(sink, other, table):
                raise NotReadyError(
                    f"sink.routes: tables {other.label} and {table.label} cannot be copied into one: {difference}",
                    "Let them have the same (columns can be renamed and left out in transforms.columns), or copy one "
                    "of them into another table",
                    table=table.label,
                )
        # What the earlier ones have in common is compared once.
        if all({*table.sink_schema.names} - {*other.sink_schema.names} for other in earlier):
            earlier.append(table)


def _find_difference(sink: Sink, first: TableSchema, table: TableSchema) -> str | None:
    """Return what is not the same for two tables and must be; ``None`` if there is nothing."""
    keys = [", ".join(one.copy.key) or "none" for one in (first, table)]
    if keys[0] != keys[1]:
        return f"the key of the first is ({keys[0]}), and that of the second is ({keys[1]})"
    types = {field.name: field.type for field in first.sink_schema}
    for field in table.sink_schema:
        if (other := types.get(field.name, field.type)) != field.type:
            return f"column {field.name} would be {other} in the first, and {field.type} in the second"
    names = {name.lower(): name for name in types}
    for name in table.sink_schema.names:
        if (other := names.get(name.lower(), name)) != name:
            return f"columns {other} and {name} differ in case only"
    settings = [_settings_of(sink, one) for one in (first, table)]
    differing = [name for name, value in settings[0].items() if settings[1][name] != value]
    return f"{differing[0]} is not the same for them" if differing else None


def _settings_of(sink: Sink, table: TableSchema) -> dict[str, Any]:
    """Return the settings of a table's copy that patterns decide about."""
    fields = (parts for pattern, parts in sink.partition_fields if matches_any([pattern], *table.id))
    return {
        "sink.deletes": sink.delete_policy.mode_of(table),
        "sink.merge": matches_any(sink.copy_on_write_tables, *table.id),
        "sink.partition_by": next(fields, ()),
        "sink.table_properties": TableProperties.parse(sink.table_properties).properties_of(*table.id),
    }
