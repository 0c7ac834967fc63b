"""Positions, and the one number that orders all transactions of a pipeline."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.offset import ORDINAL_BITS, POSITION_BITS, Offset, Position, Timeline, split_file

LINEAGE = Timeline("server", "binlog.000017", first_ordinal=5)
numbers = st.integers(17, 3_000_000)
positions = st.builds(lambda n, p: Position(f"binlog.{n:06d}", p), numbers, st.integers(0, (1 << POSITION_BITS) - 1))


def test_file_numbers_compare_as_numbers() -> None:
    assert Position("binlog.999999", 9000) < Position("binlog.1000000", 4)
    assert not Position("binlog.1000000", 4) <= Position("binlog.999999", 9000)
    assert Position("binlog.000002", 9) < Position("binlog.000002", 10)
    assert max(Position("b.1000000", 4), Position("b.999999", 5)) == Position("b.1000000", 4)


def test_a_position_is_at_and_not_before_itself() -> None:
    for at in (Position("binlog.000017", 4), Position("binlog.000018", 99)):
        assert at <= at and not at < at


@settings(deadline=None)
@given(positions, positions)
def test_seq_orders_as_positions_do_and_comes_back(a: Position, b: Position) -> None:
    assert (a < b) == (LINEAGE.seq(a) < LINEAGE.seq(b))
    assert LINEAGE.position(LINEAGE.seq(a)) == a
    assert 0 < LINEAGE.seq(a) < 2**63


def test_seq_counts_files_from_the_base() -> None:
    assert LINEAGE.seq(Position("binlog.000017", 4)) == 5 << POSITION_BITS | 4
    assert LINEAGE.seq(Position("binlog.000018", 4)) == 6 << POSITION_BITS | 4


@pytest.mark.parametrize(
    "at",
    [
        Position("other.000017", 4),
        Position("binlog.000016", 4),
    ],
)
def test_what_does_not_belong_to_the_series_stops(at: Position) -> None:
    with pytest.raises(TerminalError, match=r"binlog\.000017.*fresh sink\.path"):
        LINEAGE.seq(at)


def test_the_limits_of_a_number() -> None:
    """Behind them it would be the number of another place, or none that 64 bits hold."""
    last, first = (1 << POSITION_BITS) - 1, Timeline("server", "binlog.000001")
    highest = Position(f"binlog.{(1 << ORDINAL_BITS) - 1}", last)
    assert first.seq(highest) == 2**63 - 1 and first.position(2**63 - 1) == highest
    for at in (Position("binlog.000017", last + 1), Position(f"binlog.{1 << ORDINAL_BITS}", 4)):
        with pytest.raises(TerminalError, match=r"numbered.*2 TiB.*4,194,304 files.*fresh sink\.path") as found:
            first.seq(at)
        assert found.value.place == str(at)
    late = Timeline("other", "binlog.000001", first_ordinal=(1 << ORDINAL_BITS) - 1)
    assert late.seq(Position("binlog.000001", last)) == 2**63 - 1
    with pytest.raises(TerminalError, match="cannot be numbered"):
        late.seq(Position("binlog.000002", 4))


def test_numbers_lead_back_to_their_segment() -> None:
    """Of two servers, whose files have names of their own."""
    second = Timeline("other", "mysql-bin.000003", first_ordinal=9, previous=LINEAGE)
    for at, segment in ((Position("binlog.000020", 99), LINEAGE), (Position("mysql-bin.000003", 4), second)):
        assert second.position(segment.seq(at)) == at
    assert LINEAGE.seq(Position("binlog.000020", 99)) < second.seq(Position("mysql-bin.000003", 4))


def test_file_names() -> None:
    assert split_file("my.server-bin.000042") == ("my.server-bin.", 42)
    for name in ("binlog", "binlog.", "binlog.index"):
        with pytest.raises(TerminalError, match="no numeric suffix"):
            split_file(name)


@settings(deadline=None)
@given(positions, st.text(), st.lists(st.text()))
def test_offsets_survive_json(at: Position, gtids: str, xa: list[str]) -> None:
    offset = Offset("server", at.file, at.position, gtids, tuple(xa))
    assert Offset.from_json(offset.to_json()) == offset and offset.at == at
    assert Position.from_json(at.to_json()) == at
    assert Timeline.from_json(LINEAGE.to_json()) == LINEAGE
    more = LINEAGE.with_segment("other", "bin.000003", 5 << 41)
    assert Timeline.from_json(more.to_json()) == more
