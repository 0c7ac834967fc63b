"""The snapshot phase: every chunk group is read by one job and published by one commit a table."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.core.offset import Position
from airflow_provider_cdc.core.plan import Chunk, Plan, slices
from airflow_provider_cdc.exceptions import CdcError, TerminalError, TransientError
from airflow_provider_cdc.failpoints import hit
from airflow_provider_cdc.phases.context import Context, record_plan
from airflow_provider_cdc.sinks.delta import Actions, DataFile, DeltaTarget, Fence, target_of
from airflow_provider_cdc.sinks.layout import read_json, write_json
from airflow_provider_cdc.spark.snapshot_job import Runner, SnapshotJob
from airflow_provider_cdc.store import Store


@dataclass(frozen=True)
class Coverage:
    """What the snapshot of one table holds, as the winning attempts' manifests say.

    :param chunks: chunks of the table in key order.
    :param high_watermarks: ``_cdc_seq`` of the HW of each.
    :param rows: rows that the snapshot wrote.
    """

    chunks: tuple[Chunk, ...]
    high_watermarks: tuple[int, ...]
    rows: int


def generation_fence(plan: Plan) -> Fence:
    """Fence that keeps jobs of an older snapshot out of the tables."""
    return Fence(f"cdc/{plan.pipeline}/generation", plan.generation)


def group_marker(plan: Plan, group: int) -> str:
    """Name of the marker of a group's commit; its value is the attempt that won."""
    return f"cdc/{plan.pipeline}/{plan.generation}/group/{group}"


def targets(context: Context, plan: Plan) -> list[DeltaTarget]:
    """Delta tables of the plan's tables, in the plan's order."""
    return [target_of(context.layout.table(table), table) for table in plan.tables]


def run_snapshot(context: Context, store: Store, plan: Plan, run: Runner) -> None:
    """Read and publish every group that is not published yet.

    :param run: runs the slices of a group.
    """
    tables = targets(context, plan)
    for target in tables:
        target.create(plan.pipeline)
        target.raise_fence(generation_fence(plan))
    for group, chunks in plan.groups().items():
        run_group(context, store, plan, group, chunks, tables, run)
    store.finish_snapshot(plan.pipeline, plan.generation)


def run_group(
    context: Context,
    store: Store,
    plan: Plan,
    group: int,
    chunks: Sequence[Chunk],
    tables: Sequence[DeltaTarget],
    run: Runner,
) -> None:
    """Read one group, reusing finished files of earlier attempts, and publish it. One that is published is adopted."""
    concerned = sorted({c.table for c in chunks})
    if all(tables[i].marker(group_marker(plan, group)) is not None for i in concerned):
        _record(context, store, plan, group, store.claim_group(plan.pipeline, plan.generation, group))
        return
    newest = _newest_attempt(context, plan, group, concerned)
    attempt = store.claim_group(plan.pipeline, plan.generation, group, at_least=newest) or newest + 1
    wanted = range(len(slices(chunks)))
    finished = _finished(context, plan, group, concerned)
    missing = [no for no in wanted if no not in finished]
    workers = max(1, min(context.pipeline.snapshot.parallelism, len(missing)))
    job = SnapshotJob(
        connect_args=dict(context.connect_args),
        replicas=tuple(
            (context.pipeline.server_id(w + 1), context.pipeline.replica_uuid(w + 1)) for w in range(workers)
        ),
        root=str(context.layout.root),
        pipeline=plan.pipeline,
        group=group,
        attempt=attempt,
        missing=tuple(missing),
    )
    with _Watch(context, store, plan, group, concerned, attempt):
        for manifest in run(job) if missing else []:
            finished[manifest["slice"]] = manifest
    lost = [no for no in wanted if no not in finished]
    if lost:
        raise TransientError(f"group {group} ended without its slices {lost[:5]}", "Run again")
    publish(context, plan, group, attempt, [finished[no] for no in wanted], tables)
    _record(context, store, plan, group, attempt)


def rebuild(context: Context, store: Store, plan: Plan) -> None:
    """Bring a bookkeeping database that was lost up to what the sink says of a complete snapshot."""
    if record_plan(store, plan, context.pipeline.snapshot.chunk_rows):
        for group in plan.groups():
            _record(context, store, plan, group, store.claim_group(plan.pipeline, plan.generation, group))
        store.finish_snapshot(plan.pipeline, plan.generation)


def publish(
    context: Context,
    plan: Plan,
    group: int,
    attempt: int,
    manifests: Sequence[dict[str, Any]],
    tables: Sequence[DeltaTarget],
) -> None:
    """Write the attempt's manifest, then one commit a table. The first attempt whose marker stands has won."""
    write_json(context.layout.attempt(plan.generation, group, attempt), manifests)
    marker = group_marker(plan, group)
    for index in sorted({m["table"] for m in manifests}):
        files = [DataFile(**m["file"]) for m in manifests if m["table"] == index]
        added = Actions(add=[f for f in files if f.rows])
        hit("group.before_commit")
        tables[index].commit(
            lambda table, added=added: added if table.transaction_version(marker) is None else None,
            {marker: attempt},
            generation_fence(plan),
        )
        hit("group.after_commit")


