"""Apply the batches of the stream to the sink, exactly once (the argument is in docs/correctness.md)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from airflow_provider_cdc.core.changes import after, last_changes
from airflow_provider_cdc.core.offset import Offset
from airflow_provider_cdc.core.plan import Plan
from airflow_provider_cdc.core.schema import TS
from airflow_provider_cdc.exceptions import CdcError, TerminalError
from airflow_provider_cdc.failpoints import hit
from airflow_provider_cdc.mysql.ownership import uncovered
from airflow_provider_cdc.mysql.session import connect
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.groups import Coverage
from airflow_provider_cdc.sinks.delta import Actions, DeltaTarget, Fence
from airflow_provider_cdc.sinks.progress import Progress

#: Old files of a table are deleted so often (seconds), and kept for so long (hours) for readers of older versions.
_TIDY_SECONDS, _KEEP_HOURS = 600, 1


@dataclass(frozen=True)
class Applied:
    """What a batch did.

    :param changes: changes that were read (before the reduction to the last one of each key).
    :param lags_ms: time from commit in the source to commit in the sink of each, in milliseconds.
    """

    changes: int
    lags_ms: Any

    def percentile(self, q: float) -> float | None:
        """A percentile of the lags, ``None`` without changes."""
        return float(np.percentile(self.lags_ms, q)) if self.changes else None


def epoch_fence(pipeline: str, epoch: int) -> Fence:
    """Fence of a stream epoch."""
    return Fence(f"cdc/{pipeline}/epoch", epoch)


def stream_marker(pipeline: str) -> str:
    """Name of a table's stream marker: the ``_cdc_seq`` up to which the stream has been applied to it."""
    return f"cdc/{pipeline}/stream"


class Applier:
    """Applies staged batches in order.

    :param context: the run.
    :param plan: the snapshot's plan.
    :param tables: Delta tables in the plan's order.
    :param coverage: what the snapshot holds, in the plan's order.
    :param progress: the resume point.
    :param epoch: epoch of this stream.
    """

    def __init__(
        self,
        context: Context,
        plan: Plan,
        tables: Sequence[DeltaTarget],
        coverage: Sequence[Coverage],
        progress: Progress,
        epoch: int,
    ) -> None:
        self._context, self._plan, self._coverage = context, plan, coverage
        self.tables = tables
        self._progress = progress
        self.fence = epoch_fence(plan.pipeline, epoch)
        self._marker = stream_marker(plan.pipeline)
        self._at = self._read_progress()
        self._tidied = [time.monotonic()] * len(tables)

    @property
    def at(self) -> Offset:
        """The resume point."""
        return self._at

    def hold(self, coverage: Sequence[Coverage]) -> None:
        """Take note of what the snapshot holds, after a chunk group was read again."""
        self._coverage = coverage

    def apply(self, manifest: dict[str, Any]) -> Applied:
        """Apply one batch: every table, then the resume point. A batch that was applied before changes nothing.

        :param manifest: what :meth:`StreamJob.stage` returned.
        :raises TerminalError: if the batch begins behind the resume point: something would be missing.
        """
        start, end = Offset.from_json(manifest["start"]), Offset.from_json(manifest["end"])
        if self._at.at < start.at:
            raise TerminalError(
                f"a batch begins at {start.at}, but the sink stands at {self._at.at}",
                "Run the stream again: it starts from the sink's own resume point",
            )
        stamps: list[Any] = []
        if self._at.at < end.at:
            end_seq = self._plan.lineage.seq(end.at)
            for entry in manifest["tables"]:
                changes = pq.ParquetFile(entry["path"]).read()
                stamps.append(changes[TS].cast(pa.int64()).to_numpy())
                self._apply_table(entry["table"], changes, end_seq)
            hit("progress.before_commit")
            self._progress.write(end, self._plan.lineage, self.fence)
            hit("progress.after_commit")
            self._at = end
        for entry in manifest["tables"]:
            Path(entry["path"]).unlink(missing_ok=True)
        lags = time.time() * 1000 - np.concatenate(stamps) / 1000 if stamps else np.empty(0)
        return Applied(len(lags), lags)

    def tidy(self) -> None:
        """Delete old files of all tables; called at the end of an epoch. What fails now is done the next time."""
        for target in self.tables:
            with suppress(DeltaError, CdcError):
                target.tidy(_KEEP_HOURS)

    def _apply_table(self, index: int, changes: pa.Table, end_seq: int) -> None:
        table, target, held = self._plan.tables[index], self.tables[index], self._coverage[index]
        changes = changes.cast(table.sink_schema)
        marker = target.marker(self._marker)
        if marker is not None:
            changes = after(changes, marker)
        last = last_changes(changes, table.key)
        newest = max([self._plan.p0_seq, *held.high_watermarks])
        if marker is None or marker < newest:  # still in handover; afterwards no key is looked up
            with closing(connect(self._context.connect_args)) as connection:
                last = uncovered(connection, table, held.chunks, held.high_watermarks, self._plan.p0_seq, last)
        if last.num_rows == 0:
            return

        def decide(delta: DeltaTable) -> Actions | None:
            standing = delta.transaction_version(self._marker)
            return None if standing is not None and standing >= end_seq else target.upsert(delta, last, table.key)

        hit("table.before_commit")
        target.commit(decide, {self._marker: end_seq}, self.fence)
        hit("table.after_commit")
        if time.monotonic() - self._tidied[index] > _TIDY_SECONDS:
            target.tidy(_KEEP_HOURS)
            self._tidied[index] = time.monotonic()

    def _read_progress(self) -> Offset:
        return self._progress.read() or self._plan.p0
