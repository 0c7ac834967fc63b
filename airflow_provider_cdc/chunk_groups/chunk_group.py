"""Chunk groups as the sink has them: which attempt of each is published, and what that attempt contains."""

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

#: Names of manifests: of an attempt, relative to the group's folder, and of a slice.
_ATTEMPT_NAME, _SLICE_NAME = re.compile(r"attempt-(\d+)\.json"), re.compile(r"/slice-\d+\.json$")

#: Maximum number of revisions of a table in a snapshot: a fence combines generation and revision in one number.
_MAX_REVISIONS = 1_000_000


@dataclass(frozen=True)
class TaskRequest:
    """A request by a scheduler's task to read its groups. Each group is read once for each request.

    :param task: identity of the task, the same for all its tries.
    :param number: changes when the task is cleared, but not for its retries.
    """

    task: str
    number: int


@dataclass(frozen=True)
class SnapshotCoverage:
    """What the snapshot of one table contains, according to the manifests of the published attempts.

    :param chunks: chunks of the table in key order.
    :param high_watermarks: ``_cdc_seq`` of the high watermark of each chunk.
    :param rows: number of rows that the snapshot wrote.
    :param binlog_files: the binlog files of the high watermarks: base ordinal of the timeline segment, file name, and
        when the server began the file.
    """

    chunks: tuple[Chunk, ...]
    high_watermarks: tuple[int, ...]
    rows: int
    binlog_files: frozenset[tuple[int, str, int]] = frozenset()


def generation_fence(plan: Plan, table: int, revision: int | None = None) -> Fence:
    """Return the fence that keeps jobs of an older snapshot, or of an older revision of the table, out of it.

    :param table: index of the table.
    :param revision: revision of the table; by default the current one.
    :raises TerminalError: if the number of revisions is exhausted.
    """
    revision = plan.revision_of(table) if revision is None else revision
    if revision >= _MAX_REVISIONS:
        label = plan.tables[table].label
        raise TerminalError(
            f"table {label} was re-snapshotted {revision:,} times, which is the maximum",
            "Copy it again: start with a fresh sink.path (or remove the old one)",
            table=label,
        )
    return Fence(f"cdc/{plan.pipeline}/generation", plan.generation * _MAX_REVISIONS + revision)


def group_marker(plan: Plan, group: int) -> str:
    """Return the name of the marker that holds the published attempt of a group."""
    return f"cdc/{plan.pipeline}/{plan.generation}/group/{group}"


def open_sink_tables(context: RunContext, plan: Plan) -> list[SinkTable]:
    """Return the sink tables in the plan's order."""
    sink = context.sink
    return [sink.table(table) for table in plan.tables]


def read_coverage(context: RunContext, plan: Plan, tables: Sequence[SinkTable]) -> list[SnapshotCoverage] | None:
    """Return what the snapshot of each table contains; ``None`` if the snapshot is incomplete.

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
                    segment = entry_timeline(manifest)
                    files[manifest["table"]] |= {
                        (segment.first_ordinal, *binlog_files) for binlog_files in manifest["binlogs"].items()
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


def write_coverage(context: RunContext, plan: Plan, coverage: Sequence[SnapshotCoverage]) -> None:
    """Store the high watermarks of tables whose keys are hashed: only tasks can find the chunk of a changed row."""
    for index in plan.active_tables:
        if plan.tables[index].has_hashed_key and coverage[index].chunks:
            name = context.layout.coverage(plan.generation, index)
            write_json(context.storage, name, {"high_watermarks": coverage[index].high_watermarks})


def published_attempts(plan: Plan, tables: Sequence[SinkTable]) -> dict[int, dict[int, set[int]]] | None:
    """Return, for each group, the tables by published attempt; ``None`` if the snapshot is incomplete."""
    published: dict[int, dict[int, set[int]]] = {}
    for index in plan.active_tables:
        attempts = published_attempts_in(plan, index, tables[index])
        if attempts is None:
            return None
        for group, attempt in attempts.items():
            published.setdefault(group, {}).setdefault(attempt, set()).add(index)
    return published


def published_attempts_in(plan: Plan, index: int, sink_table: SinkTable) -> dict[int, int] | None:
    """Return the published attempt of each group in a table; ``None`` if one is missing, or the table is.

    :param index: index of the table.
    :param sink_table: its copy.
    """
    if not sink_table.exists():
        return None
    markers = sink_table.markers()
    attempts = {group: markers.get(group_marker(plan, group)) for group in plan.groups_of(index)}
    published = {group: attempt for group, attempt in attempts.items() if attempt is not None}
    return published if len(published) == len(attempts) else None


def entry_timeline(entry: Mapping[str, Any]) -> Timeline:
    """Return the timeline segment that the positions in a manifest entry belong to."""
    return Timeline.from_json(entry["lineage"])


def entry_resume_point(entry: Mapping[str, Any]) -> Offset:
    """Return the resume point from before a manifest entry's file was read. Changes that it lacks come after it."""
    return Offset.from_json(entry["since"])


