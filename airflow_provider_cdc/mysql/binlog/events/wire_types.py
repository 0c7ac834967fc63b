"""The binlog's column type codes, and the layout of a column."""

from __future__ import annotations

from typing import NamedTuple

# Column types of the binlog.
TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT = 10, 11, 12, 13, 14, 15, 16
TIMESTAMP2, DATETIME2, TIME2, VECTOR, JSON, NEWDECIMAL = 17, 18, 19, 242, 245, 246
ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 247, 248, 252, 253, 254, 255
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141  # MariaDB


class WireColumn(NamedTuple):
    """Layout of a column in the binlog.

    :param type: column type code, with ENUM and SET distinguished from STRING.
    :param size: depending on the type: maximum bytes of a string, bytes of a length field, fractional digits, bytes of
        an ENUM or SET, or the size of a BIT (bits of the odd byte, then whole bytes).
    :param precision: total digits of a decimal.
    :param scale: digits of a decimal after the point.
    """

    type: int
    size: int = 0
    precision: int = 0
    scale: int = 0


def read_length_encoded(body: memoryview, at: int) -> tuple[int, int]:
    """Return a length-encoded integer and the offset after it.

    :raises IndexError: if it is cut off or invalid.
    """
    first = body[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first] if first in (252, 253, 254) else 0
    if not size or at + 1 + size > len(body):
        raise IndexError
    return int.from_bytes(body[at + 1 : at + 1 + size], "little"), at + 1 + size
