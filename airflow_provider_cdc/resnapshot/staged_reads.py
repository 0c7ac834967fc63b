"""Re-snapshots of chunk groups: the reading job stages the rows, which then replace those in the copy.

Until a stream has begun, the reading job publishes them itself. After that, the stream owns the rows of the table: only
its driver publishes, at a point where it knows the table's position (the argument is in docs/correctness.md).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.apply.applier import Applier, epoch_fence, explain_missing_rows, stream_marker
from airflow_provider_cdc.apply.task import StreamJob, retry_in_next_epoch
from airflow_provider_cdc.chunk_groups.chunk_group import (
    ChunkGroup,
    entry_resume_point,
    entry_timeline,
    generation_fence,
    read_coverage,
    watermarks_of,
)
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.changes import apply_changes, changes_after, last_changes
from airflow_provider_cdc.model.errors import FencedError, TerminalError, TransientError
from airflow_provider_cdc.model.multiset import find_removed_rows, net_change, without_removed_rows
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.schema import SEQ_COLUMN
from airflow_provider_cdc.model.staged_read import GROUP, RANGES, StagedRead, publish_refusal
from airflow_provider_cdc.model.supervision import EpochWatch
from airflow_provider_cdc.mysql.client.key_sql import keys_of
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.keys.ownership import find_owning_chunks, mask_owned_rows
from airflow_provider_cdc.mysql.positions.binlog_files import OpenStreamAt
from airflow_provider_cdc.mysql.positions.resume import why_purged
from airflow_provider_cdc.resnapshot.staged_files import (
    ReadOutcome,
    group_read_marker,
    list_pending_reads,
    published_read_numbers,
    remove_request,
    request_publication,
)
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.parquet import DataFile, split_by_size
from airflow_provider_cdc.sinks.protocol import Markers, OverwriteRange
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint
from airflow_provider_cdc.system.processes import has_died_here

_POLL_SECONDS = 1.0
#: In-memory size, in bytes, of one staged slice of a table without a key.
_PORTION_BYTES = 64 << 20
#: Errors which show that staged rows are no longer usable.
UNUSABLE_ERRORS = (TerminalError, FileNotFoundError, pa.ArrowInvalid)


def stage_group(group: ChunkGroup, attempt: int, manifests: Sequence[dict[str, Any]]) -> StagedRead:
    """Record that an attempt is complete: write its manifest, then the request to publish it.

    :param manifests: one entry per file, all read in one segment of the timeline.
    """
    context, plan = group.context, group.plan
    manifests = group.write_manifest(attempt, manifests)
    high = max(watermarks_of(chunk)[1] for entry in manifests for chunk in entry["chunks"])
    # Files of an earlier try lack more changes than those of this one.
    since = min((entry_resume_point(plan, entry) for entry in manifests), key=lambda offset: offset.at)
    number = min(entry.get("reading", 0) for entry in manifests)
    staged = StagedRead(number, GROUP, None, group.number, attempt, high, since, entry_timeline(plan, manifests[0]))
    request_publication(context, plan, staged)
    remove_request(context, plan, group.number, attempt - 1)
    return staged


def why_group_not_publishable(
    group: ChunkGroup, staged: StagedRead, timeline: Timeline, open_at: OpenStreamAt
) -> str | None:
    """Return why a staged attempt at a chunk group can no longer be published; ``None`` if it can.

    :param timeline: timeline of the resume point.
    :param open_at: opens a stream of the server's binlog.
    """
    plan = group.plan
    for index, target in group.tables.items():
        current, captured = plan.tables[index], group.context.pipeline.captures(*plan.tables[index].id)
        rejection = publish_refusal(
            staged, index, plan, timeline, published_read_numbers(plan, index, target.markers()), captured=captured
        )
        if rejection is not None:
            return f"{rejection.reason} (table {current.label})"
        before = plan.definitions_for(timeline)[index].at(staged.start.at)
        if before is not None and before.fingerprint() != current.fingerprint():
            return f"{current.label} was altered since it was read"
    with closing(connect(group.context.connect_args)) as connection:
        return why_purged(connection, staged.start, open_at)


def publish_or_wait(group: ChunkGroup, store: StateDatabase, staged: StagedRead) -> bool:
    """Publish a staged attempt in tables that no stream has touched; for the others, wait for a running stream.

    :returns: whether it is published in all tables; if not, the next stream publishes it.
    :raises TransientError: if the stream could not publish it, and another try may succeed.
    :raises TerminalError: if an older re-snapshot of a whole table has overwritten it.
    """
    manifests = group.read_manifest(staged.attempt)
    for index in group.tables:
        _publish_without_stream(group, staged, index, manifests)

    def outcome() -> ReadOutcome | None:
        is_pending = any(
            pending_read.group == staged.group for pending_read in list_pending_reads(group.context, group.plan)
        )
        published = (group.published_attempt() or 0) >= staged.attempt  # after that check: requests go last
        if is_pending and not published:
            return None
        if older := find_tables_overwritten_by_older(
            group.context.refresh_plan(group.plan), staged, {m["table"] for m in manifests}
        ):
            raise TerminalError(
                f"{_group_description(staged)}, {_overwritten_text(older)}", _resnapshot_commands(older)
            )
        return ReadOutcome(published, "the rows published before stay")

    return wait_until_published(group, store, staged, outcome, _group_description(staged))


def wait_until_published(
    group: ChunkGroup,
    store: StateDatabase,
    staged: StagedRead,
    outcome: Callable[[], ReadOutcome | None],
    description: str,
) -> bool:
    """Wait while a stream is running that will publish the staged rows.

    :param outcome: returns the outcome of the read, or ``None`` while there is none.
    :param description: human-readable description of what was read.
    :returns: whether the rows are published; if not, the next stream publishes them.
    :raises TransientError: if the stream could not publish it.
    """
    context, plan = group.context, group.plan
    watch: EpochWatch | None = None
    was_paused = False
    while (result := outcome()) is None:
        run = store.newest_epoch(plan.pipeline)
        if run is None or run.state != "running" or has_died_here(run.host, run.machine, run.pid, run.pid_started):
            return False
        if watch is None or watch.epoch != run.epoch:
            watch = EpochWatch(run.epoch)
            context.reporter.line(
                f"{description}; the stream (epoch {run.epoch}) publishes it when it reaches {staged.high_watermark}"
            )
        if watch.observe(run, time.monotonic()) is not None:
            return False
        if run.paused_by is not None and not was_paused:
            context.reporter.line(
                f"the stream is paused ({run.paused_by} asked for it). To resume it: airflow-cdc resume"
            )
        was_paused = run.paused_by is not None
        time.sleep(_POLL_SECONDS)
    if not result.published:
        raise TransientError(f"{description}, but cannot be published: {result.message}", "Run again to read it again")
    return True


def _publish_without_stream(
    group: ChunkGroup, staged: StagedRead, index: int, manifests: Sequence[dict[str, Any]]
) -> None:
    """Publish a table in one commit, unless a stream has touched it or the attempt is published there already."""
    target, epoch = group.tables[index], epoch_fence(group.plan.pipeline, 0).name
    files = [DataFile(**m["file"]) for m in manifests if m["table"] == index]

    def due(markers: Markers) -> bool:
        return (markers.get(group.marker) or 0) < staged.attempt and markers.get(epoch) is None

    if due(target.markers()):
        with _group_replacement(group, staged, index, files) as change:
            failpoint("reread.before_commit")
            target.commit(
                lambda markers: change if due(markers) else None,
                group_markers(group, staged),
                generation_fence(group.plan, index),
            )
            failpoint("reread.after_commit")


def group_markers(group: ChunkGroup, staged: StagedRead) -> dict[str, int]:
    """Return the markers which record that an attempt at a chunk group is published, and the number of its read."""
    return {group.marker: staged.attempt, group_read_marker(group.plan, group.number): staged.number}


def publish_group(
    context: RunContext, store: StateDatabase, plan: Plan, applier: Applier, job: StreamJob, staged: StagedRead
) -> None:
    """Publish a staged attempt at a chunk group if the stream is far enough.

    Only the stream's driver calls this, between two batches.

    :param applier: knows what has been applied; receives the new coverage.
    :param job: reads the binlog.
    """
    group = ChunkGroup(context, plan, staged.group)
    if staged.group not in plan.groups():
        if _note_overwritten(group, store, staged):
            remove_request(context, plan, staged.group, staged.attempt)
        else:
            _drop_request(group, store, staged, "its tables were re-snapshotted as a whole or are suspended")
        return
    if not is_due(staged, applier):
        return
    try:
        with retry_in_next_epoch():
            tables_behind = [i for i, attempt in group.published_by_table().items() if attempt < staged.attempt]
            # If none is, a run died after it had published the attempt.
            reason = (
                why_group_not_publishable(group, staged, applier.timeline, context.binlog_opener(slots.REPLAY))
                if tables_behind
                else None
            )
            for index in tables_behind if reason is None else ():
                publish_table(group, staged, index, applier, job, group_markers(group, staged))
    except FencedError:
        raise
    except UNUSABLE_ERRORS as error:  # the stream itself has lost nothing
        reason = unusable_reason(error)
    applier.set_coverage(read_coverage(context, plan, applier.tables) or [])
    if reason is not None:
        _drop_request(group, store, staged, reason)
        return
    if tables_behind:
        context.reporter.line(f"{_group_description(staged)}: published at {applier.offset.at}")
    _note_overwritten(group, store, staged)
    with tolerate_outage():  # during an outage the request stays, and is only recorded later
        group.mirror_published(store, store.group(plan.pipeline, plan.generation, staged.group).attempt)
        remove_request(context, plan, staged.group, staged.attempt)


def is_due(staged: StagedRead, applier: Applier) -> bool:
    """Return whether the stream is far enough to process a staged read.

    It is once it has reached the highest high watermark, or reads another server, where that watermark means nothing.
    """
    return staged.timeline != applier.timeline.newest_segment or staged.high_watermark <= applier.offset.at


def unusable_reason(error: Exception) -> str:
    """Return a human-readable reason why staged rows are unusable."""
    return error.message if isinstance(error, TerminalError) else str(error)


def find_tables_overwritten_by_older(plan: Plan, staged: StagedRead, read_tables: Collection[int]) -> list[str]:
    """Return the tables of a re-snapshotted chunk group that an older re-snapshot of the whole table has overwritten.

    The copy of such a table may lack rows that were read for the group.

    :param plan: the plan as it is now.
    :param read_tables: indexes of the tables whose rows were read.
    """
    tables = sorted(
        {chunk.table for chunk in plan.superseded_chunks if chunk.group == staged.group and chunk.table in read_tables}
    )
    rejoins = {index: plan.rejoin_of(index) for index in tables}
    return [
        plan.tables[i].label
        for i, rejoin in rejoins.items()
        if rejoin is not None and (rejoin.group or 0) < staged.number
    ]


def _overwritten_text(tables: Sequence[str]) -> str:
    return f"but a re-snapshot that began earlier has overwritten {', '.join(tables)} since"


def _resnapshot_commands(tables: Sequence[str]) -> str:
    return "Run " + " and ".join(f"airflow-cdc resnapshot --table {label}" for label in tables)


def _note_overwritten(group: ChunkGroup, store: StateDatabase, staged: StagedRead) -> bool:
    """Report the tables whose staged rows did not end up in the copy.

    :returns: whether there are any.
    """
    if all(chunk.group != staged.group for chunk in group.plan.superseded_chunks):
        return False
    try:
        read_tables = {m["table"] for m in group.read_manifest(staged.attempt)}
    except UNUSABLE_ERRORS:
        # It is unknown which tables were read: report all of the group rather than nothing.
        read_tables = {chunk.table for chunk in group.plan.superseded_chunks if chunk.group == staged.group}
    overwritten = find_tables_overwritten_by_older(group.plan, staged, read_tables)
    if overwritten:
        detail = f"{_group_description(staged)}, {_overwritten_text(overwritten)}"
        group.context.report_event(store, "reread_dropped", detail, remedy=_resnapshot_commands(overwritten))
    return bool(overwritten)


def _drop_request(group: ChunkGroup, store: StateDatabase, staged: StagedRead, reason: str) -> None:
    """Drop a publication request and report why. The rows published before stay."""
    detail = f"{_group_description(staged)}, but cannot be published: {reason}; the rows published before stay"
    group.context.report_event(store, "reread_dropped", detail, remedy="Clear its task to read it again")
    remove_request(group.context, group.plan, staged.group, staged.attempt)


def _group_description(staged: StagedRead) -> str:
    return f"group {staged.group} was re-snapshotted (attempt {staged.attempt})"


def publish_table(
    group: ChunkGroup, staged: StagedRead, index: int, applier: Applier, job: StreamJob, markers: Mapping[str, int]
) -> None:
    """Overwrite the rows of one table with those of a staged read, as of the resume point, in one commit.

    :param markers: markers which record the publication; part of the same commit.
    """
    plan, target = group.plan, applier.tables[index]
    manifests = [m for m in group.read_manifest(staged.attempt) if m["table"] == index]
    for file in (DataFile(**m["file"]) for m in manifests):
        if not target.is_staged(file):
            raise TerminalError(f"the file {file.path} of the {target.name} is missing or damaged")
    # A run that was killed before it wrote the resume point may have left the table ahead of it.
    seq = max(applier.timeline.seq(applier.offset.at), target.markers().get(stream_marker(plan.pipeline)) or 0)
    files = _replay_onto_slices(
        group, staged, index, manifests, replace(applier.offset, at=applier.timeline.position(seq)), job
    )
    with _group_replacement(group, staged, index, files) as change:

        def decide(standing: Markers) -> OverwriteRange | None:
            return None if all((standing.get(name) or 0) >= value for name, value in markers.items()) else change

        failpoint("reread.before_commit")
        target.commit(decide, {**markers, stream_marker(plan.pipeline): seq}, applier.fence)
        failpoint("reread.after_commit")


def _replay_onto_slices(
    group: ChunkGroup, staged: StagedRead, index: int, manifests: Sequence[dict[str, Any]], end: Offset, job: StreamJob
) -> list[DataFile]:
    """Return the staged files of one table as of ``end``. A file without newer changes stays as it is."""
    table = group.plan.tables[index]
    chunks = [c for c in group.chunks if c.table == index]
    numbers = {chunk.number: i for i, chunk in enumerate(chunks)}
    high_seqs = [0] * len(chunks)
    for entry in manifests:
        for chunk in entry["chunks"]:
            high_seqs[numbers[chunk["no"]]] = job.timeline.seq(watermarks_of(chunk)[1])
    changes, emptied = read_changes_since(group, staged, index, end, job)
    if not table.key:
        (entry,) = manifests
        with explain_missing_rows(table, job.timeline):
            return replay_keyless(group, staged, index, DataFile(**entry["file"]), high_seqs[0], changes, emptied)
    # Reduce to the last change of each key first; then drop what is covered or belongs to another group.
    changes = last_changes(changes, table.key)
    with closing(connect(group.context.connect_args)) as connection:
        owner_numbers = find_owning_chunks(connection, table, chunks, keys_of(table, changes))
    seqs = changes[SEQ_COLUMN].to_pylist()
    files = []
    for entry in manifests:
        chunk_positions = {numbers[chunk["no"]] for chunk in entry["chunks"]}
        is_newer = [i in chunk_positions and seq > high_seqs[i] for i, seq in zip(owner_numbers, seqs, strict=True)]
        newer_changes = changes.filter(pa.array(is_newer, pa.bool_()))
        file = DataFile(**entry["file"])
        if newer_changes.num_rows or any(high_seqs[i] < emptied for i in chunk_positions):
            target = group.tables[index]
            rows = pa.concat_tables([table.sink_schema.empty_table(), *target.read_staged(file)])
            rows = apply_changes(rows.filter(pc.greater_equal(rows[SEQ_COLUMN], emptied)), newer_changes, table.key)
            file = target.stage(new_replay_path(group, staged), [rows])
        files.append(file)
    return files


def replay_keyless(
    group: ChunkGroup, staged: StagedRead, index: int, file: DataFile, high_seq: int, changes: pa.Table, emptied: int
) -> list[DataFile]:
    """Return the staged files of a table without a key with the changes after its high watermark applied."""
    table = group.plan.tables[index]
    change, since = (
        net_change(changes_after(changes, high_seq), [c.name for c in table.copied_columns]),
        emptied if emptied > high_seq else 0,
    )
    if not change and not since:
        return [file]
    target = group.tables[index]
    removed = find_removed_rows([("", target.read_staged(file))], change, since).get("")
    rows_left = () if removed is None else without_removed_rows(target.read_staged(file), removed)
    written = split_by_size(chain(rows_left, [change.added]), _PORTION_BYTES)
    files = [target.stage(new_replay_path(group, staged), portion) for portion in written]
    return files if removed is not None else [file, *files]


def read_changes_since(
    group: ChunkGroup, staged: StagedRead, index: int, end: Offset, job: StreamJob
) -> tuple[pa.Table, int]:
    """Read the changes of one table up to ``end`` that its staged chunks may lack.

    :returns: the changes after the last TRUNCATE, in binlog order, and the ``_cdc_seq`` of that TRUNCATE (0 for none).
    """
    table, start = group.plan.tables[index], staged.start
    changes, emptied = table.sink_schema.empty_table(), 0
    if end.at <= start.at:
        return changes, emptied
    # Not with the batches' replica id: the next batch may be being read right now.
    reader = group.context.pipeline.replica_ids(slots.REPLAY)
    name = f"reread-{group.number}-{staged.attempt}"
    staging = job.sink.change_staging()
    manifest = replace(job, reader_replicas=(reader,), only_table=index).stage_range(
        start, replace(end, open_xa=()), name
    )
    for entry in manifest["tables"]:
        if entry["table"] == index:
            emptied = entry["emptied"] or 0
            changes = staging.read_changes(table, entry["staged"])
    for number, staged_name in manifest["staged"]:
        staging.discard(group.plan.tables[number], [staged_name])
    return changes, emptied


@contextmanager
def _group_replacement(
    group: ChunkGroup, staged: StagedRead, index: int, files: Sequence[DataFile]
) -> Iterator[OverwriteRange]:
    """Yield the change that replaces a table's rows in a group by files. The server decides which keys are in it."""
    table = group.plan.tables[index]
    chunks = [c for c in group.chunks if c.table == index]
    span = None
    if table.integer_key_column is not None:
        span = int(chunks[0].lower[0]), int(chunks[-1].upper[0])
    with closing(connect(group.context.connect_args)) as connection:

        def mine(keys: pa.Table) -> pa.Array:
            if not table.key:  # one group has the whole table
                return pa.repeat(True, keys.num_rows)
            return mask_owned_rows(connection, table, chunks, keys)

        yield OverwriteRange(
            files, None if staged.scope == RANGES else (group.plan.generation, group.number), mine, span
        )


def new_replay_path(group: ChunkGroup, staged: StagedRead) -> str:
    """Return a new staging path for rows onto which the binlog was replayed."""
    return f"{group.plan.generation}/{group.number}/{staged.attempt}/replayed-{uuid.uuid4().hex}"
