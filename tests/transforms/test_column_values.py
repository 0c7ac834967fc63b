"""What a policy makes of values: the same for each shape of array, with the type of the copy's column."""

from __future__ import annotations

import datetime as dt
import hmac
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.config.hash_key import hash_key_id
from airflow_provider_cdc.model.column_policy import ACTIONS, ENCODINGS, ColumnPolicy, copy_column
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import (
    ADDRESS_TYPES,
    BINARY_TYPES,
    GEOMETRY_TYPES,
    INTEGER_TYPES,
    KEY_TYPES,
    MEMBER_TYPES,
    SUPPORTED_TYPES,
    TEXT_TYPES,
    Column,
)
from airflow_provider_cdc.transforms.column_values import apply_policy
from airflow_provider_cdc.transforms.policy_rules import HASHED_TYPES, policy_problem

KEY = b"0123456789abcdef"
POLICIES = [
    *(ColumnPolicy("c", "hash", encoding=encoding) for encoding in ENCODINGS),
    ColumnPolicy("c", "mask", length=2),
    ColumnPolicy("c", "mask"),
    ColumnPolicy("c", "truncate", length=2),
    ColumnPolicy("c", "null"),
    ColumnPolicy("c", "keep"),
]
LOCAL = dt.datetime(2024, 1, 31, 8, 15, 0, 120_000)
ZONED = LOCAL.replace(tzinfo=dt.UTC)


def column(kind: str, nullable: bool = True, **fields: Any) -> Column:
    if kind in MEMBER_TYPES:
        fields.setdefault("members", ("red", "light green"))
    return Column("c", kind, fields.pop("column_type", kind), nullable, **fields)


def sample(kind: str) -> pa.Array:
    """Three values of a type, one of which is NULL."""
    arrow_type = column(kind).arrow_type
    if pa.types.is_string(arrow_type):
        return pa.array(["häßlich", None, ""], arrow_type)
    if pa.types.is_binary(arrow_type):
        return pa.array([b"\xff\x00ab", None, b""], arrow_type)
    if pa.types.is_list(arrow_type):
        return pa.array([[1.5], None, []], arrow_type)
    if pa.types.is_date(arrow_type):
        return pa.array([dt.date(2024, 1, 31), None, dt.date(1, 1, 1)], arrow_type)
    if pa.types.is_timestamp(arrow_type):
        return pa.array([0, None, 1], pa.int64()).cast(arrow_type)
    return pa.array([1, None, 0], pa.int8()).cast(arrow_type)


def hashes(values: pa.Array, source: Column) -> list[str | None]:
    return apply_policy(values, source, ColumnPolicy("c", "hash"), KEY).to_pylist()  # type: ignore[no-any-return]


def hash_of(text: str | bytes) -> str:
    return hmac.digest(KEY, text.encode() if isinstance(text, str) else text, "sha256").hex()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.action}-{p.encoding}-{p.length}")
@pytest.mark.parametrize("kind", sorted(SUPPORTED_TYPES))
def test_the_result_has_the_type_of_the_copys_column(kind: str, policy: ColumnPolicy) -> None:
    """Or the type is refused, and nothing comes out."""
    source, values = column(kind), sample(kind)
    if policy_problem(source, policy, is_key=False):
        with pytest.raises(NotReadyError, match=kind):
            apply_policy(values, source, policy, KEY)
        return
    target = copy_column(source, policy)
    expected = apply_policy(values, source, policy, KEY)
    expected.validate(full=True)
    assert expected.type == target.arrow_type and len(expected) == 3
    assert expected[1].as_py() is None
    assert policy.action == "null" or expected.null_count == 1
    chunks = pa.chunked_array([values.slice(0, 1), values.slice(1), values.slice(3)])
    chunked = apply_policy(chunks, source, policy, KEY)
    assert isinstance(chunked, pa.ChunkedArray) and chunked.type == target.arrow_type
    assert chunked.to_pylist() == expected.to_pylist()
    for empty in (values.slice(0, 0), values.filter(pa.array([False] * 3))):
        assert apply_policy(empty, source, policy, KEY).type == target.arrow_type
    no_chunks = apply_policy(pa.chunked_array([], values.type), source, policy, KEY)
    assert no_chunks.type == target.arrow_type and len(no_chunks) == 0
    nulls = apply_policy(pa.nulls(3, values.type), source, policy, KEY)
    assert nulls.type == target.arrow_type and nulls.null_count == 3


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("nullable", [False, True])
def test_the_definition_of_a_hash(encoding: str, nullable: bool) -> None:
    source = column("decimal", nullable, precision=10, scale=2)
    target = copy_column(source, ColumnPolicy("c", "hash", "h", encoding=encoding))
    if encoding == "hex":
        expected = Column("h", "char", "char(64)", nullable, length=64, octets=64)
        assert target == expected.replace(charset="ascii", collation="ascii_bin")
    else:
        assert target == Column("h", "binary", "binary(32)", nullable, length=32, octets=32)


