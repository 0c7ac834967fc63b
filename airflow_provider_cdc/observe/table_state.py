"""The state of each table of a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_cdc.model.errors import ADDED, REMOVED
from airflow_provider_cdc.model.offset import Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.state.values import TableProgress

TableStateName = Literal[
    "waiting", "snapshot", "copied", "streaming", "stopped", "rereading", "suspended", "dropped", "removed"
]


@dataclass(frozen=True)
class PipelineState:
    """State of a pipeline, as far as the states of its tables depend on it.

    :param group_states: states of the chunk groups, by number.
    :param snapshot_complete: whether the snapshot is complete.
    :param stream_running: whether a stream runs; ``None`` if there was none yet.
    :param position: the resume point as text; ``None`` before the first batch.
    :param lag_seconds: how far the source is ahead of the resume point.
    :param pending_resnapshots: indexes of tables whose re-snapshot waits to be published by the stream.
    :param missing: indexes of suspended tables that no longer exist in the source, as far as is known.
    :param emptied: indexes of tables whose copies were emptied.
    """

    group_states: Mapping[int, str]
    snapshot_complete: bool
    stream_running: bool | None
    position: str | None
    lag_seconds: float | None
    pending_resnapshots: Collection[int]
    missing: Collection[int]
    emptied: Collection[int] = ()


def list_table_statuses(
    context: RunContext,
    plan: Plan,
    timeline: Timeline,
    rows: Mapping[tuple[str, str], TableProgress],
    pipeline_state: PipelineState,
) -> list[dict[str, Any]]:
    """Return all tables of the plan, including removed ones, as JSON values.

    :param timeline: timeline of the resume point.
    :param rows: progress of the snapshot, by table.
    """
    definitions = plan.definitions_for(timeline)
    statuses = []
    for index, table in enumerate(plan.tables):
        suspension, snapshot_progress = plan.suspension_of(index), rows.get(table.id)
        state = table_state(context, plan, index, pipeline_state)
        was_added = suspension is not None and suspension.kind == ADDED
        statuses.append(
            {
                "table": table.label,
                "state": state,
                "chunks_done": snapshot_progress.done if snapshot_progress else 0,
                "chunks_total": snapshot_progress.chunks if snapshot_progress else 0,
                "rows": snapshot_progress.rows if snapshot_progress else 0,
                "corrected": snapshot_progress.corrected if snapshot_progress else 0,
                "at": pipeline_state.position if suspension is None else None if was_added else suspension.at,
                "lag_seconds": pipeline_state.lag_seconds
                if suspension is None and pipeline_state.position is not None
                else None,
                "emptied": index in pipeline_state.emptied,
                "revision": plan.revision_of(index),
                "definitions": [
                    {
                        "since": None if since is None else str(since),
                        "columns": {column.name: column.column_type for column in schema.copied_columns},
                        "key": list(schema.key),
                        **({"kept": [column.name for column in schema.retained]} if schema.retained else {}),
                    }
                    for since, schema in definitions[index].versions
                ],
            }
        )
    return statuses


def table_state(context: RunContext, plan: Plan, index: int, pipeline_state: PipelineState) -> TableStateName:
    """Return the state of one table."""
    suspension = plan.suspension_of(index)
    if suspension is not None and not context.pipeline.captures(*plan.tables[index].id):
        return "removed"
    if index in pipeline_state.pending_resnapshots:
        return "rereading"
    if index in pipeline_state.missing:
        return "dropped"
    if suspension is not None:
        return "waiting" if suspension.kind in (ADDED, REMOVED) else "suspended"
    if pipeline_state.snapshot_complete:
        return (
            "copied"
            if pipeline_state.stream_running is None
            else "streaming"
            if pipeline_state.stream_running
            else "stopped"
        )
    states = {pipeline_state.group_states.get(number, "pending") for number in plan.groups_of(index)}
    if states <= {"done"}:
        return "copied"
    return "waiting" if states == {"pending"} else "snapshot"
