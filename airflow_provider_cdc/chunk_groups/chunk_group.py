"""What the sink says of chunk groups: which attempt of each is published, and what that attempt holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.plan import Chunk, Plan, cut_into_slices
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.attempt_signals import AttemptSignals
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.protocol import Fence, Markers, PublishSlices, SinkTable
from airflow_provider_cdc.sinks.storage.storage import read_json, read_json_if_intact, write_json, write_json_once
from airflow_provider_cdc.system.failpoints import failpoint

if TYPE_CHECKING:
    from airflow_provider_cdc.state import ChunkResult, StateDatabase

#: Names of manifests: that of an attempt in the group's folder, and that of a slice.
_ATTEMPT_NAME, _SLICE_NAME = re.compile(r"attempt-(\d+)\.json"), re.compile(r"/slice-\d+\.json$")

#: Revisions of one table in one snapshot: a fence holds the snapshot's generation and the table's revision.
_MAX_REVISIONS = 1_000_000


@dataclass(frozen=True)
class TaskRequest:
    """What a scheduler's task wants of its group: it is read once for each request.

    :param task: identity of the task, the same for all its tries.
    :param number: another one as soon as somebody clears the task, and the same for its retries.
    """

    task: str
    number: int


@dataclass(frozen=True)
class SnapshotCoverage:
    """What the snapshot of one table holds, as the winning attempts' manifests say.

    :param chunks: chunks of the table in key order.
    :param high_watermarks: ``_cdc_seq`` of the HW of each.
    :param rows: rows that the snapshot wrote.
    :param binlog_files: the binlog files of the high watermarks: base of the segment, name, and when the server had
        begun it.
    """

    chunks: tuple[Chunk, ...]
    high_watermarks: tuple[int, ...]
    rows: int
    binlog_files: frozenset[tuple[int, str, int]] = frozenset()


def generation_fence(plan: Plan, table: int, revision: int | None = None) -> Fence:
    """Fence that keeps jobs of an older snapshot, or of an older definition of the table, out of it.

    :param table: index of the table.
    :param revision: its revision, if not the one that it has.
    :raises TerminalError: where the number would be one of the next snapshot.
    """
    revision = plan.revision_of(table) if revision is None else revision
    if revision >= _MAX_REVISIONS:
        label = plan.tables[table].label
        raise TerminalError(
            f"table {label} was read again {revision:,} times, and there is no number for the next time",
            "Copy it again: start with a fresh sink.path (or remove the old one)",
            table=label,
        )
    return Fence(f"cdc/{plan.pipeline}/generation", plan.generation * _MAX_REVISIONS + revision)


def group_marker(plan: Plan, group: int) -> str:
    """Name of the marker of a group's commit; its value is the attempt that won."""
    return f"cdc/{plan.pipeline}/{plan.generation}/group/{group}"


def open_sink_tables(context: RunContext, plan: Plan) -> list[SinkTable]:
    """Tables of the sink, in the plan's order."""
    sink = context.sink
    return [sink.table(table) for table in plan.tables]


def read_coverage(context: RunContext, plan: Plan, tables: Sequence[SinkTable]) -> list[SnapshotCoverage] | None:
    """What the snapshot holds, a table each; ``None`` if it is not complete.

    :raises TerminalError: if the manifest of a published attempt is missing.
    """
    published = published_attempts(plan, tables)
    if published is None:
        return None
    marks: dict[int, int] = {}
    rows = [0] * len(tables)
    files: list[set[tuple[int, str, int]]] = [set() for _ in tables]
    for group, attempts in published.items():
        for attempt, table_indexes in attempts.items():
            for manifest in ChunkGroup(context, plan, group).read_manifest(attempt):
                if manifest["table"] in table_indexes:
                    rows[manifest["table"]] += manifest["file"]["rows"]
                    segment = entry_timeline(plan, manifest)
                    files[manifest["table"]] |= {
                        (segment.first_ordinal, *binlog_files) for binlog_files in manifest.get("binlogs", {}).items()
                    }
                    for chunk in manifest["chunks"]:
                        marks[chunk["no"]] = segment.seq(Position.from_json(chunk["hw"]))
    chunks: list[list[Chunk]] = [[] for _ in tables]
    for planned in plan.chunks:
        chunks[planned.table].append(planned)
    return [
        SnapshotCoverage(
            tuple(table_chunks), tuple(marks[c.number] for c in table_chunks), count, frozenset(binlog_files)
        )
        for table_chunks, count, binlog_files in zip(chunks, rows, files, strict=True)
    ]


