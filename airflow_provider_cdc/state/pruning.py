"""Prune the history of a pipeline in the state database, so that it does not grow with the number of runs.

The start of a run, each sample, and every so many batches remove a limited portion of old rows. So a database that an
older version let grow shrinks step by step, and no process has to wait for that.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, delete, func, or_, select
from sqlalchemy.orm import Session

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
#: Columns that are totaled over all runs, including removed ones.
SUMMED_COLUMNS = ("batches", "changes", "bytes", "seconds")


def prune_history(session: Session, pipeline: str, moment: datetime) -> None:
    """Remove a portion of all rows that are too old to keep.

    :param moment: the current time.
    """
    prune_batches(session, pipeline)
    _prune_epochs(session, pipeline)
    _delete_rows(
        session,
        EventRow,
        EventRow.pipeline == pipeline,
        _older_rows_condition(session, EventRow, pipeline, KEPT_EVENTS, "id"),
    )
    until = moment - KEPT_SAMPLES
    _delete_rows(session, LagSampleRow, LagSampleRow.pipeline == pipeline, LagSampleRow.at < until)
    _delete_rows(
        session, ControlRequestRow, ControlRequestRow.pipeline == pipeline, ControlRequestRow.finished_at < until
    )


def prune_batches(session: Session, pipeline: str) -> None:
    """Remove a portion of the batches that are too old to keep, reading only the index."""
    older = _older_rows_condition(session, BatchRow, pipeline, KEPT_BATCHES, "epoch", "batch_id")
    _delete_rows(session, BatchRow, BatchRow.pipeline == pipeline, older)


def prune_snapshots(session: Session, pipeline: str, generation: int) -> None:
    """Remove old snapshots when a new one is planned.

    :param generation: number of the new one.
    """
    for model in (ChunkRow, ChunkGroupRow, PlannedTableRow, SnapshotRow):
        of_old_snapshots = model.pipeline == pipeline, model.generation <= generation - KEPT_SNAPSHOTS
        session.execute(delete(model).where(*of_old_snapshots), execution_options={"synchronize_session": False})


def _prune_epochs(session: Session, pipeline: str) -> None:
    """Remove a portion of the old runs, and add what they applied to the totals of the pipeline."""
    older = _older_rows_condition(session, EpochRow, pipeline, KEPT_RUNS, "epoch")
    if older is None:
        return
    old_epochs = and_(EpochRow.pipeline == pipeline, older)
    sums = [func.coalesce(func.sum(getattr(EpochRow, name)), 0) for name in SUMMED_COLUMNS]
    *totals, lag = tuple(session.execute(select(*sums, func.max(EpochRow.lag_max_ms)).where(old_epochs)).one())
    pipeline_row = session.get_one(PipelineRow, pipeline, with_for_update=True)
    for name, value in zip(SUMMED_COLUMNS, totals, strict=True):
        setattr(
            pipeline_row,
            f"past_{name}",
            getattr(pipeline_row, f"past_{name}") + type(getattr(pipeline_row, f"past_{name}"))(value),
        )
    pipeline_row.past_lag_max_ms = max(
        (max_lag for max_lag in (pipeline_row.past_lag_max_ms, lag) if max_lag is not None), default=None
    )
    _delete_rows(session, EpochRow, EpochRow.pipeline == pipeline, older)


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


def _delete_rows(session: Session, model: Any, of_pipeline: Any, older: Any) -> None:
    if older is not None:
        session.execute(delete(model).where(of_pipeline, older), execution_options={"synchronize_session": False})
