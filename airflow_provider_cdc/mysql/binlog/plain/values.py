"""Packed values that rows and JSON documents share: decimals, dates and times."""

from __future__ import annotations

from typing import NamedTuple

#: Bytes that hold 0 to 9 decimal digits.
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)

#: Bytes of dates and times in the format of MariaDB 5.3, by digits of the fraction.
OLD_TEMPORAL_SIZES = {
    "datetime": (8, 6, 6, 7, 7, 7, 8),
    "timestamp": (4, 5, 5, 6, 6, 7, 7),
    "time": (3, 4, 4, 5, 5, 5, 6),
}
#: Seconds by which a TIME with a fraction is shifted there, so that it is never negative: one more than the most.
_OLD_TIME_SHIFT = 838 * 3600 + 59 * 60 + 60


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


class DateTimeParts(NamedTuple):
    """Parts of a date with time; parts of zero dates are zero."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    micros: int


def unpack_datetime(packed: int, fraction: int = 0) -> DateTimeParts:
    """Parts of a DATETIME from its packed form without the fraction.

    :param packed: year*13+month, day, hour, minute, second in 17+5+5+6+6 bits.
    :param fraction: microseconds.
    """
    year, month = divmod(packed >> 22, 13)
    return DateTimeParts(year, month, packed >> 17 & 31, packed >> 12 & 31, packed >> 6 & 63, packed & 63, fraction)


def unpack_time(packed: int) -> tuple[int, int, int]:
    """Hours, minutes and seconds of a TIME without sign and fraction."""
    return packed >> 12 & 1023, packed >> 6 & 63, packed & 63


def unpack_old_datetime(raw: bytes, digits: int) -> DateTimeParts:
    """A DATETIME of MariaDB 5.3: without a fraction YYYYMMDDhhmmss as a number, else all parts packed into one.

    :param digits: of the fraction.
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


def unpack_old_timestamp(raw: bytes, digits: int) -> tuple[int, int]:
    """Seconds and microseconds of a TIMESTAMP of MariaDB 5.3."""
    if not digits:
        return int.from_bytes(raw, "little"), 0
    return int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:], "big") * 10 ** (6 - digits)


def unpack_old_time(raw: bytes, digits: int) -> int:
    """Microseconds of a TIME of MariaDB 5.3: without a fraction hhmmss as a number with a sign."""
    if not digits:
        number = int.from_bytes(raw, "little", signed=True)
        size = abs(number)
        seconds = size // 10_000 * 3600 + size // 100 % 100 * 60 + size % 100
        return (-seconds if number < 0 else seconds) * 1_000_000
    return (int.from_bytes(raw, "big") - _OLD_TIME_SHIFT * int(10**digits)) * int(10 ** (6 - digits))
