"""The stream's work: decode batch ranges of the binlog and stage their changes in the sink, by table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.config.delete_policy import ALL_HARD, HARD, IGNORE, SOFT, DeletePolicy
from airflow_provider_cdc.ddl.indirect_writes import IndirectWrites
from airflow_provider_cdc.model.definition_history import CapturedTables, histories_by_table
from airflow_provider_cdc.model.errors import OtherServerError, PurgedError, TerminalError, TransientError
from airflow_provider_cdc.model.gtid import gtid_class_of
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.schema import SEQ_COLUMN, TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource
from airflow_provider_cdc.mysql.client.charsets import load_decoders
from airflow_provider_cdc.mysql.client.indirect_writes import query_indirect_writes
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.keys.ownership import changes_after_snapshot
from airflow_provider_cdc.sinks.files.layout import Layout, read_group_plan, read_plan
from airflow_provider_cdc.sinks.protocol import ChangeStaging, ChangeWriter, PipelineSink
from airflow_provider_cdc.sinks.storage.request_counts import RequestCounts, count_requests_in, sum_counts
from airflow_provider_cdc.sinks.storage.storage import Storage, read_json
from airflow_provider_cdc.sinks.table_errors import name_table_in_errors
from airflow_provider_cdc.system.failpoints import failpoint
from airflow_provider_cdc.transforms.row_transform import BinlogOrigin, RowTransform
from airflow_provider_cdc.transforms.sealed_bounds import open_plan

if TYPE_CHECKING:
    from airflow_provider_cdc.apply.batch_planner import BatchPlanner
    from airflow_provider_cdc.mysql.binlog.walk.changes import RowChanges

#: The plan of the epoch that this process last worked for.
_PLAN_CACHE: dict[tuple[str, str, int, int], Plan] = {}


@dataclass(frozen=True)
class StreamJob:
    """Everything that the stream's source and tasks need. Travels in a closure that contains password and hash key.

    :param connect_args: pymysql.connect keyword arguments.
    :param planner_replica: (server id, replica uuid) of the planner.
    :param reader_replicas: (server id, replica uuid) of each task that reads a batch range.
    :param timeline: numbers the transactions of the server that is read.
    :param sink: where the changes are staged.
    :param storage: where the plan is stored.
    :param pipeline: name of the pipeline.
    :param epoch: epoch of the stream.
    :param max_batch_bytes: soft limit of a batch in bytes of binlog.
    :param max_batch_rows: soft limit of a batch in changed rows.
    :param zero_dates: ``source.zero_dates``.
    :param min_range_bytes: bytes of binlog that are worth a separate reader.
    :param deletes: ``sink.deletes``.
    :param section: number of the section of the epoch. A section ends where a DDL must be followed.
    :param follows_ddl: whether DDL is followed; otherwise it is an error.
    :param only_table: index of the only table whose changes are wanted; ``None`` for all tables.
    :param plan_file: name of the plan file of a whole-table re-snapshot, whose binlog range no planner has walked.
        ``None`` for the pipeline's own plan.
    :param hash_key: secret key of hashed columns; ``None`` if the pipeline hashes none.
    """

    connect_args: dict[str, Any]
    planner_replica: tuple[int, str]
    reader_replicas: tuple[tuple[int, str], ...]
    timeline: Timeline
    sink: PipelineSink
    storage: Storage
    pipeline: str
    epoch: int
    max_batch_bytes: int
    max_batch_rows: int
    zero_dates: str = "error"
    min_range_bytes: int = 16 << 20
    deletes: DeletePolicy = ALL_HARD
    section: int = 0
    follows_ddl: bool = False
    only_table: int | None = None
    plan_file: str | None = None
    hash_key: bytes | None = field(default=None, repr=False)

    def load_plan(self) -> Plan:
        """Return the plan that this section uses. A process reads it from the sink once."""
        key = (self.storage.location(), self.pipeline, self.epoch, self.section)
        if self.plan_file is not None:
            reading_plan = read_group_plan(self.storage, self.plan_file)
            assert reading_plan is not None  # it is written before the job
            plan = open_plan(reading_plan, self.hash_key)
        elif key in _PLAN_CACHE:
            plan = _PLAN_CACHE[key]
        else:
            stored = read_plan(self.storage, Layout(self.pipeline))
            assert stored is not None  # no phase begins without a plan
            _PLAN_CACHE.clear()
            _PLAN_CACHE[key] = plan = open_plan(stored, self.hash_key)
        # With soft deletes, the kept row is the delete's before image, so that must be complete.
        return plan.with_zero_dates(self.zero_dates).with_full_before_images(
            lambda table: self.deletes.mode_of(table) == SOFT
        )

    def _binlog_source(self, replica: tuple[int, str]) -> BinlogSource:
        return BinlogSource(self.connect_args, self.timeline.server, replica)

    def make_planner(self) -> BatchPlanner:
        """Return a batch planner for this stream."""
        from airflow_provider_cdc.apply.batch_planner import BatchPlanner  # compiled kernels: drivers do not need them

        tables, connection = self._captured_tables(self.load_plan()), connect(self.connect_args)
        return BatchPlanner(
            connection,
            self._binlog_source(self.planner_replica).open,
            tables,
            self.timeline,
            stop_at_ddl=self.follows_ddl,
        )

    def _captured_tables(self, plan: Plan) -> CapturedTables:
        definitions = plan.definitions_for(self.timeline)
        return histories_by_table(definitions if self.only_table is None else [definitions[self.only_table]])

    def make_counted_planner(self) -> tuple[BatchPlanner, dict[str, int]]:
        """Return a batch planner, and the object-store request counts of making it."""
        with count_requests_in(RequestCounts()) as requests:
            return self.make_planner(), requests.to_json()

    def find_range_ends(self, planner: BatchPlanner, start: Offset) -> list[Offset]:
        """Return the ends of the ranges in which the next batch is read; empty if there is nothing new.

        :raises TransientError: if the connection now reaches another server, or the file was purged.
        """
        with retry_in_next_epoch():
            return planner.find_range_ends(
                start, self.max_batch_bytes, self.max_batch_rows, len(self.reader_replicas), self.min_range_bytes
            )

    def stage_range(
        self,
        start: Offset,
        end: Offset,
        attempt: str,
        reader_index: int = 0,
        earlier_requests: Sequence[dict[str, int]] = (),
    ) -> dict[str, Any]:
        """Decode the transactions in (start, end] and stage their changes.

        The same range gives the same changes, however often it is read.

        :param attempt: makes the names of what this attempt stages unique.
        :param reader_index: index in ``reader_replicas``.
        :param earlier_requests: object-store request counts that have not been reported yet.
        :returns: manifest with ``start``, ``end``, ``tables``, ``staged`` and ``asked``. ``tables`` has an entry for
            each table with changes: its index, the names of what was staged, the number of rows, and the ``_cdc_seq``
            and time of the TRUNCATE that precedes them, if any. A table has one entry, unless its rows stay when it is
            truncated. ``staged`` lists everything that was staged, as index and name. ``asked`` are the object-store
            request counts.
        :raises UnknownPrepareError: if an XA transaction is committed whose rows are no longer in the binlog.
        :raises TransientError: if the connection now reaches another server, or the file was purged.
        """
        with retry_in_next_epoch(), count_requests_in(RequestCounts()) as requests:
            manifest = self._stage_range(start, end, attempt, reader_index)
        return {**manifest, "asked": sum_counts([*earlier_requests, requests.to_json()])}

    def _stage_range(self, start: Offset, end: Offset, attempt: str, reader_index: int) -> dict[str, Any]:
        # Compiled kernels: drivers do not need them.
        from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
        from airflow_provider_cdc.mysql.binlog.walk.changes import RowChanges, Truncation, read_changes
        from airflow_provider_cdc.mysql.positions.xa_lookback import select_open_xa, track_prepared_xa

        failpoint("batch.before_read")
        plan = self.load_plan()
        tables, source = self._captured_tables(plan), self._binlog_source(self.reader_replicas[reader_index])
        newest_definitions = [definitions.newest for definitions in tables.values() if not definitions.is_suspended]
        text_decoders = load_decoders(lambda: closing(connect(self.connect_args)), newest_definitions)
        prepared = track_prepared_xa(source, tables, start.at, select_open_xa(start, end))
        # Transactions that the sink already has, because the previous server had committed them earlier.
        applied_gtids = gtid_class_of(start.server).parse(start.already_applied)
        # Where the planner has walked, it has already queried the indirect writes to captured tables.
        indirect_writes = (
            IndirectWrites if self.plan_file is None else partial(_find_indirect_writes, self.connect_args, tables)
        )
        transforms = {definition.id: RowTransform(definition, self.hash_key) for definition in newest_definitions}
        # Of a deleted row that stays, the last image that satisfied the condition is needed.
        with_before_images = any(t.condition is not None and t.full_before_images for t in newest_definitions)
        binlog = BinlogReader(
            source.open,
            tables,
            self.timeline,
            text_decoders,
            with_before_images=with_before_images,
            with_gtids=bool(applied_gtids) or any("gtid" in table.metadata for table in newest_definitions),
            indirect_writes=indirect_writes,
        )
        name = f"epoch-{self.epoch}/{self.timeline.seq(start.at)}-{attempt}"
        outputs = _RangeOutputs(self.sink.change_staging(), plan, name, self.deletes)
        with closing(binlog):
            binlog.remember_file_start(start)
            for change in read_changes(
                binlog,
                start.at,
                end.at,
                prepared,
                applied_gtids=applied_gtids,
                range_bytes=self.max_batch_bytes,
            ):
                if isinstance(change, RowChanges):
                    self._check_definition(tables, change)
                    changes = pa.Table.from_batches([change.batch])
                    if change.table.has_hashed_key and self.plan_file is None:
                        changes = self._changes_after_snapshot(plan, change.table, changes)
                    outputs.for_table(change.table).add(
                        transforms[change.table.id].changes(
                            changes,
                            BinlogOrigin(self.timeline, change.gtids),
                            with_before_images=with_before_images,
                        )
                    )
                elif isinstance(change, Truncation):
                    outputs.empty(tables[change.table].newest, change.seq, change.commit_us)
        outputs.close()
        failpoint("batch.after_read")
        return {"start": start.to_json(), "end": end.to_json(), **outputs.manifest()}

    def _changes_after_snapshot(self, plan: Plan, table: TableSchema, changes: pa.Table) -> pa.Table:
        """Return the changes that the chunks of a table do not include yet, while its keys are still in clear.

        For all other tables, the driver does this when it applies the changes.
        """
        index = next(i for i, one in enumerate(plan.tables) if one.id == table.id)
        chunks = [chunk for chunk in plan.chunks if chunk.table == index]
        high_watermarks: list[int] = []
        if chunks:
            name = Layout(self.pipeline).coverage(plan.generation, index)
            high_watermarks = read_json(self.storage, name)["high_watermarks"]
        start, first_seq = plan.start_seq(index), pc.min(changes[SEQ_COLUMN]).as_py()
        if first_seq > max([start, *high_watermarks]):  # no key needs to be looked up
            return changes
        with closing(connect(self.connect_args)) as connection:
            return changes_after_snapshot(connection, table, chunks, high_watermarks, start, changes)

    def _check_definition(self, tables: CapturedTables, changes: RowChanges) -> None:
        """Check that rows have the table's newest definition.

        :raises TerminalError: if they do not: those of an XA transaction, which become visible after a DDL.
        """
        table = changes.table
        if table.fingerprint() != tables[table.id].newest.fingerprint():
            at = self.timeline.position(changes.batch[SEQ_COLUMN][0].as_py())
            raise TerminalError.for_table(
                f"rows of {table.label} at {at} have the definition from before an ALTER: their XA transaction was "
                "prepared before it",
                table.label,
                place=str(at),
            )


def _find_indirect_writes(connect_args: dict[str, Any], tables: CapturedTables) -> IndirectWrites | None:
    with closing(connect(connect_args)) as connection:
        return query_indirect_writes(connection, tables)


@contextmanager
def retry_in_next_epoch() -> Iterator[None]:
    """Turn errors that the next epoch may resolve, by a failover or after purged files, into transient errors."""
    try:
        yield
    except PurgedError as error:
        raise TransientError(error.message, "Run again: the next epoch continues if nothing is missing") from None
    except OtherServerError as error:
        raise TransientError(
            error.message, "Run again: the next epoch continues there if GTIDs prove that it can"
        ) from None


def merge_manifests(manifests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the manifests of the ranges of a batch into one.

    :raises TerminalError: if the ranges are not contiguous.
    """
    manifests = sorted(manifests, key=lambda m: Offset.from_json(m["start"]).at)
    tables: dict[int, list[dict[str, Any]]] = {}
    end = manifests[0]["start"]
    for manifest in manifests:
        if manifest["start"] != end:
            raise TerminalError(
                f"a batch range begins at {Offset.from_json(manifest['start']).at}, but the one before it ends at "
                f"{Offset.from_json(end).at}",
                "Run the stream again: it starts from the sink's own resume point",
            )
        end = manifest["end"]
        for entry in manifest["tables"]:
            table_entries = tables.setdefault(entry["table"], [])
            if table_entries and entry["emptied"] is None:
                previous = table_entries[-1]
                merged = {"staged": previous["staged"] + entry["staged"], "rows": previous["rows"] + entry["rows"]}
                table_entries[-1] = previous | merged
                continue
            if not entry["kept"]:
                table_entries.clear()
            table_entries.append(entry)
    return {
        "start": manifests[0]["start"],
        "end": end,
        "tables": [entry for i in sorted(tables) for entry in tables[i]],
        "staged": [name for manifest in manifests for name in manifest["staged"]],
        "asked": sum_counts(manifest["asked"] for manifest in manifests),
    }


