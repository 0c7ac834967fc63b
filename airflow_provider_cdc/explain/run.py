"""Explain why a row is as it is: which reads included it, what changed it since, and whether both sides agree.

Nothing is written. The binlog is read where the row may have changed, at most about 16 MB of changes are in memory at
a time, and only the changes of the key are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pymysql.connections import Connection

from airflow_provider_cdc.apply.applier import stream_marker
from airflow_provider_cdc.config.delete_policy import IGNORE
from airflow_provider_cdc.ddl.key_predicate import InvalidKeyPredicate
from airflow_provider_cdc.explain.explanation import (
    OPERATION_NAMES,
    PUBLISHED,
    ChangeSummary,
    Explanation,
    RowChange,
    RowSide,
    RowValues,
    parse_key_texts,
)
from airflow_provider_cdc.explain.read_history import HistoricalRead, ReadHistory
from airflow_provider_cdc.explain.row_changes import RowChangeReader, RowChangeSegment
from airflow_provider_cdc.explain.row_lookup import RowLookup, rows_without_meta_columns
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.changes import apply_changes
from airflow_provider_cdc.model.comparison import DIFFERENT
from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import CdcError, NotReadyError
from airflow_provider_cdc.model.offset import Position, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, TableSchema
from airflow_provider_cdc.model.start_mode import SNAPSHOT
from airflow_provider_cdc.mysql.client.charsets import load_decoders
from airflow_provider_cdc.mysql.client.identity import binlog_end
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.keys.ownership import mask_owned_rows
from airflow_provider_cdc.mysql.keys.ranges import parse_key
from airflow_provider_cdc.mysql.positions.binlog_files import binlog_sizes
from airflow_provider_cdc.mysql.positions.resume import check_resume_offset
from airflow_provider_cdc.resnapshot.read import find_table_index
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Readable
from airflow_provider_cdc.sinks.scan_tasks import plan_table_scan
from airflow_provider_cdc.verify.last_changes import MAX_SEARCHED_BYTES, binlog_ranges_newest_first
from airflow_provider_cdc.verify.row_diff import diff_by_key

#: How many of the row's latest changes are shown for a part of the binlog.
MAX_SHOWN_CHANGES = 10


def explain_row(context: RunContext, label: str, texts: Sequence[str]) -> Explanation:
    """Explain why a row is as it is.

    :param label: ``database.table``.
    :param texts: values of its key, in key order or each as ``column=value``.
    :raises NotReadyError: if the pipeline has no such table, the table has no key, or the values are not a valid key.
    :raises TransientError: if the source cannot be reached.
    """
    plan = context.plans.require()
    index = find_table_index(context, plan, label)
    table = plan.tables[index]
    if not table.key:
        raise NotReadyError(
            f"{label} has no usable key: a row is identified by all of its values, so a single row cannot be named",
            f"Compare the whole table: airflow-cdc verify --tables '{label}'",
            table=label,
        )
    with closing(connect(context.connect_args)) as connection:
        try:
            key_texts = parse_key_texts(texts, table.key)
            key = parse_key(connection, table, key_texts)
        except InvalidKeyPredicate as error:
            raise NotReadyError(
                f"the key of {label}: {error}", f"Name a key: ({', '.join(table.key)})", table=label
            ) from None
        row = RowLookup(context, connection, table, key)
        return _RowExplainer(context, connection, plan, index, row).explain(
            dict(zip(table.key, key_texts, strict=True))
        )


class _UnknownError(Exception):
    """Raised with the reason why something cannot be determined."""


@dataclass
class _RowExplainer:
    """Builds the explanation of one row.

    :param connection: connection to the source.
    :param index: index of the row's table in the plan.
    """

    context: RunContext
    connection: Connection[Any]
    plan: Plan
    index: int
    row: RowLookup

    def __post_init__(self) -> None:
        self.table = self.plan.tables[self.index]
        self.resume_offset, self.timeline = self.context.resume_state(self.plan)

    def explain(self, shown: RowValues) -> Explanation:
        """Return the complete explanation.

        :param shown: the key as the user gave it.
        """
        suspension = self.plan.suspension_of(self.index)
        reads = ReadHistory(self.context, self.connection, self.plan, self.index, self.row.key).find_reads()
        published = [found for found in reads if found.read.state == PUBLISHED]
        corrections = ChangeSummary(unknown_reason="it has not been read yet")
        if published:
            corrections = self._find_corrections(published[-1])
        source, rows, current = self.row.find_in_source()
        copy, copied = self._find_in_copy(published, rows)
        explanation = Explanation(
            self.table.label,
            shown,
            tuple(found.read for found in reads),
            corrections,
            source,
            copy,
            suspended=""
            if suspension is None
            else f"since {suspension.since}, at {suspension.at}: {suspension.message}",
        )
        explanation = self._add_last_change(explanation, current)
        try:
            return self._add_comparison(explanation, current, rows, copied, published)
        except _UnknownError as error:
            return replace(explanation, not_compared_reason=str(error))

    # ------------------------------------------------------------ the two sides

    def _find_in_copy(
        self, published: Sequence[HistoricalRead], source_row: pa.Table | None
    ) -> tuple[RowSide, pa.Table | None]:
        """Return the row in the sink, and its rows as a table (``None`` if they cannot be read).

        The copy has every change of the row up to the stream's position, or up to the high watermark of the read.
        """
        target = self.context.sink.table(self.table)
        if not target.exists():
            return RowSide(unknown_reason="there is no copy of the table yet"), None
        if not isinstance(target, Readable):
            return RowSide(unknown_reason=f"the {target.name} cannot be read back"), None
        listed, markers = plan_table_scan(target)
        copy_rows = self.row.find_in_copy(listed, source_row)
        suspension = self.plan.suspension_of(self.index)
        seqs = [self.timeline.seq(self.resume_offset.at), markers.get(stream_marker(self.plan.pipeline)) or 0]
        seqs = [suspension.seq] if suspension is not None else seqs
        if published and (high := published[-1].read.high) is not None and published[-1].timeline is not None:
            seqs.append(published[-1].timeline.seq(high))
        written_by = None
        if copy_rows.num_rows:
            seq, operation = copy_rows[SEQ_COLUMN][0].as_py(), copy_rows[OP_COLUMN][0].as_py()
            written_by = OPERATION_NAMES.get(operation, str(operation)), self.timeline.position(seq)
        return RowSide(
            self.timeline.position(max(seqs)), rows_without_meta_columns(copy_rows, self.table), written_by=written_by
        ), copy_rows

    # ------------------------------------------------------------ the binlog

    def _change_reader(self, definitions: DefinitionHistory) -> RowChangeReader:
        table, key_filter = definitions.newest, None
        if (name := table.integer_key_column) is not None:
            key_filter = (
                name,
                lambda keys: mask_owned_rows(self.connection, table, [self.row.key_chunk], pa.table({name: keys})),
            )
        return RowChangeReader(
            self.context.binlog_source(slots.EXPLAIN, self.row.server),
            definitions,
            self.row.is_this_row,
            key_filter,
            load_decoders(lambda: nullcontext(self.connection), [table]),
        )

    def _extended_definitions(self, plan: Plan, timeline: Timeline) -> DefinitionHistory:
        """Return the definitions to decode the binlog with, also outside the range in which the stream uses them."""
        definitions = plan.definitions_for(timeline)[self.index]
        return DefinitionHistory(((None, definitions.versions[0][1]), *definitions.versions[1:]), definitions.revision)

    def _find_corrections(self, historical_read: HistoricalRead) -> ChangeSummary:
        """Return the changes of the row between the watermarks of a read."""
        low, high = historical_read.read.low, historical_read.read.high
        if low is None or high is None or historical_read.timeline is None:
            return ChangeSummary()
        try:
            if (
                historical_read.timeline.newest_segment != self.timeline.newest_segment
                or self.row.server != historical_read.read.server
            ):
                raise _UnknownError(
                    f"it was read from server {historical_read.read.server}, whose binlog is not available"
                )
            (oldest, *_) = binlog_sizes(self.connection)
            if low < Position(oldest, 0):
                raise _UnknownError(f"the server has removed the binlog before {oldest}")
            definitions = self._extended_definitions(historical_read.plan, historical_read.timeline)
            change_reader = self._change_reader(definitions)
            count, latest = 0, deque[RowChange](maxlen=MAX_SHOWN_CHANGES)
            for segment in change_reader.read(low, high, historical_read.binlog_begun):
                if segment.altered_at is not None:
                    raise _UnknownError(f"the table was altered at {segment.altered_at}")
                count += segment.change_count
                latest.extend(self._latest_changes(segment, definitions.newest))
        except (_UnknownError, CdcError) as error:
            return ChangeSummary(unknown_reason=_error_text(error))
        return ChangeSummary(count, tuple(latest))

    def _add_last_change(self, explanation: Explanation, current: TableSchema | None) -> Explanation:
        """Return the explanation with the row's last change, searched backwards from the newest binlog file."""
        if current is not None and current.key_columns != self.table.key_columns:
            return replace(explanation, search_end_reason="the table has a different key now")
        is_followed = current is None or current is self.table
        change_reader = self._change_reader(
            self._extended_definitions(self.plan, self.timeline)
            if is_followed
            else DefinitionHistory.from_single(current or self.table)
        )
        end, end_reason = binlog_end(self.connection), "the server has no older binlog"
        searched_from: Position | None = None
        sizes = binlog_sizes(self.connection)
        for low, high in binlog_ranges_newest_first(sizes, end):
            last_change: RowChange | None = None
            altered_at: Position | None = None
            try:
                for segment in change_reader.read(low, high):
                    if segment.altered_at is not None:
                        last_change, altered_at = None, segment.altered_at
                    if row_changes := self._latest_changes(segment, change_reader.definitions.newest):
                        last_change = row_changes[-1]
            except CdcError as error:
                end_reason = error.message
                break
            if last_change is not None:
                return replace(explanation, last_change=last_change, searched_from=low)
            searched_from = altered_at or low
            if altered_at is not None:
                end_reason = f"the table was altered at {altered_at}"
                break
        else:
            if searched_from is not None and searched_from.file != next(iter(sizes)):
                end_reason = f"only the last {MAX_SEARCHED_BYTES >> 30} GiB is searched"
        return replace(explanation, searched_from=searched_from, search_end_reason=end_reason)

    # ------------------------------------------------------------ whether they agree

    def _add_comparison(
        self,
        explanation: Explanation,
        current: TableSchema | None,
        source: pa.Table | None,
        copy: pa.Table | None,
        published: Sequence[HistoricalRead],
    ) -> Explanation:
        """Return the explanation with the verdict, after bringing both sides to one position.

        :raises _UnknownError: if that is not possible.
        """
        source_at, copy_at = explanation.source.at, explanation.copy.at
        if source is None or copy is None or source_at is None or copy_at is None:
            raise _UnknownError(explanation.source.unknown_reason or explanation.copy.unknown_reason)
        if explanation.suspended:
            raise _UnknownError("the table is suspended")
        if current is not self.table:
            raise _UnknownError("the table was altered, and the stream has not followed that yet")
        if not published:
            raise _UnknownError("it has not been published yet")
        if self.resume_offset.already_applied:
            raise _UnknownError(
                "the stream has moved to another server and has not yet passed everything that it had applied before"
            )
        pending = 0
        if copy_at < source_at:
            copy, pending = self._replay_changes(copy, copy_at, source_at, keeps_deleted=self._keeps_deleted)
        else:
            source, _ = self._replay_changes(source, source_at, copy_at)
        diff = diff_by_key(self.table, source, copy, max_keys=1, allow_extra=self._keeps_deleted)
        if diff.allowed_extra:
            raise _UnknownError("only the copy has it, which is allowed: the source deleted it (sink.deletes: ignore)")
        if diff.total and self.plan.start != SNAPSHOT and not copy.num_rows:
            raise _UnknownError("the pipeline began without a snapshot: the copy has only rows changed since then")
        columns = tuple(diff.differing_columns) if diff.counts[DIFFERENT] else ()
        return replace(explanation, equal=not diff.total, differing_columns=columns, pending_changes=pending)

    @property
    def _keeps_deleted(self) -> bool:
        """Whether the copy keeps what the source deletes."""
        return self.context.pipeline.sink.delete_policy.mode_of(self.table) == IGNORE

    def _replay_changes(
        self, rows: pa.Table, low: Position, high: Position, *, keeps_deleted: bool = False
    ) -> tuple[pa.Table, int]:
        """Return the rows of one side as of a later position, and how many changes were replayed.

        :param keeps_deleted: whether this side keeps what the source deletes.
        :raises _UnknownError: if the binlog does not show it.
        """
        try:
            check_resume_offset(self.connection, self.resume_offset, self.context.binlog_opener(slots.EXPLAIN))
            sizes = binlog_sizes(self.connection)
            between = [size for name, size in sizes.items() if low < Position(name, 0) and Position(name, 0) < high]
            if sum(between) > MAX_SEARCHED_BYTES:
                limit = f"more than {MAX_SEARCHED_BYTES >> 30} GiB of the binlog follows"
                raise _UnknownError(f"the copy is at {low}, and {limit}")
            count, change_reader = 0, self._change_reader(self._extended_definitions(self.plan, self.timeline))
            transform, copy_key = self.context.row_transform(self.table), self.table.copy.key
            for segment in change_reader.read(low, high):
                if segment.altered_at is not None:
                    raise _UnknownError(f"the table was altered at {segment.altered_at}")
                if segment.truncation is not None and not keeps_deleted:
                    rows = rows.slice(0, 0)
                changes = transform.changes(segment.changes)
                rows = apply_changes(rows, changes, copy_key, keeps_deleted=keeps_deleted)
                count += segment.change_count
        except CdcError as error:
            raise _UnknownError(error.message) from error
        return rows, count

    def _latest_changes(self, segment: RowChangeSegment, table: TableSchema) -> list[RowChange]:
        """Return the last changes of the row in a segment, with the values that the copy has of them.

        :param table: the definition of the changes.
        """
        changes = []
        tail = segment.changes.slice(max(0, segment.changes.num_rows - MAX_SHOWN_CHANGES))
        transform = self.context.row_transform(table)
        # No values of rows that the copy does not have. A delete may have no values but its key.
        copied = pa.repeat(True, tail.num_rows) if transform.condition is None else transform.condition.mask(tail)
        tail = transform.convert_columns(tail)
        for row, image, is_copied in zip(
            tail.select([SEQ_COLUMN, OP_COLUMN, TS_COLUMN]).to_pylist(),
            rows_without_meta_columns(tail, table),
            copied.to_pylist(),
            strict=True,
        ):
            position, operation = segment.position_of(row[SEQ_COLUMN]), row[OP_COLUMN]
            time, gtid = row[TS_COLUMN].isoformat(timespec="seconds"), segment.gtids.get(row[SEQ_COLUMN], "")
            shown, is_left_out = (image, False) if is_copied else (None, operation != "d")
            changes.append(RowChange(position, OPERATION_NAMES[operation], time, gtid, shown, is_left_out))
        if segment.truncation is not None:
            seq, microseconds = segment.truncation
            time = datetime.fromtimestamp(microseconds / 1_000_000, UTC).isoformat(timespec="seconds")
            changes.append(RowChange(segment.position_of(seq), OPERATION_NAMES["t"], time, segment.gtids.get(seq, "")))
        return changes


def _error_text(error: Exception) -> str:
    return error.message if isinstance(error, CdcError) else str(error)
