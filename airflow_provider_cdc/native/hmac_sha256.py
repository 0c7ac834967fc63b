"""HMAC-SHA-256 (RFC 2104, FIPS 180-4) of columns, in machine code: several values side by side, one in each lane.

The lanes of a vector run the same round at the same time. A lane that has finished its value takes the next one, so
long values among short ones leave no lane without work.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from airflow_provider_cdc.native import primitives
from airflow_provider_cdc.native.compile import compiled
from airflow_provider_cdc.native.primitives import not_inlined, read32

#: Bytes of a digest, and of the block that SHA-256 works on.
DIGEST_BYTES, BLOCK_BYTES = 32, 64
#: Values that are hashed side by side.
LANES = 8

_PRIMES = [n for n in range(2, 312) if all(n % divisor for divisor in range(2, int(n**0.5) + 1))]


def _root_bits(number: int, degree: int) -> int:
    """Return the first 32 bits of the fraction of a square or cube root."""
    scaled, root = number << (32 * degree), 1 << 40
    while root**degree > scaled:  # Newton's method, in whole numbers
        root = ((degree - 1) * root + scaled // root ** (degree - 1)) // degree
    return root & 0xFFFFFFFF


_INITIAL = np.array([_root_bits(prime, 2) for prime in _PRIMES[:8]], np.uint32)
_ROUND_CONSTANTS = tuple(_root_bits(prime, 3) for prime in _PRIMES[:64])

# Rows of the array that describes the lanes, and what a lane does next.
_ROW, _AT, _STOP, _STEP = range(4)
_HASH_DATA, _PAD_ONLY, _LAST_OF_INNER, _OUTER = range(4)

_intrinsic: Any = intrinsic
_VECTOR: Any = ir.VectorType(ir.IntType(32), LANES)


def _splat(number: int) -> Any:
    return ir.Constant(_VECTOR, [ir.Constant(ir.IntType(32), number)] * LANES)


@_intrinsic  # type: ignore[untyped-decorator]
def _run_rounds(context: Any, states: Any, words: Any) -> Any:
    """Process a block of each lane: 64 rounds, unrolled, over vectors.

    :param states: array of shape (8, ``LANES``), which is changed.
    :param words: the blocks, of shape (16, ``LANES``).
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def rows(position: int, count: int) -> list[Any]:
            array = context.make_array(signature.args[position])(context, builder, args[position])
            first = builder.bitcast(array.data, _VECTOR.as_pointer())
            return [builder.gep(first, [ir.Constant(ir.IntType(64), row)]) for row in range(count)]

        def rotated(word: Any, bits: int) -> Any:
            return builder.or_(builder.lshr(word, _splat(bits)), builder.shl(word, _splat(32 - bits)))

        def mixed(word: Any, first: int, second: int, third: Any) -> Any:
            return builder.xor(builder.xor(rotated(word, first), rotated(word, second)), third)

        def total(*terms: Any) -> Any:
            result = terms[0]
            for term in terms[1:]:
                result = builder.add(result, term)
            return result

        state_rows = rows(0, 8)
        before = [builder.load(row, align=4) for row in state_rows]
        schedule = [builder.load(row, align=4) for row in rows(1, 16)]
        a, b, c, d, e, f, g, h = before
        for number, constant in enumerate(_ROUND_CONSTANTS):
            word = schedule[number % 16]
            if number >= 16:
                early, late = schedule[(number + 1) % 16], schedule[(number + 14) % 16]
                early = mixed(early, 7, 18, builder.lshr(early, _splat(3)))
                late = mixed(late, 17, 19, builder.lshr(late, _splat(10)))
                word = total(word, early, schedule[(number + 9) % 16], late)
                schedule[number % 16] = word
            choice = builder.xor(g, builder.and_(e, builder.xor(f, g)))
            first = total(h, _splat(constant), word, choice, mixed(e, 6, 11, rotated(e, 25)))
            majority = builder.or_(builder.and_(a, b), builder.and_(c, builder.or_(a, b)))
            second = builder.add(mixed(a, 2, 13, rotated(a, 22)), majority)
            a, b, c, d, e, f, g, h = builder.add(first, second), a, b, c, builder.add(d, first), e, f, g
        for row, old, new in zip(state_rows, before, (a, b, c, d, e, f, g, h), strict=True):
            builder.store(builder.add(old, new), row, align=4)

    return types.void(states, words), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _swap_bytes(context: Any, word: Any) -> Any:
    """Convert between a number and its big-endian bytes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.uint32(types.uint32), generate


@not_inlined  # type: ignore[untyped-decorator]
def _compress(states: Any, words: Any) -> None:
    _run_rounds(states, words)


@compiled("void(uint32[:, ::1], uint32[:, ::1])", __file__, primitives.__file__)
def _compress_blocks(states: Any, words: Any) -> None:
    _compress(states, words)


@not_inlined  # type: ignore[untyped-decorator]
def _fill_block(data: Any, words: Any, lanes: Any, lane: Any, start: Any) -> Any:
    """Write the next block of a lane's value, and return what the lane does after it.

    :param start: where the value begins.
    """
    at, stop, word = lanes[_AT, lane], lanes[_STOP, lane], 0
    if lanes[_STEP, lane] == _HASH_DATA:
        if stop - at >= 64:
            for word in range(16):
                words[word, lane] = _swap_bytes(read32(data, at + 4 * word))
            lanes[_AT, lane] = at + 64
            return _HASH_DATA
        while at + 4 <= stop:
            words[word, lane] = _swap_bytes(read32(data, at))
            word += 1
            at += 4
        last, shift = np.uint32(0), np.uint32(24)
        while at < stop:
            last = np.uint32(last | (np.uint32(data[at]) << shift))
            shift = np.uint32(shift - np.uint32(8))
            at += 1
        words[word, lane] = np.uint32(last | (np.uint32(0x80) << shift))
        word += 1
    has_length = word <= 14
    while word < 16:
        words[word, lane] = 0
        word += 1
    if not has_length:
        return _PAD_ONLY
    bits = (stop - start + 64) << 3  # with the block of the key
    words[14, lane], words[15, lane] = np.uint32(bits >> 32), np.uint32(bits & 0xFFFFFFFF)
    return _LAST_OF_INNER


@compiled(
    # Arrays of Arrow are read-only, and need not be copied.
    "void(Array(uint8, 1, 'C', True), int64[::1], uint32[:, ::1], uint32[:, ::1], uint32[:, ::1], int64[:, ::1], "
    "uint32[:, ::1])",
    __file__,
    primitives.__file__,
)
def _hash_values(data: Any, offsets: Any, key_states: Any, states: Any, words: Any, lanes: Any, digests: Any) -> None:
    """Compute the HMAC of each value.

    :param offsets: start of each value in ``data``, followed by the end of the last one.
    :param key_states: states after the inner and after the outer block of the key.
    :param states, words, lanes: working memory; a lane with a row below 0 is free.
    :param digests: the result, in the byte order of SHA-256.
    """
    next_row, rows = 0, digests.shape[0]
    while True:
        busy = 0
        for lane in range(LANES):
            if lanes[_ROW, lane] < 0:
                if next_row == rows:
                    continue
                lanes[_ROW, lane], lanes[_STEP, lane] = next_row, _HASH_DATA
                lanes[_AT, lane], lanes[_STOP, lane] = offsets[next_row], offsets[next_row + 1]
                for i in range(8):
                    states[i, lane] = key_states[0, i]
                next_row += 1
            busy += 1
            if lanes[_STEP, lane] == _LAST_OF_INNER:
                for i in range(8):
                    words[i, lane] = states[i, lane]
                    states[i, lane] = key_states[1, i]
                words[8, lane] = np.uint32(0x80000000)
                for i in range(9, 15):
                    words[i, lane] = 0
                words[15, lane] = (64 + 32) * 8
                lanes[_STEP, lane] = _OUTER
            else:
                lanes[_STEP, lane] = _fill_block(data, words, lanes, lane, offsets[lanes[_ROW, lane]])
        if busy == 0:
            return
        _compress(states, words)
        for lane in range(LANES):
            if lanes[_ROW, lane] >= 0 and lanes[_STEP, lane] == _OUTER:
                for i in range(8):
                    digests[lanes[_ROW, lane], i] = _swap_bytes(states[i, lane])
                lanes[_ROW, lane] = -1


@compiled("void(uint8[::1], uint8[::1])", __file__, primitives.__file__)
def _write_hex(data: Any, text: Any) -> None:
    for at in range(data.shape[0]):
        high, low = data[at] >> 4, data[at] & 15
        text[2 * at] = high + 48 + (39 if high > 9 else 0)
        text[2 * at + 1] = low + 48 + (39 if low > 9 else 0)


class HmacSha256:
    """HMAC-SHA-256 with one key, whose blocks are hashed once.

    :param key: the secret key. It is not kept, but what is kept suffices to compute hashes.
    """

    def __init__(self, key: bytes) -> None:
        block = np.zeros(BLOCK_BYTES, np.uint8)
        short = hashlib.sha256(key).digest() if len(key) > BLOCK_BYTES else key
        block[: len(short)] = np.frombuffer(short, np.uint8)
        states, words = np.zeros((8, LANES), np.uint32), np.zeros((16, LANES), np.uint32)
        states[:] = _INITIAL[:, np.newaxis]
        for lane, pad in enumerate((0x36, 0x5C)):
            words[:, lane] = (block ^ pad).view(">u4")
        _compress_blocks(states, words)
        self._key_states = np.ascontiguousarray(states[:, :2].T)

    def digests(self, data: Any, offsets: Any) -> Any:
        """Return the hashes of a column of byte strings.

        :param data: the bytes; the array may be read-only.
        :param offsets: start of each value in ``data``, followed by the end of the last one (int64).
        :returns: array of shape (values, 32) of uint8.
        """
        result = np.empty((len(offsets) - 1, DIGEST_BYTES // 4), np.uint32)
        lanes = np.full((4, LANES), -1, np.int64)
        working = np.zeros((8, LANES), np.uint32), np.zeros((16, LANES), np.uint32), lanes
        _hash_values(data, offsets, self._key_states, *working, result)
        return result.view(np.uint8)


def hex_digits(digests: Any) -> Any:
    """Return the lower-case hexadecimal digits of an array of bytes, as an array of twice its size."""
    text = np.empty(2 * digests.size, np.uint8)
    _write_hex(digests.reshape(-1), text)
    return text
