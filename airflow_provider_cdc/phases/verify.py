"""Compare source and sink, table by table, at one position.

The sink is fixed at one version of known position E. Every chunk of the source is read like a snapshot chunk, so it is
exact as of its HW. Both sides are then brought to one common position F at or behind all of them: the sink with the
binlog's changes in (E, F], each source chunk with those in (HW, F]. So writers may go on and the result is exact still.
This version holds one table at a time in memory.
"""

from __future__ import annotations

import struct
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core import slots
from airflow_provider_cdc.core.changes import after, apply_changes, last_changes, upserts
from airflow_provider_cdc.core.definitions import by_table
from airflow_provider_cdc.core.deletes import IGNORE
from airflow_provider_cdc.core.multiset import images, numbers, weights
from airflow_provider_cdc.core.offset import Position
from airflow_provider_cdc.core.plan import Chunk, Plan
from airflow_provider_cdc.core.progress import ChunkProgress
from airflow_provider_cdc.core.schema import SEQ, TableSchema
from airflow_provider_cdc.core.start import SNAPSHOT, start_text
from airflow_provider_cdc.exceptions import NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.xa import read_prepared
from airflow_provider_cdc.mysql.keys.ownership import uncovered
from airflow_provider_cdc.mysql.places.lookback import look_back
from airflow_provider_cdc.mysql.places.resume import resume
from airflow_provider_cdc.mysql.places.watermark import low_watermark, watermarks
from airflow_provider_cdc.mysql.server.catalog import definition
from airflow_provider_cdc.mysql.server.charsets import decoders
from airflow_provider_cdc.mysql.server.session import connect
from airflow_provider_cdc.mysql.snapshot.chunk import ChunkRead
from airflow_provider_cdc.mysql.snapshot.keyless import pieces
from airflow_provider_cdc.mysql.snapshot.planner import plan_table
from airflow_provider_cdc.mysql.snapshot.windows import WindowReader
from airflow_provider_cdc.phases.apply import stream_marker
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.groups import (
    Group,
    coverage,
    group_marker,
    numbering,
    targets,
    watermarks_of,
)
from airflow_provider_cdc.phases.schema_changes import beside_a_stream, lagging
from airflow_provider_cdc.phases.suspension import gone
from airflow_provider_cdc.sinks.protocol import Markers, Readable

_EXAMPLES, _EXAMPLE_LENGTH = 3, 200


@dataclass(frozen=True)
class TableComparison:
    """Result of one table.

    :param table: ``database.table``.
    :param rows: rows of the source at the common position.
    :param missing: keys that the sink lacks; of a table without a key, rows.
    :param extra: keys that only the sink has, or has twice; of a table without a key, rows.
    :param different: keys whose rows differ.
    :param at: the common position.
    :param examples: a few of the keys (or rows), for people who asked for them.
    :param kept: keys that only the sink has, as it may: rows that the source has deleted (``sink.deletes: ignore``).
    :param suspended: why the stream goes on without it, so that it is not compared; else empty.
    """

    table: str
    rows: int
    missing: int
    extra: int
    different: int
    at: Position
    examples: tuple[str, ...] = ()
    kept: int = 0
    suspended: str = ""

    @property
    def equal(self) -> bool:
        """Whether source and sink are the same."""
        return not (self.suspended or self.missing or self.extra or self.different)

    def __str__(self) -> str:
        if self.suspended:
            return f"{self.table}: not compared, since it is suspended at {self.at}: {self.suspended}"
        counts = f"{self.missing} missing, {self.extra} extra, {self.different} different"
        examples = f" ({', '.join(self.examples)})" if self.examples else ""
        kept = f", {self.kept} more that the source has deleted" if self.kept else ""
        return f"{self.table}: {self.rows} rows, " + ("equal" if self.equal else counts + examples) + kept

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        return {**self.__dict__, "at": str(self.at), "equal": self.equal, "examples": list(self.examples)}


