"""What a sink is to the phases. Delta is one; how to add another is told in CONTRIBUTING.md.

A sink has a table for each captured table, and the stream's resume point. Tables have **markers**: numbers that are
written in the same commit as rows and tell what the rows hold. A **fence** is a marker that only grows, and keeps those
out who have been overtaken. Every write is one commit, which a decision makes: it sees the markers as they stand, and
says what to change, or that there is nothing to do. What was decided on is still so when the commit stands: if anything
came between, the sink asks again. Why this makes the copy exact is argued in docs/correctness.md.

Tasks on other hosts write rows into a sink before anybody sees them: slices of the snapshot, and changes of batches.
So a :class:`Sink` travels with them (pickled), and holds no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from airflow_provider_cdc.model.multiset import NetChange
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.row_retention import RetainedRowsLoss
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.files.table_size import TableSize


class Feature(StrEnum):
    """What a sink need not be able to do. It is never asked to: that is refused by these names."""

    #: Rows can be taken out again without their key: :class:`MultisetChange`.
    KEYLESS = "tables without a usable key"
    #: Rows can be read again: :class:`OverwriteRange`, :meth:`SinkTable.begin_anew`, :meth:`SinkTable.read_staged` and
    #: :meth:`ResumePoint.forget_older`.
    RESNAPSHOT = "reading rows again"
    #: All rows can be read back: :class:`Readable`.
    READ_BACK = "reading rows back"
    #: A table's columns follow those of its source: :meth:`SinkTable.alter`; with :attr:`REREAD`,
    #: :meth:`SinkTable.exchange`.
    FOLLOW_DDL = "following changes of a table's definition"


@dataclass(frozen=True)
class Fence:
    """A marker that only grows: a writer with a smaller value must not commit.

    :param name: name of the marker.
    :param value: the writer's own value.
    """

    name: str
    value: int


class Markers(Protocol):
    """The markers of a table at one moment; a dictionary is one."""

    def get(self, name: str, /) -> int | None:
        """Value of a marker, ``None`` if it was never written."""


@dataclass(frozen=True)
class Upsert:
    """Changes of a table with a key: rows are put in, replaced and deleted by key.

    A change counts iff its ``_cdc_seq`` is greater than that of the row it meets. A sink that keeps changes and not
    rows leaves the comparison to those who read it, and says so in its documentation.

    :param changes: at most one a key, as :mod:`airflow_provider_cdc.model.changes` describes them.
    """

    changes: pa.Table


@dataclass(frozen=True)
class MultisetChange:
    """Changes of a table without a key: so many of equal rows go, others are put in.

    If there are fewer than go, nothing is written: the sink raises
    :class:`~airflow_provider_cdc.model.multiset.MissingRowsError`.

    :param net: what goes and what is put in.
    :param truncate_seq: rows with a lower ``_cdc_seq`` go before that, and do not count; 0 if there was no TRUNCATE.
    """

    net: NetChange
    truncate_seq: int = 0


@dataclass(frozen=True)
class Truncate:
    """The table was truncated: rows with a lower ``_cdc_seq`` go. Where there are none, the commit may be left out.

    :param seq: ``_cdc_seq`` of the TRUNCATE.
    :param truncated_at: its commit time, in microseconds since 1970.
    """

    seq: int
    truncated_at: int = 0


@dataclass(frozen=True)
class PublishSlices:
    """Slices of a chunk group become rows of the table. None of their keys is there.

    :param slices: what :meth:`SinkTable.stage` returned.
    """

    slices: Sequence[DataFile]


@dataclass(frozen=True)
class OverwriteRange:
    """A chunk group, or ranges of keys, were read again: the slices take the place of all rows that belong to them.

    :param slices: what :meth:`SinkTable.stage` returned.
    :param chunk_group: number of the snapshot and of the chunk group, whose earlier slices go as a whole; ``None`` for
        ranges of keys.
    :param owns_rows: for the key columns of some rows (without a key: ``_cdc_seq``), a mask of those that belong to it.
    :param key_span: smallest and largest key of its rows, only for a single integer key.
    """

    slices: Sequence[DataFile]
    chunk_group: tuple[int, int] | None
    owns_rows: Callable[[pa.Table], pa.Array]
    key_span: tuple[int, int] | None = None


#: What one commit does to the rows of a table.
Change = Upsert | MultisetChange | Truncate | PublishSlices | OverwriteRange
#: Decides upon a commit: ``None`` leaves the table as it is. It may be asked several times, and has no effect itself.
DecideChange = Callable[[Markers], Change | None]


class Fenceable(Protocol):
    """What can be fenced: tables, and the resume point.

    ``create`` makes it, and nothing else does: whatever writes to what is not there raises
    :class:`~airflow_provider_cdc.model.errors.TerminalError`. A table that somebody removed must not come back empty.
    """

    def exists(self) -> bool:
        """Whether it has been created."""

    def markers(self) -> Markers:
        """The markers as they stand; none if it was not created."""

    def raise_fence(self, fence: Fence) -> bool:
        """Write a fence's value, if it does not stand there yet; from then on smaller values cannot commit.

        :returns: whether this call has written it.
        :raises FencedError: if a larger one stands there.
        """


class SinkTable(Fenceable, Protocol):
    """One table of a sink. Several objects, in several processes, may be at work on one table."""

    @property
    def name(self) -> str:
        """What messages call the table, such as ``Delta table /lake/shop/orders``."""

    def create(self, pipeline: str) -> None:
        """Create the table if it does not exist; one that exists is left as it is, with its markers.

        :param pipeline: the pipeline that owns the table: two that wrote to one table would double its rows.
        :raises TerminalError: if it exists and is another's, or has other columns.
        """

    def reset(self, pipeline: str, fence: Fence, markers: Sequence[str]) -> None:
        """Take out all rows, once, and give the table the columns of its definition.

        :param pipeline: the pipeline that owns it: nobody empties the table of another one.
        :param fence: raised in the same commit; if it stands already, nothing happens.
        :param markers: names of the markers that tell that something was published that must stay.
        :raises TerminalError: if something was, or the table is another's.
        """

    def commit(self, decide: DecideChange, markers: Mapping[str, int], fence: Fence) -> bool:
        """Change rows and markers, all or nothing.

        :param decide: says what to do, knowing the markers.
        :param markers: (name -> value) to write in the same commit.
        :param fence: checked, and written, in the same commit.
        :returns: whether something was committed; ``True`` only if it is known to stand.
        :raises FencedError: if a writer with a larger fence value has been here, whatever ``decide`` says.
        :raises TransientError: if the commit cannot be made now; where that is not known, it may have been made.
        """

    def alter(self, old_table: TableSchema, markers: Mapping[str, int], fence: Fence) -> bool:
        """Give the table the columns of its definition, and write markers, in one commit (:attr:`Feature.ALTER`).

        Columns may be new, wherever they stand: they are NULL in all rows that are there. Slices that were staged
        before may be published after it. If no column changes, it is a commit of the markers.

        Objects of the definition before are of no use for rows from then on: whatever they are asked to write is
        refused with a :class:`~airflow_provider_cdc.model.errors.TerminalError`. Markers, and a fence that is raised,
        are the same for all.

        :param old_table: the definition whose columns the table has.
        :param markers: (name -> value) to write in the same commit; if all of them stand already, at these values or
            higher ones, nothing happens, whatever columns there are.
        :param fence: checked, and written, in the same commit.
        :returns: whether something was committed; ``True`` only if it is known to stand.
        :raises FencedError: if a writer with a larger fence value has been here.
        :raises TerminalError: if the table has not the columns of ``old_table``, or it takes more than new columns.
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
        """Put slices in the place of all rows, and give the table the columns of its definition, whatever it had, also
        another key, in one commit (:attr:`Feature.REREAD` and :attr:`Feature.ALTER`).

        All rows go, whoever has written them, unless ``keep_deleted_to`` is given and ``sink.deletes`` is not ``hard``.
        Then those stay whose keys the slices do not have: the source has deleted them. Where that is marked, all of
        them are marked; those that were not keep their ``_cdc_seq``. Columns that are new are NULL in them.

        Objects of the definition before are of no use for rows from then on, as for :meth:`alter`, if its columns or
        its key are others.

        :param slices: what :meth:`stage` returned, by an object of the new definition. None of them may be part of the
            table already.
        :param markers: (name -> value) to write in the same commit; if all of them stand already, at these values or
            higher ones, nothing happens, whatever slices there are.
        :param fence: checked, and written, in the same commit.
        :param keep_deleted_to: ``_cdc_seq`` of the place that the slices are of. Rows of the table with a higher one
            come again, and go. What :meth:`loss` tells of cannot be asked for.
        :returns: whether something was committed; ``True`` only if it is known to stand.
        :raises FencedError: if a writer with a larger fence value has been here.
        :raises TerminalError: if a slice is not there, or not whole, or is part of the table; if the table cannot have
            these columns, is another one by now, or is another's.
        :raises TransientError: as for :meth:`commit`.
        """

    def overwrite_loss(
        self, old_table: TableSchema, slices: Sequence[DataFile] | None = None
    ) -> RetainedRowsLoss | None:
        """What :meth:`exchange` could not keep of the rows that ``sink.deletes`` keeps, since the definition is
        another; ``None`` if it can keep all of them, there are none, or there is no table.

        :param old_table: the definition whose columns the table has.
        :param slices: what is to take the place of the rows; ``None`` before that is read: then only such rows count
            as are known to be deleted, or might be.
        """

    def clean_up(self) -> None:
        """Delete what nobody needs any more: called now and then, and at the end of a stream.

        What is staged may still be published.

        :raises CdcError: if that is not possible now.
        """

    def stage(self, staging_path: str, rows: Iterable[pa.Table]) -> DataFile:
        """Write rows that become part of the table when they are published. Called in tasks.

        Where, and in which format, is up to the sink; the :class:`DataFile` that comes back says where.

        :param staging_path: ``generation/group/attempt/name``, another one each time.
        :param rows: in the sink's schema, in order of the key. No more than one of them need be held at a time.
        """

    def is_staged(self, file: DataFile) -> bool:
        """Whether what :meth:`stage` returned is still there, and whole."""

    def read_staged(self, file: DataFile) -> Iterator[pa.Table]:
        """The rows that :meth:`stage` was given, in portions that fit into memory (:attr:`Feature.REREAD`)."""

    def discard_staged(self, file: DataFile) -> None:
        """Remove what was staged and is not published."""

    def clear_staged(self, staging_folder: str) -> None:
        """Remove all that was staged below a place, and is not part of the table (:attr:`Feature.REREAD`).

        What was part of it until recently may stay for readers of old versions; :meth:`tidy` removes it.

        :param staging_folder: ``generation/group``.
        """