class _TableOutput:
    """The changes of one table in a batch range.

    :param truncated: ``_cdc_seq`` and time of the TRUNCATE that precedes the changes, if any.
    :param keeps_rows: whether the rows from before that TRUNCATE stay.
    """

    def __init__(
        self,
        table: TableSchema,
        name: str,
        writer: ChangeWriter,
        truncated: tuple[int, int] | None = None,
        *,
        keeps_rows: bool = False,
    ) -> None:
        self._table, self.name, self._writer = table, name, writer
        self.truncated, self.keeps_rows = truncated, keeps_rows
        self.rows = 0

    def add(self, changes: pa.Table) -> None:
        """Write changes."""
        self.rows += changes.num_rows
        with name_table_in_errors(self._table):
            for batch in changes.to_batches():
                self._writer.add(batch)

    def empty(self, truncated: tuple[int, int]) -> None:
        """Note that the table is truncated here: discard the changes before."""
        with name_table_in_errors(self._table):
            self._writer.truncate()
        self.rows, self.truncated = 0, truncated

    def close(self) -> None:
        """Write what is still buffered."""
        with name_table_in_errors(self._table):
            self._writer.close()

    def manifest(self, index: int) -> dict[str, Any]:
        """Return the table's entry in the manifest."""
        emptied, at = self.truncated or (None, None)
        return {
            "table": index,
            "staged": [self.name],
            "rows": self.rows,
            "emptied": emptied,
            "emptied_at": at,
            "kept": self.keeps_rows,
        }


