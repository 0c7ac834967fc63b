"""Events as JSON values."""

from __future__ import annotations

from typing import Any

from airflow_provider_cdc.state.event_kinds import EVENT_KINDS, event_label
from airflow_provider_cdc.state.models import EventRow
from airflow_provider_cdc.ui.cli_commands import PipelineCommands
from airflow_provider_cdc.ui.json_values import cut_text, row_values
from airflow_provider_cdc.ui.task_names import TaskNames

_TEXT_LENGTH = 1200


def event_view(event: EventRow, names: TaskNames, commands: PipelineCommands) -> dict[str, Any]:
    """Return an event."""
    by = names.describe_task(event.by)
    return {
        **row_values(event, "id", "kind", "level", "table", "at", "needs_attention"),
        "label": event_label(event.kind),
        "text": commands.complete_text(cut_text(names.mask_event(event.kind, event.detail), _TEXT_LENGTH)),
        "remedy": commands.complete_text(event.remedy),
        "by": by and by["label"],
        "task": by if by is not None and by["dag_id"] is not None else None,
        **row_values(event, "acknowledged_by", "acknowledged_at"),
    }


def kinds_view() -> list[dict[str, str]]:
    """Return all kinds of events."""
    return [{"kind": name, "label": kind.label, "level": kind.level} for name, kind in EVENT_KINDS.items()]
