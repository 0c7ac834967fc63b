"""Apply the batches of the stream to the sink, exactly once (the argument is in docs/correctness.md)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.chunk_groups.chunk_group import SnapshotCoverage
from airflow_provider_cdc.model.changes import changes_after, last_changes
from airflow_provider_cdc.model.column_policy import UNIQUE_KEY
from airflow_provider_cdc.model.errors import (
    REPORT_REMEDY,
    CdcError,
    DuplicateKeyError,
    NotFollowedError,
    TerminalError,
)
from airflow_provider_cdc.model.multiset import MissingRowsError, net_change
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, TableSchema
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.keys.ownership import changes_after_snapshot
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import (
    Change,
    DecideChange,
    Fence,
    HasUniqueKeys,
    Markers,
    Measurable,
    MultisetChange,
    ResumePoint,
    SinkTable,
    Truncate,
    Upsert,
)
from airflow_provider_cdc.sinks.storage.request_counts import with_current_counts
from airflow_provider_cdc.sinks.storage.storage import read_json, write_json
from airflow_provider_cdc.sinks.table_errors import name_table_in_errors
from airflow_provider_cdc.system.failpoints import failpoint

#: Tables committed concurrently, where a commit mostly waits for an object store.
_COMMIT_THREADS = 8


@dataclass(frozen=True)
class AppliedBatch:
    """Result of an applied batch.

    :param changes: number of changes that were read, before the reduction to the last one of each key.
    :param lags_ms: time from commit in the source to commit in the sink, in milliseconds, for each change.
    :param operations: numbers of inserts, updates and deletes of each table with changes, by table index.
    """

    changes: int
    lags_ms: Any
    operations: Mapping[int, Counter[str]] = field(default_factory=dict)

    def lag_percentile(self, q: float) -> float | None:
        """Return a percentile of the lags in milliseconds; ``None`` without changes."""
        return float(np.percentile(self.lags_ms, q)) if self.changes else None


class _AppliedTable(NamedTuple):
    """Changes applied to one table: their commit times in the source (microseconds) and their numbers by operation."""

    table: int
    commit_times_us: Any
    operations: Mapping[str, int]


#: Entries of a batch for one table.
_TableEntries = list[dict[str, Any]]


def epoch_fence(pipeline: str, epoch: int) -> Fence:
    """Return the fence of a stream epoch."""
    return Fence(f"cdc/{pipeline}/epoch", epoch)


def ended_epoch_fence(pipeline: str, epoch: int) -> Fence:
    """Return the fence that an ended epoch raises in the resume point: it commits nothing from then on."""
    return Fence(f"cdc/{pipeline}/ended", epoch)


def highest_epoch(pipeline: str, markers: Iterable[Markers]) -> int:
    """Return the highest epoch recorded in any of the markers.

    :param markers: markers of each table and of the resume point.
    """
    return max((table_markers.get(epoch_fence(pipeline, 0).name) or 0 for table_markers in markers), default=0)


def stream_marker(pipeline: str) -> str:
    """Return the name of a table's stream marker, the ``_cdc_seq`` up to which the stream has been applied to it."""
    return f"cdc/{pipeline}/stream"


@contextmanager
def explain_missing_rows(table: TableSchema, timeline: Timeline) -> Iterator[None]:
    """Explain what it means if rows to be deleted do not exist in the copy.

    :raises TerminalError: in place of :class:`MissingRowsError`.
    """
    try:
        yield
    except MissingRowsError as error:
        at = timeline.position(error.row[SEQ_COLUMN][0].as_py())
        raise TerminalError.for_table(
            f"table {table.label}, which has no usable key: {error.count} of the rows that were deleted or updated up "
            f"to {at} do not exist in its copy, so the copy has diverged from the source",
            table.label,
            place=str(at),
            first=f"Find out what else writes to the copy; if nothing does, {REPORT_REMEDY}",
        ) from None


