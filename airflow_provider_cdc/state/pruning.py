"""Prune the history of a pipeline in the state database, so that it does not grow with the number of runs.

The start of a run, each sample, and every so many batches remove a limited portion of old rows, so that no process has
to wait for that.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, and_, delete, func, or_, select
from sqlalchemy.orm import Session

from airflow_provider_cdc.state.database import execute_update
from airflow_provider_cdc.state.models import (
    BatchRow,
    ChunkGroupRow,
    ChunkRow,
    ControlRequestRow,
    EpochRow,
    EventRow,
    LagSampleRow,
    PipelineRow,
    PlannedTableRow,
    SnapshotRow,
)

#: How long samples and finished requests are kept.
KEPT_SAMPLES = timedelta(days=7)
#: Minimum number of batches kept per pipeline: about 5 MB. Status only needs much newer ones.
KEPT_BATCHES = 10_000
#: Runs of the stream, and events, kept per pipeline: days of history even if a run begins every five minutes.
KEPT_RUNS, KEPT_EVENTS = 1000, 10_000
#: Snapshots kept with their tables and chunks: the newest one, and the one that it replaced.
KEPT_SNAPSHOTS = 2
#: Maximum number of rows of one kind that are removed at once.
MAX_DELETED_ROWS = 1000


def prune_history(session: Session, pipeline: str, moment: datetime) -> None:
    """Remove a portion of all rows that are too old to keep.

    :param moment: the current time.
    """
    prune_batches(session, pipeline)
    _prune_epochs(session, pipeline)
    _delete_rows(session, EventRow, pipeline, _older_rows_condition(session, EventRow, pipeline, KEPT_EVENTS, "id"))
    until = moment - KEPT_SAMPLES
    _delete_rows(session, LagSampleRow, pipeline, LagSampleRow.at < until)
    _delete_rows(session, ControlRequestRow, pipeline, ControlRequestRow.finished_at < until)


def prune_batches(session: Session, pipeline: str) -> None:
    """Remove a portion of the batches that are too old to keep, reading only the index."""
    older = _older_rows_condition(session, BatchRow, pipeline, KEPT_BATCHES, "epoch", "batch_id")
    _delete_rows(session, BatchRow, pipeline, older)


def prune_snapshots(session: Session, pipeline: str, generation: int) -> None:
    """Remove old snapshots when a new one is planned.

    :param generation: number of the new one.
    """
    for model in (ChunkRow, ChunkGroupRow, PlannedTableRow, SnapshotRow):
        _delete_rows(session, model, pipeline, model.generation <= generation - KEPT_SNAPSHOTS)


def _prune_epochs(session: Session, pipeline: str) -> None:
    """Remove a portion of the old runs, and add what they applied to the totals of the pipeline."""
    older = _older_rows_condition(session, EpochRow, pipeline, KEPT_RUNS, "epoch")
    if older is None:
        return
    batches, changes = session.execute(sum_batches(EpochRow.pipeline == pipeline, older)).one()
    row = session.get_one(PipelineRow, pipeline, with_for_update=True)
    row.past_batches += int(batches)
    row.past_changes += int(changes)
    _delete_rows(session, EpochRow, pipeline, older)


def sum_batches(*runs: Any) -> Select[int, int]:
    """Select the number of batches and changes of some runs.

    :param runs: conditions that the runs meet.
    """
    return select(func.coalesce(func.sum(EpochRow.batches), 0), func.coalesce(func.sum(EpochRow.changes), 0)).where(
        *runs
    )


def _older_rows_condition(session: Session, model: Any, pipeline: str, kept_rows: int, *names: str) -> Any:
    """Return a condition for a portion of the rows that are too old to keep; ``None`` if there are none.

    :param kept_rows: how many of the newest rows stay.
    :param names: columns that identify rows and order them from the oldest to the newest.
    """
    key = [getattr(model, name) for name in names]
    key_query = select(*key).where(model.pipeline == pipeline)
    oldest_kept = session.execute(key_query.order_by(*(c.desc() for c in key)).offset(kept_rows - 1).limit(1)).first()
    if oldest_kept is None:
        return None
    portion = session.execute(key_query.order_by(*key).offset(MAX_DELETED_ROWS).limit(1)).first()
    end = tuple(oldest_kept) if portion is None else min(tuple(oldest_kept), tuple(portion))
    before = [and_(*(c == v for c, v in zip(key[:n], end, strict=False)), key[n] < end[n]) for n in range(len(key))]
    return or_(*before)


def _delete_rows(session: Session, model: Any, pipeline: str, older: Any) -> None:
    if older is not None:
        execute_update(session, delete(model).where(model.pipeline == pipeline, older))
