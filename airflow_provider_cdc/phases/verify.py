"""Compare source and sink, table by table, at one position.

The sink is fixed at one version of known position E. Every chunk of the source is read like a snapshot chunk, so it is
exact as of its HW. Both sides are then brought to one common position F at or behind all of them: the sink with the
binlog's changes in (E, F], each source chunk with those in (HW, F]. So writers may go on and the result is exact still.
This version holds one table at a time in memory.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.changes import after, apply_changes, last_changes
from airflow_provider_cdc.core.offset import Position
from airflow_provider_cdc.core.plan import Chunk, Plan
from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.exceptions import NotReadyError, TerminalError
from airflow_provider_cdc.mysql.backlog import Backlog
from airflow_provider_cdc.mysql.binlog.stream import BinlogStream
from airflow_provider_cdc.mysql.catalog import read_schema
from airflow_provider_cdc.mysql.chunk import read_chunk
from airflow_provider_cdc.mysql.decode import ChangeBuffer
from airflow_provider_cdc.mysql.ownership import uncovered
from airflow_provider_cdc.mysql.planner import plan_table
from airflow_provider_cdc.mysql.session import connect
from airflow_provider_cdc.mysql.watermark import low_watermark
from airflow_provider_cdc.phases.apply import stream_marker
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.snapshot import coverage, targets
from airflow_provider_cdc.sinks.delta import DeltaTarget
from airflow_provider_cdc.sinks.progress import Progress

#: Slots of replication server ids above those of the snapshot's workers.
_SLOT = 100
_EXAMPLES = 3


@dataclass(frozen=True)
class Verdict:
    """Result of one table.

    :param table: ``database.table``.
    :param rows: rows of the source at the common position.
    :param missing: keys that the sink lacks.
    :param extra: keys that only the sink has, or has twice.
    :param different: keys whose rows differ.
    :param at: the common position.
    :param examples: a few of the keys, for people.
    """

    table: str
    rows: int
    missing: int
    extra: int
    different: int
    at: Position
    examples: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether source and sink are the same."""
        return not (self.missing or self.extra or self.different)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        return {**self.__dict__, "at": str(self.at), "equal": self.equal, "examples": list(self.examples)}


def verify(context: Context) -> list[Verdict]:
    """Compare every captured table.

    :raises NotReadyError: if there is no complete snapshot.
    :raises TerminalError: if the definition of a table changed since.
    """
    plan = context.need_plan()
    tables = targets(context, plan)
    if coverage(context, plan, tables) is None:
        raise NotReadyError(
            f"the snapshot of {plan.pipeline} is not complete",
            "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
        )
    found = []
    for index, target in enumerate(tables):
        verdict = _verify_table(context, plan, index, target)
        context.reporter.line(
            f"{verdict.table}: {verdict.rows} rows, "
            + (
                "equal"
                if verdict.equal
                else f"{verdict.missing} missing, {verdict.extra} extra, {verdict.different} different"
            )
        )
        found.append(verdict)
    return found


