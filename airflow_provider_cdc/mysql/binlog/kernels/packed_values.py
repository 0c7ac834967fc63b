"""Compiled readers of packed decimals, dates and times in row images.

Callers check that all bytes are present. Readers that return a pair return the value and DONE, or why there is none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.native.primitives import (
    INVALID_DATE,
    days_since_1970,
    inlined,
    read16,
    read32,
    read64,
    store8,
    store64,
)

# As in row_kernel: DONE, INVALID_VALUE and DAMAGED.
_DONE, _VALUE, _DAMAGED = 0, 3, 4
_DAY = 86_400_000_000
_MASK = 0xFFFF_FFFF
# Seconds added to a TIME with a fraction in the format of MariaDB 5.3: one more than its maximum.
_OLD_SHIFT = 838 * 3600 + 59 * 60 + 60


@inlined  # type: ignore[untyped-decorator]
def _read_big_endian(data: Any, at: Any, size: Any) -> Any:
    """Return a number of ``size`` bytes, most significant byte first."""
    number = np.int64(0)
    for i in range(size):
        number = (number << 8) | np.int64(data[at + i])
    return number


@inlined  # type: ignore[untyped-decorator]
def _power_of_ten(digits: Any) -> Any:
    power = np.int64(1)
    for _ in range(digits):
        power *= 10
    return power


@inlined  # type: ignore[untyped-decorator]
def _fraction_micros(fraction: Any, size: Any) -> Any:
    """Return the microseconds of a fraction of 0 to 3 bytes, with two digits per byte."""
    return fraction * 10_000 if size == 1 else (fraction * 100 if size == 2 else fraction)


@inlined  # type: ignore[untyped-decorator]
def read_date(data: Any, at: Any) -> Any:
    """Read a DATE as days since 1970-01-01."""
    bits = np.int64(read16(data, at)) | np.int64(data[at + 2]) << 16
    days = days_since_1970(bits >> 9, bits >> 5 & 15, bits & 31)
    return (np.int64(0), _VALUE) if days == INVALID_DATE else (days, _DONE)


@inlined  # type: ignore[untyped-decorator]
def read_datetime(data: Any, at: Any, fraction: Any) -> Any:
    """Read a DATETIME as microseconds since 1970-01-01 00:00:00, without a time zone."""
    bits = _read_big_endian(data, at, 5) - (1 << 39)
    micros = _fraction_micros(_read_big_endian(data, at + 5, fraction), fraction)
    if bits < 0:
        return np.int64(0), _VALUE
    months, hour, minute, second = bits >> 22, bits >> 12 & 31, bits >> 6 & 63, bits & 63
    days = days_since_1970(months // 13, months % 13, bits >> 17 & 31)
    if days == INVALID_DATE:
        return np.int64(0), _VALUE
    if hour > 23 or minute > 59 or second > 59 or micros > 999_999:
        return np.int64(0), _DAMAGED
    return days * _DAY + ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros, _DONE


@inlined  # type: ignore[untyped-decorator]
def read_timestamp(data: Any, at: Any, fraction: Any) -> Any:
    """Read a TIMESTAMP as microseconds since 1970-01-01 00:00:00 UTC."""
    seconds, micros = (
        _read_big_endian(data, at, 4),
        _fraction_micros(_read_big_endian(data, at + 4, fraction), fraction),
    )
    if seconds == 0 and micros == 0:
        return np.int64(0), _VALUE
    if micros > 999_999:
        return np.int64(0), _DAMAGED
    return seconds * 1_000_000 + micros, _DONE


@inlined  # type: ignore[untyped-decorator]
def read_time(data: Any, at: Any, fraction: Any) -> Any:
    """Read a TIME as microseconds; seconds and fraction form one number, offset so that it is never negative."""
    bits = _read_big_endian(data, at, 3 + fraction) - (np.int64(0x80_0000) << 8 * fraction)
    size = abs(bits)
    whole = size >> 8 * fraction
    micros = _fraction_micros(size & ((np.int64(1) << 8 * fraction) - 1), fraction)
    hour, minute, second = whole >> 12, whole >> 6 & 63, whole & 63
    if hour > 838 or minute > 59 or second > 59 or micros > 999_999:
        return np.int64(0), _DAMAGED
    total = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros
    return -total if bits < 0 else total, _DONE


@inlined  # type: ignore[untyped-decorator]
def read_old_datetime(data: Any, at: Any, size: Any, digits: Any) -> Any:
    """Read a DATETIME in the format of MariaDB 5.3, like :func:`read_datetime`; see ``values.unpack_old_datetime``."""
    micros = np.int64(0)
    if digits == 0:
        rest = np.int64(read64(data, at))
        second, minute, hour = rest % 100, rest // 100 % 100, rest // 10_000 % 100
        day, month, year = rest // 1_000_000 % 100, rest // 100_000_000 % 100, rest // 10_000_000_000
    else:
        rest, scale = _read_big_endian(data, at, size), _power_of_ten(digits)
        micros = rest % scale * _power_of_ten(6 - digits)
        rest //= scale
        second, minute, hour = rest % 60, rest // 60 % 60, rest // 3600 % 24
        rest //= 86_400
        day, month, year = rest % 32, rest // 32 % 13, rest // 416
    days = days_since_1970(year, month, day)
    if days == INVALID_DATE:
        return np.int64(0), _VALUE
    if hour > 23 or minute > 59 or second > 59:
        return np.int64(0), _DAMAGED
    return days * _DAY + ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros, _DONE


@inlined  # type: ignore[untyped-decorator]
def read_old_timestamp(data: Any, at: Any, size: Any, digits: Any) -> Any:
    """Read a TIMESTAMP in the format of MariaDB 5.3, like :func:`read_timestamp`."""
    micros = np.int64(0)
    if digits == 0:
        seconds = np.int64(read32(data, at))
    else:
        seconds = _read_big_endian(data, at, 4)
        micros = _read_big_endian(data, at + 4, size - 4) * _power_of_ten(6 - digits)
    if seconds == 0 and micros == 0:
        return np.int64(0), _VALUE
    if micros > 999_999:
        return np.int64(0), _DAMAGED
    return seconds * 1_000_000 + micros, _DONE


@inlined  # type: ignore[untyped-decorator]
def read_old_time(data: Any, at: Any, size: Any, digits: Any) -> Any:
    """Read a TIME in the format of MariaDB 5.3, like :func:`read_time`.

    Without a fraction it is the signed number hhmmss; otherwise seconds and fraction form one number, offset so that it
    is never negative.
    """
    if digits == 0:
        number = np.int64(np.int32(read32(data, at) << np.uint32(8))) >> 8
        whole = abs(number)
        if whole // 100 % 100 > 59 or whole % 100 > 59:
            return np.int64(0), _DAMAGED
        total = (whole // 10_000 * 3600 + whole // 100 % 100 * 60 + whole % 100) * 1_000_000
        total = -total if number < 0 else total
    else:
        total = (_read_big_endian(data, at, size) - _OLD_SHIFT * _power_of_ten(digits)) * _power_of_ten(6 - digits)
    if abs(total) >= _OLD_SHIFT * 1_000_000:
        return np.int64(0), _DAMAGED
    return total, _DONE


@inlined  # type: ignore[untyped-decorator]
def _digit_bytes(digits: Any) -> Any:
    """Return the bytes of a group of 0 to 9 digits."""
    return (digits + 1) >> 1 if digits < 9 else np.int64(4)


@inlined  # type: ignore[untyped-decorator]
def _read_digit_group(data: Any, at: Any, size: Any, is_first: Any, flip: Any) -> Any:
    """Return the digits of a group as a number.

    :param is_first: whether it is the decimal's first group, whose top bit is the sign.
    :param flip: 0xFF for a negative decimal, all of whose bits are inverted; otherwise 0.
    """
    number = np.int64(0)
    for i in range(size):
        byte = np.int64(data[at + i]) ^ flip
        if is_first and i == 0:
            byte ^= 0x80
        number = (number << 8) | byte
    return number


@inlined  # type: ignore[untyped-decorator]
def read_decimal(data: Any, at: Any, precision: Any, scale: Any, address: Any) -> Any:
    """Store a packed decimal of up to 38 digits as 128 bits; return ``False`` if it is invalid.

    Digits are in groups of nine, with four bytes each; the shorter groups are outermost on both sides.
    """
    negative = data[at] & 0x80 == 0
    flip = np.int64(0xFF if negative else 0)
    whole = precision - scale
    low, high = np.uint64(0), np.uint64(0)
    head, groups, tail = whole % 9, whole // 9 + scale // 9, scale % 9
    is_first = True
    for g in range(groups + 2):
        digits = head if g == 0 else (tail if g == groups + 1 else np.int64(9))
        if digits == 0:
            continue
        size = _digit_bytes(digits)
        number, power = _read_digit_group(data, at, size, is_first, flip), _power_of_ten(digits)
        if number >= power:
            return False
        is_first = False
        at += size
        # (high, low) * power + number, with a power below 2**30.
        factor = np.uint64(power)
        bottom = (low & np.uint64(_MASK)) * factor + np.uint64(number)
        middle = (low >> np.uint64(32)) * factor + (bottom >> np.uint64(32))
        low = (middle << np.uint64(32)) | (bottom & np.uint64(_MASK))
        high = high * factor + (middle >> np.uint64(32))
    if negative:
        low = ~low + np.uint64(1)
        high = ~high + (np.uint64(1) if low == np.uint64(0) else np.uint64(0))
    store64(address, low)
    store64(address + 8, high)
    return True


@inlined  # type: ignore[untyped-decorator]
def read_long_decimal(data: Any, at: Any, precision: Any, scale: Any, zerofill: Any, address: Any) -> Any:
    """Store a packed decimal as the text that the server prints; return its length, or -1 if it is invalid."""
    negative = data[at] & 0x80 == 0
    flip = np.int64(0xFF if negative else 0)
    whole = precision - scale
    head, groups, tail = whole % 9, whole // 9 + scale // 9, scale % 9
    used, place = np.int64(0), np.int64(0)  # characters written, digits seen
    if negative:
        store8(address, np.uint8(ord("-")))
        used = np.int64(1)
    if whole == 0:
        store8(address + used, np.uint8(ord("0")))
        used += 1
    is_first, leading = True, True
    for g in range(groups + 2):
        digits = head if g == 0 else (tail if g == groups + 1 else np.int64(9))
        if digits == 0:
            continue
        size = _digit_bytes(digits)
        number, power = _read_digit_group(data, at, size, is_first, flip), _power_of_ten(digits)
        if number >= power:
            return np.int64(-1)
        is_first = False
        at += size
        for _ in range(digits):
            if place == whole:
                store8(address + used, np.uint8(ord(".")))
                used += 1
            power //= 10
            digit = number // power
            number -= digit * power
            place += 1
            # Leading zeros are not printed, except for the last one before the point.
            if digit != 0 or place >= whole or zerofill:
                leading = False
            if not leading:
                store8(address + used, np.uint8(ord("0") + digit))
                used += 1
    return used
