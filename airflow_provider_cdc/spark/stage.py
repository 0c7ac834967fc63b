"""Decode a range of the binlog into typed Parquet files, one a table. Plain Python, run by a Spark task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.core.detours import Detours
from airflow_provider_cdc.core.gtid import kind_of
from airflow_provider_cdc.core.offset import Lineage, Offset, Position
from airflow_provider_cdc.core.plan import Plan
from airflow_provider_cdc.core.schema import SEQ, TableSchema
from airflow_provider_cdc.exceptions import OtherServerError, PurgedError, TerminalError, TransientError
from airflow_provider_cdc.failpoints import failpoint
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.xa import Prepared, parse_entry, read_prepared
from airflow_provider_cdc.mysql.server.charsets import decoders
from airflow_provider_cdc.mysql.server.session import connect
from airflow_provider_cdc.sinks.layout import Layout, read_plan

if TYPE_CHECKING:
    from airflow_provider_cdc.mysql.stream.batches import BatchPlanner

#: Bytes of rows in the binlog that are held as changes before they are written.
_FLUSH_BYTES = 16 << 20


@dataclass(frozen=True)
class StreamJob:
    """What the stream's source and tasks need. Travels in a closure, with the password in it.

    :param connect_args: pymysql.connect keyword arguments.
    :param planner: (server id, replica uuid) of the planner.
    :param readers: the same of each task that reads a piece of a batch.
    :param lineage: numbers the transactions of the server that is read.
    :param root: ``sink.path``.
    :param pipeline: name of the pipeline.
    :param epoch: epoch of the stream.
    :param max_batch_bytes: soft limit of a batch in bytes of binlog.
    :param max_batch_rows: soft limit of a batch in changed rows.
    :param zero_dates: ``source.zero_dates``.
    :param piece_bytes: bytes of binlog that are worth a reader of their own.
    """

    connect_args: dict[str, Any]
    planner: tuple[int, str]
    readers: tuple[tuple[int, str], ...]
    lineage: Lineage
    root: str
    pipeline: str
    epoch: int
    max_batch_bytes: int
    max_batch_rows: int
    zero_dates: str = "error"
    piece_bytes: int = 16 << 20

    def plan(self) -> Plan:
        """The plan in the sink."""
        plan = read_plan(Layout(self.root, self.pipeline))
        assert plan is not None  # no phase begins without one
        return plan.with_zero_dates(self.zero_dates)

    def _open(self, at: Position, replica: tuple[int, str]) -> BinlogStream:
        return BinlogStream(
            self.connect_args,
            server_id=replica[0],
            replica_uuid=replica[1],
            file=at.file,
            position=at.position,
            server=self.lineage.server,
        )

    def make_planner(self) -> BatchPlanner:
        """BatchPlanner of this stream."""
        from airflow_provider_cdc.mysql.stream.batches import (
            BatchPlanner,  # compiled: not for drivers, see SnapshotJob.read
        )

        plan = self.plan()
        tables, connection = {t.id: t for t in plan.tables}, connect(self.connect_args)
        return BatchPlanner(connection, lambda at: self._open(at, self.planner), tables, self.lineage)

    def pieces(self, planner: BatchPlanner, start: Offset) -> list[Offset]:
        """Ends of the pieces in which the next batch is read; none if nothing is new.

        :raises TransientError: if the connection reaches another server now, or the file was purged.
        """
        with moved():
            return planner.pieces(start, self.max_batch_bytes, self.max_batch_rows, len(self.readers), self.piece_bytes)

    def stage(self, start: Offset, end: Offset, attempt: str, reader: int = 0) -> dict[str, Any]:
        """Decode the transactions in (start, end].

        The same range gives the same changes, however often it is read.

        :param attempt: makes the files of this attempt differ from those of others.
        :param reader: which of the ``readers`` this is.
        :returns: manifest: start, end, and for each table with changes its index, files and number of rows, and the
            ``_cdc_seq`` of its last TRUNCATE, after which they come; and all files, to be deleted in the end.
        :raises UnknownPrepareError: if an XA transaction is committed whose rows are not in the binlog any more.
        :raises TransientError: if the connection reaches another server now, or the file was purged.
        """
        with moved():
            return self._stage(start, end, attempt, reader)

    def _stage(self, start: Offset, end: Offset, attempt: str, reader: int) -> dict[str, Any]:
        # Compiled: not for drivers, see SnapshotJob.read.
        from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
        from airflow_provider_cdc.mysql.places.lookback import look_back

        failpoint("batch.before_read")
        plan = self.plan()
        folder = Layout(self.root, self.pipeline).epoch("staging", self.epoch)
        folder.mkdir(parents=True, exist_ok=True)
        numbers = {t.id: i for i, t in enumerate(plan.tables)}
        outputs: dict[int, _Output] = {}

        def output(table: TableSchema) -> _Output:
            index = numbers[table.id]
            if index not in outputs:
                path = folder / f"{self.lineage.seq(start.at)}-{attempt}-{index}.parquet"
                outputs[index] = _Output(plan.tables[index], path)
            return outputs[index]

        def write(changes: list[tuple[TableSchema, pa.RecordBatch]]) -> None:
            # What the sink holds already, since the server before this one had committed it earlier.
            done = [seq for seq, gtid in binlog.names().items() if gtid and gtid in held] if held else []
            for table, batch in changes:
                rest = batch.filter(pc.invert(pc.is_in(batch[SEQ], pa.array(done, pa.int64())))) if done else batch
                if rest.num_rows:
                    output(table).add(rest)

        def open_at(at: Position) -> BinlogStream:
            return self._open(at, self.readers[reader])

        tables = {t.id: t for t in plan.tables}
        texts = decoders(lambda: closing(connect(self.connect_args)), plan.tables)
        # One without rows may end here and be prepared again under its name: both offsets list it, and look the same.
        ending = sorted(text for text in start.xa if text not in end.xa or parse_entry(text)[1] is None)
        before = look_back(self.connect_args, start.server, tables, start.at)
        prepared = Prepared(read_prepared(ending, open_at, tables), before.rows)
        held = kind_of(start.server).parse(start.held)
        # What leads to captured tables the planner has looked up, which has walked here before.
        binlog = BinlogReader(open_at, tables, self.lineage, texts, named=bool(held), detours=Detours)
        try:
            binlog.expect(start)
            for step in binlog.steps(start.at, end.at):
                if step.item is not None and held and step.item.gtid in held:
                    prepared.follow(step.item)
                elif step.item is not None:
                    seq = self.lineage.seq(Position(step.file, step.position))
                    if step.item.emptied is not None:
                        write(binlog.take())
                        output(tables[step.item.emptied]).empty(seq)
                    for _ in binlog.add(prepared.visible(step.item), seq, step.item.commit_us):
                        write(binlog.take())
                if binlog.held >= _FLUSH_BYTES:
                    # The one that a batch ends with lies in the file in which that ends.
                    is_last = step.file == end.at.file and step.is_beyond(start.at, self.max_batch_bytes)
                    write(binlog.take(end.at if is_last else None))
            write(binlog.take())
        finally:
            binlog.close()
        for written in outputs.values():
            written.close()
        failpoint("batch.after_read")
        return {
            "start": start.to_json(),
            "end": end.to_json(),
            "tables": [
                {"table": i, "paths": [str(o.path)], "rows": o.rows, "emptied": o.emptied}
                for i, o in sorted(outputs.items())
                if o.rows or o.emptied
            ],
            "files": [str(o.path) for o in outputs.values()],
        }


@contextmanager
def moved() -> Iterator[None]:
    """What is a matter for the next epoch: it may be able to go on at another server, or behind purged files."""
    try:
        yield
    except PurgedError as error:
        raise TransientError(error.message, "Run again: the next epoch continues if nothing is missing") from None
    except OtherServerError as error:
        raise TransientError(
            error.message, "Run again: the next epoch continues there if GTIDs prove that it can"
        ) from None


def together(manifests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One manifest for those of the pieces of a batch.

    :raises TerminalError: if they do not lie one behind the other.
    """
    manifests = sorted(manifests, key=lambda m: Offset.from_json(m["start"]).at)
    tables: dict[int, dict[str, Any]] = {}
    end = manifests[0]["start"]
    for manifest in manifests:
        if manifest["start"] != end:
            raise TerminalError(
                f"a piece of a batch begins at {Offset.from_json(manifest['start']).at}, and the one before it ends at "
                f"{Offset.from_json(end).at}",
                "Run the stream again: it starts from the sink's own resume point",
            )
        end = manifest["end"]
        for entry in manifest["tables"]:
            before = tables.get(entry["table"])
            if before is None or entry["emptied"] is not None:
                tables[entry["table"]] = entry
            else:
                added = {"paths": before["paths"] + entry["paths"], "rows": before["rows"] + entry["rows"]}
                tables[entry["table"]] = before | added
    return {
        "start": manifests[0]["start"],
        "end": end,
        "tables": [tables[i] for i in sorted(tables)],
        "files": [file for manifest in manifests for file in manifest["files"]],
    }


class _Output:
    """File of a table; small batches are put together to larger ones."""

    def __init__(self, table: TableSchema, path: Path) -> None:
        self.path, self.rows = path, 0
        self.emptied: int | None = None
        self._schema, self._held = table.sink_schema, list[pa.RecordBatch]()
        self._writer = self._open()

    def _open(self) -> pq.ParquetWriter:
        return pq.ParquetWriter(self.path, self._schema, compression="zstd")

    def add(self, batch: pa.RecordBatch) -> None:
        """Write changes."""
        self.rows += batch.num_rows
        self._held.append(batch)
        if sum(b.nbytes for b in self._held) >= _FLUSH_BYTES:
            self._flush()

    def empty(self, seq: int) -> None:
        """The table is empty here: what came before does not count any more."""
        self._held = []
        self._writer.close()
        self._writer, self.rows, self.emptied = self._open(), 0, seq

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._held, self._schema))
        self._held = []