def _verify_table(context: Context, plan: Plan, index: int, target: DeltaTarget) -> Verdict:
    table = plan.tables[index]
    # The resume point first, the version after it: no change at or before E can be missing from the version.
    progress = Progress(context.layout.progress, plan.pipeline).read() or plan.p0
    delta = target.load()
    version = delta.version()
    standing = max(plan.lineage.seq(progress.at), delta.transaction_version(stream_marker(plan.pipeline)) or 0)
    sink = target.to_arrow(version)
    pipeline = context.pipeline
    replica = pipeline.server_id(_SLOT), pipeline.replica_uuid(_SLOT)

    def open_at(at: Position) -> BinlogStream:
        return BinlogStream(
            context.connect_args,
            server_id=replica[0],
            replica_uuid=replica[1],
            file=at.file,
            position=at.position,
            server=plan.p0.server,
        )

    with (
        closing(connect(context.connect_args)) as connection,
        closing(Backlog(open_at, {table.id: table})) as chunk_log,
        closing(Backlog(open_at, {table.id: table})) as tail_log,
    ):
        if read_schema(connection, table.database, table.name).fingerprint() != table.fingerprint():
            raise TerminalError(
                f"the definition of {table.label} changed since the snapshot",
                "Start with a fresh sink.path (or remove the old one) and run again",
            )
        p0 = low_watermark(connection, plan.lineage.server).at
        chunks = plan_table(connection, index, table, pipeline.snapshot.chunk_rows)
        reads = []
        for done, chunk in enumerate(chunks, 1):
            reads.append(read_chunk(connection, chunk_log, table, chunk, plan.lineage))
            context.reporter.progress(table.label, done, len(chunks), sum(r.rows.num_rows for r in reads))
        source = pa.concat_tables([r.rows for r in reads]) if reads else table.sink_schema.empty_table()
        chunk_log.close()  # both logs use one replication server id, one after the other
        common = max([p0, plan.lineage.position(standing), *(r.high for r in reads)])
        changes = _changes(tail_log, plan, table, min(p0, plan.lineage.position(standing)), common)
        sink = apply_changes(sink, after(changes, standing), table.key)
        marks = [plan.lineage.seq(r.high) for r in reads]
        newer = _not_held(connection, table, chunks, marks, plan.lineage.seq(p0), changes)
        source = apply_changes(source, newer, table.key)
    return _compare(table, source, sink, common)


def _changes(log: Backlog, plan: Plan, table: TableSchema, low: Position, high: Position) -> pa.Table:
    buffer = ChangeBuffer(table)
    for transaction in log.between(low, high):
        seq = plan.lineage.seq(Position(transaction.file, transaction.position))
        for event in transaction.rows:
            buffer.add(event, seq, transaction.commit_us)
    return buffer.take()


def _not_held(
    connection: Any, table: TableSchema, chunks: list[Chunk], marks: list[int], p0: int, changes: pa.Table
) -> pa.Table:
    return uncovered(connection, table, chunks, marks, p0, last_changes(changes, table.key))


def _compare(table: TableSchema, source: pa.Table, sink: pa.Table, at: Position) -> Verdict:
    names = [c.name for c in table.columns]
    keys = [str(names.index(k)) for k in table.key]
    # Columns get plain names: a join must not trip over what a source column is called.
    left = source.select(names).rename_columns([str(i) for i in range(len(names))])
    right = sink.select(names).rename_columns([str(i) for i in range(len(names))])
    missing = left.select(keys).join(right.select(keys), keys, join_type="left anti")
    extra = right.select(keys).join(left.select(keys), keys, join_type="left anti")
    doubled = right.num_rows - right.group_by(keys).aggregate([]).num_rows
    order = [(k, "ascending") for k in keys]
    both_left = left.join(right.select(keys), keys, join_type="left semi").sort_by(order)
    both_right = right.join(left.select(keys), keys, join_type="left semi").sort_by(order)
    different = pa.array([False] * both_left.num_rows)
    if not doubled:
        for name in both_left.column_names:
            different = pc.or_(different, _differs(both_left[name], both_right[name]))
    differing = both_left.select(keys).filter(different)
    examples = [
        f"{kind} {tuple(row.values())!r}"
        for kind, rows in (("missing", missing), ("extra", extra), ("different", differing))
        for row in rows.slice(0, _EXAMPLES).to_pylist()
    ]
    return Verdict(
        table.label, left.num_rows, missing.num_rows, extra.num_rows + doubled, differing.num_rows, at, tuple(examples)
    )


def _differs(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Any:
    if pa.types.is_floating(left.type):
        # Bit by bit: -0.0 is not 0.0 here, and a NaN would equal itself.
        bits = pa.int32() if left.type == pa.float32() else pa.int64()
        left, right = (pa.chunked_array([c.view(bits) for c in side.chunks], bits) for side in (left, right))
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    return pc.or_(unequal, pc.not_equal(pc.is_null(left), pc.is_null(right)))