def verify(context: Context, *, show_values: bool = False) -> list[TableComparison]:
    """Compare every captured table. Tables that were removed from the pipeline, or dropped in the source, are passed
    over.

    :param show_values: give examples of what differs: they are values of the source, which are nobody's by default.
    :raises NotReadyError: if there is no complete snapshot.
    :raises TerminalError: if the definition of a table changed since.
    """
    plan = context.need_plan()
    if plan.start != SNAPSHOT:
        raise NotReadyError(
            f"pipeline {plan.pipeline} began without a snapshot (stream.start: {start_text(plan.start)}): its tables "
            "hold only rows that were changed since, so they need not equal the source",
            "For a complete copy, use stream.start: snapshot with a fresh sink.path",
        )
    tables = targets(context, plan)
    if coverage(context, plan, tables) is None:
        raise NotReadyError(
            f"the snapshot of {plan.pipeline} is not complete",
            "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
        )
    found = []
    if late := [plan.tables[index].label for index in lagging(context, plan, plan.active)]:
        raise TransientError(
            f"the stream has begun to follow a DDL of {', '.join(late)}, and the copy does not have its columns yet",
            "Let the stream go on, then run again",
        )
    left = gone(context, plan)
    for index, target in enumerate(tables):
        if (step := plan.suspended_of(index)) is not None:
            if index in left or not context.pipeline.captures(*plan.tables[index].id):
                continue
            at = context.stand(plan)[1].position(step.seq)
            verdict = TableComparison(plan.tables[index].label, 0, 0, 0, 0, at, suspended=step.message)
            context.reporter.line(str(verdict))
            found.append(verdict)
            continue
        if not isinstance(target, Readable):
            raise NotReadyError(
                f"the {target.name} cannot be read back: a sink of kind {context.pipeline.sink.kind} is for writing",
                "Compare by other means, or use a sink.kind that can be read",
            )
        with beside_a_stream(context, plan):
            verdict = _verify_table(context, plan, index, target)
        if not show_values:
            verdict = replace(verdict, examples=())
        context.reporter.line(str(verdict))
        found.append(verdict)
    return found


def _verify_table(context: Context, plan: Plan, index: int, target: Readable) -> TableComparison:
    table = plan.tables[index]
    keeps = context.pipeline.sink.deletions.of(table) == IGNORE
    # The resume point first, the version after it: no change at or before E can be missing from the version.
    progress, lineage = context.stand(plan)
    if progress.held:  # the copy is not that of any one place yet
        raise TransientError(
            f"the stream moved to server {progress.server} and has not yet passed everything that it had applied "
            "before",
            "Let it catch up, then run again",
        )
    sink, markers = target.read()
    standing = max(lineage.seq(progress.at), markers.get(stream_marker(plan.pipeline)) or 0)
    # What is done twice counts twice where there is no key.
    sink_held = standing if table.key else max(standing, _covered(context, plan, index, markers))
    pipeline = context.pipeline
    replica = pipeline.replica(slots.VERIFY)

    def open_at(at: Position) -> BinlogStream:
        return BinlogStream(
            context.connect_args,
            server_id=replica[0],
            replica_uuid=replica[1],
            file=at.file,
            position=at.position,
            server=lineage.server,
        )

    over_time = plan.definitions_of(lineage)[index]
    captured = by_table([over_time])
    before = partial(look_back, context.connect_args, lineage.server, captured)
    with (
        closing(connect(context.connect_args)) as connection,
        closing(
            WindowReader(open_at, over_time, lineage, before, decoders(lambda: nullcontext(connection), [table]))
        ) as log,
    ):
        if definition(connection, table) != table.fingerprint():
            raise TerminalError(
                f"{table.label} has another definition than its copy",
                "Verify it when the stream has followed the DDL; if the stream has stopped there, it says why",
            )
        progress = resume(connection, progress, context.opener(slots.VERIFY))
        p0 = low_watermark(connection, lineage.server).at
        chunks = plan_table(connection, index, table, pipeline.snapshot.chunk_rows)
        reads: list[ChunkRead] = []
        marks, began = watermarks(connection, lineage.server), time.monotonic()
        for done, chunk in enumerate(chunks, 1):
            reads += pieces(connection, log, table, chunk, lineage, marks)
            context.reporter.progress(
                ChunkProgress(
                    table.label,
                    done,
                    len(chunks),
                    sum(r.rows.num_rows for r in reads),
                    sum(r.corrected for r in reads),
                    done,
                    sum(r.rows.num_rows for r in reads),
                    time.monotonic() - began,
                )
            )
        source = pa.concat_tables([r.rows for r in reads]) if reads else table.sink_schema.empty_table()
        log.close()  # XA transactions are read again with the same replication server id
        common = max([p0, lineage.position(standing), *(r.high for r in reads)])
        low = min(p0, lineage.position(standing))
        prepared = read_prepared(progress.xa, open_at, captured) if low == progress.at else {}
        tail = log.window(low, common, prepared)
        changes = tail.changes
        source = source.filter(pc.greater_equal(source[SEQ], tail.emptied))
        if not keeps:
            sink = sink.filter(pc.greater_equal(sink[SEQ], tail.emptied))
        if not table.key:
            held = lineage.seq(reads[0].high)
            return _count(table, [(source, after(changes, held)), (sink, after(changes, sink_held))], common)
        lacking = after(changes, standing)
        sink = apply_changes(sink, upserts(lacking) if keeps else lacking, table.key)
        covered = [lineage.seq(r.high) for r in reads]
        newer = _not_held(connection, table, chunks, covered, lineage.seq(p0), changes)
        source = apply_changes(source, newer, table.key)
    return _compare(table, source, sink, common, keeps=keeps)


