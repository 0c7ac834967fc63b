"""The protocol that every sink implements. Delta is one sink; docs/architecture.md shows how to add another.

A sink has one table for each captured table, and the resume point of the stream. Tables have **markers**: numbers that
are committed together with rows and record which work those rows contain. A **fence** is a marker that only grows; it
keeps out writers that have been overtaken. Every write is one commit, made by a decision: a function that sees the
current markers and returns the change to make, or ``None``. The markers it saw are still current when the commit
succeeds: if anything was committed in between, the sink calls the function again. docs/correctness.md shows why this
makes the copy exact.

Tasks on other hosts write rows into a sink before readers can see them: slices of the snapshot, and changes of batches.
A :class:`PipelineSink` is therefore pickled and sent to these tasks, and holds no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from airflow_provider_cdc.config.sink_section import Sink
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.model.definition_history import NO_CHANGES, ColumnChanges
from airflow_provider_cdc.model.json_record import JsonRecord
from airflow_provider_cdc.model.multiset import NetChange
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.row_retention import RetainedRowsLoss
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.files.parquet import DataFile


class Feature(StrEnum):
    """Optional features of a sink. The values appear in messages that refuse a setting or a request."""

    #: Rows can be removed without a key: :class:`MultisetChange`.
    KEYLESS = "tables without a usable key"
    #: Tables and key ranges can be re-snapshotted: :class:`OverwriteRange`, :meth:`SinkTable.reset`,
    #: :meth:`SinkTable.read_staged` and :meth:`ResumePoint.forget_older_generation`.
    RESNAPSHOT = "re-snapshots"
    #: All rows can be read back: :class:`Readable`.
    READ_BACK = "reading rows back"
    #: A table's columns follow those of its source: :meth:`SinkTable.alter`; with :attr:`RESNAPSHOT`, also
    #: :meth:`SinkTable.overwrite`.
    FOLLOW_DDL = "following schema changes"
    #: Columns can be renamed and get wider types, and new ones get a value in all existing rows, without rows being
    #: read again: :class:`InPlaceAlterable`.
    IN_PLACE = "changing columns in place"


@dataclass(frozen=True)
class Fence:
    """A marker that only grows: a writer with a smaller value must not commit.

    :param name: name of the marker.
    :param value: the writer's own value.
    """

    name: str
    value: int


class Markers(Protocol):
    """The markers of a table at one moment; a dictionary will do."""

    def get(self, name: str, /) -> int | None:
        """Return the value of a marker, or ``None`` if it was never written."""


@dataclass(frozen=True)
class Upsert:
    """Changes of a table with a key: rows are inserted, replaced and deleted by key.

    A change applies only if its ``_cdc_seq`` is greater than that of the row with its key. A sink that stores changes
    instead of rows leaves this comparison to its readers, and documents that.

    :param changes: at most one change per key, as described in :mod:`airflow_provider_cdc.model.changes`.
    """

    changes: pa.Table


@dataclass(frozen=True)
class MultisetChange:
    """Changes of a table without a key: given numbers of equal rows are removed, and others are added.

    If the table has fewer such rows than are to be removed, nothing is written and the sink raises
    :class:`~airflow_provider_cdc.model.multiset.MissingRowsError`.

    :param net: the rows to remove and to add.
    :param truncate_seq: rows with a lower ``_cdc_seq`` are removed first and do not count; 0 if there was no TRUNCATE.
    """

    net: NetChange
    truncate_seq: int = 0


@dataclass(frozen=True)
class Truncate:
    """The table was truncated: rows with a lower ``_cdc_seq`` are removed.

    If there are none, the sink may skip the commit.

    :param seq: ``_cdc_seq`` of the TRUNCATE.
    :param truncated_at: its commit time, in microseconds since 1970.
    """

    seq: int
    truncated_at: int = 0


@dataclass(frozen=True)
class PublishSlices:
    """Slices of a chunk group become rows of the table, which has no rows with their keys yet.

    :param slices: return values of :meth:`SinkTable.stage`.
    """

    slices: Sequence[DataFile]


@dataclass(frozen=True)
class OverwriteRange:
    """A chunk group or key ranges were re-snapshotted: the slices replace all rows in that range.

    :param slices: return values of :meth:`SinkTable.stage`.
    :param chunk_group: generation and number of the chunk group, whose earlier slices are removed as a whole; ``None``
        for key ranges.
    :param owns_rows: function from the key columns of some rows (``_cdc_seq`` for a table without a key) to a mask of
        the rows in the range.
    :param key_span: smallest and largest key in the range, only for a single integer key.
    """

    slices: Sequence[DataFile]
    chunk_group: tuple[int, int] | None
    owns_rows: Callable[[pa.Table], pa.Array]
    key_span: tuple[int, int] | None = None


#: What one commit does to the rows of a table.
Change = Upsert | MultisetChange | Truncate | PublishSlices | OverwriteRange
#: Returns the change to commit; ``None`` leaves the table unchanged. It may be called several times and must have no
#: side effects.
DecideChange = Callable[[Markers], Change | None]


class Fenceable(Protocol):
    """What can be fenced: tables, and the resume point.

    Only ``create`` creates it. Every other write raises :class:`~airflow_provider_cdc.model.errors.TerminalError` if it
    does not exist: a table that a user removed must not come back empty.
    """

    def exists(self) -> bool:
        """Return whether it has been created."""

    def markers(self) -> Markers:
        """Return the current markers; none if it has not been created."""

    def raise_fence(self, fence: Fence) -> bool:
        """Raise a fence to its value, unless it is already there; from then on, smaller values cannot commit.

        :returns: whether this call wrote the value.
        :raises FencedError: if the current value is larger.
        """


class SinkTable(Fenceable, Protocol):
    """One table of a sink. Several objects, in several processes, may use the same table."""

    @property
    def name(self) -> str:
        """Name of the table in messages, such as ``Delta table /lake/shop/orders``."""

    def create(self, pipeline: str) -> None:
        """Create the table if it does not exist; leave an existing table and its markers unchanged.

        :param pipeline: the pipeline that owns the table. Two pipelines that write to one table would duplicate its
            rows.
        :raises TerminalError: if the table exists and belongs to another pipeline, or has other columns.
        """

    def reset(self, pipeline: str, fence: Fence, markers: Sequence[str]) -> None:
        """Remove all rows, once, and give the table the columns of its definition.

        :param pipeline: the pipeline that owns the table; no pipeline empties the table of another one.
        :param fence: raised in the same commit; if it already has this value, nothing happens.
        :param markers: names of the markers which show that rows were published that must be kept.
        :raises TerminalError: if the table has such a marker, or belongs to another pipeline.
        """

    def commit(self, decide: DecideChange, markers: Mapping[str, int], fence: Fence) -> bool:
        """Change rows and markers in one atomic commit.

        :param decide: returns the change to make for the current markers.
        :param markers: (name -> value) to write in the same commit.
        :param fence: checked and written in the same commit.
        :returns: whether a commit was made; ``True`` only if it is known to have succeeded.
        :raises FencedError: if a writer with a larger fence value has committed, whatever ``decide`` returns.
        :raises TransientError: if the commit cannot be made now, or its outcome is unknown: it may have succeeded.
        """

    def alter(
        self,
        old_table: TableSchema,
        markers: Mapping[str, int],
        fence: Fence,
        changes: ColumnChanges = NO_CHANGES,
    ) -> bool:
        """Give the table the columns of its definition and write markers, in one commit (:attr:`Feature.FOLLOW_DDL`).

        New columns may be in any position; without a default they are NULL in all existing rows. Slices that were
        staged before may be published afterwards. If no column changes, only the markers are committed.

        From then on, objects with the old definition cannot write rows: every attempt raises a
        :class:`~airflow_provider_cdc.model.errors.TerminalError`. They can still read markers and raise fences.

        :param old_table: the definition that the columns of the table match now.
        :param markers: (name -> value) to write in the same commit. If all of them already have these or higher values,
            nothing happens, whatever the columns are.
        :param fence: checked and written in the same commit.
        :param changes: what the definitions do not show; none without :attr:`Feature.IN_PLACE`.
        :returns: whether a commit was made; ``True`` only if it is known to have succeeded.
        :raises FencedError: if a writer with a larger fence value has committed.
        :raises TerminalError: if the table does not have the columns of ``old_table``, or new columns alone are not
            enough.
        :raises TransientError: as for :meth:`commit`.
        """

    def overwrite(
        self,
        slices: Sequence[DataFile],
        markers: Mapping[str, int],
        fence: Fence,
        *,
        keep_deleted_to: int | None = None,
    ) -> bool:
        """Replace all rows by slices, and the columns by those of the definition, in one commit.

        The table may have had any columns and any key. This needs :attr:`Feature.RESNAPSHOT` and
        :attr:`Feature.FOLLOW_DDL`.

        All rows are removed, whichever process wrote them, unless ``keep_deleted_to`` is given and ``sink.deletes`` is
        not ``hard``. Then rows whose keys are not in the slices are kept, because the source has deleted them. If the
        table marks deleted rows, all of these are marked; newly marked ones keep their ``_cdc_seq``. New columns are
        NULL in them.

        If the columns or the key change, objects with the old definition can no longer write rows, as for
        :meth:`alter`.

        :param slices: return values of :meth:`stage`, from an object with the new definition. None of them may be part
            of the table already.
        :param markers: (name -> value) to write in the same commit. If all of them already have these or higher values,
            nothing happens, whatever the slices are.
        :param fence: checked and written in the same commit.
        :param keep_deleted_to: ``_cdc_seq`` of the position at which the slices were read. Rows of the table with a
            higher one are removed, because the stream applies their changes again. Not allowed where
            :meth:`overwrite_loss` reports a loss.
        :returns: whether a commit was made; ``True`` only if it is known to have succeeded.
        :raises FencedError: if a writer with a larger fence value has committed.
        :raises TerminalError: if a slice is missing, incomplete or already part of the table; if the table cannot have
            these columns, was replaced by another one, or belongs to another pipeline.
        :raises TransientError: as for :meth:`commit`.
        """

    def overwrite_loss(
        self, old_table: TableSchema, slices: Sequence[DataFile] | None = None, *, reason: str | None = None
    ) -> RetainedRowsLoss | None:
        """Return which rows kept by ``sink.deletes`` :meth:`overwrite` cannot keep because the definition has changed.

        :param old_table: the definition that the columns of the table match now.
        :param slices: the slices that are to replace the rows; ``None`` before they have been read. Then only rows
            count that are, or may be, deleted in the source.
        :param reason: why no such row may be kept, if the caller knows that; otherwise the sink compares definitions.
        :returns: the loss; ``None`` if all such rows can be kept, there are none, or there is no table.
        """

    def clean_up(self) -> None:
        """Delete what is no longer needed. Called from time to time, and at the end of a stream.

        Staged slices may still be published and are kept.

        :raises CdcError: if that is not possible now.
        """

    def stage(self, staging_path: str, rows: Iterable[pa.Table]) -> DataFile:
        """Write rows that become part of the table when they are published. Called in tasks.

        The sink chooses the location and format; the returned :class:`DataFile` records the location.

        :param staging_path: ``generation/group/attempt/name``, different for each call.
        :param rows: in the sink's schema, ordered by key. Only one of these tables needs to be in memory at a time.
        """

    def is_staged(self, file: DataFile) -> bool:
        """Return whether a file that :meth:`stage` returned still exists and is complete."""

    def read_staged(self, file: DataFile) -> Iterator[pa.Table]:
        """Yield the rows of a staged file, in portions that fit into memory (:attr:`Feature.RESNAPSHOT`)."""

    def discard_staged(self, file: DataFile) -> None:
        """Delete a staged file that is not published."""

    def clear_staged(self, staging_folder: str) -> None:
        """Delete all staged files in a folder that are not part of the table (:attr:`Feature.RESNAPSHOT`).

        Files that were part of the table until recently may stay for readers of old versions; :meth:`clean_up` deletes
        them.

        :param staging_folder: ``generation/group``.
        """


@runtime_checkable
class InPlaceAlterable(Protocol):
    """A table whose columns can change without rows being read again (:attr:`Feature.IN_PLACE`)."""

    def why_not_in_place(self, changes: ColumnChanges) -> str | None:
        """Return why :meth:`SinkTable.alter` cannot give the table, as it is now, the columns of its definition.

        :param changes: what the definitions do not show.
        :returns: ``None`` if it can.
        """


@runtime_checkable
class Extendable(Protocol):
    """A table that can be the copy of several source tables, and then has the columns of all of them."""

    def why_not_extendable(self) -> tuple[str, str] | None:
        """Return why the table, as it is now, cannot have the columns and the key of this definition, and the remedy.

        :returns: ``None`` if it can.
        """


@runtime_checkable
class HasUniqueKeys(Protocol):
    """A table that may share its copy with others, under the promise that no key occurs in two of them."""

    def ignore_keys_of(self, others: Collection[str]) -> None:
        """Let keys not count as taken by rows of some other tables from now on, in place of earlier calls.

        :param others: tables whose rows are outdated, each as ``database.table``. When they are replaced by newer rows,
            the keys of these are compared.
        """

    def check_unique_keys(self, fence: Fence, others: Collection[str]) -> None:
        """Check once that no row of some other tables has a key of this one.

        From then on, commits refuse keys that a row of any other table has.

        :param others: the other tables, each as ``database.table``.
        :raises DuplicateKeyError: naming the key and the other table.
        """

    def refuse_taken_keys(self, slices: Sequence[DataFile]) -> None:
        """Refuse slices that have the key of a row of another table; the error is that of :meth:`check_unique_keys`."""


@runtime_checkable
class Readable(Protocol):
    """A table that can be read back (:attr:`Feature.READ_BACK`)."""

    def read(self) -> tuple[pa.Table, Markers]:
        """Return all rows in the sink's schema, and the markers of the same version."""


