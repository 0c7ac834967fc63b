"""The state of each table of a pipeline, as ``status`` shows it and as drivers record it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from airflow_provider_cdc.ddl.schema_policy import describe_change
from airflow_provider_cdc.model.column_policy import HASH, MASK, TRUNCATE
from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import ADDED, REMOVED
from airflow_provider_cdc.model.offset import Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.resnapshot.suspension import is_resnapshot_automatic, suspension_remedy
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.state.values import TableProgress, TableStatus

TableStateName = Literal[
    "waiting", "snapshot", "copied", "streaming", "stopped", "rereading", "suspended", "dropped", "removed"
]


@dataclass(frozen=True)
class PipelineState:
    """State of a pipeline, as far as the states of its tables depend on it.

    :param plan: the current plan.
    :param group_states: states of the chunk groups, by number.
    :param snapshot_complete: whether the snapshot is complete.
    :param stream_running: whether a stream runs; ``None`` if there was none yet.
    :param position: the resume point as text; ``None`` before the first batch.
    :param pending_resnapshots: indexes of tables whose re-snapshot waits to be published by the stream.
    :param missing: indexes of suspended tables that no longer exist in the source, as far as is known.
    :param given_up: indexes of suspended tables that the stream has left to the user.
    """

    plan: Plan
    group_states: Mapping[int, str]
    snapshot_complete: bool
    stream_running: bool | None
    position: str | None
    pending_resnapshots: Collection[int]
    missing: Collection[int] = ()
    given_up: Collection[int] = ()


def describe_table(
    context: RunContext,
    pipeline_state: PipelineState,
    index: int,
    progress: TableProgress | None,
    definitions: list[Any],
) -> TableStatus:
    """Return the state of one table, which may have been removed from the pipeline.

    :param progress: progress of its snapshot.
    :param definitions: its item of :func:`describe_definitions`.
    """
    plan = pipeline_state.plan
    suspension = plan.suspension_of(index)
    status = TableStatus(
        *plan.tables[index].id,
        _state_name(context, pipeline_state, index),
        position=pipeline_state.position,
        chunks_done=progress.done if progress else 0,
        chunks_total=progress.chunks if progress else 0,
        definitions=definitions,
    )
    if suspension is None:
        return status
    return status._replace(
        position=None if suspension.kind == ADDED else suspension.at,
        since=datetime.fromisoformat(suspension.since),
        kind=suspension.kind,
        reason=suspension.message,
        remedy=suspension_remedy(plan, suspension) or None,
    )


def describe_definitions(plan: Plan, timeline: Timeline) -> list[list[dict[str, Any]]]:
    """Return the definitions of each table, the oldest first, as JSON values.

    :param timeline: timeline of the resume point.
    """
    return [describe_versions(history) for history in plan.definitions_for(timeline)]


def describe_versions(history: DefinitionHistory) -> list[dict[str, Any]]:
    """Return the definitions of a table, the oldest first, as JSON values."""
    descriptions, before = [], None
    for since, schema in history.versions:
        descriptions.append(
            {
                "since": None if since is None else str(since),
                "columns": {column.name: column.column_type for column in schema.copy.copied_columns},
                "key": list(schema.copy.key),
                "changed": describe_change(before, schema).removeprefix("; ") if before else "",
                **_describe_rules(schema),
                **({"kept": [column.name for column in schema.retained]} if schema.retained else {}),
            }
        )
        before = schema
    return descriptions


def _describe_rules(schema: TableSchema) -> dict[str, Any]:
    """Return the policies, by the names of the copy's columns, and the condition on the rows, if there are any."""
    policies = {}
    for policy in schema.policies:
        details: dict[str, Any] = {"column": policy.column, "action": policy.action}
        if policy.action == HASH:
            details["encoding"] = policy.encoding
        elif policy.action in (MASK, TRUNCATE):
            details["length"] = policy.length
        policies[policy.copy_name] = details
    where = {} if schema.condition is None else {"where": schema.condition}
    return ({"policies": policies} if policies else {}) | where


def _state_name(context: RunContext, pipeline_state: PipelineState, index: int) -> TableStateName:
    plan = pipeline_state.plan
    suspension = plan.suspension_of(index)
    if suspension is not None and not context.pipeline.captures(*plan.tables[index].id):
        return "removed"
    if index in pipeline_state.pending_resnapshots:
        return "rereading"
    if index in pipeline_state.missing:
        return "dropped"
    if suspension is not None:
        if suspension.kind in (ADDED, REMOVED):
            return "waiting"
        # While the stream runs, it re-snapshots such a table automatically: no user has to act.
        is_at_work = bool(pipeline_state.stream_running) and index not in pipeline_state.given_up
        return "rereading" if is_at_work and is_resnapshot_automatic(context, suspension) else "suspended"
    if pipeline_state.snapshot_complete:
        if pipeline_state.stream_running is None:
            return "copied"
        return "streaming" if pipeline_state.stream_running else "stopped"
    states = {pipeline_state.group_states.get(number, "pending") for number in plan.groups_of(index)}
    if states <= {"done"}:
        return "copied"
    return "waiting" if states == {"pending"} else "snapshot"