@dataclass(frozen=True)
class GroupTotals:
    """What attempts at a group contain.

    :param entries: entries of the manifests.
    :param chunks: the chunks in them, with ``bytes`` added.
    :param rows: number of rows in the files.
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
        """Number of keys that the replay of the chunks' windows inserted, replaced or deleted."""
        return sum(int(c["corrected"]) for c in self.chunks)


@dataclass(frozen=True)
class ChunkGroup:
    """One chunk group of a plan, as the sink has it.

    :param number: number of the group.
    :param open_tables: sink tables of all tables of the plan, if the caller has opened them.
    """

    context: RunContext
    plan: Plan
    number: int
    open_tables: Sequence[SinkTable] = ()

    @cached_property
    def chunks(self) -> list[Chunk]:
        """The chunks, table by table, in key order."""
        return self.plan.groups()[self.number]

    @cached_property
    def slices(self) -> list[tuple[Chunk, ...]]:
        """The chunks grouped by the file that they share."""
        return cut_into_slices(self.chunks)

    @cached_property
    def tables(self) -> dict[int, SinkTable]:
        """Sink tables with chunks in the group, by index in the plan."""
        concerned, sink = sorted({c.table for c in self.chunks}), self.context.sink
        return {i: self.open_tables[i] if self.open_tables else sink.table(self.plan.tables[i]) for i in concerned}

    @property
    def marker(self) -> str:
        """Name of the group's marker."""
        return group_marker(self.plan, self.number)

    def published_by_table(self) -> dict[int, int]:
        """Return the published attempt of each table that has one, by table index."""
        attempts = {index: target.markers().get(self.marker) for index, target in self.tables.items()}
        return {index: attempt for index, attempt in attempts.items() if attempt is not None}

    def published_attempt(self) -> int | None:
        """Return the lowest attempt that is published in any table; ``None`` while a table has none."""
        attempts = self.published_by_table()
        return min(attempts.values()) if len(attempts) == len(self.tables) else None

    def newest_attempt(self) -> int:
        """Return the highest attempt that left any files, so that a lost state database does not count from 1 again."""
        return max([*self._complete_attempt_numbers(), *(attempt for attempt, _ in self._attempt_files())], default=0)

    def count_complete_attempts(self) -> int:
        """Return how many attempts were completed, so that one of them may have been published."""
        return sum(1 for _ in self._complete_attempt_numbers())

    def _complete_attempt_numbers(self) -> Iterator[int]:
        """Yield the attempts that have a manifest."""
        folder = self.context.layout.group_folder(self.plan.generation, self.number)
        for name, _ in self.context.storage.list(folder):
            if match := _ATTEMPT_NAME.fullmatch(name.removeprefix(f"{folder}/")):
                yield int(match[1])

    def _attempt_files(self) -> Iterator[tuple[int, str]]:
        """Yield attempt and name of each file that attempts have left in the tables' folders."""
        layout, plan = self.context.layout, self.plan
        for folder in (layout.slices_folder(plan.tables[i], plan.generation, self.number) for i in self.tables):
            for name, _ in self.context.storage.list(folder):
                attempt = name.removeprefix(f"{folder}/").partition("/")[0]
                if attempt.isdigit():
                    yield int(attempt), name

    def read_manifest(self, attempt: int) -> list[dict[str, Any]]:
        """Return the manifest of a published or staged attempt: one entry per file.

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
        """Write the manifest of an attempt once, so that two attempts with the same number publish the same files.

        :param entries: one per file.
        :returns: the stored manifest, which may be that of another process.
        """
        name = self.context.layout.attempt_manifest(self.plan.generation, self.number, attempt)
        write_json_once(self.context.storage, name, entries)
        return self.read_manifest(attempt)

    def publish(self, attempt: int, entries: Sequence[dict[str, Any]]) -> None:
        """Write an attempt's manifest, then publish it with one commit per table. The first committed attempt wins.

        :param entries: entries of the manifest, one per file.
        """
        entries = self.write_manifest(attempt, entries)
        for index in sorted({entry["table"] for entry in entries}):
            files = [DataFile.from_json(entry["file"]) for entry in entries if entry["table"] == index]

            def decide(markers: Markers, files: list[DataFile] = files) -> PublishSlices | None:
                return PublishSlices(files) if markers.get(self.marker) is None else None

            failpoint("group.before_commit")
            self.tables[index].commit(decide, {self.marker: attempt}, generation_fence(self.plan, index))
            failpoint("group.after_commit")

    def signals(self, attempt: int) -> AttemptSignals:
        """Return the signals between the driver and the readers of an attempt."""
        layout = self.context.layout
        return AttemptSignals(self.context.storage, layout.signals_folder(self.plan.generation, self.number, attempt))

    def finished_request(self, task: str) -> int | None:
        """Return the number of the task's last request for which the group was finished; ``None`` if it never was.

        :param task: identity of the task.
        """
        record = read_json_if_intact(self.context.storage, self._request_file(task))
        return None if record is None else int(record["request"])

    def record_finished(self, request: TaskRequest | None) -> None:
        """Record that the group is finished for a request: in the sink, because the state database may be lost."""
        if request is not None and self.finished_request(request.task) != request.number:
            write_json(
                self.context.storage,
                self._request_file(request.task),
                {"task": request.task, "request": request.number},
            )

    def _request_file(self, task: str) -> str:
        return self.context.layout.task_request(self.plan.generation, self.number, task)

    def list_finished_slices(self, above_attempt: int = 0) -> list[tuple[int, str]]:
        """Return attempt and manifest name of each finished slice.

        :param above_attempt: only of attempts above this one.
        """
        return sorted(
            (attempt, name)
            for attempt, name in self._attempt_files()
            if attempt > above_attempt and _SLICE_NAME.search(name)
        )

    def read_finished_slices(self, above_attempt: int = 0) -> dict[int, tuple[int, dict[str, Any]]]:
        """Return attempt and manifest of each finished slice, by slice number. Later attempts take precedence.

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
        """Return whether a slice matches its manifest, and the manifest matches the plan.

        The folder may have slices of another pipeline, whose chunks have other keys. Older manifests do not name it.
        """
        if manifest.get("pipeline", self.plan.pipeline) != self.plan.pipeline or manifest["slice"] >= len(self.slices):
            return False
        chunks = self.slices[manifest["slice"]]
        if manifest["table"] != chunks[0].table:
            return False
        table = self.plan.tables[manifest["table"]]
        begin, seq = entry_resume_point(manifest).at, entry_timeline(manifest).seq
        return (
            [c["no"] for c in manifest["chunks"]] == [c.number for c in chunks]
            and manifest["fingerprint"] == table.fingerprint()
            # What was read before a DDL does not count after it.
            and all(
                begin <= low <= high and self.plan.start_seq(manifest["table"]) <= seq(low)
                for low, high in map(watermarks_of, manifest["chunks"])
            )
            and sum(c["rows"] for c in manifest["chunks"]) == manifest["file"]["rows"]
            and self.tables[manifest["table"]].is_staged(DataFile.from_json(manifest["file"]))
        )

    def read_totals(self, attempts: Mapping[int, int]) -> GroupTotals:
        """Return what attempts contain.

        :param attempts: the attempt of each table, such as from :meth:`published_by_table`.
        """
        listed = [
            (attempt, entry)
            for attempt in set(attempts.values())
            for entry in self.read_manifest(attempt)
            if attempts.get(entry["table"]) == attempt
        ]
        chunks = tuple(row for attempt, entry in listed for row in chunk_entries(attempt, entry))
        marks = [
            (entry_timeline(entry).seq(position), position)
            for _, entry in listed
            for chunk in entry["chunks"]
            for position in watermarks_of(chunk)
        ]
        (_, low), (_, high) = (pick(marks, default=(0, self.plan.p0.at)) for pick in (min, max))
        return GroupTotals(
            tuple(entry for _, entry in listed), chunks, sum(entry["file"]["rows"] for _, entry in listed), low, high
        )

    def mirror_published(self, state_database: StateDatabase, expected_attempt: int) -> None:
        """Update the state database to what the sink has of a published group.

        :param expected_attempt: attempt that the caller has read from the state database.
        """
        plan, published = self.plan, self.published_by_table()
        totals, attempt = self.read_totals(published), max(published.values())
        state_database.record_published_chunks(plan.pipeline, plan.generation, to_chunk_results(totals.chunks))
        failpoint("books.after_chunks")
        state_database.record_published_group(
            plan.pipeline, plan.generation, self.number, expected_attempt, attempt, totals.rows
        )


def watermarks_of(chunk: Mapping[str, Any]) -> tuple[Position, Position]:
    """Return the low and high watermark of a chunk in a manifest."""
    return Position.from_json(chunk["lw"]), Position.from_json(chunk["hw"])


def chunk_entries(attempt: int, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the chunks of a file with their share of its bytes.

    :param attempt: the attempt to which they are attributed.
    """
    size, rows = manifest["file"]["size"], max(1, manifest["file"]["rows"])
    return [{**c, "attempt": attempt, "bytes": size * c["rows"] // rows} for c in manifest["chunks"]]


def to_chunk_results(chunks: Sequence[Mapping[str, Any]]) -> list[ChunkResult]:
    """Convert chunks to the form that the state database stores."""
    names = ("no", "attempt", "lw", "hw", "rows", "bytes", "corrected", "seconds")
    return [cast("ChunkResult", tuple(c[name] for name in names)) for c in chunks]
