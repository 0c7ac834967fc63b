"""Convert MySQL's binary JSON to text exactly as the server does.

The text is identical to the server's: keys in stored order, a space after each comma and colon, doubles in the server's
format, and SQL values inside a document (decimals, dates, binary) as the server prints them.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator

from airflow_provider_cdc.mysql.binlog.events.wire_types import DATE, DATETIME, NEWDECIMAL, TIME, TIMESTAMP
from airflow_provider_cdc.mysql.binlog.plain.values import decimal_size, decimal_text, unpack_datetime, unpack_time

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = 0, 1, 2, 3, 4
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING, _OPAQUE = 5, 6, 7, 8, 9, 10, 11, 12, 15
_LITERALS = {0: "null", 1: "true", 2: "false"}
_INTEGERS = {
    _INT16: (2, True),
    _UINT16: (2, False),
    _INT32: (4, True),
    _UINT32: (4, False),
    _INT64: (8, True),
    _UINT64: (8, False),
}
_ESCAPES = {i: f"\\u{i:04x}" for i in range(32)} | {
    ord(char): escaped
    for char, escaped in {
        '"': '\\"',
        "\\": "\\\\",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
    }.items()
}
#: Maximum depth of a document, as in the server.
MAX_DEPTH = 100


def json_text(data: bytes) -> str:
    """Convert a binary JSON document to text, like the server's ``CAST(document AS CHAR)``.

    :param data: the stored document. An empty one is the JSON ``null``, as in the server.
    :raises ValueError: if the document is damaged.
    """
    if not data:
        return "null"
    try:
        return "".join(_print_value(data[0], memoryview(data)[1:], 0))
    except (IndexError, KeyError, struct.error) as error:
        raise ValueError(f"damaged JSON document: {error}") from None


def _print_value(kind: int, data: memoryview, depth: int) -> Iterator[str]:
    """Print the value at the start of ``data``, to which its offsets are relative."""
    if kind <= _LARGE_ARRAY:
        if depth >= MAX_DEPTH:
            raise ValueError("damaged JSON document: too deep")
        yield from _print_container(kind, data, depth)
    elif kind == _LITERAL:
        yield _LITERALS[data[0]]
    elif kind in _INTEGERS:
        size, signed = _INTEGERS[kind]
        yield str(int.from_bytes(_slice_exactly(data, 0, size), "little", signed=signed))
    elif kind == _DOUBLE:
        yield format_double(struct.unpack_from("<d", data)[0])
    elif kind == _STRING:
        size, at = _read_length(data, 0)
        yield _quote_json(_slice_exactly(data, at, size).decode())
    elif kind == _OPAQUE:
        size, at = _read_length(data, 1)
        yield _print_opaque(data[0], _slice_exactly(data, at, size))
    else:
        raise ValueError(f"damaged JSON document: unknown type {kind}")


def _print_container(kind: int, data: memoryview, depth: int) -> Iterator[str]:
    width = 4 if kind in (_LARGE_OBJECT, _LARGE_ARRAY) else 2
    is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)

    def number(at: int, size: int = width) -> int:
        return int.from_bytes(_slice_exactly(data, at, size), "little")

    count, size = number(0), number(width)
    if size > len(data):
        raise ValueError("damaged JSON document: cut off")
    keys = 2 * width
    values = keys + (count * (width + 2) if is_object else 0)
    yield "{" if is_object else "["
    for i in range(count):
        if i:
            yield ", "
        if is_object:
            entry = keys + i * (width + 2)
            yield _quote_json(_slice_exactly(data, number(entry), number(entry + width, 2)).decode())
            yield ": "
        entry = values + i * (1 + width)
        inner = data[entry]
        # Small values are inlined in the entry, others are at an offset.
        if inner in (_LITERAL, _INT16, _UINT16) or (width == 4 and inner in (_INT32, _UINT32)):
            yield from _print_value(inner, data[entry + 1 : entry + 1 + width], depth + 1)
        else:
            yield from _print_value(inner, data[number(entry + 1) : size], depth + 1)
    yield "}" if is_object else "]"


def _slice_exactly(data: memoryview, at: int, size: int) -> bytes:
    part = bytes(data[at : at + size])
    if len(part) != size:
        raise ValueError("damaged JSON document: cut off")
    return part


def _read_length(data: memoryview, at: int) -> tuple[int, int]:
    """Return a length stored in groups of seven bits, lowest first, and the offset after it."""
    size = 0
    for i in range(5):
        byte = data[at + i]
        size |= (byte & 0x7F) << 7 * i
        if not byte & 0x80:
            return size, at + i + 1
    raise ValueError("damaged JSON document: length")


def _quote_json(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def format_double(value: float) -> str:
    """Format a double as the server does in JSON, with the fewest digits that parse to the same number.

    An exponent is used if the decimal point is more than 14 places before the first digit, or more than 15 places after
    it and not before the last digit. Otherwise the form is plain, and a number without a fraction ends in ``.0``.

    :raises ValueError: for infinity and NaN, which the server does not store.
    """
    if not math.isfinite(value):
        raise ValueError("damaged JSON document: not a number")
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return f"{sign}0.0"
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # Place of the decimal point relative to the first non-zero digit: the value is 0.d1d2... times ten to this power.
    point = int(exponent or 0) + (len(whole) if whole != "0" else len(fraction.lstrip("0")) - len(fraction))
    digits = digits.rstrip("0")
    if point < -14 or (point > 15 and point >= len(digits)):
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}.0"
    return f"{sign}{digits[:point]}.{digits[point:]}"


def _print_opaque(kind: int, data: bytes) -> str:
    """Return the text of an SQL value inside a document."""
    if kind == NEWDECIMAL:
        precision, scale = data[0], data[1]
        if len(data) != 2 + decimal_size(precision, scale):
            raise ValueError("damaged JSON document: decimal")
        return decimal_text(data[2:], precision, scale)
    if kind in (DATE, DATETIME, TIMESTAMP, TIME):
        packed = int.from_bytes(data, "little", signed=True)
        size = abs(packed)
        micros = size & 0xFF_FFFF
        if kind == TIME:
            hours, minutes, seconds = unpack_time(size >> 24)
            sign = "-" if packed < 0 else ""
            return f'"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}.{micros:06d}"'
        moment = unpack_datetime(size >> 24)
        day = f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}"
        if kind == DATE:
            return f'"{day}"'
        return f'"{day} {moment.hour:02d}:{moment.minute:02d}:{moment.second:02d}.{micros:06d}"'
    # The server breaks base64 into lines of 76 characters, and escapes the line ends like any others.
    text = base64.b64encode(data).decode()
    return _quote_json(f"base64:type{kind}:" + "\n".join(text[i : i + 76] for i in range(0, len(text), 76)))