@runtime_checkable
class Readable(Protocol):
    """A table that can be read back (:attr:`Feature.READ`)."""

    def read(self) -> tuple[pa.Table, Markers]:
        """All rows in the sink's schema, and the markers that stood when they did."""


class Compaction(Protocol):
    """A piece of work that makes a table cheaper to read, and changes no row. It travels to a task, pickled."""

    def run(self) -> Sequence[DataFile]:
        """Do it: what comes back goes to :meth:`Compactable.compacted`. It may be run twice, or in vain."""


@runtime_checkable
class Compactable(Protocol):
    """A table that is compacted while others write to it."""

    def plan_compactions(self, *, purge: bool = False) -> Sequence[Compaction]:
        """What there is to do now.

        :param purge: whether to leave neither dead rows nor small files, whatever it costs.
        """

    def commit_compactions(self, results: Sequence[tuple[Any, Sequence[DataFile]]]) -> int:
        """Put what compactions have written into the place of what they have read.

        :param results: compactions, and what each has returned.
        :returns: how many of them stand; at the others somebody was faster, and they have changed nothing.
        """


#: Reads ahead. Gets the bytes of memory that it may take for what nothing speaks for, and whether to leave the rest;
#: returns how many of these bytes it has taken.
Prefetcher = Callable[[int, Callable[[], bool]], int]