class Compaction(Protocol):
    """Work that makes a table cheaper to read without changing a row. It is pickled and sent to a task."""

    def run(self) -> Sequence[DataFile]:
        """Run it and return the result for :meth:`Compactable.commit_compactions`. It may run twice, or in vain."""


@runtime_checkable
class Compactable(Protocol):
    """A table that can be compacted while other processes write to it."""

    def plan_compactions(self, *, purge: bool = False) -> Sequence[Compaction]:
        """Return the compactions that are due now.

        :param purge: whether to remove all dead rows and merge all small files, whatever it costs.
        """

    def commit_compactions(self, results: Sequence[tuple[Any, Sequence[DataFile]]]) -> int:
        """Replace the files that compactions have read by those that they have written.

        :param results: compactions, each with its return value.
        :returns: how many were committed. Another writer was faster than the others, which changed nothing.
        """


#: Prefetches key files. Takes a memory budget in bytes for files that no change has touched yet, and a stop predicate;
#: returns how many bytes of the budget it used.
Prefetcher = Callable[[int, Callable[[], bool]], int]


@runtime_checkable
class Prefetchable(Protocol):
    """A table that can prepare for changes before they arrive."""

    def prefetcher(self) -> Prefetcher:
        """Return a prefetcher. It may run in another thread while this object is used; no process waits for it."""


