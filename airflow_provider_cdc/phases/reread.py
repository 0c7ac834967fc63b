"""Chunk groups that are read again: staged by the job that reads them, then put in the place of what is there.

Before a stream has ever begun the job does that itself. Afterwards the rows of the table are the stream's: its driver
alone publishes, at a point where it knows the table's position (the argument is in docs/correctness.md).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.core import slots
from airflow_provider_cdc.core.changes import after, apply_changes, last_changes
from airflow_provider_cdc.core.multiset import net, remaining, search
from airflow_provider_cdc.core.offset import Lineage, Offset, Position
from airflow_provider_cdc.core.plan import Plan
from airflow_provider_cdc.core.schema import SEQ
from airflow_provider_cdc.core.supervision import Watch
from airflow_provider_cdc.exceptions import CdcError, FencedError, TerminalError, TransientError
from airflow_provider_cdc.failpoints import failpoint
from airflow_provider_cdc.jobs.batches import StreamJob, moved
from airflow_provider_cdc.mysql.keys.ownership import owned, owners
from airflow_provider_cdc.mysql.places.binlog_files import OpenAt
from airflow_provider_cdc.mysql.places.resume import gone
from airflow_provider_cdc.mysql.server.key_sql import keys_of
from airflow_provider_cdc.mysql.server.session import connect
from airflow_provider_cdc.phases.apply import Applier, epoch_fence, found_rows, stream_marker
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.groups import (
    Group,
    coverage,
    generation_fence,
    numbering,
    since_of,
    watermarks_of,
)
from airflow_provider_cdc.processes import died_here
from airflow_provider_cdc.sinks.files import DataFile, portions
from airflow_provider_cdc.sinks.protocol import Markers, Replaced
from airflow_provider_cdc.sinks.storage import read_json, write_json
from airflow_provider_cdc.store import Store

_POLL_SECONDS = 1.0
#: Bytes in memory of the rows of a table without a key that are staged as one slice.
_PORTION_BYTES = 64 << 20


@dataclass(frozen=True)
class Staged:
    """An attempt at a published group that was read to its end and waits to be published.

    :param group: number of the group.
    :param attempt: number of the attempt.
    :param high: highest high watermark of its chunks.
    :param since: where the stream stood before its first chunk was read, with the XA transactions open there.
    :param lineage: the segment of the server that it was read from.
    :param revision: the revision that begins with it, where a table was read again as a whole (``resnapshot.py``); the
        table's own, where ranges of its keys were; else ``None``.
    :param ranges: whether it is ranges of keys (``key_ranges.py``).
    :param request: the request of the bookkeeping for which it was read, and ``by`` who has made it.
    """

    group: int
    attempt: int
    high: Position
    since: Offset
    lineage: Lineage
    revision: int | None = None
    ranges: bool = False
    request: int | None = None
    by: str | None = None

    @property
    def whole(self) -> bool:
        """Whether a table was read again as a whole."""
        return self.revision is not None and not self.ranges

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value."""
        return {
            "group": self.group,
            "attempt": self.attempt,
            "high": self.high.to_json(),
            "since": self.since.to_json(),
            "lineage": self.lineage.to_json(),
            **({} if self.revision is None else {"revision": self.revision}),
            **({"ranges": True} if self.ranges else {}),
            **({} if self.request is None else {"request": self.request, "by": self.by}),
        }


class Exchange(NamedTuple):
    """What has become of rows that were read again: whether they were exchanged, a line about it, and the plan."""

    done: bool
    said: str
    plan: Plan


def stage(group: Group, attempt: int, manifests: Sequence[dict[str, Any]]) -> Staged:
    """Write down that an attempt is complete: its manifest, then a small file that asks for it to be published.

    :param manifests: one entry a file, all read in one segment of the lineage.
    """
    plan = group.plan
    manifests = group.write_manifest(attempt, manifests)
    high = max(watermarks_of(chunk)[1] for entry in manifests for chunk in entry["chunks"])
    # Files of an earlier try lack more than those of this one.
    since = min((since_of(plan, entry) for entry in manifests), key=lambda offset: offset.at)
    staged = Staged(group.number, attempt, high, since, numbering(plan, manifests[0]))
    request(group, staged)
    forget(group, attempt - 1)
    return staged


def request(group: Group, staged: Staged) -> None:
    """Ask for an attempt to be published."""
    name = f"{group.context.layout.staged(group.plan.generation)}/{staged.group}-{staged.attempt}.json"
    write_json(group.context.storage, name, staged.to_json())
    failpoint("reread.after_stage")


