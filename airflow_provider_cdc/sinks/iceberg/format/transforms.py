"""Partition transforms of Arrow arrays, exactly as the specification has them. NULL stays NULL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.iceberg.format.types import PrimitiveType

_WITH_WIDTH = re.compile(r"(bucket|truncate)\[(\d+)\]")
_MAX_WIDTH = (1 << 31) - 1
_DATE_PARTS = ("year", "month", "day", "hour")
_TIMESTAMPS = ("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns")
#: Types of columns that a transform takes; other transforms take all types.
_SOURCE_TYPES = {
    "bucket": {"int", "long", "decimal", "date", "time", *_TIMESTAMPS, "string", "uuid", "fixed", "binary"},
    "truncate": {"int", "long", "decimal", "string", "binary"},
    **{part: {"date", *_TIMESTAMPS} for part in ("year", "month", "day")},
    "hour": set(_TIMESTAMPS),
}
_NUMPY_UNITS = {"year": "Y", "month": "M", "day": "D", "hour": "h"}


@dataclass(frozen=True)
class Transform:
    """How a column becomes a partition value.

    :param text: its JSON, such as ``bucket[16]``.
    """

    text: str

    @cached_property
    def kind(self) -> str:
        """``identity``, ``bucket``, ``truncate``, ``year``, ``month``, ``day``, ``hour``, ``void`` or unknown."""
        match = _WITH_WIDTH.fullmatch(self.text)
        return match[1] if match else self.text

    @cached_property
    def width(self) -> int:
        """Number of buckets, or width of a truncation; 0 for other transforms."""
        match = _WITH_WIDTH.fullmatch(self.text)
        return int(match[2]) if match else 0

    @property
    def is_known(self) -> bool:
        """Whether this version can compute it."""
        if self.kind in _SOURCE_TYPES and self.kind not in _DATE_PARTS:
            return 0 < self.width <= _MAX_WIDTH
        return self.kind in ("identity", "void", *_DATE_PARTS)

    def accepts_type(self, source: PrimitiveType) -> bool:
        """Return whether it can be applied to a type."""
        if not self.is_known:
            return False
        return self.kind not in _SOURCE_TYPES or re.split(r"[(\[]", source.name)[0] in _SOURCE_TYPES[self.kind]

    def result_type(self, source: PrimitiveType) -> PrimitiveType:
        """Return the type of its results."""
        if self.kind == "day":
            return PrimitiveType("date")
        return PrimitiveType("int") if self.kind in ("bucket", "year", "month", "hour") else source

    def apply(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Return the partition value of each row.

        :raises TerminalError: if the transform is unknown, or does not take this type.
        """
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if self.is_known:
            if self.kind == "identity":
                return values
            if self.kind == "void":
                return pa.nulls(len(values), values.type)
            if self.kind == "bucket" and (hashes := hash_column(values)) is not None:
                buckets = (hashes & np.int32(0x7FFFFFFF)) % np.int32(self.width)
                return _with_nulls_of(values, pa.array(buckets))
            if self.kind == "truncate" and (truncated := _truncate_column(values, self.width)) is not None:
                return truncated
            if self.kind in _DATE_PARTS and (part := _date_part(values, self.kind)) is not None:
                return part
        raise TerminalError(
            f"the partition transform {self.text} cannot be computed for values of type {values.type}",
            "Other software has partitioned the table: replace the field by a transform of this version of the format",
        )


def hash_column(values: pa.Array) -> Any:
    """Return the 32-bit hashes of a column as an int32 array, arbitrary for NULL; ``None`` if it has none."""
    from airflow_provider_cdc.native import murmur3

    kind = values.type
    if pa.types.is_date32(kind):
        values, kind = values.cast(pa.int32()), pa.int32()
    elif pa.types.is_time64(kind) or pa.types.is_timestamp(kind):
        per_microsecond = 1000 if kind.unit == "ns" else 1
        if kind.unit not in ("us", "ns"):
            return None
        numbers = _integers_of(values.cast(pa.int64())) // per_microsecond
        values, kind = _with_nulls_of(values, pa.array(numbers)), pa.int64()
    if pa.types.is_signed_integer(kind):
        data = np.ascontiguousarray(_integers_of(values).astype("<i8")).view(np.uint8)
        starts = np.arange(len(values), dtype=np.int64) * 8
        stops = starts + 8
    elif pa.types.is_decimal128(kind):
        data, starts, stops = _minimal_big_endian(_decimal_words(values))
    elif pa.types.is_fixed_size_binary(kind):
        data = np.frombuffer(values.buffers()[1] or b"", np.uint8)
        starts = (np.arange(len(values), dtype=np.int64) + values.offset) * kind.byte_width
        stops = starts + kind.byte_width
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offset_buffer, data_buffer = values.buffers()
        offsets = np.frombuffer(offset_buffer or bytes(4), np.int32)[values.offset :][: len(values) + 1]
        data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
        positions = offsets.astype(np.int64) - offsets[0]
        starts, stops = positions[:-1], positions[1:]
    else:
        return None
    hashes = np.empty(len(values), np.int32)
    murmur3.hash_bytes(np.require(data, requirements="W"), starts, stops, hashes)
    return hashes


