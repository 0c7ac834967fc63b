"""Primitives for machine code: memory access and the calendar. No bounds are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from airflow_provider_cdc.native.compile import NO_REFCOUNTS

#: Bytes after the end of the data, in the input and in each column, that may be read, and overwritten with arbitrary
#: values: short strings are copied as two words, regardless of their length.
PADDING = 32

INVALID_DATE = -(1 << 40)

inlined: Any = njit(nogil=True, forceinline=True, **NO_REFCOUNTS)
not_inlined: Any = njit(nogil=True, **NO_REFCOUNTS)
_intrinsic: Any = intrinsic
_memcpy: Any = cgutils.raw_memcpy


def _memory_access(width: Any) -> tuple[Any, Any, Any]:
    """Make functions to load from a byte array, load from an address and store at an address.

    :param width: bytes per access.
    """
    number: Any = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64}[width]

    @_intrinsic  # type: ignore[untyped-decorator]
    def take(context: Any, data: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            pointer = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(width * 8).as_pointer())
            return builder.load(pointer, align=1)

        return number(data, types.int64), generate

    @_intrinsic  # type: ignore[untyped-decorator]
    def load(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(builder.inttoptr(args[0], ir.IntType(width * 8).as_pointer()), align=1)

        return number(types.int64), generate

    @_intrinsic  # type: ignore[untyped-decorator]
    def store(context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[1], builder.inttoptr(args[0], ir.IntType(width * 8).as_pointer()), align=1)

        return types.void(types.int64, number), generate

    return take, load, store


_, load8, store8 = _memory_access(1)
read16, _, store16 = _memory_access(2)
read32, load32, store32 = _memory_access(4)
read64, load64, store64 = _memory_access(8)


@_intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(context: Any, address: Any, data: Any, at: Any, size: Any) -> Any:
    """Copy ``size`` bytes of a byte array to an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[1])(context, builder, args[1])
        target = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        _memcpy(builder, target, builder.gep(array.data, [args[2]]), args[3], 1)

    return types.void(types.int64, data, types.int64, types.int64), generate


@inlined  # type: ignore[untyped-decorator]
def days_since_1970(year: Any, month: Any, day: Any) -> Any:
    """Return the days since 1970-01-01; ``INVALID_DATE``, which is below every valid date, if there is no such date."""
    if year < 1 or year > 9999 or month < 1 or month > 12 or day < 1:
        return INVALID_DATE
    last: Any = 30 + ((month + (month >> 3)) & 1)
    if month == 2:
        last = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    if day > last:
        return INVALID_DATE
    # Years that begin in March, counted in eras of 400 years.
    shifted = year - (1 if month <= 2 else 0)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@inlined  # type: ignore[untyped-decorator]
def clear_bit(address: Any, bit: Any) -> Any:
    """Clear a bit of a validity bitmap."""
    byte = address + (bit >> 3)
    store8(byte, np.uint8(load8(byte) & ~(1 << (bit & 7))))
