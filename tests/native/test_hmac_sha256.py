"""HMAC-SHA-256 in machine code gives what the standard library gives, whatever lengths are hashed side by side."""

from __future__ import annotations

import hmac
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from airflow_provider_cdc.native import hmac_sha256
from airflow_provider_cdc.native.hmac_sha256 import LANES, HmacSha256, hex_digits

#: Key, data and digest of RFC 4231; of the fifth, the first 16 bytes of the digest.
RFC_4231 = [
    (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
    (b"Jefe", b"what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
    (b"\xaa" * 20, b"\xdd" * 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
    (
        bytes(range(1, 26)),
        b"\xcd" * 50,
        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b",
    ),
    (b"\x0c" * 20, b"Test With Truncation", "a3b6167473100ee06e0c796c2955552b"),
    (
        b"\xaa" * 131,
        b"Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    ),
    (
        b"\xaa" * 131,
        b"This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
        b"hashed before being used by the HMAC algorithm.",
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
    ),
]
#: Lengths around those at which one more block is needed.
EDGES = (0, 1, 3, 4, 8, 54, 55, 56, 57, 63, 64, 65, 119, 120, 121, 127, 128, 129, 1000)
KEYS = {"short": b"k" * 16, "block": b"b" * 64, "long": b"l" * 65, "empty": b""}


def digests(key: bytes, values: Sequence[bytes]) -> list[bytes]:
    """The digests of a column of values."""
    offsets: Any = np.cumsum([0, *map(len, values)]).astype(np.int64)
    data = np.frombuffer(b"".join(values), np.uint8).copy()
    return [digest.tobytes() for digest in HmacSha256(key).digests(data, offsets)]


@pytest.mark.parametrize(("key", "value", "expected"), RFC_4231)
def test_vectors_of_the_standard(key: bytes, value: bytes, expected: str) -> None:
    (digest,) = digests(key, [value])
    assert digest.hex().startswith(expected)
    assert bytes(hex_digits(np.frombuffer(digest, np.uint8).copy())).decode() == digest.hex()


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("length", EDGES)
def test_each_length_alone_and_in_all_lanes(length: int, key: bytes) -> None:
    values = [bytes([number]) * length for number in range(3 * LANES + 1)]
    expected = [hmac.digest(key, value, "sha256") for value in values]
    assert digests(key, values) == expected
    assert digests(key, values[:1]) == expected[:1]


@pytest.mark.parametrize("seed", range(5))
def test_lengths_by_chance(seed: int) -> None:
    chance = random.Random(seed)
    key = chance.randbytes(chance.randrange(200))
    values = [chance.randbytes(chance.choice([*EDGES, chance.randrange(5000)])) for _ in range(500)]
    assert digests(key, values) == [hmac.digest(key, value, "sha256") for value in values]


def test_a_value_of_many_blocks_among_short_ones() -> None:
    values = [b"a" * 1_000_000, *(bytes([n % 256]) for n in range(1000)), b"", b"b" * 100_000]
    assert digests(b"key", values) == [hmac.digest(b"key", value, "sha256") for value in values]


def test_no_values() -> None:
    assert digests(b"key", []) == []
    assert hex_digits(np.empty((0, 32), np.uint8)).size == 0


def test_hex_digits_of_all_bytes() -> None:
    assert bytes(hex_digits(np.arange(256, dtype=np.uint8))).decode() == bytes(range(256)).hex()


def test_constants_are_those_of_the_standard() -> None:
    """They are computed, from square and cube roots of primes; an empty message is the shortest proof."""
    assert hmac_sha256._INITIAL[0] == 0x6A09E667 and hmac_sha256._INITIAL[7] == 0x5BE0CD19
    assert hmac_sha256._ROUND_CONSTANTS[0] == 0x428A2F98 and hmac_sha256._ROUND_CONSTANTS[63] == 0xC67178F2
    assert len(set(hmac_sha256._ROUND_CONSTANTS)) == 64