@runtime_checkable
class Prefetchable(Protocol):
    """A table that can get ready for changes before they come."""

    def prefetcher(self) -> Prefetcher:
        """What does that: it may run in another thread, while this object is used. Nobody waits for it."""


@runtime_checkable
class Adoptable(Protocol):
    """A table that may take the place of one that something else has made."""

    def will_adopt(self, pipeline: str) -> bool:
        """Whether the table exists, is nobody's, and :meth:`SinkTable.create` makes it the pipeline's.

        :raises NotReadyError: if it should be, and cannot be: with all that is in the way.
        """


@runtime_checkable
class Measurable(Protocol):
    """A table that knows what it takes."""

    @property
    def index_bytes_used(self) -> tuple[int, int]:
        """Bytes that this object takes for finding rows, in memory and on disk."""

    def table_size(self) -> TableSize:
        """What the table takes."""


@runtime_checkable
class HasOwner(Protocol):
    """A table that tells whose it is."""

    def owner(self) -> str | None:
        """The pipeline that writes to the table, which must exist; ``None`` if no pipeline does."""


class ChangeWriter(Protocol):
    """Takes down the changes of one table in a piece of a batch. Nobody sees them before :meth:`close`."""

    def add(self, changes: pa.RecordBatch) -> None:
        """Write changes, in binlog order."""

    def truncate(self) -> None:
        """The table was truncated here: what was added before does not count any more."""

    def close(self) -> None:
        """Write what is left."""