def _apply_until_keys_are_free(
    tables: Sequence[_TableEntries], start: Callable[[_TableEntries], Callable[[], list[_AppliedTable]]]
) -> list[_AppliedTable]:
    """Apply a batch to its tables.

    A row may have moved from one table to another whose copy is the same, and must have left the first one: what finds
    its key taken is applied again after the others.

    :param tables: entries of the batch, by table.
    :param start: begins to apply the entries of a table, and returns a function that waits for the end.
    :raises DuplicateKeyError: if keys stay taken.
    """
    done = list[_AppliedTable]()
    while tables:
        waits, waiting, errors = [start(entries) for entries in tables], list[_TableEntries](), list[CdcError]()
        for entries, wait in zip(tables, waits, strict=True):
            try:
                done += wait()
            except DuplicateKeyError as error:
                waiting.append(entries)
                errors.append(error)
        if len(waiting) == len(tables):
            raise errors[0]
        tables = waiting
    return done


class Applier:
    """Applies staged batches in order.

    :param context: context of the run.
    :param plan: plan of the snapshot.
    :param tables: sink tables in the plan's order.
    :param coverage: what the snapshot of each table contains, in the plan's order.
    :param resume_point: the resume point.
    :param epoch: epoch of this stream.
    :param on_table_commit: called with the index of each table that was committed.

    The attribute ``timeline`` numbers the transactions of the server that the resume point belongs to.
    """

    def __init__(
        self,
        context: RunContext,
        plan: Plan,
        tables: Sequence[SinkTable],
        coverage: Sequence[SnapshotCoverage],
        resume_point: ResumePoint,
        epoch: int,
        on_table_commit: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._context, self._plan, self._coverage = context, plan, coverage
        self.tables = list(tables)
        self._resume_point = resume_point
        self._staging = context.sink.change_staging()
        self.fence = epoch_fence(plan.pipeline, epoch)
        self._marker = stream_marker(plan.pipeline)
        self._offset, self.timeline = context.resume_state(plan)
        self._last_begun_batch: dict[str, Any] = read_json(context.storage, context.layout.current_batch) or {"seq": 0}
        self._on_table_commit = on_table_commit
        self._tables_with_unchecked_keys = {i for i, table in enumerate(plan.tables) if table.shared == UNIQUE_KEY}

    @property
    def offset(self) -> Offset:
        """The resume point."""
        return self._offset

    @property
    def index_bytes(self) -> tuple[int, int] | None:
        """Bytes that the tables' key indexes use, in memory and on disk; ``None`` if the sink does not report them."""
        sizes = [table.index_bytes_used for table in self.tables if isinstance(table, Measurable)]
        return (sum(memory for memory, _ in sizes), sum(disk for _, disk in sizes)) if sizes else None

    def check_fence(self) -> None:
        """Check that no newer epoch has taken over.

        :raises FencedError: if one has.
        """
        self._resume_point.write(self._offset, self.timeline, self.fence)

    def raise_end_fence(self) -> None:
        """Record in the sink that this epoch commits nothing from now on."""
        self._resume_point.raise_fence(ended_epoch_fence(self._plan.pipeline, self.fence.value))

    def use_plan(self, plan: Plan) -> None:
        """Continue without a table that was suspended.

        :param plan: the plan with the suspension.
        """
        self._plan = plan

    def add_table(self, plan: Plan, table: SinkTable) -> None:
        """Continue with an additional table, which has not been read yet.

        :param plan: the plan with the table.
        """
        self._plan = plan
        if plan.tables[-1].shared == UNIQUE_KEY:
            self._tables_with_unchecked_keys.add(len(self.tables))
        self.tables.append(table)
        self.set_coverage([*self._coverage, SnapshotCoverage((), (), 0)])

    def replace_table(self, plan: Plan, index: int, table: SinkTable) -> None:
        """Continue with another definition of a table.

        :param plan: the plan with the definition.
        :param table: the sink table with the columns of that definition.
        """
        self._plan = plan
        self.tables[index] = table

    def has_passed_snapshot(self, index: int) -> bool:
        """Return whether the resume point is past everything that the snapshot contains of a table."""
        newest = max([self._plan.start_seq(index), *self._coverage[index].high_watermarks])
        return newest <= self.timeline.seq(self._offset.at)

    def set_coverage(self, coverage: Sequence[SnapshotCoverage]) -> None:
        """Replace the snapshot coverage, after a chunk group was re-snapshotted."""
        self._coverage = coverage

    def replace_offset(self, offset: Offset) -> None:
        """Continue at another offset that is followed by the same changes as the resume point.

        :param offset: an offset of the same server.
        """
        if offset != self._offset:
            self._resume_point.write(offset, self.timeline, self.fence)
            self._offset = offset

    def tables_bound_to_server(self) -> dict[int, TerminalError]:
        """Return the tables that can continue only at this server, and why, by index.

        They are ahead of the resume point in a way that cannot be expressed at another server.
        """
        resume_seq, reasons = self.timeline.seq(self._offset.at), dict[int, TerminalError]()
        for index in self._plan.active_tables:
            table = self._plan.tables[index]
            if any(step.seq > resume_seq for step in self._plan.followed_ddls_of(index)):
                message = f"the stream had begun to follow an ALTER of {table.label} there"
                reasons[index] = NotFollowedError(message, self._go_back_remedy, table=table.label)
            elif (marker := self._stream_marker_of(index)) > resume_seq and not table.key:
                message = f"{table.label} has no usable key, and is ahead of the resume point"
                reasons[index] = TerminalError(message, self._go_back_remedy, table=table.label)
            elif marker > resume_seq and marker > self._last_begun_batch["seq"]:
                message = f"{table.label} is ahead of the resume point, and nothing says which transactions it holds"
                reasons[index] = TerminalError(message, self._go_back_remedy, table=table.label)
        return reasons

    def interrupted_batch_end(self) -> Offset | None:
        """Return the end of the batch that a killed run had begun, if it left a table ahead of the resume point.

        :returns: the offset up to which the copy may contain changes; ``None`` if no table is ahead.
        """
        resume_seq = self.timeline.seq(self._offset.at)
        any_ahead = any(self._stream_marker_of(index) > resume_seq for index in self._plan.active_tables)
        return Offset.from_json(self._last_begun_batch["end"]) if any_ahead else None

    def _stream_marker_of(self, index: int) -> int:
        return self.tables[index].markers().get(self._marker) or 0

    def check_snapshot_passed(self) -> None:
        """Check that the stream has passed everything in the chunks. At another server that could not be determined.

        :raises TerminalError: if the stream has not passed all high watermarks.
        """
        for index in self._plan.active_tables:
            if not self.has_passed_snapshot(index):
                label = self._plan.tables[index].label
                raise TerminalError(
                    f"the stream had not passed the snapshot of {label} on that server", self._go_back_remedy
                )

    def move_to_server(self, offset: Offset) -> None:
        """Continue at another server.

        :meth:`tables_bound_to_server` must be empty, and :meth:`check_snapshot_passed` must have succeeded.

        :param offset: the offset there that corresponds to the resume point.
        """
        reached = self.timeline.seq(self._offset.at)
        # Above the end of the last batch that was begun, which no marker exceeds (see tables_bound_to_server): later
        # changes must not be mistaken for changes that a table already has, nor for those of that batch.
        timeline = self.timeline.with_segment(
            offset.server, offset.at.file, max(reached, self._last_begun_batch["seq"])
        )
        self._resume_point.write(offset, timeline, self.fence)
        self._offset, self.timeline = offset, timeline

    @property
    def _go_back_remedy(self) -> str:
        return f"Point the connection at server {self._offset.server} again and rerun, or start with a fresh sink"

    def apply(self, manifest: dict[str, Any]) -> AppliedBatch:
        """Apply one batch: every table, then the resume point. A batch that was applied before changes nothing.

        :param manifest: result of :func:`~airflow_provider_cdc.apply.task.merge_manifests`.
        :raises TerminalError: if the batch begins after the resume point, so that changes would be missing.
        """
        start, end = Offset.from_json(manifest["start"]), Offset.from_json(manifest["end"]).replace(before_ddl=False)
        if self._offset.at < start.at:
            raise TerminalError(
                f"a batch begins at {start.at}, but the sink is at {self._offset.at}",
                "Run the stream again: it starts from the sink's own resume point",
            )
        self._check_unique_keys()
        applied: list[_AppliedTable] = []
        if self._offset.at < end.at:
            end_seq = self.timeline.seq(end.at)
            applied = self._apply_tables(manifest["tables"], end, end_seq)
            failpoint("progress.before_commit")
            self._resume_point.write(end, self.timeline, self.fence)
            failpoint("progress.after_commit")
            self._offset = end
        self._remove_staged(manifest)
        # Not below 0: the clocks of the two machines may differ.
        lags = np.empty(0)
        if applied:
            lags = np.maximum(time.time() * 1000 - np.concatenate([one.commit_times_us for one in applied]) / 1000, 0)
        operations: dict[int, Counter[str]] = {}
        for table_applied in applied:
            operations.setdefault(table_applied.table, Counter()).update(table_applied.operations)
        return AppliedBatch(len(lags), lags, operations)

    def _check_unique_keys(self) -> None:
        """Check once, of each copy of several tables whose keys are declared to be unique, that they are.

        Before the stream has passed the snapshot of all of them, a row that moves from one to another may be in both.
        Rows of suspended tables do not count: of two tables that have exchanged rows, neither could come back.

        :raises DuplicateKeyError: naming one of the tables.
        """
        outdated = {self._plan.tables[index].label for index in self._plan.outdated_tables}
        for table, target in zip(self._plan.tables, self.tables, strict=True):
            if table.shared == UNIQUE_KEY and isinstance(target, HasUniqueKeys):
                target.ignore_keys_of(outdated)
        paths = self._context.pipeline.sink.table_paths
        for index in [*self._tables_with_unchecked_keys]:
            folder = paths.path_of(*self._plan.tables[index].id)
            sharing = [i for i in self._plan.active_tables if paths.path_of(*self._plan.tables[i].id) == folder]
            target = self.tables[index]
            if index in sharing and isinstance(target, HasUniqueKeys) and all(map(self.has_passed_snapshot, sharing)):
                with name_table_in_errors(self._plan.tables[index]):
                    # Of two tables with the same key, only the second one stops.
                    target.check_unique_keys(self.fence, {self._plan.tables[i].label for i in sharing if i < index})
                self._tables_with_unchecked_keys.discard(index)

    def _apply_tables(self, entries: Sequence[dict[str, Any]], end: Offset, end_seq: int) -> list[_AppliedTable]:
        """Apply a batch to all of its tables.

        Requests to an object store are slow but can run in parallel, so there the tables are committed concurrently.
        When this returns or raises, every table has been committed or has failed.
        """
        tables = [list(table_entries) for _, table_entries in groupby(entries, lambda entry: entry["table"])]
        if not tables:
            return []
        if suspended := {entry["table"] for entry in entries} - {*self._plan.active_tables}:
            labels = ", ".join(sorted(self._plan.tables[index].label for index in suspended))
            raise TerminalError(f"a batch up to {end.at} has changes of {labels}, which are suspended", REPORT_REMEDY)
        if not self._context.storage.is_remote:
            self._record_batch_end(end, end_seq)
            return _apply_until_keys_are_free(tables, lambda entries: partial(self._apply_entries, entries, end_seq))
        with ThreadPoolExecutor(_COMMIT_THREADS, "table") as pool:
            recorded = pool.submit(with_current_counts(self._record_batch_end), end, end_seq).result
            apply = with_current_counts(self._apply_entries)
            return _apply_until_keys_are_free(
                tables, lambda entries: pool.submit(apply, entries, end_seq, recorded).result
            )

    def _record_batch_end(self, end: Offset, end_seq: int) -> None:
        """Store where a batch ends, so that it is always known which transactions a table may contain."""
        if end_seq > self._last_begun_batch["seq"]:
            batch = {"seq": end_seq, "end": end.to_json()}
            write_json(self._context.storage, self._context.layout.current_batch, batch)
            self._last_begun_batch = batch

    def _apply_entries(
        self, entries: Sequence[dict[str, Any]], end_seq: int, wait_until_recorded: Callable[[], None] = lambda: None
    ) -> list[_AppliedTable]:
        """Apply the changes of a batch for one table.

        :param wait_until_recorded: returns as soon as commits are allowed.
        """
        done = []
        for number, entry in enumerate(entries, 1):
            changes = self._staging.read_for_apply(self._plan.tables[entry["table"]], entry["staged"])
            wait_until_recorded()
            # Where a TRUNCATE of the same table follows, the table is not at the end of the batch yet.
            reached = end_seq if number == len(entries) else pc.max(changes[SEQ_COLUMN]).as_py() or 0
            emptied = None if entry["emptied"] is None else Truncate(entry["emptied"], entry["emptied_at"])
            with name_table_in_errors(self._plan.tables[entry["table"]]):
                self._apply_table(entry["table"], changes, reached, emptied)
            counted = {one["values"]: one["counts"] for one in pc.value_counts(changes[OP_COLUMN]).to_pylist()}
            done.append(_AppliedTable(entry["table"], changes[TS_COLUMN].cast(pa.int64()).to_numpy(), counted))
        return done

    def _remove_staged(self, manifest: dict[str, Any]) -> None:
        """Remove staged changes that are no longer needed."""
        used = {name for entry in manifest["tables"] for name in entry["staged"]}
        for index, name in manifest["staged"]:
            clean = self._staging.discard_applied if name in used else self._staging.discard
            clean(self._plan.tables[index], [name])

    def _apply_table(self, index: int, changes: pa.Table, end_seq: int, emptied: Truncate | None) -> None:
        table, coverage = self._plan.tables[index], self._coverage[index]
        if not table.key:
            self._apply_keyless(index, changes, end_seq, emptied.seq if emptied else None)
            return
        if emptied is not None:
            # Only rows from before the TRUNCATE are removed: a chunk with a later high watermark was read after it.
            self._commit_table(index, lambda _: emptied, emptied.seq)
        start = self._plan.start_seq(index)
        newest = max([start, *coverage.high_watermarks])

        def decide(markers: Markers) -> Upsert | None:
            marker = markers.get(self._marker)
            unapplied = changes if marker is None else changes_after(changes, marker)
            final_changes = last_changes(unapplied, table.copy.key)
            # Still in handover; afterwards no key needs to be looked up. Of hashed keys, the tasks have done it.
            if not table.has_hashed_key and (marker is None or marker < newest):
                with closing(connect(self._context.connect_args)) as connection:
                    keys = table.source_keys(final_changes)
                    final_changes = changes_after_snapshot(
                        connection, table, coverage.chunks, coverage.high_watermarks, start, final_changes, keys
                    )
            return Upsert(final_changes) if final_changes.num_rows else None

        self._commit_table(index, decide, end_seq)

    def _apply_keyless(self, index: int, changes: pa.Table, end_seq: int, emptied: int | None) -> None:
        """Apply changes to a table without a key. Only the markers prevent a deletion from being applied twice."""
        table = self._plan.tables[index]
        covered = max([self._plan.start_seq(index), *self._coverage[index].high_watermarks])

        def decide(markers: Markers) -> MultisetChange | None:
            applied_seq = max(covered, markers.get(self._marker) or 0)
            since = emptied if emptied is not None and emptied > applied_seq else 0
            change = net_change(changes_after(changes, applied_seq), [c.name for c in table.copy.copied_columns])
            return MultisetChange(change, since) if change or since else None

        with explain_missing_rows(table, self.timeline):
            self._commit_table(index, decide, end_seq)

    def _commit_table(self, index: int, decide: DecideChange, reached: int) -> None:
        """Commit a change together with the new stream marker, unless the table has reached that marker already."""
        target = self.tables[index]

        def due(markers: Markers) -> Change | None:
            # Saves time when a batch is applied again: the function would find nothing to change anyway.
            return decide(markers) if (markers.get(self._marker) or 0) < reached else None

        failpoint("table.before_commit")
        target.commit(due, {self._marker: reached}, self.fence)
        failpoint("table.after_commit")
        self._on_table_commit(index)
