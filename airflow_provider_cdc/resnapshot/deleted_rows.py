"""Rows that the source has deleted (``sink.deletes``), and a table that is read again: whether they can stay."""

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
    """Whether rows that a copy keeps stay in it when its table rejoins. If there are any: see :func:`loss_of`.

    :param schema: the definition with which it does.
    """
    before = plan.tables[index]
    if should_empty_copy(context, plan, plan.suspension_of(index)):
        return False
    return why_not_retainable(before.sink_schema, before.key, schema.sink_schema, schema.key) is None


def loss_error(
    context: RunContext, plan: Plan, index: int, schema: TableSchema, slices: Sequence[DataFile] | None = None
) -> NotReadyError | None:
    """What to raise if a table that is read again would lose rows that its copy keeps.

    :param schema: the definition with which it is read.
    :param slices: its rows, when they are read.
    """
    before, target = plan.tables[index], context.sink.table(schema)
    if (
        should_empty_copy(context, plan, plan.suspension_of(index))
        or (loss := target.overwrite_loss(before, slices)) is None
    ):
        return None
    return NotReadyError(
        f"{before.label} is not read again: {loss}",
        f"The {target.name} has these rows: move its folder away to keep them elsewhere, then read the table again: "
        f"airflow-cdc resnapshot --table {before.label}",
        table=before.label,
    )
