"""Staged reads: re-snapshotted rows that wait for the stream to publish them, and whether they still may be published.

Every staged read gets the next number of a sequence in the pipeline, after its start position is taken and before its
first row is read. Of two reads, the one with the higher number therefore began later: all of its rows were read after
the other one had begun. docs/correctness.md has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from airflow_provider_cdc.model.errors import ADDED, REMOVED, REQUESTED
from airflow_provider_cdc.model.json_record import JsonRecord
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Amendment, Rejoin, Suspension

#: What was read: a chunk group of the plan, a whole table, or key ranges of a table.
GROUP, TABLE, RANGES = "group", "table", "ranges"
#: The first number of the sequence. Group numbers of the plan are lower.
FIRST_READ_NUMBER = 1_000_000_000_000

#: Identifies an amendment of a table: its kind, its revision and its ``_cdc_seq``.
AmendmentId = tuple[str, int, int]


class StagedRead(JsonRecord, frozen=True):
    """Rows that were read completely and wait to be published.

    :param number: number of the read.
    :param scope: what was read: :data:`GROUP`, :data:`TABLE` or :data:`RANGES`.
    :param table: index of the table in the plan; ``None`` for a group.
    :param group: number of the chunk group: one of the plan, or the number of the read.
    :param attempt: number of the attempt at that group.
    :param high_watermark: highest high watermark of its chunks.
    :param start: start position, with the XA transactions open there: where the stream was, or the low watermark that
        was taken, before the first chunk was read.
    :param timeline: the segment of the server that it was read from.
    :param revision: the table's revision when the read began.
    :param amendments: the amendments of that revision when the read began.
    :param request_id: the control request for which it was read.
    :param requested_by: who made the request.
    """

    number: int
    scope: str
    table: int | None
    group: int
    attempt: int
    high_watermark: Position
    start: Offset
    timeline: Timeline
    revision: int = 0
    amendments: tuple[AmendmentId, ...] = ()
    request_id: int | None = None
    requested_by: str | None = None

    def describe(self, plan: Plan) -> str:
        """Return a human-readable description of what was read."""
        if self.scope == GROUP:
            return f"group {self.group} was re-snapshotted (attempt {self.attempt})"
        label = "a table" if self.table is None else plan.tables[self.table].label
        return f"{label} was re-snapshotted{' in part' if self.scope == RANGES else ''}"

    def why_without_table(self, plan: Plan) -> str | None:
        """Return why there is no table to publish the rows to; ``None`` if there is one.

        :param plan: the current plan.
        """
        if self.table is not None or self.group in plan.groups():
            return None
        return "its tables were re-snapshotted as a whole or are suspended"

    def is_due(self, plan: Plan, at: Position, timeline: Timeline) -> bool:
        """Return whether a stream is far enough to publish or to drop the rows.

        It is once it has reached the highest high watermark, or reads another server, where that watermark means
        nothing; and at any time if there is no table to publish the rows to.

        :param plan: the current plan.
        :param at: resume point of the stream.
        :param timeline: its timeline.
        """
        is_reached = self.timeline != timeline.newest_segment or self.high_watermark <= at
        return is_reached or self.why_without_table(plan) is not None


class PublishRefusal(NamedTuple):
    """Why rows may not be published any more.

    :param reason: human-readable reason.
    :param superseded: whether the copy already has all of the rows, from a later read.
    :param remedy: what a user must do before the next read; ``None`` if another read may be published.
    """

    reason: str
    superseded: bool = False
    remedy: str | None = None


def ranges_marker(plan: Plan) -> str:
    """Return the name of the table marker that holds the number of the last published read of key ranges."""
    return f"cdc/{plan.pipeline}/{plan.generation}/ranges"


def group_read_marker(plan: Plan, group: int) -> str:
    """Return the name of the table marker that holds the number of the read last published for a chunk group."""
    return f"cdc/{plan.pipeline}/{plan.generation}/reading/{group}"


def amendment_ids(plan: Plan, table: int) -> tuple[AmendmentId, ...]:
    """Return the ids of the amendments in a table's current revision.

    :param table: index of the table in the plan.
    """
    revision = plan.revision_of(table)
    return tuple(_amendment_id(step) for step in plan.amendments if step.table == table and step.revision == revision)


def order_for_publishing(
    staged_reads: Iterable[StagedRead], can_publish: Callable[[StagedRead], bool]
) -> list[StagedRead]:
    """Return staged reads in the order in which they are considered: the earliest first.

    Of several reads of a whole table that can be published, the last comes first: the others need not be published
    before it.

    :param can_publish: whether the stream is far enough to publish a read.
    """
    waiting = sorted(staged_reads, key=lambda staged: staged.number)
    newest_table_read = {
        staged.table: staged.number for staged in waiting if staged.scope == TABLE and can_publish(staged)
    }

    def turn(staged: StagedRead) -> tuple[int, int]:
        is_whole = staged.scope == TABLE and staged.number <= newest_table_read.get(staged.table, 0)
        return (newest_table_read[staged.table] if is_whole else staged.number), -staged.number

    return sorted(waiting, key=turn)


def publish_refusal(
    staged: StagedRead,
    table: int,
    plan: Plan,
    timeline: Timeline,
    read_marker: Callable[[str], int | None],
    *,
    captured: bool,
) -> PublishRefusal | None:
    """Return why rows may not be published in a table any more; ``None`` if they may. Does not access any server.

    :param table: index of the table in the plan.
    :param plan: the current plan.
    :param timeline: timeline of the resume point.
    :param read_marker: returns the value of a marker of the copy.
    :param captured: whether the pipeline copies the table.
    """
    if staged.timeline != timeline.newest_segment:
        return PublishRefusal(f"it was read from server {staged.timeline.server}, before the stream moved to another")
    if not captured:
        return PublishRefusal("the pipeline no longer copies it")
    rejoin = plan.rejoin_of(table)
    if rejoin is not None and rejoin.group > staged.number:
        return PublishRefusal("it was re-snapshotted as a whole by a read that began later", superseded=True)
    parts = [ranges_marker(plan)]
    if staged.scope != GROUP:  # chunk groups have no keys in common
        parts += [group_read_marker(plan, group) for group in plan.groups_of(table)]
    if any((read_marker(name) or 0) > staged.number for name in parts):
        return PublishRefusal("a part of it was re-snapshotted by a read that began later")
    if staged.scope == GROUP:  # it belongs to the plan, not to a revision of the table
        return None
    later_amendments = [
        step
        for step in plan.amendments
        if step.table == table and step.revision >= staged.revision and _amendment_id(step) not in staged.amendments
    ]
    if staged.scope == RANGES:
        return _why_not_ranges(later_amendments, plan.suspension_of(table))
    since = timeline.seq(staged.start.at)
    return next(filter(None, (_why_not_table(step, since) for step in later_amendments)), None)


def _amendment_id(amendment: Amendment) -> AmendmentId:
    return type(amendment).__name__, amendment.revision, amendment.seq


def _why_not_ranges(later_amendments: Iterable[Amendment], suspended: Suspension | None) -> PublishRefusal | None:
    """Key ranges replace a part of a table, so they require the table to be as it was when they were read."""
    if suspended is not None:
        return PublishRefusal("it is suspended")
    if any(isinstance(step, Rejoin) for step in later_amendments):
        return PublishRefusal("it has been re-snapshotted as a whole since")
    return PublishRefusal("it was altered since") if any(True for _ in later_amendments) else None


def _why_not_table(amendment: Amendment, since: int) -> PublishRefusal | None:
    """Return why an amendment made since the read began prevents publishing; ``None`` if it does not.

    A rejoin of an older read does not, because this read replaces it. Neither do events in the binlog at or before the
    start position, which the stream may not have reached yet: the rows and their definition already include them.
    Actions of a user, however, take effect immediately, wherever the stream was at that time.
    """
    if isinstance(amendment, Rejoin):
        return None
    if isinstance(amendment, Suspension) and amendment.kind == REQUESTED:
        return PublishRefusal("it was suspended on request since")
    if isinstance(amendment, Suspension) and amendment.kind in (ADDED, REMOVED):
        return PublishRefusal("it was removed from the pipeline since")
    return PublishRefusal("it was altered, or suspended, since") if amendment.seq > since else None
