"""Types of columns as the binlog numbers them, and how a column is laid out."""

from __future__ import annotations

from typing import NamedTuple

# Column types of the binlog.
TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT = 10, 11, 12, 13, 14, 15, 16
TIMESTAMP2, DATETIME2, TIME2, VECTOR, JSON, NEWDECIMAL = 17, 18, 19, 242, 245, 246
ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 247, 248, 252, 253, 254, 255
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141  # MariaDB


class WireColumn(NamedTuple):
    """A column as the binlog lays it out.

    :param type: column type code, ENUM and SET already told from STRING.
    :param size: by type: most bytes of a string, bytes of a length field, fractional digits, bytes of an ENUM or SET,
        bits of a BIT.
    :param precision: digits of a decimal.
    :param scale: digits behind its point.
    """

    type: int
    size: int = 0
    precision: int = 0
    scale: int = 0


def read_length_encoded(body: memoryview, at: int) -> tuple[int, int]:
    """A length-encoded integer and the offset behind it."""
    first = body[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first] if first in (252, 253, 254) else 0
    if not size or at + 1 + size > len(body):
        raise IndexError
    return int.from_bytes(body[at + 1 : at + 1 + size], "little"), at + 1 + size