def coverage(context: Context, plan: Plan, tables: Sequence[DeltaTarget]) -> list[Coverage] | None:
    """What the snapshot holds, a table each; ``None`` if it is not complete.

    :raises TerminalError: if the manifest of a published attempt is missing.
    """
    found: list[Coverage] = []
    manifests: dict[tuple[int, int], list[dict[str, Any]]] = {}
    by_table: dict[int, list[Chunk]] = {}
    for chunk in plan.chunks:
        by_table.setdefault(chunk.table, []).append(chunk)
    for index, target in enumerate(tables):
        marks: dict[int, int] = {}
        rows = 0
        if not target.exists():
            return None
        delta = target.load()
        for group in sorted(plan.groups_of(index)):
            attempt = delta.transaction_version(group_marker(plan, group))
            if attempt is None:
                return None
            path = context.layout.attempt(plan.generation, group, attempt)
            if (group, attempt) not in manifests:
                listed = read_json(path)
                if listed is None:
                    raise TerminalError(
                        f"the manifest {path} of a published chunk group is missing",
                        "Restore it, or start with a fresh sink.path (or remove the old one)",
                    )
                manifests[group, attempt] = listed
            for manifest in manifests[group, attempt]:
                if manifest["table"] == index:
                    rows += manifest["file"]["rows"]
                    for chunk in manifest["chunks"]:
                        marks[chunk["no"]] = plan.lineage.seq(Position.from_json(chunk["hw"]))
        chunks = tuple(by_table.get(index, ()))
        found.append(Coverage(chunks, tuple(marks[c.no] for c in chunks), rows))
    return found


def _finished(context: Context, plan: Plan, group: int, concerned: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Manifests of finished slices of all attempts; a later attempt's stands before an earlier one's."""
    found: dict[int, tuple[int, dict[str, Any]]] = {}
    for index in concerned:
        table = plan.tables[index]
        home = context.layout.table(table)
        for path in context.layout.files(table, plan.generation, group).glob("*/slice-*.json"):
            manifest = read_json(path)
            data = home / manifest["file"]["path"]
            whole = data.exists() and data.stat().st_size == manifest["file"]["size"]
            attempt = int(path.parent.name)
            newest = attempt >= found.get(manifest["slice"], (0, {}))[0]
            if whole and newest and manifest["fingerprint"] == table.fingerprint():
                found[manifest["slice"]] = attempt, manifest
    return {no: manifest for no, (_, manifest) in found.items()}


def _newest_attempt(context: Context, plan: Plan, group: int, concerned: Sequence[int]) -> int:
    """Highest attempt that left anything in the sink: a lost bookkeeping database must not count from 1 again."""
    folders = [context.layout.files(plan.tables[i], plan.generation, group) for i in concerned]
    numbers = [int(p.name) for folder in folders for p in folder.glob("*") if p.name.isdigit()]
    return max(
        numbers + [_attempt_of(p) for p in context.layout.group(plan.generation, group).glob("attempt-*.json")],
        default=0,
    )


def _attempt_of(path: Path) -> int:
    return int(path.stem.removeprefix("attempt-"))


def _record(context: Context, store: Store, plan: Plan, group: int, attempt: int) -> None:
    """Bring the bookkeeping up to what the sink says of a published group."""
    if attempt == 0:
        return  # it is known as done
    chunks: list[dict[str, Any]] = []
    rows = 0
    for index in sorted({c.table for c in plan.groups()[group]}):
        won = target_of(context.layout.table(plan.tables[index]), plan.tables[index]).marker(group_marker(plan, group))
        for manifest in read_json(context.layout.attempt(plan.generation, group, won or 0)) or []:
            if manifest["table"] == index:
                rows += manifest["file"]["rows"]
                chunks += _chunk_rows(manifest)
    _chunks_done(store, plan, attempt, chunks)
    low = min((Position.from_json(c["lw"]) for c in chunks), default=plan.p0.at)
    high = max((Position.from_json(c["hw"]) for c in chunks), default=plan.p0.at)
    store.finish_group(plan.pipeline, plan.generation, group, attempt, rows, low.to_json(), high.to_json())


def _chunk_rows(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    size, rows = manifest["file"]["size"], max(1, manifest["file"]["rows"])
    return [{**c, "bytes": size * c["rows"] // rows} for c in manifest["chunks"]]


def _chunks_done(store: Store, plan: Plan, attempt: int, chunks: Sequence[dict[str, Any]]) -> None:
    store.chunks_done(
        plan.pipeline,
        plan.generation,
        [(c["no"], attempt, c["lw"], c["hw"], c["rows"], c["bytes"], c["corrected"], c["seconds"]) for c in chunks],
    )


class _Watch:
    """Looks at the sidecar manifests while a group is read, and tells bookkeeping and reporter."""

    def __init__(
        self, context: Context, store: Store, plan: Plan, group: int, concerned: Sequence[int], attempt: int
    ) -> None:
        self._context, self._store, self._plan = context, store, plan
        self._group, self._concerned, self._attempt = group, concerned, attempt
        self._seen: set[Path] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="snapshot-progress", daemon=True)

    def __enter__(self) -> None:
        self._look()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _loop(self) -> None:
        while not self._stop.wait(0.5):
            self._look()

    def _look(self) -> None:
        fresh: list[dict[str, Any]] = []
        for index in self._concerned:
            files = self._context.layout.files(self._plan.tables[index], self._plan.generation, self._group)
            for path in sorted(set(files.glob("*/slice-*.json")) - self._seen):
                self._seen.add(path)
                fresh += _chunk_rows(read_json(path))
        if not fresh:
            return
        with suppress(CdcError, SQLAlchemyError):  # an outage of the bookkeeping hides progress, it does not stop it
            _chunks_done(self._store, self._plan, self._attempt, fresh)
            for row in self._store.progress(self._plan.pipeline, self._plan.generation):
                self._context.reporter.progress(f"{row.database}.{row.table}", row.done, row.chunks, row.rows)
