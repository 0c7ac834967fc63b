"""Events as JSON values."""

from __future__ import annotations

from typing import Any

from airflow_provider_cdc.state.event_kinds import EVENT_KINDS
from airflow_provider_cdc.state.models import EventRow
from airflow_provider_cdc.ui.json_values import cut_text, row_values
from airflow_provider_cdc.ui.task_names import TaskNames

_TEXT_LENGTH = 1200


def event_view(event: EventRow, names: TaskNames) -> dict[str, Any]:
    """Return an event."""
    kind = EVENT_KINDS.get(event.kind)
    by = names.describe_task(event.by)
    return {
        **row_values(event, "id", "kind", "level", "table", "remedy", "at", "needs_attention"),
        "label": kind.label if kind is not None else event.kind.replace("_", " ").capitalize(),
        "text": cut_text(names.mask_event(event.kind, event.detail), _TEXT_LENGTH),
        "by": by and by["label"],
        "task": by if by is not None and by["dag_id"] is not None else None,
        **row_values(event, "acknowledged_by", "acknowledged_at"),
    }


def kinds_view() -> list[dict[str, str]]:
    """Return all kinds of events."""
    return [{"kind": name, "label": kind.label, "level": kind.level} for name, kind in EVENT_KINDS.items()]