@runtime_checkable
class Adoptable(Protocol):
    """A table that knows its owner, and can take over an existing table made by other software."""

    def check_owner(self, pipeline: str) -> None:
        """Refuse the existing table if the pipeline does not own it.

        :raises TerminalError: if another pipeline, or none, owns it.
        """

    def will_adopt(self, pipeline: str) -> bool:
        """Return whether the table exists, has no owner, and :meth:`SinkTable.create` makes the pipeline its owner.

        :raises NotReadyError: listing all obstacles, if it should be taken over but cannot be.
        """


@runtime_checkable
class HasCatalog(Protocol):
    """A sink whose tables are in a catalog."""

    def check_catalog(self) -> str:
        """Check that the catalog can be used, without writing anything.

        :returns: what messages call it, with its address, but no secrets, and its name.
        :raises NotReadyError: if it cannot be used with these settings.
        :raises TransientError: if it does not answer now.
        """


@runtime_checkable
class InFolder(Protocol):
    """A table that has a folder, where it deletes files that it does not need: no other table may be there."""

    def check_folder_is_free(self) -> None:
        """Refuse to create the table in the folder of another one, of whatever format, before anything is written.

        :raises TerminalError: if the folder has files of another table.
        """


class TableSize(JsonRecord, frozen=True):
    """The size of a table, as recorded in its log: no data file is opened.

    :param files: number of data files.
    :param bytes: their size.
    :param rows: living rows; ``None`` if the log does not record their number.
    :param dead_rows: dead rows that are still in files.
    :param files_with_vectors: files that have a deletion vector.
    :param compactions: compactions committed since the table was created.
    """

    files: int
    bytes: int
    rows: int | None
    dead_rows: int
    files_with_vectors: int
    compactions: int