def test_definitions_of_other_policies() -> None:
    text = column("varchar", False, column_type="varchar(9)", length=9, octets=36, charset="utf8mb4", collation="x")
    for action in ("mask", "truncate"):
        assert copy_column(text, ColumnPolicy("c", action, length=3)) == text
    assert copy_column(text, ColumnPolicy("c", "null")) == text.replace(nullable=True)
    assert copy_column(text, ColumnPolicy("c", new_name="d")) == text.replace(name="d")
    assert copy_column(text, ColumnPolicy("c")) == text
    for kind, length in (("enum", 11), ("set", 15)):
        target = copy_column(column(kind, charset="utf8mb4"), ColumnPolicy("c", "mask", "d"))
        expected = Column("d", "varchar", f"varchar({length})", True, length=length, octets=4 * length)
        assert target == expected.replace(charset="utf8mb4")


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, ["*******", "****", "***", "*", "", None]),
        (1, ["******7", "***d", "**€", "*", "", None]),
        (3, ["****567", "*bcd", "***", "*", "", None]),
        (4, ["***4567", "****", "***", "*", "", None]),
        (9, ["*******", "****", "***", "*", "", None]),
    ],
)
def test_a_mask(length: int, expected: list[str | None]) -> None:
    """A text that is not longer than what would stay is masked whole: it would be shown whole otherwise."""
    values = pa.array(["1234567", "abcd", "ä𝄞€", "x", "", None])
    assert (
        apply_policy(values, column("varchar"), ColumnPolicy("c", "mask", length=length), None).to_pylist() == expected
    )


def test_a_mask_counts_code_points() -> None:
    """An accent that is a character of its own counts as one."""
    values = pa.array(["e\u0301e\u0301", "👩‍👩‍👧"])
    masked = apply_policy(values, column("text"), ColumnPolicy("c", "mask", length=1), None)
    assert masked.to_pylist() == ["***\u0301", "****👧"]


def test_truncated_values() -> None:
    policy = ColumnPolicy("c", "truncate", length=2)
    assert apply_policy(pa.array(["ä𝄞€", "a", "", None]), column("text"), policy, None).to_pylist() == [
        *("ä𝄞", "a", ""),
        None,
    ]
    assert apply_policy(pa.array([b"\xc3\xa4\xff", b"a", None]), column("blob"), policy, None).to_pylist() == [
        *(b"\xc3\xa4", b"a"),
        None,
    ]


def test_kept_values_are_the_same_object() -> None:
    values = pa.array([1.5, None])
    assert apply_policy(values, column("double"), ColumnPolicy("c", new_name="d"), None) is values


@pytest.mark.parametrize(
    ("source", "value", "canonical"),
    [
        (column("tinyint"), -128, "-128"),
        (column("int", column_type="int(5) unsigned zerofill"), 7, "7"),
        (column("bigint"), -(2**63), "-9223372036854775808"),
        (column("bigint", column_type="bigint unsigned"), 2**64 - 1, "18446744073709551615"),
        (column("bigint", column_type="bigint unsigned"), 0, "0"),
        (column("year"), 2024, "2024"),
        (column("year"), 0, "0"),
        (column("decimal", precision=10, scale=2), Decimal("1.50"), "1.5"),
        (column("decimal", precision=10, scale=2), Decimal("-0.05"), "-0.05"),
        (column("decimal", precision=10, scale=2), Decimal("0.00"), "0"),
        (column("decimal", precision=10, scale=2), Decimal("-100.00"), "-100"),
        (column("decimal", precision=10, scale=0), Decimal(100), "100"),
        (column("decimal", precision=38, scale=30), Decimal("-0.000000000000000000000000000001"), f"-0.{'0' * 29}1"),
        (column("decimal", precision=38, scale=38), Decimal("0.1"), "0.1"),
        (column("decimal", precision=38, scale=0), Decimal(10**38 - 1), "9" * 38),
        (column("decimal", precision=65, scale=30), f"{'9' * 35}.{'10' * 15}", f"{'9' * 35}.{('10' * 15)[:-1]}"),
        (column("decimal", precision=65, scale=30), f"-0.{'0' * 30}", "0"),
        (column("decimal", precision=65, scale=0), "1000", "1000"),
        (column("date"), dt.date(987, 6, 5), "0987-06-05"),
        (column("datetime"), LOCAL.replace(microsecond=0), "2024-01-31 08:15:00.000000"),
        (column("datetime", fsp=6), LOCAL, "2024-01-31 08:15:00.120000"),
        (column("datetime"), dt.datetime(1, 1, 1), "0001-01-01 00:00:00.000000"),
        (column("timestamp"), ZONED, "2024-01-31 08:15:00.120000"),
        (column("varchar"), "Häß ", "Häß "),
        (column("enum"), "light green", "light green"),
        (column("set"), "light green,red", "light green,red"),
        (column("uuid"), "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000001"),
        (column("varbinary"), b"\x00\xff", b"\x00\xff"),
        (column("binary"), b"a\x00\x00", b"a\x00\x00"),
    ],
    ids=lambda case: case.data_type if isinstance(case, Column) else None,
)
def test_the_hash_is_that_of_the_canonical_bytes(source: Column, value: Any, canonical: str | bytes) -> None:
    values = pa.array([None, value, value], source.arrow_type)
    assert hashes(values, source) == [None, hash_of(canonical), hash_of(canonical)]
    binary = apply_policy(values[1:], source, ColumnPolicy("c", "hash", encoding="binary"), KEY)
    assert binary.to_pylist() == [bytes.fromhex(hash_of(canonical))] * 2