def waiting(context: Context, plan: Plan, names: Iterable[str] | None = None) -> list[Staged]:
    """Staged attempts, the newest of each group. Costs a look into a folder where there are none.

    :param names: what :func:`requests` returned, if that is known.
    """
    newest: dict[int, Staged] = {}
    for name in _attempts(context, plan, requests(context, plan) if names is None else names):
        value = read_json(context.storage, name)
        if value is not None:  # else it has just been published
            high, since = Position.from_json(value["high"]), Offset.from_json(value["since"])
            found = Staged(
                value["group"],
                value["attempt"],
                high,
                since,
                numbering(plan, value),
                value.get("revision"),
                value.get("ranges", False),
                value.get("request"),
                value.get("by"),
            )
            if found.group not in newest or newest[found.group].attempt < found.attempt:
                newest[found.group] = found
    return [newest[number] for number in sorted(newest)]


def unfit(group: Group, staged: Staged, lineage: Lineage, open_at: OpenAt) -> str | None:
    """Why a staged attempt cannot be published any more, if it cannot.

    :param lineage: that of the resume point.
    :param open_at: opens a stream of the server's binlog.
    """
    if staged.lineage != lineage.newest:
        return f"it was read at server {staged.lineage.server}, before the stream went on at another"
    for index in group.tables:
        before, now = group.plan.definitions_of(lineage)[index].at(staged.since.at), group.plan.tables[index]
        if before is not None and before.fingerprint() != now.fingerprint():
            return f"{now.label} was altered since it was read"
    with closing(connect(group.context.connect_args)) as connection:
        return gone(connection, staged.since, open_at)


def forget(group: Group, attempt: int) -> None:
    """Remove what asks for this attempt, and for older ones, to be published."""
    for name in _attempts(group.context, group.plan, requests(group.context, group.plan)):
        number, _, found = name.rpartition("/")[2].removesuffix(".json").partition("-")
        if int(number) == group.number and int(found) <= attempt:
            group.context.storage.delete(name)


def _attempts(context: Context, plan: Plan, names: Iterable[str]) -> list[str]:
    """Of the requests those that name an attempt to be published."""
    return [name for name in names if name != context.layout.reload(plan.generation)]


def requests(context: Context, plan: Plan) -> list[str]:
    """Names of the files that ask the stream for something: to publish attempts, or to reload its tables."""
    listed = context.storage.list(context.layout.staged(plan.generation))
    return [name for name, _ in listed if name.endswith(".json")]


def settle(group: Group, store: Store, staged: Staged) -> bool:
    """Publish a staged attempt where no stream has begun; elsewhere wait while a stream runs that will do it.

    :returns: whether it is published in all tables; if not, the next stream does it.
    """
    manifests = group.manifest(staged.attempt)
    for index in group.tables:
        _publish_alone(group, staged, index, manifests)
    return taken(group, store, staged, lambda: (group.published() or 0) >= staged.attempt, _said(staged))


def taken(group: Group, store: Store, staged: Staged, done: Callable[[], bool], said: str) -> bool:
    """Wait while a stream runs that will publish what is staged.

    :param done: whether it is published.
    :param said: what was read again, for people.
    :returns: whether it is published; if not, the next stream does it.
    :raises TransientError: if the stream could not publish it.
    """
    context, plan = group.context, group.plan
    watch: Watch | None = None
    rests = False
    while not done():
        asked = any(found.group == staged.group for found in waiting(context, plan))
        if not asked and not done():
            raise TransientError(f"{said}, and cannot be published", "Run again: it is then read once more")
        run = store.current_stream(plan.pipeline)
        if run is None or run.state != "running" or died_here(run.host, run.machine, run.pid, run.pid_started):
            return False
        if watch is None or watch.epoch != run.epoch:
            watch = Watch(run.epoch)
            context.reporter.line(f"{said}; the stream (epoch {run.epoch}) publishes it when it is at {staged.high}")
        if watch.see(run, time.monotonic()) is not None:
            return False
        if run.paused_by is not None and not rests:
            context.reporter.line(f"the stream is paused ({run.paused_by} asked for it): airflow-cdc resume")
        rests = run.paused_by is not None
        time.sleep(_POLL_SECONDS)
    return True