def _truncate_column(values: pa.Array, width: int) -> pa.Array | None:
    kind = values.type
    if pa.types.is_signed_integer(kind):
        numbers = _integers_of(values)
        # The remainder of numpy is never negative. What does not fit wraps, as in Java.
        return _with_nulls_of(values, pa.array(numbers - numbers % numbers.dtype.type(width)))
    if pa.types.is_decimal128(kind):
        return _with_nulls_of(values, _truncate_decimals(_decimal_words(values), width, kind))
    if pa.types.is_string(kind):
        return pc.utf8_slice_codeunits(values, 0, width)
    if pa.types.is_binary(kind):
        return pc.binary_slice(values, 0, width)
    return None


def _date_part(values: pa.Array, part: str) -> pa.Array | None:
    """Return years, months, days or hours since 1970."""
    kind = values.type
    if pa.types.is_date32(kind) and part != "hour":
        dates = _integers_of(values.cast(pa.int32())).astype("M8[D]")
    elif pa.types.is_timestamp(kind) and kind.unit in ("us", "ns"):
        dates = _integers_of(values.cast(pa.int64())).astype(f"M8[{kind.unit}]")
    else:
        return None
    numbers = pa.array(dates.astype(f"M8[{_NUMPY_UNITS[part]}]").astype(np.int64).astype(np.int32))
    return _with_nulls_of(values, numbers.cast(pa.date32()) if part == "day" else numbers)


def _integers_of(values: pa.Array) -> Any:
    """Return integers as a numpy array, 0 for NULL. Small ones get the 32 bits with which they are stored."""
    if values.type in (pa.int8(), pa.int16()):
        values = values.cast(pa.int32())
    return values.fill_null(0).to_numpy(zero_copy_only=False)


def _with_nulls_of(values: pa.Array, results: pa.Array) -> pa.Array:
    return pc.if_else(values.is_valid(), results, None) if values.null_count else results


def _decimal_words(values: pa.Array) -> Any:
    """Return unscaled values of 128 bits as an array of shape (rows, 2): the low word, then the high one."""
    words = np.frombuffer(values.buffers()[1] or b"", "<u8").reshape(-1, 2)
    return words[values.offset : values.offset + len(values)]


def _minimal_big_endian(words: Any) -> tuple[Any, Any, Any]:
    """Return each number in as few bytes as possible: the data, and where each number starts and ends in it."""
    big_endian = np.ascontiguousarray(np.ascontiguousarray(words).view(np.uint8).reshape(-1, 16)[:, ::-1])
    sign = np.where(big_endian[:, :1] & 0x80, np.uint8(0xFF), np.uint8(0))
    # A byte is superfluous if it, all before it, and the highest bit of the next one are the sign.
    is_sign = (big_endian[:, :15] == sign) & ((big_endian[:, 1:] ^ sign) < 0x80)
    superfluous = np.logical_and.accumulate(is_sign, axis=1).sum(axis=1)
    ends = np.arange(1, len(words) + 1, dtype=np.int64) * 16
    return big_endian.reshape(-1), ends - 16 + superfluous, ends


def _truncate_decimals(words: Any, width: int, kind: pa.DataType) -> pa.Array:
    low, high = words[:, 0].copy(), words[:, 1].copy()
    remainder, modulus = np.zeros(len(words), np.uint64), np.uint64(width)
    for part in (
        high >> np.uint64(32),
        high & np.uint64(0xFFFFFFFF),
        low >> np.uint64(32),
        low & np.uint64(0xFFFFFFFF),
    ):
        remainder = ((remainder << np.uint64(32)) | part) % modulus
    # So far the remainder of the number without a sign, which is 2^128 too high if the number is negative.
    excess = np.uint64(pow(2, 128, width))
    remainder = np.where(high >> np.uint64(63), (remainder + modulus - excess) % modulus, remainder)
    truncated = np.stack([low - remainder, high - (low < remainder).astype(np.uint64)], axis=1)
    return pa.Array.from_buffers(kind, len(words), [None, pa.py_buffer(np.ascontiguousarray(truncated))])
