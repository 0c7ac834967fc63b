"""Packed values that rows and JSON documents share: decimals, dates and times."""

from __future__ import annotations

from typing import NamedTuple

#: Bytes that hold 0 to 9 decimal digits.
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_size(precision: int, scale: int) -> int:
    """Bytes of a packed DECIMAL(precision, scale)."""
    whole = precision - scale
    return whole // 9 * 4 + _DIGIT_BYTES[whole % 9] + scale // 9 * 4 + _DIGIT_BYTES[scale % 9]


def decimal_text(data: bytes, precision: int, scale: int) -> str:
    """Text of a packed decimal as the server prints it, such as ``-0.50``.

    Digits stand in groups of nine, four bytes each, the odd group outermost on both sides. The top bit is the sign,
    upside down, and all bits of a negative number are inverted.

    :param data: exactly :func:`decimal_size` bytes.
    """
    negative = not data[0] & 0x80
    raw = bytes([data[0] ^ 0x80]) + data[1:]
    if negative:
        raw = bytes(byte ^ 0xFF for byte in raw)
    whole = precision - scale
    groups = [whole % 9] + [9] * (whole // 9) + [9] * (scale // 9) + [scale % 9]
    digits, at = "", 0
    for group in groups:
        if group:
            size = _DIGIT_BYTES[group]
            digits += f"{int.from_bytes(raw[at : at + size], 'big'):0{group}d}"
            at += size
    text = digits[:whole].lstrip("0") or "0"
    if scale:
        text += f".{digits[whole:]}"
    return f"-{text}" if negative else text


class Moment(NamedTuple):
    """Parts of a date with time; parts of zero dates are zero."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    micros: int


def unpack_moment(packed: int, fraction: int = 0) -> Moment:
    """Parts of a DATETIME from its packed form without the fraction.

    :param packed: year*13+month, day, hour, minute, second in 17+5+5+6+6 bits.
    :param fraction: microseconds.
    """
    year, month = divmod(packed >> 22, 13)
    return Moment(year, month, packed >> 17 & 31, packed >> 12 & 31, packed >> 6 & 63, packed & 63, fraction)


def unpack_time(packed: int) -> tuple[int, int, int]:
    """Hours, minutes and seconds of a TIME without sign and fraction."""
    return packed >> 12 & 1023, packed >> 6 & 63, packed & 63
