"""What shows the progress of a group while it is read: the snapshot opens it, and knows no more of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

from airflow_provider_cdc.sinks.protocol import SinkTable


class SnapshotObserver(Protocol):
    """A context manager around the work on a group."""

    def __enter__(self) -> Self:
        """Begin to show the progress."""

    def __exit__(self, *error: object) -> None:
        """End it."""

    def write(self, tables: Mapping[int, SinkTable] | None = None, /) -> None:
        """Show the state of these tables, by index, now."""


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