def _covered(context: Context, plan: Plan, index: int, markers: Markers) -> int:
    """``_cdc_seq`` of the highest high watermark of the attempts that a version of the sink table holds."""
    marks = [plan.p0_seq]
    for group in plan.groups_of(index):
        for entry in Group(context, plan, group).manifest(markers.get(group_marker(plan, group)) or 0):
            if entry["table"] == index:
                marks += [numbering(plan, entry).seq(watermarks_of(chunk)[1]) for chunk in entry["chunks"]]
    return max(marks)


def _not_held(
    connection: Any, table: TableSchema, chunks: list[Chunk], marks: list[int], p0: int, changes: pa.Table
) -> pa.Table:
    return uncovered(connection, table, chunks, marks, p0, last_changes(changes, table.key))


def _count(table: TableSchema, sides: list[tuple[pa.Table, pa.Table]], at: Position) -> TableComparison:
    """Compare how often each row is there.

    :param sides: of source and sink, the rows and the changes that they lack.
    """
    names = [c.name for c in table.copied]
    every = pa.concat_tables([images(rows, names) for side in sides for rows in side])
    number, begin = numbers(every), 0
    counts = []
    for rows, changes in sides:
        weight = np.concatenate((np.ones(rows.num_rows), weights(changes)))
        end = begin + len(weight)
        counts.append(np.bincount(number[begin:end], weight, minlength=number.max(initial=-1) + 1).astype(np.int64))
        begin = end
    more = counts[0] - counts[1]
    examples = []
    for kind, which in (("missing", np.flatnonzero(more > 0)), ("extra", np.flatnonzero(more < 0))):
        for image in which[:_EXAMPLES]:
            row = every.slice(int(np.flatnonzero(number == image)[0]), 1).to_pylist()[0]
            examples.append(f"{kind} {abs(int(more[image]))} of {_short(tuple(row.values()))}")
    missing, extra = int(more[more > 0].sum()), int(-more[more < 0].sum())
    return TableComparison(table.label, int(counts[0].sum()), missing, extra, 0, at, tuple(examples))


def _short(row: tuple[Any, ...]) -> str:
    text = repr(row)
    return text if len(text) <= _EXAMPLE_LENGTH else f"{text[:_EXAMPLE_LENGTH]}..."


def _compare(
    table: TableSchema, source: pa.Table, sink: pa.Table, at: Position, *, keeps: bool = False
) -> TableComparison:
    names = [c.name for c in table.copied]
    keys = [str(names.index(k)) for k in table.key]
    left, right = (_plain(side.select(names)) for side in (source, sink))
    missing = left.select(keys).join(right.select(keys), keys, join_type="left anti")
    extra = right.select(keys).join(left.select(keys), keys, join_type="left anti")
    kept, extra = (extra.num_rows, extra.slice(0, 0)) if keeps else (0, extra)
    doubled = right.num_rows - right.group_by(keys).aggregate([]).num_rows
    order = [(k, "ascending") for k in keys]
    both_left = left.join(right.select(keys), keys, join_type="left semi").sort_by(order)
    both_right = right.join(left.select(keys), keys, join_type="left semi").sort_by(order)
    different = pa.array([False] * both_left.num_rows, pa.bool_())
    if not doubled:
        for name in both_left.column_names:
            different = pc.or_(different, _differs(both_left[name], both_right[name]))
    differing = both_left.select(keys).filter(different)
    examples = [
        f"{kind} {tuple(row.values())!r}"
        for kind, rows in (("missing", missing), ("extra", extra), ("different", differing))
        for row in rows.slice(0, _EXAMPLES).to_pylist()
    ]
    extras, differs = extra.num_rows + doubled, differing.num_rows
    return TableComparison(table.label, left.num_rows, missing.num_rows, extras, differs, at, tuple(examples), kept)


def _plain(rows: pa.Table) -> pa.Table:
    """Columns under plain names, a join must not trip over what a source column is called; vectors as their bytes."""
    columns = [_bytes(c) if pa.types.is_list(c.type) else c for c in rows.columns]
    return pa.table(columns, names=[str(i) for i in range(len(columns))])


def _bytes(vectors: pa.ChunkedArray) -> pa.ChunkedArray:
    found = []
    for chunk in vectors.chunks:
        ends = [None if v is None else struct.pack(f"<{len(v)}f", *v) for v in chunk.to_pylist()]
        found.append(pa.array(ends, pa.binary()))
    return pa.chunked_array(found, pa.binary())


def _differs(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Any:
    if pa.types.is_floating(left.type):
        # Bit by bit: -0.0 is not 0.0 here, and a NaN would equal itself.
        bits = pa.int32() if left.type == pa.float32() else pa.int64()
        left, right = (pa.chunked_array([c.view(bits) for c in side.chunks], bits) for side in (left, right))
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    return pc.or_(unequal, pc.not_equal(pc.is_null(left), pc.is_null(right)))