@runtime_checkable
class Measurable(Protocol):
    """A table that can report its size."""

    @property
    def index_bytes_used(self) -> tuple[int, int]:
        """Bytes that this object uses to find rows, in memory and on disk."""

    def table_size(self) -> TableSize:
        """Return the size of the table."""


@runtime_checkable
class HasOwner(Protocol):
    """A table that records its owner."""

    def owner(self) -> str | None:
        """Return the pipeline that writes to the table, which must exist; ``None`` if no pipeline does."""


@runtime_checkable
class Registered(Protocol):
    """A table that is registered outside of its folder, such as in a catalog."""

    def delete(self) -> None:
        """Delete the table with all of its files, and remove it from there. Repeat it if it fails.

        :raises CdcError: if that is not possible now.
        """


class ChangeWriter(Protocol):
    """Writes the changes of one table in a batch range. They are not visible before :meth:`close`."""

    def add(self, changes: pa.RecordBatch) -> None:
        """Write changes, in binlog order."""

    def truncate(self) -> None:
        """Discard the changes added so far: the table was truncated here."""

    def close(self) -> None:
        """Write the remaining changes."""


class ChangeStaging(Protocol):
    """Passes the changes of batches from the tasks that decode them to the driver that applies them."""

    def open_writer(self, table: TableSchema, range_name: str) -> ChangeWriter:
        """Return a writer. Called in tasks.

        :param range_name: ``epoch-<number>/name``, different for each table, each batch range, and each attempt.
        """

    def read_changes(self, table: TableSchema, range_names: Sequence[str]) -> pa.Table:
        """Return the changes of some batch ranges, in this order, in the sink's schema."""

    def read_for_apply(self, table: TableSchema, range_names: Sequence[str]) -> pa.Table:
        """Return the same changes in a form to apply, with at least the key columns and the project's own columns.

        Any further columns, and the metadata of its schema, must be preserved: the rows passed in :class:`Upsert` are
        rows of this table. Rows that are not passed are not applied.
        """

    def discard_applied(self, table: TableSchema, range_names: Iterable[str]) -> None:
        """Delete what is no longer needed of applied changes, some of which may have become part of the table."""

    def discard(self, table: TableSchema, range_names: Iterable[str]) -> None:
        """Delete changes that are not to be applied."""

    def clear_older_epochs(self, tables: Iterable[TableSchema], epoch: int) -> None:
        """Delete what earlier epochs have staged and not applied.

        What later epochs have staged is kept: the caller may have been overtaken without knowing it yet.

        :param tables: all tables for which changes were staged.
        :param epoch: number of the epoch that begins.
        """


