"""Decode a range of the binlog into typed Parquet files, one a table. Plain Python, run by a Spark task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from airflow_provider_cdc.core.offset import Offset, Position
from airflow_provider_cdc.core.plan import Plan
from airflow_provider_cdc.failpoints import hit
from airflow_provider_cdc.mysql.backlog import Backlog
from airflow_provider_cdc.mysql.binlog.stream import BinlogStream
from airflow_provider_cdc.mysql.decode import ChangeBuffer
from airflow_provider_cdc.mysql.scanner import Scanner
from airflow_provider_cdc.mysql.session import connect
from airflow_provider_cdc.sinks.layout import Layout, read_json

#: Changes that are held as Python values at a time.
_FLUSH_ROWS = 20_000


@dataclass(frozen=True)
class StreamJob:
    """What the stream's source and tasks need. Travels in a closure, with the password in it.

    :param connect_args: pymysql.connect keyword arguments.
    :param scanner: (server id, replica uuid) of the scanner.
    :param reader: the same of the task that reads.
    :param root: ``sink.path``.
    :param pipeline: name of the pipeline.
    :param epoch: epoch of the stream.
    :param max_batch_bytes: soft limit of a batch in bytes of binlog.
    """

    connect_args: dict[str, Any]
    scanner: tuple[int, str]
    reader: tuple[int, str]
    root: str
    pipeline: str
    epoch: int
    max_batch_bytes: int

    def plan(self) -> Plan:
        """The plan in the sink."""
        return Plan.from_json(read_json(Layout(self.root, self.pipeline).plan))

    def _open(self, plan: Plan, at: Position, replica: tuple[int, str]) -> BinlogStream:
        return BinlogStream(
            self.connect_args,
            server_id=replica[0],
            replica_uuid=replica[1],
            file=at.file,
            position=at.position,
            server=plan.p0.server,
        )

    def make_scanner(self) -> Scanner:
        """Scanner of this stream."""
        plan = self.plan()
        tables = {t.id: t for t in plan.tables}
        return Scanner(connect(self.connect_args), lambda at: self._open(plan, at, self.scanner), tables)

    def stage(self, start: Offset, end: Offset, attempt: str) -> dict[str, Any]:
        """Decode the transactions in (start, end].

        The same range gives the same changes, however often it is read.

        :param attempt: makes the files of this attempt differ from those of others.
        :returns: manifest: start, end, and for each table with changes its index, file and number of rows.
        """
        hit("batch.before_read")
        plan = self.plan()
        folder = Layout(self.root, self.pipeline).epoch("staging", self.epoch)
        folder.mkdir(parents=True, exist_ok=True)
        numbers = {t.id: i for i, t in enumerate(plan.tables)}
        outputs: dict[int, _Output] = {}
        backlog = Backlog(lambda at: self._open(plan, at, self.reader), {t.id: t for t in plan.tables})
        try:
            for transaction in backlog.between(start.at, end.at):
                seq = plan.lineage.seq(Position(transaction.file, transaction.position))
                for event in transaction.rows:
                    index = numbers[event.schema.id]
                    if index not in outputs:
                        path = folder / f"{plan.lineage.seq(start.at)}-{attempt}-{index}.parquet"
                        outputs[index] = _Output(ChangeBuffer(plan.tables[index]), path)
                    outputs[index].buffer.add(event, seq, transaction.commit_us)
                    if len(outputs[index].buffer) >= _FLUSH_ROWS:
                        outputs[index].flush()
        finally:
            backlog.close()
        for output in outputs.values():
            output.close()
        hit("batch.after_read")
        return {
            "start": start.to_json(),
            "end": end.to_json(),
            "tables": [{"table": i, "path": str(o.path), "rows": o.rows} for i, o in sorted(outputs.items()) if o.rows],
        }


class _Output:
    def __init__(self, buffer: ChangeBuffer, path: Path) -> None:
        self.buffer, self.path, self.rows = buffer, path, 0
        self._writer = pq.ParquetWriter(path, buffer.table.sink_schema, compression="zstd")

    def flush(self) -> None:
        changes = self.buffer.take()
        self.rows += changes.num_rows
        if changes.num_rows:
            self._writer.write_table(changes)

    def close(self) -> None:
        self.flush()
        self._writer.close()
