"""The values of a column as its policy has them in the copy: hashed, masked, truncated, or NULL.

A hash is the HMAC-SHA-256 (RFC 2104) of the value's canonical bytes:

- text, ENUM, SET, UUID, INET4, INET6: the text in UTF-8, as the copy would have it without a hash,
- binary: the bytes,
- whole numbers, YEAR: decimal digits without leading zeros, after ``-`` if negative,
- DECIMAL: the same, followed by ``.`` and the digits after the point without trailing zeros, if any are left. Equal
  numbers have equal hashes, whatever their types,
- DATE: ``YYYY-MM-DD``; DATETIME, and TIMESTAMP in UTC: ``YYYY-MM-DD hh:mm:ss.ffffff``, always with six digits.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.config.hash_key import hash_key_id
from airflow_provider_cdc.model.column_policy import (
    BINARY,
    HASH,
    HASH_BYTES,
    HEX_DIGITS,
    KEEP,
    MASK,
    NULL,
    ColumnPolicy,
    copy_column,
)
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import BINARY_TYPES, Column
from airflow_provider_cdc.transforms.policy_rules import policy_problem

_ArrayT = TypeVar("_ArrayT", pa.Array, pa.ChunkedArray)
#: Largest offset in an array of hashes.
_MAX_OFFSET = (1 << 31) - 1


def apply_policy(values: _ArrayT, column: Column, policy: ColumnPolicy, hash_key: bytes | None) -> _ArrayT:
    """Return values of a column as the copy has them, with the type of the copy's column. NULL stays NULL.

    :param values: an array or a chunked array of values as the source has them.
    :param column: the column of the source.
    :param policy: its policy.
    :param hash_key: the secret key, if the policy is a hash.
    :raises NotReadyError: if the column cannot have the policy, or the key is not the one that the policy names.
    """
    if problem := policy_problem(column, policy, is_key=False):
        raise NotReadyError(*problem)
    if policy.action == HASH:
        _check_key(policy, hash_key)
    if policy.action == KEEP:
        return values
    if isinstance(values, pa.ChunkedArray):
        chunks = [_apply(chunk, column, policy, hash_key) for chunk in values.chunks]
        return pa.chunked_array(chunks, copy_column(column, policy).arrow_type)
    return _apply(values, column, policy, hash_key)


def _check_key(policy: ColumnPolicy, hash_key: bytes | None) -> None:
    if hash_key is None:
        raise NotReadyError(
            f"column {policy.column} is hashed, and there is no secret key", "Set transforms.hash_key_conn_id"
        )
    if policy.key_id is not None and policy.key_id != hash_key_id(hash_key):
        raise NotReadyError(
            f"column {policy.column} was hashed with another secret key than that of transforms.hash_key_conn_id",
            "Restore the key, or run the stream, which re-snapshots the table: equal values get other hashes",
        )


def _apply(values: pa.Array, column: Column, policy: ColumnPolicy, hash_key: bytes | None) -> pa.Array:
    if policy.action == HASH:
        return _hash(values, column, policy, hash_key or b"")
    if policy.action == MASK:
        return _mask(values, policy.length)
    if policy.action == NULL:
        return pa.nulls(len(values), column.arrow_type)
    cut = pc.binary_slice if column.data_type in BINARY_TYPES else pc.utf8_slice_codeunits
    return cut(values, 0, policy.length)  # by characters, despite its name


def _mask(texts: pa.Array, length: int) -> pa.Array:
    """Replace all characters but the last ones by ``*``; all of them in a text that is not longer than these."""
    lengths = pc.utf8_length(texts)
    if length == 0:
        return pc.binary_repeat("*", lengths)
    is_longer = pc.greater(lengths, length)
    masked = pc.if_else(is_longer, pc.subtract(lengths, length), lengths)
    shown = pc.if_else(is_longer, pc.utf8_slice_codeunits(texts, -length), "")
    return pc.binary_join_element_wise(pc.binary_repeat("*", masked), shown, "")


def _hash(values: pa.Array, column: Column, policy: ColumnPolicy, hash_key: bytes) -> pa.Array:
    from airflow_provider_cdc.native.hmac_sha256 import HmacSha256, hex_digits  # drivers need no machine code

    width = HASH_BYTES if policy.encoding == BINARY else HEX_DIGITS
    if len(values) > _MAX_OFFSET // width:
        raise ValueError(f"an array of {len(values)} hashes would be too large")
    valid = pc.is_valid(values).to_numpy(zero_copy_only=False)
    data, offsets = _bytes_and_offsets(_canonical(values.drop_null(), column))
    digests = HmacSha256(hash_key).digests(data, offsets)
    content = digests if policy.encoding == BINARY else hex_digits(digests)
    starts = np.zeros(len(values) + 1, np.int32)
    np.cumsum(valid, out=starts[1:])
    validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [validity, pa.py_buffer(starts * np.int32(width)), pa.py_buffer(content)]
    return pa.Array.from_buffers(copy_column(column, policy).arrow_type, len(values), buffers)


def _bytes_and_offsets(values: pa.Array) -> tuple[Any, Any]:
    """Return the bytes of an array without NULL, and the start of each value followed by the end of the last one."""
    array = values.cast(pa.large_binary())
    if not len(array):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offset_bytes, content = array.buffers()
    offsets = np.frombuffer(offset_bytes, np.int64)[array.offset : array.offset + len(array) + 1]
    data: Any = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] if content else np.empty(0, np.uint8)
    return data, offsets - offsets[0]


def _canonical(values: pa.Array, column: Column) -> pa.Array:
    """Return the canonical bytes of values that are not NULL."""
    kind = values.type
    if column.data_type == "decimal":
        return _without_trailing_zeros(_plain_decimals(values) if pa.types.is_decimal(kind) else values)
    if pa.types.is_decimal(kind):  # BIGINT UNSIGNED
        return values.cast(pa.string())
    if pa.types.is_timestamp(kind):
        return values.cast(pa.timestamp("us")).cast(pa.string())
    if pa.types.is_integer(kind) or pa.types.is_date(kind):
        return values.cast(pa.string())
    return values


def _plain_decimals(values: pa.Array) -> pa.Array:
    """Return decimals as text with all digits after the point; Arrow would write small numbers with an exponent."""
    scale = values.type.scale
    whole_type = pa.decimal128(values.type.precision, 0)
    whole = pa.Array.from_buffers(whole_type, len(values), values.buffers(), offset=values.offset).cast(pa.string())
    if scale == 0:
        return whole
    sign = pc.if_else(pc.starts_with(whole, "-"), "-", "")
    digits = pc.ascii_lpad(pc.utf8_ltrim(whole, "-"), scale + 1, "0")
    before, after = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, before, ""), after, ".")


def _without_trailing_zeros(texts: pa.Array) -> pa.Array:
    """Return decimals as text without the zeros at the end that are after the point."""
    trimmed = pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")
    shortened = pc.if_else(pc.match_substring(texts, "."), trimmed, texts)
    return pc.if_else(pc.equal(shortened, "-0"), "0", shortened)