def published_attempts(plan: Plan, tables: Sequence[SinkTable]) -> dict[int, dict[int, set[int]]] | None:
    """Tables by the attempt that is published in them, a group each; ``None`` if the snapshot is not complete."""
    published: dict[int, dict[int, set[int]]] = {}
    for index in plan.active_tables:
        attempts = published_attempts_in(plan, index, tables[index])
        if attempts is None:
            return None
        for group, attempt in attempts.items():
            published.setdefault(group, {}).setdefault(attempt, set()).add(index)
    return published


def published_attempts_in(plan: Plan, index: int, sink_table: SinkTable) -> dict[int, int] | None:
    """The attempt of each of its groups that is published in a table; ``None`` if one lacks, or the table does.

    :param index: index of the table, and ``sink_table``: its copy.
    """
    if not sink_table.exists():
        return None
    markers = sink_table.markers()
    attempts = {group: markers.get(group_marker(plan, group)) for group in plan.groups_of(index)}
    published = {group: attempt for group, attempt in attempts.items() if attempt is not None}
    return published if len(published) == len(attempts) else None


def entry_timeline(plan: Plan, entry: Mapping[str, Any]) -> Timeline:
    """The segment whose server the positions of a manifest's entry are of, and which numbers them."""
    return Timeline.from_json(entry["lineage"]) if "lineage" in entry else plan.timeline.newest_segment


def entry_resume_point(plan: Plan, entry: Mapping[str, Any]) -> Offset:
    """The resume point before the file of a manifest's entry was read: what it lacks stands behind it."""
    return Offset.from_json(entry["since"]) if "since" in entry else plan.p0


@dataclass(frozen=True)
class GroupTotals:
    """What attempts of a group hold.

    :param entries: entries of the manifests.
    :param chunks: the chunks in them, with ``bytes`` added.
    :param rows: rows in the files.
    :param min_lw: lowest low watermark.
    :param max_hw: highest high watermark.
    """

    entries: tuple[dict[str, Any], ...]
    chunks: tuple[dict[str, Any], ...]
    rows: int
    min_lw: Position
    max_hw: Position

    @property
    def corrected(self) -> int:
        """Keys that the backfill inserted, replaced or deleted."""
        return sum(int(c["corrected"]) for c in self.chunks)


