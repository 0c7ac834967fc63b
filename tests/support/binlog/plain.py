"""Changes by the plain decoder and the plain assembler: what the machine code has to agree with."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.offset import Position, Timeline
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction, read_transactions
from airflow_provider_cdc.mysql.binlog.walk.step import WalkStep
from airflow_provider_cdc.mysql.binlog.walk.walker import BinlogWalker
from tests.support.binlog.reading import Captured, lasting
from tests.support.binlog.replay import Recording, Replay
from tests.support.binlog.row_decoder import decode_rows

LINEAGE = Timeline("server", "binlog.000001")
Tables = dict[tuple[str, str], pa.Table]


def seq_of(file: str) -> int:
    return LINEAGE.seq(Position(file, 0))


class PlainBuffer:
    """As :class:`~tests.support.binlog.buffer.CountedChanges`, in plain Python."""

    def __init__(self, table: TableSchema, both: bool = False) -> None:
        self.table, self._both = table, both
        names = [c.name for c in table.columns]
        self._key = [names.index(name) for name in table.key]
        self._rows: list[tuple[Any, ...]] = []

    def add(self, event: RowsEvent, seq: int, commit_us: int) -> None:
        op = {"insert": "c", "update": "u", "delete": "d"}[event.operation]
        for before, after in decode_rows(event):
            old = before is not None and after is not None
            if old and self._both:
                self._rows.append((*(before or ()), seq, "b", commit_us))
            elif old and before and after and (not self._key or any(before[i] != after[i] for i in self._key)):
                self._rows.append((*before, seq, "d", commit_us))
            self._rows.append((*((before if after is None else after) or ()), seq, op, commit_us))

    def take(self) -> pa.Table:
        schema = self.table.sink_schema
        values = list(zip(*self._rows, strict=True)) or [()] * len(schema)
        arrays = [pa.array(list(v), type=field.type) for v, field in zip(values, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)


def by_plain(recording: Recording, captured: Captured, both: bool = False) -> tuple[Tables, list[str], tuple[str, int]]:
    """(changes by table, GTIDs, the end)."""
    buffers = {name: PlainBuffer(schema, both) for name, schema in captured.items()}
    gtids, end = [], (recording.file, recording.position)
    for item in read_transactions(recording.events(), lasting(captured), recording.collations):
        end = item.file, item.position
        if isinstance(item, Transaction):
            gtids += [item.gtid] if item.gtid else []
            for event in item.rows:
                buffers[event.schema.id].add(event, LINEAGE.seq(Position(item.file, item.position)), item.commit_us)
    return {name: buffer.take() for name, buffer in buffers.items()}, gtids, end


def by_walker(
    recording: Recording, captured: Captured, replay: Replay | None = None, both: bool = False, budget: int = 1 << 16
) -> tuple[Tables, list[str], tuple[str, int]]:
    """The same by the walker, whose changes are taken as soon as they may be."""
    walker = BinlogWalker(
        replay or Replay(recording), lasting(captured), seq_of, byte_budget=budget, with_before_images=both
    )
    taken: dict[tuple[str, str], list[pa.RecordBatch]] = {name: [] for name in captured}
    gtids, end = list[str](), (recording.file, recording.position)
    for step in walker.steps():
        end = step.file, step.position
        gtids += gtids_of(step)
        for rows in step.transaction.rows if step.transaction is not None else ():
            walker.decode_rows(rows, LINEAGE.seq(Position(*end)), step.transaction.commit_us)  # type: ignore[union-attr]
        if walker.can_take:
            for schema, batch in walker.take_changes():
                batch.validate(full=True)
                taken[schema.id].append(batch)
    return {n: pa.Table.from_batches(b, captured[n].sink_schema) for n, b in taken.items()}, gtids, end


def gtids_of(step: WalkStep) -> list[str]:
    """One by one; of MariaDB a run is its last one."""
    found = []
    for text in step.gtids:
        source, _, numbers = text.rpartition(":")
        first, _, last = numbers.partition("-")
        found += [f"{source}:{n}" for n in range(int(first), int(last or first) + 1)] if source else [text]
    return found
