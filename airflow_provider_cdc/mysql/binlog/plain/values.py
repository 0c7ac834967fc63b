"""Packed values common to rows and JSON documents: decimals, dates and times."""

from __future__ import annotations

from typing import NamedTuple

#: Bytes needed for 0 to 9 decimal digits.
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)

#: Sizes in bytes of dates and times in the format of MariaDB 5.3, by number of fractional digits.
OLD_TEMPORAL_SIZES = {
    "datetime": (8, 6, 6, 7, 7, 7, 8),
    "timestamp": (4, 5, 5, 6, 6, 7, 7),
    "time": (3, 4, 4, 5, 5, 5, 6),
}


def decimal_size(precision: int, scale: int) -> int:
    """Return the size of a packed DECIMAL(precision, scale) in bytes."""
    whole = precision - scale
    return whole // 9 * 4 + _DIGIT_BYTES[whole % 9] + scale // 9 * 4 + _DIGIT_BYTES[scale % 9]


def decimal_text(data: bytes, precision: int, scale: int) -> str:
    """Return the text of a packed decimal as the server prints it, such as ``-0.50``.

    Digits are in groups of nine, with four bytes each; the shorter groups are outermost on both sides. The top bit is
    the inverted sign, and all bits of a negative number are inverted.

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


class DateTimeParts(NamedTuple):
    """Parts of a date and time; those of zero dates are zero."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    micros: int


def unpack_datetime(packed: int) -> DateTimeParts:
    """Return the parts of a packed DATETIME without its fraction.

    :param packed: year*13+month, day, hour, minute, second in 17+5+5+6+6 bits.
    """
    year, month = divmod(packed >> 22, 13)
    return DateTimeParts(year, month, packed >> 17 & 31, packed >> 12 & 31, packed >> 6 & 63, packed & 63, 0)


def unpack_time(packed: int) -> tuple[int, int, int]:
    """Return hours, minutes and seconds of a packed TIME without sign and fraction."""
    return packed >> 12 & 1023, packed >> 6 & 63, packed & 63


def unpack_old_datetime(raw: bytes, digits: int) -> DateTimeParts:
    """Return the parts of a DATETIME in the format of MariaDB 5.3.

    Without a fraction it is the number YYYYMMDDhhmmss; otherwise all parts are packed into one number.

    :param digits: number of fractional digits.
    """
    if not digits:
        days, clock = divmod(int.from_bytes(raw, "little"), 1_000_000)
        return DateTimeParts(
            days // 10_000, days // 100 % 100, days % 100, clock // 10_000, clock // 100 % 100, clock % 100, 0
        )
    rest, fraction = divmod(int.from_bytes(raw, "big"), 10**digits)
    parts = []
    for size in (60, 60, 24, 32, 13):
        rest, part = divmod(rest, size)
        parts.append(part)
    second, minute, hour, day, month = parts
    return DateTimeParts(rest, month, day, hour, minute, second, fraction * 10 ** (6 - digits))