class ResumePoint(Fenceable, Protocol):
    """The offset up to which the stream has been applied: committed after all tables of a batch."""

    def create(self) -> None:
        """Create it if it does not exist."""

    def forget_older_generation(self, generation: int) -> None:
        """Forget the resume point of an older snapshot, if there is one (:attr:`Feature.RESNAPSHOT`).

        :param generation: number of the snapshot; nothing happens for the first one.
        """

    def read(self) -> Offset | None:
        """Return the resume point, or ``None`` before the first batch."""

    def read_with_timeline(self) -> tuple[Offset, Timeline] | None:
        """Return the resume point together with the timeline of its server."""

    def write(self, offset: Offset, timeline: Timeline, fence: Fence) -> None:
        """Replace the resume point.

        :raises FencedError: if a newer epoch has taken over.
        """

    def clean_up(self) -> None:
        """Delete what is no longer needed. Calling it is optional: each write also limits what accumulates.

        :raises CdcError: if that is not possible now.
        """


class PipelineSink(Protocol):
    """The destination of one pipeline: all of its sink tables and its resume point."""

    @classmethod
    def from_settings(cls, settings: Sink, pipeline: str, access: StoreAccess | None) -> PipelineSink:
        """Make the sink of a pipeline; see :func:`~airflow_provider_cdc.sinks.registry.open_sink`."""

    @property
    def supports(self) -> frozenset[Feature]:
        """Features that the sink supports."""

    def table(self, table: TableSchema) -> SinkTable:
        """Return the sink table of a captured table, which need not exist yet. Nothing is read or checked.

        Its columns and its key are those of ``table.copy``; wherever a captured table is passed to a sink, only its
        copy counts.

        :raises NotReadyError: if a setting of the sink does not fit the table.
        """

    def change_staging(self) -> ChangeStaging:
        """Return the place where batches of the stream wait to be applied."""

    def resume_point(self) -> ResumePoint:
        """Return the stream's resume point."""
