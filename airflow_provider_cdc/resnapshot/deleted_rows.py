"""Decide whether rows that the source has deleted (``sink.deletes``) can stay when their table is re-snapshotted."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.row_retention import why_not_retainable
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.resnapshot.dropped_tables import should_empty_copy
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.parquet import DataFile


def keeps_deleted_rows(context: RunContext, plan: Plan, index: int, schema: TableSchema) -> bool:
    """Return whether the deleted rows that a copy keeps, if any, stay in it when its table rejoins.

    :param schema: the definition with which the table rejoins.
    """
    before = plan.tables[index]
    if should_empty_copy(context, plan, plan.suspension_of(index)):
        return False
    if _why_rules_forbid(before, schema) is not None:
        return False
    return why_not_retainable(before.sink_schema, before.copy.key, schema.sink_schema, schema.copy.key) is None


def _why_rules_forbid(before: TableSchema, schema: TableSchema) -> str | None:
    """Return why rows that were copied under other rules may not stay: they may have values that are masked now."""
    if before.condition != schema.condition:
        return "transforms.where has another condition than the rows were copied with"
    old, new = ({policy.column: policy for policy in table.policies} for table in (before, schema))
    for column in before.copied_columns:
        if old.get(column.name) != new.get(column.name):
            return f"transforms.columns has another policy for {column.name} than the rows were copied with"
    return None


def loss_error(
    context: RunContext, plan: Plan, index: int, schema: TableSchema, slices: Sequence[DataFile] | None = None
) -> NotReadyError | None:
    """Return the error to raise if a re-snapshot would lose deleted rows that the copy keeps, else ``None``.

    :param schema: the definition with which the table is read.
    :param slices: the rows of the table, once they have been read.
    """
    before, target = plan.tables[index], context.sink.table(schema)
    if (
        should_empty_copy(context, plan, plan.suspension_of(index))
        or (loss := target.overwrite_loss(before, slices, reason=_why_rules_forbid(before, schema))) is None
    ):
        return None
    return NotReadyError(
        f"{before.label} is not re-snapshotted: {loss}",
        f"The {target.name} has these rows: move its folder away to keep them elsewhere, then re-snapshot the table: "
        f"airflow-cdc resnapshot --table {before.label}",
        table=before.label,
    )
