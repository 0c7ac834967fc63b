"""Interface through which the snapshot reports the progress of a group while it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

from airflow_provider_cdc.sinks.protocol import SinkTable


class SnapshotObserver(Protocol):
    """Shows the progress of a group. A context manager around the work on it."""

    def __enter__(self) -> Self:
        """Begin to show the progress."""

    def __exit__(self, *error: object) -> None:
        """Stop showing the progress."""

    def write(self, tables: Mapping[int, SinkTable] | None = None, /) -> None:
        """Show the current state of these tables (by index)."""


class NullObserver:
    """Shows nothing."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def write(self, tables: Mapping[int, SinkTable] | None = None, /) -> None:
        """Show nothing."""
