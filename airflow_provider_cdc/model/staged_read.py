"""Rows that were read again and wait for the stream, and whether they may still get into the copy.

Every reading draws a number of one sequence of the pipeline, after its start position was taken and before its first
row is read. So numbers say which of two readings began later: all rows of the one with the higher number were read
after the other one had begun. The argument is in docs/correctness.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Amendment, Rejoin, Suspension, kind_of_step
from airflow_provider_cdc.model.suspension_kinds import ADDED, REMOVED, REQUESTED

#: What was read: a chunk group of the plan, a table as a whole, or ranges of a table's keys.
GROUP, TABLE, RANGES = "group", "table", "ranges"
#: The first number of the sequence. Groups of the plan, and numbers that older versions have computed, are below.
FIRST_READ_NUMBER = 1_000_000_000_000

#: What identifies a step of a table: its kind, the revision that it belongs to, and its ``_cdc_seq``.
AmendmentId = tuple[str, int, int]


@dataclass(frozen=True)
class StagedRead:
    """Rows that were read to their end and wait to be published.

    :param number: the reading's number; 0 for a group that an older version has read.
    :param scope: what was read: :data:`GROUP`, :data:`TABLE` or :data:`RANGES`.
    :param table: index of the table in the plan; ``None`` of a group, and where an older version has read a table.
    :param group: number of the chunk group: one of the plan, or the reading's own number.
    :param attempt: number of the attempt at that group.
    :param high_watermark: highest high watermark of its chunks.
    :param start: start position: where the stream stood, or the low watermark that was taken, before the first chunk
        was read, with the XA transactions open there.
    :param timeline: the segment of the server that it was read from.
    :param revision: the table's revision when the reading began, and ``steps`` the steps of that revision that stood.
    :param request_id: the request of the bookkeeping for which it was read, and ``by`` who has made it.
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

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; :meth:`from_json` turns it back."""
        return {
            "number": self.number,
            "scope": self.scope,
            "table": self.table,
            "group": self.group,
            "attempt": self.attempt,
            "high": self.high_watermark.to_json(),
            "since": self.start.to_json(),
            "lineage": self.timeline.to_json(),
            "revision": self.revision,
            "steps": [list(step) for step in self.amendments],
            **({} if self.request_id is None else {"request": self.request_id, "by": self.requested_by}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], default_timeline: Timeline) -> StagedRead:
        """Inverse of :meth:`to_json`.

        :param default_timeline: the segment of a value that names none.
        """
        # An older version has named neither the table nor the scope.
        scope = GROUP if value.get("revision") is None else RANGES if value.get("ranges") else TABLE
        return cls(
            value.get("number", 0),
            value.get("scope", scope),
            value.get("table"),
            value["group"],
            value["attempt"],
            Position.from_json(value["high"]),
            Offset.from_json(value["since"]),
            Timeline.from_json(value["lineage"]) if "lineage" in value else default_timeline,
            value.get("revision") or 0,
            tuple((kind, revision, seq) for kind, revision, seq in value.get("steps", ())),
            value.get("request"),
            value.get("by"),
        )


class PublishedReadNumbers(NamedTuple):
    """Numbers of the readings whose rows a copy has, as its markers say; 0 for none.

    :param ranges: the highest one of ranges, and ``groups`` of a chunk group that was read again.
    """

    ranges: int
    groups: int


class PublishRefusal(NamedTuple):
    """Why rows may not be published any more.

    :param reason: for people.
    :param superseded: whether all that was read is in the copy already, as a later reading has it.
    """

    reason: str
    superseded: bool = False


def amendment_ids(plan: Plan, table: int) -> tuple[AmendmentId, ...]:
    """The steps of a table that stand in its current revision.

    :param table: index of the table in the plan.
    """
    revision = plan.revision_of(table)
    return tuple(_amendment_id(step) for step in plan.amendments if step.table == table and step.revision == revision)


def order_for_publishing(
    staged_reads: Iterable[StagedRead], can_publish: Callable[[StagedRead], bool]
) -> list[StagedRead]:
    """What waits, in the order in which it is looked at: the one that began first comes first.

    Of whole readings of one table that the stream may publish the last one comes first: the others need not get in
    before it.

    :param can_publish: whether the stream is far enough to publish one.
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
    staged: StagedRead, table: int, plan: Plan, timeline: Timeline, published: PublishedReadNumbers, *, captured: bool
) -> PublishRefusal | None:
    """Why rows may not be published in a table any more; ``None`` if they may. It takes no look at any server.

    :param table: index of the table in the plan.
    :param plan: the plan as it is now, and ``timeline`` that of the resume point.
    :param published: what the copy has.
    :param captured: whether the pipeline copies the table.
    """
    if staged.scope != GROUP and staged.table is None:
        return PublishRefusal("an older version has read it")
    if staged.timeline != timeline.newest_segment:
        return PublishRefusal(f"it was read at server {staged.timeline.server}, before the stream went on at another")
    if not captured:
        return PublishRefusal("the pipeline does not copy it any more")
    rejoin = plan.rejoin_of(table)
    if rejoin is not None and (rejoin.group or 0) > staged.number:
        return PublishRefusal("it was read again as a whole by a reading that began later", superseded=True)
    # Chunk groups have no keys in common.
    if max(published.ranges, 0 if staged.scope == GROUP else published.groups) > staged.number:
        return PublishRefusal("a part of it was read again by a reading that began later")
    if staged.scope == GROUP:  # which has no place of its own: it belongs to the plan, or not
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
    return kind_of_step(amendment), amendment.revision, amendment.seq


def _why_not_ranges(later_amendments: Iterable[Amendment], suspended: Suspension | None) -> PublishRefusal | None:
    """Ranges need the table that they were read for, as it was: they take the place of a part of it."""
    if suspended is not None:
        return PublishRefusal("it is suspended")
    if any(isinstance(step, Rejoin) for step in later_amendments):
        return PublishRefusal("it was read again as a whole since")
    return PublishRefusal("it was altered since") if any(True for _ in later_amendments) else None


def _why_not_table(amendment: Amendment, since: int) -> PublishRefusal | None:
    """A step that came since the reading began, if it keeps the rows out.

    That an older reading has rejoined does not: this one takes its place. Nor does what the binlog has done at or
    before the start position, where the stream may not have been yet: the rows and their definition have it in them.
    But what a person has done to a table is of the moment, wherever the stream stood then.
    """
    if isinstance(amendment, Rejoin):
        return None
    if isinstance(amendment, Suspension) and amendment.kind == REQUESTED:
        return PublishRefusal("it was suspended on request since")
    if isinstance(amendment, Suspension) and amendment.kind in (ADDED, REMOVED):
        return PublishRefusal("it was removed from the pipeline since")
    return PublishRefusal("it was altered, or suspended, since") if amendment.seq > since else None
