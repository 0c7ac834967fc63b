"""The arithmetic of chunk plans; bounds against a real server are in tests/mysql/chunks/test_planner.py."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.json_record import parse_json
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.plan import (
    CHUNKS_PER_FILE,
    MAX_CHUNK_OVERSIZE,
    MAX_GROUPS,
    STORED_GROUP_PLAN,
    Chunk,
    Plan,
    PlanningCost,
    PlanPart,
    chunks_from_bounds,
    cut_into_slices,
    even_chunk_width,
    number_and_group,
)
from airflow_provider_cdc.model.plan_history import STORED_AMENDMENT, FollowedDdl, Replan
from airflow_provider_cdc.model.schema import Column, TableSchema

keys = st.integers(-(2**63), 2**64 - 1)


@settings(deadline=None)
@given(keys, st.integers(0, 10_000), st.integers(0, 20_000), st.integers(1, 500))
def test_an_even_split_cannot_make_a_large_chunk(low: int, span: int, rows: int, chunk_rows: int) -> None:
    """A chunk has at most as many rows as numbers; if the estimate is right, about as many as wanted."""
    step = even_chunk_width(low, low + span, rows, chunk_rows)
    assert (step is None) == (span + 1 > MAX_CHUNK_OVERSIZE * rows)
    if step is not None:
        assert chunk_rows <= step <= MAX_CHUNK_OVERSIZE * chunk_rows
        assert step == chunk_rows or abs(step * rows / (span + 1) - chunk_rows) <= 1 * MAX_CHUNK_OVERSIZE


def test_without_statistics_there_is_no_even_split() -> None:
    assert even_chunk_width(1, 100, 0, 10) is None


def test_one_key() -> None:
    (chunk,) = chunks_from_bounds(3, [("61",)], ("61",))
    assert (chunk.table, chunk.lower, chunk.upper, chunk.includes_upper) == (3, ("61",), ("61",), True)
    assert chunks_from_bounds(3, [], ("61",)) == []


def chunks(tables: list[int]) -> list[Chunk]:
    return [Chunk(0, t, 0, (i,), (i + 1,), i + 1 == n) for t, n in enumerate(tables) for i in range(n)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 10_000), st.integers(1, 1000))
def test_groups_and_slices_keep_every_chunk_in_order(tables: list[int], group_rows: int, chunk_rows: int) -> None:
    given_chunks = chunks(tables)
    found = number_and_group(given_chunks, group_rows, chunk_rows)
    assert [c.number for c in found] == list(range(len(given_chunks)))
    assert [(c.table, c.lower) for c in found] == [(c.table, c.lower) for c in given_chunks]
    groups = [c.group for c in found]
    assert groups == sorted(groups) and set(groups) == set(range(max(groups, default=-1) + 1))
    assert len(set(groups)) <= MAX_GROUPS
    for group in set(groups):
        inside = [c for c in found if c.group == group]
        runs = cut_into_slices(inside)
        assert [c for run in runs for c in run] == inside
        assert all(len({c.table for c in run}) == 1 and len(run) <= CHUNKS_PER_FILE for run in runs)


def test_many_chunks_stay_below_the_limit_of_mapped_tasks() -> None:
    found = number_and_group(chunks([25_000]), 1, 1)
    assert max(c.group for c in found) + 1 == MAX_GROUPS


def test_a_plan_survives_json() -> None:
    column = Column("k", "varchar", "varchar(9)", False, 9, 36, "utf8mb4", "utf8mb4_bin", members=("a", "b"))
    table = TableSchema("d`b", "t.t", (column,), ("k",))
    offset = Offset("server", "binlog.000003", 77, "u:1-5", ("X'61',X'',1",))
    plan = Plan(
        pipeline="p",
        generation=2,
        p0=offset,
        timeline=Timeline("server", "binlog.000003"),
        definitions=(DefinitionHistory.from_single(table),),
        chunks=(Chunk(0, 0, 0, ("61",), ("7a",), True),),
        patterns=((r"d.*",), ("x",)),
    )
    assert Plan.from_json(plan.to_json()) == plan
    stored = plan.replace(costs=(PlanningCost(1, 2),), superseded_chunks=plan.chunks).to_json()
    assert (
        stored == plan.to_json() and stored["version"] == 1 and Plan.from_json(json.loads(json.dumps(stored))) == plan
    )
    assert plan.p0_seq == plan.timeline.seq(offset.at)
    assert plan.groups_of(0) == {0} and plan.groups_of(1) == set()
    assert plan.start_seq(0) == plan.p0_seq


def test_an_amended_plan() -> None:
    """One table planned again: its definition, where its changes begin, and its outermost bounds. No other table."""
    tables = tuple(TableSchema("d", name, (Column("k", "int", "int", False),), ("k",)) for name in "ab")
    offset = Offset("server", "binlog.000003", 77, "")
    listed = [*chunks_from_bounds(0, [(1,), (5,)], (9,)), *chunks_from_bounds(1, [(1,), (5,), (7,)], (9,))]
    chunks_, lineage = number_and_group(listed, 1000, 10), Timeline("server", "binlog.000003")
    plan = Plan("p", 1, offset, lineage, (("d.*",), ()), tuple(map(DefinitionHistory.from_single, tables)), chunks_)
    later = Position("binlog.000004", 5)
    schema = tables[1].replace(columns=(*tables[1].columns, Column("w", "int", "int", True)))
    again = plan.definitions[1].replanned(later, schema)
    value = Replan(1, again, (-3,), (20,))
    assert parse_json(json.dumps(value.to_json()).encode(), STORED_AMENDMENT) == value
    found = plan.with_amendments([value])
    assert found.tables == (tables[0], schema) and found.chunks[:2] == chunks_[:2]
    assert [(c.lower, c.upper, c.includes_upper) for c in found.chunks[2:]] == [
        ((-3,), (5,), False),
        ((5,), (7,), False),
        ((7,), (20,), True),
    ]
    assert [(c.number, c.group) for c in found.chunks] == [(c.number, c.group) for c in chunks_]
    assert found.start_seq(0) == plan.p0_seq and found.start_seq(1) == lineage.seq(later)
    # A table of one chunk, and one of none.
    one = plan.replace(chunks=(chunks_[0], chunks_[1].replace(table=1, includes_upper=True)))
    assert [(c.lower, c.upper) for c in one.with_amendments([value]).chunks] == [((1,), (5,)), ((-3,), (20,))]
    none = plan.replace(chunks=chunks_[:2]).with_amendments([value.replace(lower=None, upper=None)])
    assert none.chunks == chunks_[:2] and none.tables[1] == schema
    # The newest one counts.
    newer = value.replace(definitions=again.replanned(later, tables[1]))
    assert (
        plan.with_amendments([newer, value]).tables == tables and plan.with_amendments([value, newer]).tables == tables
    )
    # A setting is no part of the definition.
    assert schema.with_zero_dates("null").fingerprint() == schema.fingerprint()
    assert schema.fingerprint() != tables[1].fingerprint()


def test_the_part_for_the_readers_of_some_tables() -> None:
    """They see their tables as the whole plan has them; and what is stored for them does not grow with the others."""
    lineage, offset = Timeline("server", "binlog.000003"), Offset("server", "binlog.000003", 77, "")

    def plan_of(count: int) -> Plan:
        tables = [TableSchema("d", f"t{n:04}", (Column("k", "int", "int", False),), ("k",)) for n in range(count)]
        planned = number_and_group([c for n in range(count) for c in chunks_from_bounds(n, [(1,), (5,)], (9,))], 2, 1)
        plan = Plan("p", 1, offset, lineage, (("d.*",), ()), tuple(map(DefinitionHistory.from_single, tables)), planned)
        wider = (*tables[0].columns, Column("w", "int", "int", True))
        ddls = [FollowedDdl(n, 0, plan.p0_seq + 1, tables[n].replace(columns=wider)) for n in range(count)]
        return plan.with_amendments(ddls)

    few, many = plan_of(10), plan_of(1000)
    for plan in (few, many):
        part = plan.for_group(7).part_for({7, 3})
        stored = parse_json(json.dumps(part.to_json()).encode(), STORED_GROUP_PLAN)
        assert isinstance(stored, PlanPart) and stored == part
        whole = stored.to_plan()
        assert whole.chunks == tuple(plan.groups()[7])
        for index in (3, 7):
            assert whole.tables[index] == plan.tables[index]
            assert whole.definitions_for(lineage)[index] == plan.definitions_for(lineage)[index]
            assert whole.captured_tables(lineage)[plan.tables[index].id] == plan.definitions_for(lineage)[index]
            assert whole.start_seq(index) == plan.start_seq(index)
        assert {table.label for table in whole.tables} == {"d.t0003", "d.t0007", TableSchema("", "", (), ()).label}
        assert Plan.from_json(whole.to_json()) == whole
    sizes = [len(json.dumps(plan.for_group(7).part_for({7}).to_json())) for plan in (few, many)]
    assert sizes[0] == sizes[1]
    assert parse_json(json.dumps(few.to_json()).encode(), STORED_GROUP_PLAN) == few, "as older versions stored it"


def test_ddl_that_was_followed() -> None:
    """Which definition holds where: between two DDL, behind a failover, and when a table was planned again."""
    column = Column("k", "int", "int", False)
    tables = tuple(TableSchema("d", name, (column,), ("k",)) for name in "ab")
    added = [Column(f"w{i}", "int", "int", True) for i in range(3)]
    wider = [tables[1].replace(columns=(column, *added[:n])) for n in (1, 2, 3)]
    old = Timeline("server", "binlog.000003")
    new = old.with_segment("other", "log.000001", old.seq(Position("binlog.000009", 0)))
    places = [Position("binlog.000003", 500), Position("binlog.000004", 7), Position("log.000001", 90)]
    seqs = [old.seq(places[0]), old.seq(places[1]), new.seq(places[2])]
    offset = Offset("server", "binlog.000003", 77, "")
    plan = Plan("p", 1, offset, old, (("d.*",), ()), tuple(map(DefinitionHistory.from_single, tables)), ())
    written = [FollowedDdl(1, 0, seq, schema) for seq, schema in zip(seqs, wider, strict=True)]
    values = [parse_json(step.to_json(), STORED_AMENDMENT) for step in written[::-1]]
    found = plan.with_amendments(values)
    assert [f.seq for f in found.amendments] == seqs and found.tables == (tables[0], wider[2])
    assert found.tables[1].fingerprint() == wider[2].fingerprint()
    first = plan.with_amendments(values[1:]).definitions_for(old)[1]
    assert first.versions == ((None, tables[1]), (places[0], wider[0]), (places[1], wider[1]))
    assert [first.at(Position("binlog.000003", n)) for n in (499, 500)] == [tables[1], wider[0]]
    assert first.changes_at(places[0]) and not first.changes_at(Position("binlog.000003", 501))
    assert found.definitions_for(new)[1].versions == ((None, wider[1]), (places[2], wider[2]))
    assert found.definitions_for(new)[0].versions == ((None, tables[0]),)
    # A share of the plan has them, and they do not count twice. Settings reach them, too.
    assert Plan.from_json(json.loads(json.dumps(found.to_json()))) == found == found.with_amendments(values)
    assert found.with_zero_dates("null").tables[1].zero_dates == "null"
    assert found.with_full_before_images(lambda table: table.name == "b").tables[1].full_before_images
    # Planned again behind the first: what was followed before does not count.
    again = plan.definitions[1].replanned(places[1], tables[1])
    amendment = Replan(1, again, None, None)
    assert plan.with_amendments([*values[1:], amendment]).definitions_for(old)[1] == again