def _publish_alone(group: Group, staged: Staged, index: int, manifests: Sequence[dict[str, Any]]) -> None:
    """One commit, if no stream has touched the table and it is not published there already."""
    target, epoch = group.tables[index], epoch_fence(group.plan.pipeline, 0).name
    files = [DataFile(**m["file"]) for m in manifests if m["table"] == index]

    def due(markers: Markers) -> bool:
        return (markers.get(group.marker) or 0) < staged.attempt and markers.get(epoch) is None

    if due(target.markers()):
        with _replaced(group, staged, index, files) as change:
            failpoint("reread.before_commit")
            target.commit(
                lambda markers: change if due(markers) else None,
                {group.marker: staged.attempt},
                generation_fence(group.plan, index),
            )
            failpoint("reread.after_commit")


def publish_staged(
    context: Context, store: Store, plan: Plan, applier: Applier, job: StreamJob, asked: Iterable[Staged]
) -> None:
    """Publish the staged attempts whose high watermarks the stream has reached. Only the stream's driver calls it,
    between two batches.

    :param applier: what has been applied; told of the new coverage.
    :param job: reads the binlog.
    :param asked: what waits to be published.
    """
    for staged in asked:
        if staged.group not in plan.groups():
            forget(Group(context, plan, staged.group), staged.attempt)  # its tables were read again as a whole
            continue
        group = Group(context, plan, staged.group)
        if staged.lineage == applier.lineage.newest and applier.at.at < staged.high:
            continue
        try:
            with moved():
                behind = [i for i, attempt in group.markers().items() if attempt < staged.attempt]
                # If none is, a run died when it had done it.
                why = unfit(group, staged, applier.lineage, context.opener(slots.REPLAY)) if behind else None
                for index in behind if why is None else ():
                    publish_table(group, staged, index, applier, job, {group.marker: staged.attempt})
        except FencedError:
            raise
        except (TerminalError, FileNotFoundError, pa.ArrowInvalid) as error:  # the stream itself has lost nothing
            why = error.message if isinstance(error, TerminalError) else str(error)
        applier.hold(coverage(context, plan, applier.tables) or [])
        if why is not None:
            _drop(group, store, staged, why)
            continue
        if behind:
            context.reporter.line(f"{_said(staged)}: published at {applier.at.at}")
        with suppress(CdcError, SQLAlchemyError):  # during an outage the request stays, and is only recorded later
            group.adopt(store, store.group(plan.pipeline, plan.generation, staged.group).attempt)
            forget(group, staged.attempt)


def _drop(group: Group, store: Store, staged: Staged, why: str) -> None:
    """Give a request up: what was published stays."""
    detail = f"{_said(staged)}, and cannot be published: {why}; what was published stays"
    with suppress(CdcError, SQLAlchemyError):  # the line says it, too
        store.event(group.plan.pipeline, "reread_dropped", detail, remedy="Clear its task to read it once more")
    forget(group, staged.attempt)
    group.context.reporter.line(f"{detail}. Clear its task to read it once more")


def _said(staged: Staged) -> str:
    return f"group {staged.group} was read again (attempt {staged.attempt})"


def publish_table(
    group: Group, staged: Staged, index: int, applier: Applier, job: StreamJob, markers: Mapping[str, int]
) -> None:
    """Put what was read again in the place of the rows of one table, as of the resume point, in one commit.

    :param markers: say that it is published, and go into the same commit.
    """
    plan, target = group.plan, applier.tables[index]
    manifests = [m for m in group.manifest(staged.attempt) if m["table"] == index]
    for file in (DataFile(**m["file"]) for m in manifests):
        if not target.staged(file):
            raise TerminalError(f"the file {file.path} of the {target.name} is missing or damaged")
    # A run that was killed before it wrote the resume point may have left the table further than that.
    at = max(applier.lineage.seq(applier.at.at), target.markers().get(stream_marker(plan.pipeline)) or 0)
    files = _replayed(group, staged, index, manifests, replace(applier.at, at=applier.lineage.position(at)), job)
    with _replaced(group, staged, index, files) as change:

        def decide(standing: Markers) -> Replaced | None:
            return None if all((standing.get(name) or 0) >= value for name, value in markers.items()) else change

        failpoint("reread.before_commit")
        target.commit(decide, {**markers, stream_marker(plan.pipeline): at}, applier.fence)
        failpoint("reread.after_commit")