@pytest.mark.parametrize("number", [0, 7, -7, 127])
def test_equal_numbers_have_equal_hashes(number: int) -> None:
    """Whatever the width of the column, and if it is decimal, whatever its scale."""
    sources = [column(kind) for kind in sorted(INTEGER_TYPES)]
    if number >= 0:
        sources += [column(kind, column_type=f"{kind} unsigned") for kind in sorted(INTEGER_TYPES)]
    sources += [column("decimal", precision=precision, scale=2) for precision in (10, 38)]
    for source in sources:
        assert hashes(pa.array([number], pa.int8()).cast(source.arrow_type), source) == [hash_of(str(number))], source
    assert hashes(pa.array([f"{number}.00"]), column("decimal", precision=40, scale=2)) == [hash_of(str(number))]


@pytest.mark.parametrize("seed", range(5))
def test_many_values_by_chance(seed: int) -> None:
    chance = random.Random(seed)
    texts = [
        None if chance.random() < 0.2 else "xé€𝄞"[: chance.randrange(5)] * chance.randrange(40) for _ in range(999)
    ]
    decimals = [None if text is None else Decimal(chance.randrange(-(10**9), 10**9)).scaleb(-7) for text in texts]
    at = chance.randrange(500)
    expected = [None if text is None else hash_of(text) for text in texts]
    assert hashes(pa.array(texts)[at:], column("text")) == expected[at:]
    plain = [None if number is None else f"{number:f}".rstrip("0").rstrip(".") for number in decimals]
    source = column("decimal", precision=20, scale=7)
    expected = [None if text is None else hash_of("0" if text == "-0" else text) for text in plain]
    assert hashes(pa.array(decimals, source.arrow_type)[at:], source) == expected[at:]


def test_a_hash_needs_its_key() -> None:
    values, policy = pa.array(["a"]), ColumnPolicy("c", "hash", key_id=hash_key_id(KEY))
    assert apply_policy(values, column("text"), policy, KEY).to_pylist() == [hash_of("a")]
    with pytest.raises(NotReadyError, match="column c was hashed with another secret key") as error:
        apply_policy(values, column("text"), policy, KEY + b"!")
    assert KEY.decode() not in str(error.value)
    for no_key in (policy, ColumnPolicy("c", "hash")):
        with pytest.raises(NotReadyError, match="there is no secret key"):
            apply_policy(values, column("text"), no_key, None)


@pytest.mark.parametrize("action", [*ACTIONS, "exclude"])
@pytest.mark.parametrize("kind", sorted(KEY_TYPES))
def test_columns_of_the_key(action: str, kind: str) -> None:
    """They are hashed or renamed; anything else would give different rows one key."""
    problem = policy_problem(column(kind), ColumnPolicy("c", action, "d", length=3), is_key=True)
    if action == "keep" or (action == "hash" and kind in HASHED_TYPES):
        assert problem is None
    else:
        assert problem is not None and problem[0].startswith("column c:") and action in problem[0] and problem[1]


@pytest.mark.parametrize(
    ("action", "kinds"),
    [
        ("hash", SUPPORTED_TYPES - GEOMETRY_TYPES - {"float", "double", "json", "vector", "bit", "time"}),
        ("mask", TEXT_TYPES | MEMBER_TYPES),
        ("truncate", TEXT_TYPES | MEMBER_TYPES | BINARY_TYPES),
        ("null", SUPPORTED_TYPES),
        ("keep", SUPPORTED_TYPES),
        ("exclude", SUPPORTED_TYPES),
    ],
)
def test_types_of_an_action(action: str, kinds: frozenset[str]) -> None:
    for kind in SUPPORTED_TYPES:
        problem = policy_problem(column(kind), ColumnPolicy("c", action, length=3), is_key=False)
        assert (problem is None) is (kind in kinds), kind
        if problem:
            assert "column c: transforms.columns has" in problem[0] and f"type {kind} cannot have" in problem[0]
            assert "Use null or exclude for it" in problem[1] and "\n" not in "".join(problem)
    assert ADDRESS_TYPES.keys() <= HASHED_TYPES


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(NotReadyError, match="the policy encrypt is not known"):
        apply_policy(pa.array(["a"]), column("text"), ColumnPolicy("c", "encrypt"), KEY)


def test_policies_are_stored_as_before() -> None:
    for policy in POLICIES:
        assert ColumnPolicy.from_json(policy.to_json()) == policy
    assert ColumnPolicy("c", "mask", length=2).to_json() == {"column": "c", "action": "mask", "length": 2}
