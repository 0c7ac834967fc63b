"""The outcome of reading one chunk group, as logs and schedulers show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup, GroupTotals
from airflow_provider_cdc.model.offset import Position


@dataclass(frozen=True)
class GroupResult:
    """Outcome of reading a group.

    :param group: number of the group.
    :param outcome: ``published`` (read for the first time), ``adopted`` (already published), ``replaced``
        (re-snapshotted and published), ``staged`` (re-snapshotted; the next stream publishes it), ``taken_over``
        (nothing is left to read of its tables).
    :param attempt: the attempt that is published (or staged).
    :param tables: ``database.table`` of each table.
    :param rows: rows that the attempt read.
    :param chunks: chunks of the group.
    :param corrected: keys that the backfill inserted, replaced or deleted.
    :param seconds: time that the call took.
    :param rows_per_second: ``None`` if nothing was read.
    :param min_lw: lowest low watermark; ``None`` if nothing is left to read.
    :param max_hw: highest high watermark; ``None`` if nothing is left to read.
    :param traffic: requests to an object store and bytes, of this process and its tasks; ``None`` for a local sink.
    """

    group: int
    outcome: str
    attempt: int
    tables: tuple[str, ...]
    rows: int
    chunks: int
    corrected: int
    seconds: float
    rows_per_second: int | None
    min_lw: Position | None
    max_hw: Position | None
    traffic: Mapping[str, int] | None

    def to_json(self) -> dict[str, Any]:
        """Return a plain JSON value; positions are ``[file, position]``."""
        marks = {name: at and at.to_json() for name, at in (("min_lw", self.min_lw), ("max_hw", self.max_hw))}
        return {**self.__dict__, "tables": list(self.tables), "seconds": round(self.seconds, 3), **marks}


def make_group_result(
    group: ChunkGroup,
    outcome: str,
    attempt: int,
    totals: GroupTotals,
    seconds: float,
    traffic: Mapping[str, int] | None = None,
) -> GroupResult:
    """Return the result of a group. See :class:`GroupResult` for the parameters.

    :param totals: what the attempt contains.
    """
    return GroupResult(
        group.number,
        outcome,
        attempt,
        tuple(group.plan.tables[i].label for i in group.tables),
        totals.rows,
        len(group.chunks),
        totals.corrected,
        seconds,
        None if outcome == "adopted" else round(totals.rows / max(seconds, 1e-3)),
        totals.min_lw,
        totals.max_hw,
        traffic,
    )
