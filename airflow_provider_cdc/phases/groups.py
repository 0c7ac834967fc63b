"""What the sink says of chunk groups: which attempt of each is published, and what that attempt holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_provider_cdc.core.offset import Position
from airflow_provider_cdc.core.plan import Chunk, Plan
from airflow_provider_cdc.exceptions import TerminalError
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.sinks.delta import DeltaTarget, Fence, target_of
from airflow_provider_cdc.sinks.layout import read_json
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
            if (group, attempt) not in manifests:
                manifests[group, attempt] = read_manifest(context, plan, group, attempt)
            for manifest in manifests[group, attempt]:
                if manifest["table"] == index:
                    rows += manifest["file"]["rows"]
                    for chunk in manifest["chunks"]:
                        marks[chunk["no"]] = plan.lineage.seq(Position.from_json(chunk["hw"]))
        chunks = tuple(by_table.get(index, ()))
        found.append(Coverage(chunks, tuple(marks[c.no] for c in chunks), rows))
    return found


def read_manifest(context: Context, plan: Plan, group: int, attempt: int) -> list[dict[str, Any]]:
    """Manifest of an attempt that is published or staged: one entry a file.

    :raises TerminalError: if it is missing.
    """
    path = context.layout.attempt(plan.generation, group, attempt)
    listed: list[dict[str, Any]] | None = read_json(path)
    if listed is None:
        raise TerminalError(
            f"the manifest {path} of a published chunk group is missing",
            "Restore it, or start with a fresh sink.path (or remove the old one)",
        )
    return listed


@dataclass(frozen=True)
class Totals:
    """What attempts of a group hold.

    :param chunks: entries of the manifests, with ``bytes`` added.
    :param rows: rows in the files.
    :param min_lw: lowest low watermark.
    :param max_hw: highest high watermark.
    """

    chunks: tuple[dict[str, Any], ...]
    rows: int
    min_lw: Position
    max_hw: Position

    @property
    def corrected(self) -> int:
        """Keys that the backfill inserted, replaced or deleted."""
        return sum(int(c["corrected"]) for c in self.chunks)


@dataclass(frozen=True)
class Group:
    """One chunk group of a plan, as the sink has it.

    :param number: its number.
    """

    context: Context
    plan: Plan
    number: int

    @cached_property
    def chunks(self) -> list[Chunk]:
        """Its chunks, table by table, in key order."""
        return self.plan.groups()[self.number]

    @cached_property
    def tables(self) -> dict[int, DeltaTarget]:
        """Delta tables that it concerns, by their index in the plan."""
        concerned = sorted({c.table for c in self.chunks})
        return {i: target_of(self.context.layout.table(self.plan.tables[i]), self.plan.tables[i]) for i in concerned}

    @property
    def marker(self) -> str:
        """Name of its marker."""
        return group_marker(self.plan, self.number)

    def markers(self) -> dict[int, int]:
        """The published attempt of each table that has one."""
        found = {index: target.marker(self.marker) for index, target in self.tables.items()}
        return {index: attempt for index, attempt in found.items() if attempt is not None}

    def published(self) -> int | None:
        """The lowest attempt that is published in a table; ``None`` while a table has none."""
        found = self.markers()
        return min(found.values()) if len(found) == len(self.tables) else None

    def newest_attempt(self) -> int:
        """Highest attempt that left anything: a lost bookkeeping database must not count from 1 again."""
        layout, plan = self.context.layout, self.plan
        folders = [layout.files(plan.tables[i], plan.generation, self.number) for i in self.tables]
        numbers = [int(p.name) for folder in folders for p in folder.glob("*") if p.name.isdigit()]
        listed = layout.group(plan.generation, self.number).glob("attempt-*.json")
        return max([*numbers, *(int(p.stem.removeprefix("attempt-")) for p in listed)], default=0)

    def sidecars(self, above: int = 0) -> list[Path]:
        """Manifests of finished slices.

        :param above: only of attempts above this one.
        """
        layout, plan = self.context.layout, self.plan
        folders = [layout.files(plan.tables[i], plan.generation, self.number) for i in self.tables]
        found = [path for folder in folders for path in folder.glob("*/slice-*.json")]
        return sorted(path for path in found if int(path.parent.name) > above)

    def finished(self, above: int = 0) -> dict[int, dict[str, Any]]:
        """Manifests of finished slices by number; a later attempt's stands before an earlier one's.

        :param above: only of attempts above this one.
        """
        found: dict[int, tuple[int, dict[str, Any]]] = {}
        for path in self.sidecars(above):
            manifest = read_json(path)
            table = self.plan.tables[manifest["table"]]
            data = self.context.layout.table(table) / manifest["file"]["path"]
            whole = data.exists() and data.stat().st_size == manifest["file"]["size"]
            attempt = int(path.parent.name)
            newest = attempt >= found.get(manifest["slice"], (0, {}))[0]
            if whole and newest and manifest["fingerprint"] == table.fingerprint():
                found[manifest["slice"]] = attempt, manifest
        return {no: manifest for no, (_, manifest) in found.items()}

    def totals(self, attempts: Mapping[int, int]) -> Totals:
        """What attempts hold.

        :param attempts: the attempt of each table, such as :meth:`markers`.
        """
        listed = [
            entry
            for index, attempt in attempts.items()
            for entry in read_manifest(self.context, self.plan, self.number, attempt)
            if entry["table"] == index
        ]
        chunks = tuple(row for entry in listed for row in chunk_rows(entry))
        low = min((Position.from_json(c["lw"]) for c in chunks), default=self.plan.p0.at)
        high = max((Position.from_json(c["hw"]) for c in chunks), default=self.plan.p0.at)
        return Totals(chunks, sum(entry["file"]["rows"] for entry in listed), low, high)

    def adopt(self, store: Store, seen: int, finished_for: str | None = None) -> None:
        """Bring the bookkeeping up to what the sink says of a published group.

        :param seen: attempt that the caller has read in the bookkeeping.
        :param finished_for: the task for which this is enough.
        """
        plan, published = self.plan, self.markers()
        held, attempt = self.totals(published), max(published.values())
        chunks_done(store, plan, max(seen, attempt), held.chunks)
        low, high = held.min_lw.to_json(), held.max_hw.to_json()
        store.adopt_group(
            plan.pipeline, plan.generation, self.number, seen, attempt, held.rows, low, high, finished_for
        )


def chunk_rows(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Chunks of a file with their share of its bytes."""
    size, rows = manifest["file"]["size"], max(1, manifest["file"]["rows"])
    return [{**c, "bytes": size * c["rows"] // rows} for c in manifest["chunks"]]


def chunks_done(store: Store, plan: Plan, attempt: int, chunks: Sequence[Mapping[str, Any]]) -> None:
    """Write chunks that an attempt has read into the bookkeeping."""
    store.chunks_done(
        plan.pipeline,
        plan.generation,
        [(c["no"], attempt, c["lw"], c["hw"], c["rows"], c["bytes"], c["corrected"], c["seconds"]) for c in chunks],
    )
