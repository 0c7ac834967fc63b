"""Compare one table at one position, in memory that does not grow with the table.

First, both sides are summed by bucket (:mod:`~airflow_provider_cdc.model.bucket_sums`). Only the buckets whose sums
differ are then compared row by row and value by value, a portion of them at a time. The sums only decide where to
look: every reported difference was found in the rows themselves, at one position. docs/correctness.md explains why
writers may continue meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from airflow_provider_cdc.apply.applier import stream_marker
from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup, entry_timeline, group_marker, watermarks_of
from airflow_provider_cdc.config.delete_policy import IGNORE
from airflow_provider_cdc.config.load_limits import LoadLimits
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.bucket_sums import BUCKET_COUNT, BucketSums
from airflow_provider_cdc.model.changes import apply_changes, changes_after, last_changes
from airflow_provider_cdc.model.comparison import DIFFERENT, EXTRA, MISSING, RowDifference, TableComparison
from airflow_provider_cdc.model.errors import TerminalError, TransientError
from airflow_provider_cdc.model.multiset import change_weights
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.plan import Chunk, Plan
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN
from airflow_provider_cdc.mysql.chunks.planner import plan_table
from airflow_provider_cdc.mysql.chunks.window_reader import ChangeWindow
from airflow_provider_cdc.mysql.client.catalog import current_fingerprint
from airflow_provider_cdc.mysql.client.key_sql import keys_of
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.keys.ownership import changes_after_snapshot, find_owning_chunks
from airflow_provider_cdc.mysql.positions.resume import check_resume_offset
from airflow_provider_cdc.mysql.positions.watermarks import take_low_watermark
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Markers, Readable
from airflow_provider_cdc.sinks.scan_tasks import plan_table_scan
from airflow_provider_cdc.verify.last_changes import find_last_changes
from airflow_provider_cdc.verify.row_diff import RowDiff, diff_by_count, diff_by_key
from airflow_provider_cdc.verify.source_scan import TableSource
from airflow_provider_cdc.verify.task import (
    RowCollector,
    RowHasher,
    ScanRunner,
    SinkScan,
    make_bucket_mask,
    split_evenly,
)

T = TypeVar("T")
#: Approximate bytes of rows of either side that are held in memory to be compared value by value.
MAX_HELD_BYTES = 64 << 20
#: Keys that are reported, and differences after which the comparison stops.
MAX_REPORTED_KEYS, MAX_DIFFERENCES = 1000, 10_000
#: Tasks that read a sink; attempts at a table that is truncated, or whose files are deleted, while it is read.
_TASKS, _MAX_TRIES = 32, 10


class _RetryError(Exception):
    """What was read can no longer be used."""


@dataclass
class _BothSides:
    """Both sides as they were read in one attempt.

    :param copy_seq: ``_cdc_seq`` up to which the copy has all changes.
    :param sink: what was collected from the copy.
    :param source: what was collected from the source.
    :param chunks: the chunks in which the source was read.
    :param low_seq: ``_cdc_seq`` of the low watermark taken before the chunks.
    :param high_seqs: ``_cdc_seq`` of the high watermark of each chunk.
    :param common_position: the position that both sides are brought to.
    :param connection: connection to the source.
    :param read_missing_changes: reads the changes that either side may lack, in parts; its argument says whether to
        include the old rows of updates.
    """

    copy_seq: int
    sink: RowCollector
    source: RowCollector
    chunks: list[Chunk]
    low_seq: int
    high_seqs: list[int]
    common_position: Position
    connection: Connection[Any]
    read_missing_changes: Callable[[bool], Iterator[ChangeWindow]]


@dataclass
class TableComparer:
    """Compares one table with its copy.

    :param index: index of the table in the plan.
    :param target: its copy.
    :param runner: runs the scans of the copy.
    :param limits: limits of the load on the source.
    """

    context: RunContext
    plan: Plan
    index: int
    target: Readable
    runner: ScanRunner
    limits: LoadLimits

    def __post_init__(self) -> None:
        self.table = self.plan.tables[self.index]
        copy = self.table.copy
        self.transform = self.context.row_transform(self.table)
        names = tuple(c.name for c in copy.copied_columns)
        self.row_hasher = RowHasher(names, copy.key, (secrets.randbits(64), secrets.randbits(64)))
        self.keeps_deleted = self.context.pipeline.sink.delete_policy.mode_of(self.table) == IGNORE

    def compare(self) -> TableComparison:
        """Return the verdict.

        :raises TransientError: if the stream is not at a position at which the table can be compared, its definition
            in the source is different, or the table is truncated in every attempt.
        """
        source, sink, differing_buckets, at = self._retry_while_changing(lambda: self._compare_sums())
        diff, chunks, is_limited = RowDiff(), list[Chunk](), False
        for bucket_mask in _bucket_portions(source, sink, differing_buckets):
            is_limited = diff.total >= MAX_DIFFERENCES
            if is_limited:
                break
            portion_diff, chunks, at = self._retry_while_changing(partial(self._compare_rows, bucket_mask))
            diff.merge(portion_diff)
        examples = tuple(text for kind in diff.counts for text in diff.examples.get(kind, ()))
        verdict = TableComparison(
            self.table.label,
            int(source.row_counts.sum()),
            diff.counts[MISSING],
            diff.counts[EXTRA],
            diff.counts[DIFFERENT],
            at,
            examples,
            diff.allowed_extra,
            at_least=is_limited,
            columns=diff.differing_columns,
        )
        if not diff.differing_keys or self.table.has_hashed_key:  # a hash does not tell the key
            return verdict
        return self._locate_differences(verdict, diff, chunks, at)

    # ------------------------------------------------------------ sums, and rows

    def _compare_sums(self) -> tuple[BucketSums, BucketSums, Any, Position]:
        """Return the sums of both sides, the numbers of the buckets in which they differ, and the position."""
        with self._read_sides(None) as sides:
            source, sink = sides.source.sums, sides.sink.sums
            differing = None
            try:
                for window in sides.read_missing_changes(True):
                    if window.truncate_seq:
                        source = self._truncate_source_sums(sides, window.truncate_seq, source)
                        sink = sink if self.keeps_deleted or window.truncate_seq <= sides.copy_seq else BucketSums()
                    newer = self.transform.rows(self._changes_source_lacks(sides, window.changes))
                    self.row_hasher.add_to_sums(newer, source, _change_weights(newer))
                    newer = self.transform.rows(changes_after(window.changes, sides.copy_seq))
                    self.row_hasher.add_to_sums(newer, sink, self._sink_weights(newer))
            except TerminalError:  # old rows may be incomplete: the exact comparison needs only their keys
                differing = np.arange(BUCKET_COUNT)
            if differing is None:
                differing = source.differing_buckets(sink)
            return source, sink, differing, sides.common_position

    def _compare_rows(self, bucket_mask: bytes) -> tuple[RowDiff, list[Chunk], Position]:
        """Return what differs in some buckets, the chunks in which the source was read, and the position."""
        key, schema = self.table.key, self.table.sink_schema
        read_schema, copy_key = self.table.row_schema, self.table.copy.key
        with self._read_sides(bucket_mask) as both_sides:
            truncated_at, parts = 0, list[pa.Table]()
            for window in both_sides.read_missing_changes(False):
                if window.truncate_seq:
                    truncated_at, parts = window.truncate_seq, []
                rows = self.transform.convert_columns(window.changes)
                parts.append(both_sides.source.filter_rows(window.changes, rows))
                if key and not self.keeps_deleted:
                    parts = [last_changes(pa.concat_tables(parts), key)]
            changes = pa.concat_tables([read_schema.empty_table(), *parts])
            source = pa.concat_tables([schema.empty_table(), *both_sides.source.rows])
            source = source.filter(pc.greater_equal(source[SEQ_COLUMN], truncated_at))
            copied = pa.schema([schema.field(name) for name in self.row_hasher.columns])
            copy_truncated = truncated_at > both_sides.copy_seq and not self.keeps_deleted
            sink = pa.concat_tables([copied.empty_table(), *([] if copy_truncated else both_sides.sink.rows)])
            newer = self._changes_source_lacks(both_sides, last_changes(changes, key) if key else changes)
            newer = self.transform.changes(newer)
            missing_in_copy = self.transform.changes(changes_after(changes, both_sides.copy_seq))
            if key:
                sink = apply_changes(sink, missing_in_copy, copy_key, keeps_deleted=self.keeps_deleted)
                source = apply_changes(source, newer, copy_key)
                diff = diff_by_key(self.table, source, sink, max_keys=MAX_REPORTED_KEYS, allow_extra=self.keeps_deleted)
            else:
                sides = ((source, newer), (sink, missing_in_copy))
                diff = diff_by_count(self.table, [(rows, changes, change_weights(changes)) for rows, changes in sides])
            return diff, both_sides.chunks, both_sides.common_position

    @contextmanager
    def _read_sides(self, bucket_mask: bytes | None) -> Iterator[_BothSides]:
        """Read both sides.

        :param bucket_mask: buckets whose rows are kept; ``None`` to sum all rows.
        """
        plan, table, context = self.plan, self.table, self.context
        # The resume point first, the version after it: no change at or before E can be missing from the version.
        progress, timeline = context.resume_state(plan)
        if progress.already_applied:  # the copy does not correspond to any one position yet
            raise TransientError(
                f"the stream moved to server {progress.server} and has not yet passed everything that it had applied "
                "before",
                "Let it catch up, then run again",
            )
        source = TableSource(context, table, plan.definitions_for(timeline)[self.index], timeline, self.limits)
        with closing(connect(context.connect_args)) as connection:
            if current_fingerprint(connection, table) != table.fingerprint():
                raise TransientError(
                    "its definition in the source differs from that of its copy",
                    "Compare it after the stream has followed the DDL. If the stream stopped there, airflow-cdc "
                    "status shows why",
                )
            # The copy first: its files are kept only for an hour, and the source may take longer.
            files, markers = plan_table_scan(self.target)
            applied_seq = max(timeline.seq(progress.at), markers.get(stream_marker(plan.pipeline)) or 0)
            # Without a key, a change that is applied twice counts twice.
            copy_seq = (
                applied_seq if table.key else max(applied_seq, _highest_watermark(context, plan, self.index, markers))
            )
            sink_rows = RowCollector(self.row_hasher, bucket_mask)
            for collected in self.runner(
                [SinkScan(share, self.row_hasher, bucket_mask) for share in split_evenly(files, _TASKS)]
            ):
                sink_rows.merge(collected)
            progress = check_resume_offset(connection, progress, context.binlog_opener(slots.VERIFY))
            p0 = take_low_watermark(connection, timeline.server).at
            chunks = plan_table(connection, self.index, table, context.pipeline.snapshot.chunk_rows)
            source_rows, high = source.read_chunks(chunks, lambda: RowCollector(self.row_hasher, bucket_mask))
            common_position = max([p0, timeline.position(applied_seq), *high])
            low = min(p0, timeline.position(applied_seq))

            def read_missing_changes(before_images: bool) -> Iterator[ChangeWindow]:
                open_xa = progress.open_xa if low == progress.at else ()
                with closing(source.open_window_reader(connection, slots.VERIFY, before_images=before_images)) as log:
                    for window in log.read_parts(low, common_position, open_xa):
                        context.check_interrupted()
                        yield window

            marks = [timeline.seq(at) for at in high]
            yield _BothSides(
                copy_seq,
                sink_rows,
                source_rows,
                chunks,
                timeline.seq(p0),
                marks,
                common_position,
                connection,
                read_missing_changes,
            )

    def _retry_while_changing(self, attempt: Callable[[], T]) -> T:
        for _ in range(_MAX_TRIES):
            try:
                return attempt()
            except (_RetryError, FileNotFoundError):
                continue
        raise TransientError(
            f"{self.table.label} was truncated, or files of its copy were deleted, during each of {_MAX_TRIES} "
            "attempts to read it",
            "Run again when that has stopped",
        )

    # ------------------------------------------------------------ what either side lacks

    def _changes_source_lacks(self, sides: _BothSides, changes: pa.Table) -> pa.Table:
        """Return the changes that the rows read from the source lack."""
        if not self.table.key:
            return changes_after(changes, sides.high_seqs[0])
        changes = changes_after(changes, min([sides.low_seq, *sides.high_seqs]))
        return changes_after_snapshot(
            sides.connection, self.table, sides.chunks, sides.high_seqs, sides.low_seq, changes
        )

    def _truncate_source_sums(self, sides: _BothSides, seq: int, source: BucketSums) -> BucketSums:
        """Return the source's sums after a TRUNCATE.

        :raises _RetryError: if it falls between the high watermarks of the chunks.
        """
        if not sides.high_seqs or seq <= min(sides.high_seqs):
            return source
        if seq > max(sides.high_seqs):
            return BucketSums()
        raise _RetryError  # some chunks were read before it, and others after it

    def _sink_weights(self, changes: pa.Table) -> Any:
        """Return the weight of each change for the copy's sums.

        If the copy keeps deleted rows, an old row counts only if a new row of the same key follows.
        """
        result = _change_weights(changes)
        if self.keeps_deleted:
            buckets, before = self.row_hasher.key_hashes(changes), result < 0
            followed = np.zeros(len(result), bool)
            followed[:-1] = before[:-1] & ~before[1:] & (buckets[:-1] == buckets[1:])
            result[before & ~followed] = 0
        return result

    def _locate_differences(
        self, verdict: TableComparison, diff: RowDiff, chunks: list[Chunk], at: Position
    ) -> TableComparison:
        """Return the verdict with the keys, the chunks that they lie in, and their last changes."""
        context, plan, table = self.context, self.plan, self.table
        listed = [
            RowDifference(kind, key, columns)
            for kind, keys, of in diff.differing_keys
            for key, columns in zip(keys_of(table, table.source_keys(keys)), of, strict=True)
        ][:MAX_REPORTED_KEYS]
        timeline = context.resume_state(plan)[1]
        source = TableSource(context, table, plan.definitions_for(timeline)[self.index], timeline, self.limits)
        with closing(connect(context.connect_args)) as connection:
            owner_numbers = find_owning_chunks(connection, table, chunks, [d.key for d in listed])
            touched_by_key, searched_from = find_last_changes(
                source, connection, table.source_keys(pa.concat_tables([k for _, k, _ in diff.differing_keys])), at
            )
        numbers = sorted({number for number in owner_numbers if number >= 0})
        ranges = tuple(chunks[number].replace(number=i, group=0) for i, number in enumerate(numbers))
        differences = tuple(replace(d, last_change=touched_by_key.get(d.key)) for d in listed)
        return replace(verdict, differences=differences, ranges=ranges, searched=searched_from)


def _bucket_portions(source: BucketSums, sink: BucketSums, buckets: Any) -> Iterator[bytes]:
    """Yield bucket masks that split the buckets into portions whose rows fit into memory."""
    rows = np.maximum(np.maximum(source.row_counts, sink.row_counts)[buckets], 0)
    counted = max(1, int(np.abs(source.row_counts).sum()), int(np.abs(sink.row_counts).sum()))
    most = max(1, MAX_HELD_BYTES * counted // max(1, source.row_bytes, sink.row_bytes))
    portion = (np.cumsum(rows) - rows) // most
    for number in np.unique(portion):
        yield make_bucket_mask(buckets[portion == number].tolist())


def _change_weights(changes: pa.Table) -> Any:
    """Return 1 for each change that results in a row, and -1 for each delete or old image."""
    return np.where(pc.is_in(changes[OP_COLUMN], pa.array(["d", "b"])).to_numpy(), -1, 1)


def _highest_watermark(context: RunContext, plan: Plan, index: int, markers: Markers) -> int:
    """Return ``_cdc_seq`` of the highest high watermark among the attempts that are part of the sink table."""
    marks = [plan.p0_seq]
    for group in plan.groups_of(index):
        for entry in ChunkGroup(context, plan, group).read_manifest(markers.get(group_marker(plan, group)) or 0):
            if entry["table"] == index:
                marks += [entry_timeline(entry).seq(watermarks_of(chunk)[1]) for chunk in entry["chunks"]]
    return max(marks)
