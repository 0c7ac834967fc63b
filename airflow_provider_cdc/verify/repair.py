"""Repair the differences that a comparison found: re-snapshot the keys that differ, then compare again.

The re-snapshot is that of :mod:`~airflow_provider_cdc.resnapshot.read`, for exactly these keys. The stream continues,
and overwrites their rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.config.selection import TableSelection
from airflow_provider_cdc.model.comparison import UNEQUAL, TableComparison
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.model.plan import Chunk
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.keys.ranges import keys_as_ranges
from airflow_provider_cdc.resnapshot.read import stage_ranges
from airflow_provider_cdc.resnapshot.wait import publish_or_wait
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.verify.run import verify_tables
from airflow_provider_cdc.verify.task import ScanRunner

#: Compares the tables that match patterns.
CompareTables = Callable[[tuple[str, ...]], list[TableComparison]]


def compare_and_repair(
    context: RunContext,
    selection: TableSelection,
    runner: ScanRunner,
    *,
    show_values: bool = False,
    repair: bool = False,
) -> list[TableComparison]:
    """Compare tables, and re-snapshot the rows that differ if that is requested.

    :param selection: see :func:`~airflow_provider_cdc.verify.run.verify_tables`, as for ``runner`` and ``show_values``.
    :raises CdcError: see :func:`~airflow_provider_cdc.verify.run.verify_tables`.
    """

    def compare(chosen: TableSelection) -> list[TableComparison]:
        return verify_tables(context, show_values=show_values, selection=chosen, runner=runner)

    verdicts = compare(selection)
    if repair and any(verdict.verdict == UNEQUAL for verdict in verdicts):
        verdicts = repair_tables(context, verdicts, lambda tables: compare(replace(selection, tables=tables)))
    return verdicts


def repair_tables(
    context: RunContext, verdicts: Sequence[TableComparison], compare: CompareTables
) -> list[TableComparison]:
    """Re-snapshot the rows that differ, table by table, wait for the stream to publish them, and compare again.

    A table that cannot be repaired is reported and left as it is. The others are still repaired.

    :param verdicts: verdicts of a comparison.
    :param compare: compares again.
    :returns: the verdicts, with the new ones for repaired tables.
    """
    with closing(context.open_state_database()) as store:
        repaired_labels = _overwrite_differences(context, store, verdicts)
    if not repaired_labels:
        return [*verdicts]
    new_verdicts = {verdict.table: verdict for verdict in compare(tuple(re.escape(label) for label in repaired_labels))}
    return [
        replace(new_verdicts[v.table], repaired=len(v.differences))
        if v.table in repaired_labels and v.table in new_verdicts
        else v
        for v in verdicts
    ]


def _overwrite_differences(context: RunContext, store: StateDatabase, verdicts: Sequence[TableComparison]) -> set[str]:
    """Re-snapshot the differences; return the labels of the tables whose rows were overwritten."""
    plan = context.plans.require()
    indexes = {table.label: index for index, table in enumerate(plan.tables)}
    repaired_labels = set[str]()
    for verdict in verdicts:
        if verdict.verdict != UNEQUAL:
            continue
        if (reason := _why_not_repairable(verdict, plan.tables[indexes[verdict.table]])) is not None:
            remedy = f"Re-snapshot the whole table: airflow-cdc resnapshot --table {verdict.table}"
            context.warn(f"{verdict.table} is not repaired: {reason}. {remedy}")
            continue
        try:
            if _resnapshot_keys(context, store, indexes[verdict.table], verdict):
                repaired_labels.add(verdict.table)
            else:
                context.reporter.line(f"{verdict.table}: compare it again after a stream has run")
        except CdcError as error:
            context.warn(f"{verdict.table} is not repaired: {error}")
    return repaired_labels


def _why_not_repairable(verdict: TableComparison, table: TableSchema) -> str | None:
    """Return why the rows of a table cannot be re-snapshotted by key; ``None`` if they can."""
    if table.has_hashed_key:
        return "its key is hashed in the copy"
    if not verdict.differences:
        return "it has no usable key"
    if (known := len(verdict.differences)) < verdict.missing + verdict.extra + verdict.different:
        return f"more than {known:,} of its keys differ"
    return None


def _resnapshot_keys(context: RunContext, store: StateDatabase, index: int, verdict: TableComparison) -> bool:
    """Re-snapshot the keys that differ; return whether their rows are published."""
    keys = [difference.key for difference in verdict.differences]

    def ranges(connection: Connection[Any], table: TableSchema) -> list[Chunk]:
        return keys_as_ranges(connection, table, index, keys)

    context.reporter.line(f"{verdict.table}: re-snapshotting {len(keys):,} keys")
    return publish_or_wait(*stage_ranges(context, index, ranges, run_in_threads), store)