@dataclass(frozen=True)
class ChunkGroup:
    """One chunk group of a plan, as the sink has it.

    :param number: its number.
    :param open_tables: sink tables of all tables of the plan, if the caller has them open.
    """

    context: RunContext
    plan: Plan
    number: int
    open_tables: Sequence[SinkTable] = ()

    @cached_property
    def chunks(self) -> list[Chunk]:
        """Its chunks, table by table, in key order."""
        return self.plan.groups()[self.number]

    @cached_property
    def slices(self) -> list[tuple[Chunk, ...]]:
        """Its chunks by the file that they share."""
        return cut_into_slices(self.chunks)

    @cached_property
    def tables(self) -> dict[int, SinkTable]:
        """Sink tables that it concerns, by their index in the plan."""
        concerned, sink = sorted({c.table for c in self.chunks}), self.context.sink
        return {i: self.open_tables[i] if self.open_tables else sink.table(self.plan.tables[i]) for i in concerned}

    @property
    def marker(self) -> str:
        """Name of its marker."""
        return group_marker(self.plan, self.number)

    def published_by_table(self) -> dict[int, int]:
        """The published attempt of each table that has one."""
        attempts = {index: target.markers().get(self.marker) for index, target in self.tables.items()}
        return {index: attempt for index, attempt in attempts.items() if attempt is not None}

    def published_attempt(self) -> int | None:
        """The lowest attempt that is published in a table; ``None`` while a table has none."""
        attempts = self.published_by_table()
        return min(attempts.values()) if len(attempts) == len(self.tables) else None

    def newest_attempt(self) -> int:
        """Highest attempt that left anything: a lost bookkeeping database must not count from 1 again."""
        return max([*self._complete_attempt_numbers(), *(attempt for attempt, _ in self._attempt_files())], default=0)

    def has_complete_attempt(self) -> bool:
        """Whether an attempt was complete, so that it may have been published."""
        return any(True for _ in self._complete_attempt_numbers())

    def count_complete_attempts(self) -> int:
        """How many attempts were read to their end."""
        return sum(1 for _ in self._complete_attempt_numbers())

    def _complete_attempt_numbers(self) -> Iterator[int]:
        """Attempts that have a manifest."""
        folder = self.context.layout.group_folder(self.plan.generation, self.number)
        for name, _ in self.context.storage.list(folder):
            if match := _ATTEMPT_NAME.fullmatch(name.removeprefix(f"{folder}/")):
                yield int(match[1])

    def _attempt_files(self) -> Iterator[tuple[int, str]]:
        """What attempts have left in the folders of tables: attempt and name of each file."""
        layout, plan = self.context.layout, self.plan
        for folder in (layout.slices_folder(plan.tables[i], plan.generation, self.number) for i in self.tables):
            for name, _ in self.context.storage.list(folder):
                attempt = name.removeprefix(f"{folder}/").partition("/")[0]
                if attempt.isdigit():
                    yield int(attempt), name

    def read_manifest(self, attempt: int) -> list[dict[str, Any]]:
        """Manifest of an attempt that is published or staged: one entry a file.

        :raises TerminalError: if it is missing.
        """
        name = self.context.layout.attempt_manifest(self.plan.generation, self.number, attempt)
        listed: list[dict[str, Any]] | None = read_json(self.context.storage, name)
        if listed is None:
            raise TerminalError(
                f"the manifest {self.context.storage.location(name)} of a published chunk group is missing",
                "Restore it, or start with a fresh sink.path (or remove the old one)",
            )
        return listed

    def write_manifest(self, attempt: int, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write the manifest of an attempt, once: two that were given the same number publish the same files.

        :param entries: one a file.
        :returns: what stands.
        """
        name = self.context.layout.attempt_manifest(self.plan.generation, self.number, attempt)
        write_json_once(self.context.storage, name, entries)
        return self.read_manifest(attempt)

    def publish(self, attempt: int, entries: Sequence[dict[str, Any]]) -> None:
        """Write an attempt's manifest, then one commit a table. The first attempt whose marker stands has won.

        :param entries: of the manifest, one a file.
        """
        entries = self.write_manifest(attempt, entries)
        for index in sorted({entry["table"] for entry in entries}):
            files = [DataFile(**entry["file"]) for entry in entries if entry["table"] == index]

            def decide(markers: Markers, files: list[DataFile] = files) -> PublishSlices | None:
                return PublishSlices(files) if markers.get(self.marker) is None else None

            failpoint("group.before_commit")
            self.tables[index].commit(decide, {self.marker: attempt}, generation_fence(self.plan, index))
            failpoint("group.after_commit")

    def signals(self, attempt: int) -> AttemptSignals:
        """The notes between driver and readers of an attempt."""
        layout = self.context.layout
        return AttemptSignals(self.context.storage, layout.signals_folder(self.plan.generation, self.number, attempt))

    def is_finished_for(self, request: TaskRequest) -> bool | None:
        """Whether the group was finished for this request already, rather than for an earlier one of the same task.

        :returns: ``None`` if it was never finished for the task.
        """
        record = read_json_if_intact(self.context.storage, self._request_file(request))
        return None if record is None else record["request"] == request.number

    def record_finished(self, request: TaskRequest | None) -> None:
        """Write down that the group is finished for a request: in the sink, since the bookkeeping may be lost."""
        if request is not None and not self.is_finished_for(request):
            write_json(
                self.context.storage, self._request_file(request), {"task": request.task, "request": request.number}
            )

    def _request_file(self, request: TaskRequest) -> str:
        return self.context.layout.task_request(self.plan.generation, self.number, request.task)

    def list_finished_slices(self, above_attempt: int = 0) -> list[tuple[int, str]]:
        """Attempt and name of the manifest of each finished slice.

        :param above_attempt: only of attempts above this one.
        """
        return sorted(
            (attempt, name)
            for attempt, name in self._attempt_files()
            if attempt > above_attempt and _SLICE_NAME.search(name)
        )

    def read_finished_slices(self, above_attempt: int = 0) -> dict[int, tuple[int, dict[str, Any]]]:
        """Attempt and manifest of finished slices by number; a later attempt's stands before an earlier one's.

        :param above_attempt: only of attempts above this one.
        """
        by_number: dict[int, tuple[int, dict[str, Any]]] = {}
        for attempt, name in self.list_finished_slices(above_attempt):
            manifest = read_json_if_intact(self.context.storage, name)
            no = manifest["slice"] if manifest and self._is_valid_slice(manifest) else None
            if no is not None and attempt >= by_number.get(no, (0, {}))[0]:
                by_number[no] = attempt, manifest
        return by_number

    def _is_valid_slice(self, manifest: Mapping[str, Any]) -> bool:
        """Whether a slice is what its manifest says, and that is what the plan asks for."""
        chunks, table = self.slices[manifest["slice"]], self.plan.tables[manifest["table"]]
        begin, seq = entry_resume_point(self.plan, manifest).at, entry_timeline(self.plan, manifest).seq
        return (
            [c["no"] for c in manifest["chunks"]] == [c.no for c in chunks]
            and manifest["fingerprint"] == table.fingerprint()
            # After a DDL nothing counts that was read before it.
            and all(
                begin <= low <= high and self.plan.start_seq(manifest["table"]) <= seq(low)
                for low, high in map(watermarks_of, manifest["chunks"])
            )
            and sum(c["rows"] for c in manifest["chunks"]) == manifest["file"]["rows"]
            and self.tables[manifest["table"]].is_staged(DataFile(**manifest["file"]))
        )

    def read_totals(self, attempts: Mapping[int, int]) -> GroupTotals:
        """What attempts hold.

        :param attempts: the attempt of each table, such as :meth:`markers`.
        """
        listed = [
            (attempt, entry)
            for attempt in set(attempts.values())
            for entry in self.read_manifest(attempt)
            if attempts.get(entry["table"]) == attempt
        ]
        chunks = tuple(row for attempt, entry in listed for row in chunk_entries(attempt, entry))
        marks = [
            (entry_timeline(self.plan, entry).seq(position), position)
            for _, entry in listed
            for chunk in entry["chunks"]
            for position in watermarks_of(chunk)
        ]
        (_, low), (_, high) = (pick(marks, default=(0, self.plan.p0.at)) for pick in (min, max))
        return GroupTotals(
            tuple(entry for _, entry in listed), chunks, sum(entry["file"]["rows"] for _, entry in listed), low, high
        )

    def mirror_published(self, state_database: StateDatabase, expected_attempt: int) -> None:
        """Bring the bookkeeping up to what the sink says of a published group.

        :param expected_attempt: attempt that the caller has read in the bookkeeping.
        """
        plan, published = self.plan, self.published_by_table()
        totals, attempt = self.read_totals(published), max(published.values())
        state_database.record_published_chunks(plan.pipeline, plan.generation, to_chunk_results(totals.chunks))
        failpoint("books.after_chunks")
        low, high = totals.min_lw.to_json(), totals.max_hw.to_json()
        state_database.record_published_group(
            plan.pipeline, plan.generation, self.number, expected_attempt, attempt, totals.rows, low, high
        )


def watermarks_of(chunk: Mapping[str, Any]) -> tuple[Position, Position]:
    """Low and high watermark of a manifest's chunk."""
    return Position.from_json(chunk["lw"]), Position.from_json(chunk["hw"])


def chunk_entries(attempt: int, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Chunks of a file with their share of its bytes.

    :param attempt: the attempt that they count for.
    """
    size, rows = manifest["file"]["size"], max(1, manifest["file"]["rows"])
    return [{**c, "attempt": attempt, "bytes": size * c["rows"] // rows} for c in manifest["chunks"]]


def to_chunk_results(chunks: Sequence[Mapping[str, Any]]) -> list[ChunkResult]:
    """Chunks as the bookkeeping takes them."""
    names = ("no", "attempt", "lw", "hw", "rows", "bytes", "corrected", "seconds")
    return [cast("ChunkResult", tuple(c[name] for name in names)) for c in chunks]
