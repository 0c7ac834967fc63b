"""What was read that has a key in it: by the snapshot, with the whole table, or with a range of keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.chunk_groups.groups import Group, numbering, watermarks_of
from airflow_provider_cdc.explain.explanation import (
    KEYS,
    NOTHING,
    PUBLISHED,
    READ,
    SNAPSHOT,
    STAGED,
    TABLE,
    WAITING,
    Read,
)
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.offset import Lineage
from airflow_provider_cdc.model.plan import Chunk, Key, Plan
from airflow_provider_cdc.model.plan_history import Suspended, step_of
from airflow_provider_cdc.model.staged_read import RANGES
from airflow_provider_cdc.model.start_mode import SNAPSHOT as BEGIN
from airflow_provider_cdc.mysql.keys.ownership import owners
from airflow_provider_cdc.resnapshot.staged_files import drawn_numbers, outcome_of, waiting
from airflow_provider_cdc.runtime.run_context import Context
from airflow_provider_cdc.sinks.files.layout import amendments_of
from airflow_provider_cdc.sinks.storage.storage import read_json


@dataclass(frozen=True)
class Found:
    """Something that was read.

    :param read: for people.
    :param plan: by whose definitions it was read.
    :param lineage: the segment whose server it was read from; ``None`` if it was not.
    :param begun: when the server had begun the binlog files of its watermarks.
    """

    read: Read
    plan: Plan
    lineage: Lineage | None = None
    begun: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Reads:
    """Looks for them.

    :param plan: the plan as it is now.
    :param index: index of the table.
    :param key: the key, by the definition of the copy.
    """

    context: Context
    connection: Connection[Any]
    plan: Plan
    index: int
    key: Key

    def find(self) -> list[Found]:
        """All that count, in order of their high watermarks; what was not read or published yet comes last."""
        found = [self._whole(), *self._ranges()]

        def order(one: Found) -> tuple[bool, int]:
            high = one.read.high
            seq = one.lineage.seq(high) if one.lineage is not None and high is not None else 0
            return one.read.state != PUBLISHED, seq

        return sorted(found, key=order)

    def _whole(self) -> Found:
        """The snapshot; or what has taken its place."""
        again = self.plan.rejoined_of(self.index)
        step = self.plan.suspended_of(self.index)
        if self.plan.start != BEGIN:
            return Found(Read(NOTHING, PUBLISHED), self.plan)
        if again is None and step is not None and step.schema is not None:
            return Found(Read(TABLE, WAITING), self.plan)
        if again is None:
            plan = self._with_chunks()
            chunk = self._owner(plan)
            return Found(Read(SNAPSHOT, PUBLISHED), plan) if chunk is None else self._in_snapshot(plan, chunk)
        if again.group is None:  # an older version has not written it down
            return Found(Read(TABLE, PUBLISHED), self.plan)
        plan = self._share(again.group)
        chunk = self._owner(plan)
        if chunk is None:
            return Found(Read(TABLE, PUBLISHED), plan)
        return self._aside(TABLE, plan, chunk, PUBLISHED)

    def _ranges(self) -> Iterator[Found]:
        """Ranges of keys that were read again since, and that or the table as far as it waits for the stream."""
        again = self.plan.rejoined_of(self.index)
        last, since = (0, 0) if again is None else (again.group or 0, again.seq)
        staged = {one.number: one.scope for one in waiting(self.context, self.plan) if one.table == self.index}
        for number in sorted(self._parts(last) | {*staged}):
            plan = self._share(number)
            if (chunk := self._owner(plan)) is None:
                continue
            how = TABLE if staged.get(number, RANGES) != RANGES else KEYS
            found = self._aside(how, plan, chunk, STAGED if number in staged else PUBLISHED)
            assert found.lineage is not None and found.read.high is not None
            if found.lineage.seq(found.read.high) > since:
                yield found

    def _with_chunks(self) -> Plan:
        """The plan with the chunks of the table, which it has no more if that is suspended."""
        context, layout = self.context, self.context.layout
        if self.plan.suspended_of(self.index) is None:
            return self.plan

        def is_end(value: Mapping[str, Any]) -> bool:
            step = step_of(value)
            return isinstance(step, Suspended) and step.table == self.index and step.schema is None

        names = amendments_of(context.storage, layout, self.plan.generation)
        amended = (read_json(context.storage, name) for name in names)
        plan = Plan.from_json(read_json(context.storage, layout.plan))
        plan = plan.amended(value for value in amended if not is_end(value))
        return plan.with_zero_dates(context.pipeline.source.zero_dates)

    def _owner(self, plan: Plan) -> Chunk | None:
        mine = [chunk for chunk in plan.chunks if chunk.table == self.index]
        (owner,) = owners(self.connection, plan.tables[self.index], mine, [self.key])
        return mine[owner] if owner >= 0 else None

    def _in_snapshot(self, plan: Plan, chunk: Chunk) -> Found:
        group = Group(self.context, plan, chunk.group)
        attempt = group.markers().get(self.index)
        if attempt is not None:
            return self._in_manifest(SNAPSHOT, PUBLISHED, group, chunk, attempt)
        number = next(no for no, listed in enumerate(group.slices) if chunk in listed)
        read = group.finished().get(number)
        if read is None:
            return Found(Read(SNAPSHOT, WAITING, chunk.group, chunk.no), plan)
        return _of(SNAPSHOT, READ, plan, chunk, read[0], 0, read[1])

    def _aside(self, how: str, plan: Plan, chunk: Chunk, state: str) -> Found:
        return self._in_manifest(how, state, Group(self.context, plan, chunk.group), chunk, 1)

    def _in_manifest(self, how: str, state: str, group: Group, chunk: Chunk, attempt: int) -> Found:
        entries = (e for e in group.manifest(attempt) if any(c["no"] == chunk.no for c in e["chunks"]))
        return _of(how, state, group.plan, chunk, attempt, group.complete_attempts(), next(entries))

    def _share(self, number: int) -> Plan:
        name = self.context.layout.share(self.plan.generation, number)
        if (found := read_json(self.context.storage, name)) is None:
            label = self.plan.tables[self.index].label
            raise TerminalError(
                f"the plan {self.context.storage.location(name)} of what was read again is missing",
                f"Restore it, or read the table again: airflow-cdc resnapshot --table {label}",
            )
        return Plan.from_json(found).with_zero_dates(self.context.pipeline.source.zero_dates)

    def _parts(self, last: int) -> set[int]:
        """Numbers of the readings of ranges of the table whose rows were exchanged.

        :param last: number of the reading with which the table has rejoined; others count only if they began later.
        """
        layout, generation, storage = self.context.layout, self.plan.generation, self.context.storage
        found = set()
        for number in drawn_numbers(self.context, generation):
            if number > last:
                read = read_json(storage, layout.reading(generation, number))
                outcome = outcome_of(self.context, generation, number)
                is_part = read is not None and (read["scope"], read["table"]) == (RANGES, self.index)
                if is_part and outcome is not None and outcome.done:
                    found.add(number)
        return found


def _of(how: str, state: str, plan: Plan, chunk: Chunk, attempt: int, attempts: int, entry: Mapping[str, Any]) -> Found:
    """A chunk as the manifest of its file has it."""
    listed = next(c for c in entry["chunks"] if c["no"] == chunk.no)
    low, high = watermarks_of(listed)
    lineage = numbering(plan, entry)
    told = listed["rows"], listed["corrected"], listed["seconds"]
    read = Read(how, state, chunk.group, chunk.no, attempt, attempts, low, high, *told, lineage.server)
    return Found(read, plan, lineage, entry.get("binlogs", {}))
