"""JSON values of rows. Times are ISO 8601 in UTC."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def iso_time(at: datetime | None) -> str | None:
    """Return a time as text."""
    return None if at is None else at.isoformat()


def row_values(row: object, *names: str) -> dict[str, Any]:
    """Return some columns of a row as JSON values."""
    values = {name: getattr(row, name) for name in names}
    return {name: iso_time(value) if isinstance(value, datetime) else value for name, value in values.items()}


def cut_text(text: str | None, length: int) -> str | None:
    """Return the beginning of a text that is too long to show."""
    return text if text is None or len(text) <= length else text[: length - 2] + " …"
