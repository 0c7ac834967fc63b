"""Preflight checks of ``transforms``: patterns that match nothing, and what is done to each table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.column_policy import HASH, KEEP, MASK, NULL, TRUNCATE
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.client.catalog import list_columns
from airflow_provider_cdc.preflight.check_result import CheckResult
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.layout import read_plan
from airflow_provider_cdc.transforms.copy_rules import column_names

_VERBS = {HASH: "hashed", MASK: "masked", TRUNCATE: "truncated", NULL: "always NULL"}


def check_rule_patterns(
    context: RunContext, connection: Connection[Any], tables: Collection[tuple[str, str]]
) -> Iterator[CheckResult]:
    """Yield an error for each pattern of ``transforms`` that matches nothing.

    A running pipeline does not end because of it: if the pattern has matched something that the source no longer has,
    it is a warning.

    :param tables: database and name of each captured table.
    """
    if not context.copy_rules.fingerprint:
        return
    columns = list(list_columns(connection, tables))
    plan = None
    with suppress(OSError):  # a sink that cannot be read is reported by another check
        plan = read_plan(context.storage, context.layout)
    planned = [] if plan is None else column_names(plan.all_definitions)
    never_matched = {error.message for error in context.copy_rules.find_unmatched([*columns, *planned])}
    for error in context.copy_rules.find_unmatched(columns):
        level = "error" if error.message in never_matched else "warning"
        yield replace(CheckResult.from_error(error), level=level)


def describe_rules(table: TableSchema) -> str | None:
    """Return what the copy of a table has of its columns and rows; ``None`` if it has all of them as they are."""
    counts = Counter(policy.action for policy in table.policies if policy.action != KEEP)
    counts_text = [f"{counts[action]} {verb}" for action, verb in _VERBS.items() if counts[action]]
    if renamed := sum(policy.copy_name != policy.column for policy in table.policies):
        counts_text.append(f"{renamed} renamed")
    parts = [f"columns: {', '.join(counts_text)}"] if counts_text else []
    if table.condition is not None:
        parts.append(f"only rows where {' '.join(table.condition.split())}")
    return f"table {table.label}: {'; '.join(parts)}" if parts else None