class _RangeOutputs:
    """The changes of a batch range, by table.

    :param name: makes the names of what this attempt at the range stages unique.
    :param deletes: how rows that are deleted in the source are handled.
    """

    def __init__(self, staging: ChangeStaging, plan: Plan, name: str, deletes: DeletePolicy) -> None:
        self._staging, self._plan, self._name, self._deletes = staging, plan, name, deletes
        self._indexes = {t.id: i for i, t in enumerate(plan.tables)}
        self._outputs: dict[int, list[_TableOutput]] = {}

    def for_table(self, table: TableSchema) -> _TableOutput:
        """Return the output of one table."""
        index = self._indexes[table.id]
        return self._outputs[index][-1] if index in self._outputs else self._open_output(index)

    def empty(self, table: TableSchema, seq: int, at: int) -> None:
        """Note that a table is truncated here.

        :param seq: ``_cdc_seq`` of the TRUNCATE.
        :param at: its commit time, in microseconds.
        """
        delete_mode = self._deletes.mode_of(table)
        if delete_mode == HARD:
            self.for_table(table).empty((seq, at))
        elif delete_mode != IGNORE:  # earlier changes must be applied first: their rows stay
            self._open_output(self._indexes[table.id], (seq, at), keeps_rows=True)

    def _open_output(
        self, index: int, truncated: tuple[int, int] | None = None, *, keeps_rows: bool = False
    ) -> _TableOutput:
        earlier_outputs = self._outputs.setdefault(index, [])
        name = f"{self._name}-{index}" + (f"-{len(earlier_outputs)}" if earlier_outputs else "")
        table = self._plan.tables[index]
        with name_table_in_errors(table):
            writer = self._staging.open_writer(table, name)
        earlier_outputs.append(_TableOutput(table, name, writer, truncated, keeps_rows=keeps_rows))
        return earlier_outputs[-1]

    def close(self) -> None:
        """Write what is still buffered."""
        for index in self._outputs:
            for output in self._outputs[index]:
                output.close()

    def manifest(self) -> dict[str, Any]:
        """Return the ``tables`` and ``staged`` parts of the manifest."""
        outputs = [(i, output) for i in sorted(self._outputs) for output in self._outputs[i]]
        return {
            "tables": [o.manifest(i) for i, o in outputs if o.rows or o.truncated],
            "staged": [[i, o.name] for i, o in outputs],
        }
