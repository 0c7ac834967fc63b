"""What was read again: in which order it is looked at, and what may get into the copy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import REMOVED, REQUESTED
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.plan import Chunk, Plan
from airflow_provider_cdc.model.plan_history import Amendment, FollowedDdl, Rejoin, Suspension
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.staged_read import (
    GROUP,
    RANGES,
    TABLE,
    StagedRead,
    amendment_ids,
    group_read_marker,
    order_for_publishing,
    publish_refusal,
    ranges_marker,
)

LINEAGE = Timeline("server", "binlog.000001")
SCHEMA = TableSchema("d", "t", (), ())
PLAN = Plan(
    "p",
    1,
    Offset("server", "binlog.000001", 4, ""),
    LINEAGE,
    (),
    (DefinitionHistory.from_single(SCHEMA),),
    (Chunk(0, 0, 3, (), (), includes_upper=True),),
)


def seq(position: int) -> int:
    return LINEAGE.seq(Position("binlog.000001", position))


def staged(number: int, scope: str = TABLE, steps: Sequence[Amendment] = (), **more: Any) -> StagedRead:
    """Rows of table 0 that began to be read at position 100, when some steps stood."""
    plan = with_steps(*steps)
    since, high = Offset("server", "binlog.000001", 100, ""), Position("binlog.000001", 200)
    values: dict[str, Any] = {"revision": plan.revision_of(0), "amendments": amendment_ids(plan, 0)} | more
    group = values.pop("group", number)
    return StagedRead(number, scope, None if scope == GROUP else 0, group, 1, high, since, LINEAGE, **values)


def with_steps(*steps: Amendment) -> Plan:
    return PLAN.with_amendments(steps)


def suspended(kind: str, at: int, revision: int = 0) -> Suspension:
    return Suspension(0, revision, seq(at), f"binlog.000001:{at}", "now", kind, "message", "")


def why(
    one: StagedRead, *steps: Amendment, captured: bool = True, ranges: int = 0, groups: int = 0
) -> tuple[str, bool]:
    markers = {ranges_marker(PLAN): ranges, group_read_marker(PLAN, 3): groups}
    found = publish_refusal(one, 0, with_steps(*steps), LINEAGE, markers.get, captured=captured)
    return ("", False) if found is None else (found.reason, found.superseded)


def rejoined(revision: int, group: int, at: int = 250) -> Rejoin:
    return Rejoin(0, revision, seq(at), SCHEMA, (), group)


def followed(at: int, revision: int = 0) -> FollowedDdl:
    return FollowedDdl(0, revision, seq(at), SCHEMA)


def test_the_one_that_began_first_comes_first_but_for_whole_tables() -> None:
    early, late = staged(2), staged(5)
    part, group, other = staged(3, RANGES), staged(4, GROUP), staged(6, RANGES)
    for listed in permutations([early, late, part, group, other]):
        turns = [one.number for one in order_for_publishing(listed, lambda _: True)]
        assert turns == [3, 4, 5, 2, 6], "the older whole one when the newer one may have taken its place"
        turns = [one.number for one in order_for_publishing(listed, lambda one: one.number != 5)]
        assert turns == [2, 3, 4, 5, 6], "it is not kept waiting by one that is not due"


@pytest.mark.parametrize("scope", [TABLE, RANGES, GROUP])
def test_a_later_reading_keeps_an_older_one_out(scope: str) -> None:
    one = staged(7, scope)
    assert why(one) == why(one, ranges=6, groups=6) == ("", False)
    assert "began later" in why(one, ranges=8)[0]
    assert ("began later" in why(one, groups=8)[0]) == (scope != GROUP), "two groups have no keys in common"
    assert why(one, rejoined(1, 8)) == ("it was re-snapshotted as a whole by a read that began later", True)


@pytest.mark.parametrize("before", [(), (suspended("NotFollowedError", 50),)])
def test_an_older_reading_that_has_rejoined_keeps_a_whole_one_in(before: tuple[Amendment, ...]) -> None:
    whole, part = staged(7, steps=before), staged(7, RANGES, steps=before)
    assert why(whole, *before, rejoined(1, 6)) == why(whole, *before, rejoined(1, 0)) == ("", False)
    assert why(part, *before, rejoined(1, 6)) == ("it has been re-snapshotted as a whole since", False)
    # What comes behind that counts as ever.
    assert "suspended on request" in why(whole, *before, rejoined(1, 6), suspended(REQUESTED, 60, 1))[0]
    assert "altered" in why(whole, *before, rejoined(1, 6, 90), followed(101, 1))[0]


def test_what_has_happened_to_the_table_since() -> None:
    one, part = staged(7), staged(7, RANGES)
    for kind, said in ((REQUESTED, "suspended on request"), (REMOVED, "removed from the pipeline")):
        for at in (50, 100, 150):  # where the stream stood does not matter
            assert said in why(one, suspended(kind, at))[0]
            assert why(staged(7, steps=(suspended(kind, at),)), suspended(kind, at)) == ("", False), "it stood already"
    for step in (suspended("NotFollowedError", 100), followed(100)):
        assert why(one, step) == ("", False), "the rows have it in them"
        assert why(part, step)[0] in ("it is suspended", "it was altered since")
    for step in (suspended("NotFollowedError", 101), followed(101)):
        assert why(one, step)[0] == "it was altered, or suspended, since"
    assert all("no longer copies it" in why(staged, captured=False)[0] for staged in (one, part))


def test_another_server() -> None:
    elsewhere = LINEAGE.with_segment("other", "binlog.000001", seq(300))
    found = publish_refusal(staged(7), 0, PLAN, elsewhere, lambda _: None, captured=True)
    assert found is not None and "was read from server server" in found.reason
    one = staged(7, RANGES, steps=(followed(50),), request_id=3, requested_by="ann")
    assert StagedRead.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert staged(7, GROUP, group=3).why_without_table(PLAN) is staged(7).why_without_table(PLAN) is None
    gone = staged(7, GROUP, group=3).why_without_table(with_steps(suspended(REQUESTED, 50)))
    assert gone == "its tables were re-snapshotted as a whole or are suspended"
