"""GTID sets against a plain Python set of (uuid, tag, number) as the model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.model.gtid import GtidSet, MariadbGtidPosition, gtid_class_of, parse_gtid_owned

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4f22fa47-71ca-11e1-9e33-c80aa9429562"
Model = frozenset[tuple[str, str, int]]

members = st.tuples(st.sampled_from([A, B]), st.sampled_from(["", "tag", "x_1"]), st.integers(1, 25))
models = st.frozensets(members, max_size=40)


def text(member: tuple[str, str, int]) -> str:
    uuid, tag, number = member
    return f"{uuid}:{tag}:{number}" if tag else f"{uuid}:{number}"


def build(model: Model) -> GtidSet:
    result = GtidSet()
    for member in model:
        result = result.add(text(member))
    return result


@given(models, members)
def test_membership_and_add(model: Model, member: tuple[str, str, int]) -> None:
    built = build(model)
    assert (text(member) in built) == (member in model)
    assert built.add(text(member)) == build(model | {member})
    assert text(member) in built.add(text(member))
    assert bool(built) == bool(model)


@given(models, models)
def test_algebra(one: Model, two: Model) -> None:
    assert build(one).union(build(two)) == build(one | two)
    assert build(one).subtract(build(two)) == build(one - two)
    assert build(one).repeated_in(build(two)) == build(one & two)
    assert build(one).issubset(build(two)) == (one <= two)
    assert (build(one) == build(two)) == (one == two)
    assert (hash(build(one)) == hash(build(two))) or one != two


@given(models)
def test_text_and_back(model: Model) -> None:
    built = build(model)
    assert GtidSet.parse(str(built)) == built
    assert GtidSet.parse(",\n".join(text(member) for member in model)) == built
    assert str(GtidSet.parse(str(built).replace(",", " ,\n ").upper())) == str(built)


def test_gaps_are_kept() -> None:
    # A known loss elsewhere: 1-7:9-10 flattened to 1-10 claims a transaction that was never read.
    gaps = GtidSet.parse(f"{A}:1-7:9-10")
    assert f"{A}:8" not in gaps
    assert str(gaps) == f"{A}:1-7:9-10"
    assert str(gaps.add(f"{A}:8")) == f"{A}:1-10"


def test_text_of_the_server() -> None:
    parsed = GtidSet.parse(f"{B}:1-3:5,\n{A}:1-7:tag:1-2:4:x:1\n")
    assert str(parsed) == f"{A}:1-7:tag:1-2:4:x:1,{B}:1-3:5"
    assert f"{A}:tag:4" in parsed and f"{A}:4" in parsed and f"{A}:tag:3" not in parsed
    assert GtidSet.parse("") == GtidSet() and not GtidSet.parse(" \n")
    assert GtidSet.parse(f"{A}:5-9:1-4") == GtidSet.parse(f"{A}:1-9")


@pytest.mark.parametrize(
    "bad", ["x", A, f"{A}:", f"{A}:0", f"{A}:5-1", f"{A}:1-2-3", "x:1", f"{A}:1;{B}:2", f"{A}:t-g:1"]
)
def test_not_a_set(bad: str) -> None:
    with pytest.raises(ValueError):
        GtidSet.parse(bad)


@pytest.mark.parametrize("bad", ["", A, f"{A}:", f"{A}:1-2", f"{A}:0", f"{A}:t:x"])
def test_not_a_gtid(bad: str) -> None:
    with pytest.raises(ValueError):
        GtidSet().add(bad)


def test_owned() -> None:
    assert parse_gtid_owned("") == {}
    assert parse_gtid_owned(f"{A}:7#11:8#12,\n{B}:3#9#10") == {f"{A}:7": (11,), f"{A}:8": (12,), f"{B}:3": (9, 10)}
    assert parse_gtid_owned(f"{A}:7#11,\n{A}:tag:1#4:2#5") == {f"{A}:7": (11,), f"{A}:tag:1": (4,), f"{A}:tag:2": (5,)}
    with pytest.raises(ValueError):
        parse_gtid_owned("nonsense")


def test_positions_of_mariadb() -> None:
    """Of each domain a line, whichever server a number comes from; of several domains no line."""
    position = MariadbGtidPosition.parse("0-1-7, 3-1-2")
    assert str(position) == "0-1-7,3-1-2" and position and not MariadbGtidPosition.parse("")
    assert [gtid in position for gtid in ("0-1-7", "0-2-6", "0-1-8", "3-1-3", "4-1-1")] == [True, True, False] + [
        False
    ] * 2
    assert MariadbGtidPosition.parse("0-2-7").issubset(position) and not position.issubset(
        MariadbGtidPosition.parse("0-1-9")
    )
    assert str(position.minus_all(["0-1-6", "3-1-1"])) == "0-1-7,3-1-2"
    assert str(position.minus_all(["0-1-6", "0-1-7"])) == "3-1-2"
    assert not position.minus_all(["3-9-5", "0-9-8"])
    assert str(position.with_all(["0-2-8", "1-1-1"])) == "0-2-8,1-1-1,3-1-2"


def test_which_kind_a_server_is() -> None:
    assert gtid_class_of("mariadb:1:host:3306") is MariadbGtidPosition
    assert gtid_class_of("3e11fa47-71ca-11e1-9e33-c80aa9429562") is GtidSet