def _replayed(
    group: Group, staged: Staged, index: int, manifests: Sequence[dict[str, Any]], end: Offset, job: StreamJob
) -> list[DataFile]:
    """The staged files of one table as of ``end``. Files that nothing has changed since stay as they are."""
    table = group.plan.tables[index]
    chunks = [c for c in group.chunks if c.table == index]
    numbers = {chunk.no: i for i, chunk in enumerate(chunks)}
    marks = [0] * len(chunks)
    for entry in manifests:
        for chunk in entry["chunks"]:
            marks[numbers[chunk["no"]]] = job.lineage.seq(watermarks_of(chunk)[1])
    changes, emptied = changes_since(group, staged, index, end, job)
    if not table.key:
        (entry,) = manifests
        with found_rows(table, job.lineage):
            return recounted(group, staged, index, DataFile(**entry["file"]), marks[0], changes, emptied)
    # First reduced to the last change of each key, then what is covered (or another group's) is dropped.
    changes = last_changes(changes, table.key)
    with closing(connect(group.context.connect_args)) as connection:
        found_in = owners(connection, table, chunks, keys_of(table, changes))
    seqs = changes[SEQ].to_pylist()
    found = []
    for entry in manifests:
        mine = {numbers[chunk["no"]] for chunk in entry["chunks"]}
        newer = [i in mine and seq > marks[i] for i, seq in zip(found_in, seqs, strict=True)]
        late = changes.filter(pa.array(newer, pa.bool_()))
        file = DataFile(**entry["file"])
        if late.num_rows or any(marks[i] < emptied for i in mine):
            target = group.tables[index]
            rows = pa.concat_tables([table.sink_schema.empty_table(), *target.read_staged(file)])
            rows = apply_changes(rows.filter(pc.greater_equal(rows[SEQ], emptied)), late, table.key)
            file = target.stage(place_of(group, staged), [rows])
        found.append(file)
    return found


def recounted(
    group: Group, staged: Staged, index: int, file: DataFile, mark: int, changes: pa.Table, emptied: int
) -> list[DataFile]:
    """The staged file of a table without a key, after the changes behind its high watermark."""
    table = group.plan.tables[index]
    change, since = net(after(changes, mark), [c.name for c in table.copied]), emptied if emptied > mark else 0
    if not change and not since:
        return [file]
    target = group.tables[index]
    gone = search([("", target.read_staged(file))], change, since).get("")
    kept = () if gone is None else remaining(target.read_staged(file), gone)
    written = portions(chain(kept, [change.added]), _PORTION_BYTES)
    found = [target.stage(place_of(group, staged), portion) for portion in written]
    return found if gone is not None else [file, *found]


def changes_since(group: Group, staged: Staged, index: int, end: Offset, job: StreamJob) -> tuple[pa.Table, int]:
    """Changes of one table up to ``end`` that its staged chunks may lack, in binlog order, behind the last TRUNCATE;
    and the ``_cdc_seq`` of that (0 if there is none).
    """
    table, start = group.plan.tables[index], staged.since
    found, emptied = table.sink_schema.empty_table(), 0
    if end.at <= start.at:
        return found, emptied
    # Not the reader of the batches: the next batch may be being read at this moment.
    reader = group.context.pipeline.replica(slots.REPLAY)
    name = f"reread-{group.number}-{staged.attempt}"
    staging = job.sink.staging()
    manifest = replace(job, readers=(reader,), only=index).stage(start, replace(end, xa=()), name)
    for entry in manifest["tables"]:
        if entry["table"] == index:
            emptied = entry["emptied"] or 0
            found = staging.read(table, entry["staged"])
    for number, staged_name in manifest["staged"]:
        staging.discard(group.plan.tables[number], [staged_name])
    return found, emptied


@contextmanager
def _replaced(group: Group, staged: Staged, index: int, files: Sequence[DataFile]) -> Iterator[Replaced]:
    """Files in the place of the rows of a table that belong to a group; the server says whose keys do."""
    table = group.plan.tables[index]
    chunks = [c for c in group.chunks if c.table == index]
    span = None
    if table.integer_key is not None:
        span = int(chunks[0].lower[0]), int(chunks[-1].upper[0])
    with closing(connect(group.context.connect_args)) as connection:

        def mine(keys: pa.Table) -> pa.Array:
            if not table.key:  # one group has all of it
                return pa.repeat(True, keys.num_rows)
            return owned(connection, table, chunks, keys)

        yield Replaced(files, None if staged.ranges else (group.plan.generation, group.number), mine, span)


def place_of(group: Group, staged: Staged) -> str:
    """Where rows of a table are staged that the binlog was replayed onto."""
    return f"{group.plan.generation}/{group.number}/{staged.attempt}/replayed-{uuid.uuid4().hex}"
