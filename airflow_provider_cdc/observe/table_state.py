"""How each table of a pipeline stands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_cdc.model.offset import Lineage
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.step_kinds import ADDED, REMOVED
from airflow_provider_cdc.runtime.run_context import Context
from airflow_provider_cdc.state.values import TableProgress

State = Literal["waiting", "snapshot", "copied", "streaming", "stopped", "rereading", "suspended", "dropped", "removed"]


@dataclass(frozen=True)
class Standing:
    """How a pipeline stands, as far as its tables need it.

    :param groups: states of the chunk groups, by number.
    :param complete: whether the snapshot is.
    :param streams: whether a stream runs; ``None`` if there was none yet.
    :param at: the resume point, for people; ``None`` before the first batch.
    :param lag_seconds: how far the source is ahead of it.
    :param read_again: indexes of tables that were read again as a whole, and wait for the stream.
    :param gone: indexes of suspended tables that the source does not have any more, as far as it can be asked.
    :param emptied: indexes of those whose copies were emptied.
    """

    groups: Mapping[int, str]
    complete: bool
    streams: bool | None
    at: str | None
    lag_seconds: float | None
    read_again: Collection[int]
    gone: Collection[int]
    emptied: Collection[int] = ()


def table_status(
    context: Context, plan: Plan, lineage: Lineage, rows: Mapping[tuple[str, str], TableProgress], now: Standing
) -> list[dict[str, Any]]:
    """The tables of the plan, those that were removed from it as well, as JSON values.

    :param lineage: that of the resume point.
    :param rows: what the snapshot has read, by table.
    """
    definitions = plan.definitions_of(lineage)
    found = []
    for index, table in enumerate(plan.tables):
        step, read = plan.suspended_of(index), rows.get(table.id)
        state = table_state(context, plan, index, now)
        added = step is not None and step.kind == ADDED
        found.append(
            {
                "table": table.label,
                "state": state,
                "chunks_done": read.done if read else 0,
                "chunks_total": read.chunks if read else 0,
                "rows": read.rows if read else 0,
                "corrected": read.corrected if read else 0,
                "at": now.at if step is None else None if added else step.at,
                "lag_seconds": now.lag_seconds if step is None and now.at is not None else None,
                "emptied": index in now.emptied,
                "revision": plan.revision(index),
                "definitions": [
                    {
                        "since": None if since is None else str(since),
                        "columns": {column.name: column.column_type for column in schema.copied},
                        "key": list(schema.key),
                        **({"kept": [column.name for column in schema.kept]} if schema.kept else {}),
                    }
                    for since, schema in definitions[index].steps
                ],
            }
        )
    return found


def table_state(context: Context, plan: Plan, index: int, now: Standing) -> State:
    """How one table stands, in one word."""
    step = plan.suspended_of(index)
    if step is not None and not context.pipeline.captures(*plan.tables[index].id):
        return "removed"
    if index in now.read_again:
        return "rereading"
    if index in now.gone:
        return "dropped"
    if step is not None:
        return "waiting" if step.kind in (ADDED, REMOVED) else "suspended"
    if now.complete:
        return "copied" if now.streams is None else "streaming" if now.streams else "stopped"
    states = {now.groups.get(number, "pending") for number in plan.groups_of(index)}
    if states <= {"done"}:
        return "copied"
    return "waiting" if states == {"pending"} else "snapshot"