class ChangeStaging(Protocol):
    """Changes of batches, from the tasks that decode them to the driver that applies them."""

    def open_writer(self, table: TableSchema, range_name: str) -> ChangeWriter:
        """Begin to write. Called in tasks.

        :param range_name: ``epoch-<number>/name``, another one for each table of each piece, and of each attempt at it.
        """

    def read_changes(self, table: TableSchema, range_names: Sequence[str]) -> pa.Table:
        """The changes of some pieces, in this order, in the sink's schema."""

    def read_for_apply(self, table: TableSchema, range_names: Sequence[str]) -> pa.Table:
        """The same to be applied, with at least the columns of the key and those of the project.

        Whatever other columns it has travel along, and what its schema says: what comes back in :class:`Upsert` are
        rows of this. Those that do not come back do not count.
        """

    def discard_applied(self, table: TableSchema, range_names: Iterable[str]) -> None:
        """Remove of what has been applied what is not needed any more. It may have become part of the table."""

    def discard(self, table: TableSchema, range_names: Iterable[str]) -> None:
        """Remove what is not to be applied."""

    def clear_older_epochs(self, tables: Iterable[TableSchema], epoch: int) -> None:
        """Remove what earlier epochs have staged and not applied: nobody needs it any more.

        What later ones have staged stays: whoever calls this may have been overtaken, and not know it yet.

        :param tables: all that were staged for.
        :param epoch: number of the epoch that begins.
        """


class ResumePoint(Fenceable, Protocol):
    """Up to where the stream has been applied: committed after all tables of a batch."""

    def create(self) -> None:
        """Create it if it does not exist."""

    def forget_older_generation(self, generation: int) -> None:
        """Forget the resume point of an older snapshot, if there is one (:attr:`Feature.REREAD`).

        :param generation: number of the snapshot; nothing happens for the first one.
        """

    def read(self) -> Offset | None:
        """The resume point, ``None`` before the first batch."""

    def read_with_timeline(self) -> tuple[Offset, Timeline] | None:
        """The same with the lineage of its server."""

    def write(self, offset: Offset, timeline: Timeline, fence: Fence) -> None:
        """Replace the resume point.

        :raises FencedError: if a newer epoch has taken over.
        """

    def clean_up(self) -> None:
        """Delete what nobody needs any more. It need not be called: each write keeps in bounds what is there.

        :raises CdcError: if that is not possible now.
        """


class Sink(Protocol):
    """Where the copies of one pipeline go."""

    @property
    def supports(self) -> frozenset[Feature]:
        """What it can do."""

    def table(self, table: TableSchema) -> SinkTable:
        """The copy of a captured table, which need not exist yet. Nothing is looked at.

        :raises NotReadyError: if a setting of the sink does not fit the table.
        """

    def change_staging(self) -> ChangeStaging:
        """Where batches of the stream wait to be applied."""

    def resume_point(self) -> ResumePoint:
        """The stream's resume point."""
