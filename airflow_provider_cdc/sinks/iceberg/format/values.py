"""Single values: binary for the bounds of columns and partitions, JSON for defaults of columns.

A value has the form in which Avro stores it: an ``int`` for numbers, days since 1970 for a date, microseconds (or
nanoseconds) since 1970 for a timestamp, the unscaled number for a decimal; ``bytes`` for ``binary``, ``fixed`` and
``uuid``. Python's own dates do not reach from the year 0 on, and its decimals round.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.iceberg.format.types import PrimitiveType

_PACKED = {
    "boolean": "<?",
    "int": "<i",
    "long": "<q",
    "float": "<f",
    "double": "<d",
    "date": "<i",
    "time": "<q",
    "timestamp": "<q",
    "timestamptz": "<q",
    "timestamp_ns": "<q",
    "timestamptz_ns": "<q",
}
#: Types of bounds that were written before the column was promoted, by type of the column and number of bytes.
_BEFORE_PROMOTION = {
    ("long", 4): "int",
    ("double", 4): "float",
    ("timestamp", 4): "date",
    ("timestamp_ns", 4): "date",
}
_TIME_UNITS: Mapping[str, Any] = {
    "date": "D",
    "timestamp": "us",
    "timestamptz": "us",
    "timestamp_ns": "ns",
    "timestamptz_ns": "ns",
}
_DAY_TO_UNIT = {"us": 86_400 * 10**6, "ns": 86_400 * 10**9}


def encode_value(kind: PrimitiveType, value: Any) -> bytes:
    """Return the binary form of a value.

    :raises TerminalError: if the type has none.
    """
    if kind.name in _PACKED:
        return struct.pack(_PACKED[kind.name], value)
    if kind.decimal_digits:
        return encode_unscaled(value)
    if kind.name == "string":
        return str(value).encode()
    if kind.name in ("binary", "uuid") or kind.fixed_length is not None:
        return bytes(value)
    raise _unknown_value_error(kind)


def decode_value(kind: PrimitiveType, data: bytes) -> Any:
    """Return the value with a binary form, which may be of the type that the column had before it was promoted.

    :raises TerminalError: if the type has none, or it is damaged.
    """
    name = _BEFORE_PROMOTION.get((kind.name, len(data)), kind.name)
    try:
        if name in _PACKED:
            (value,) = struct.unpack(_PACKED[name], data)
            if name == "date" and kind.name != "date":
                value *= _DAY_TO_UNIT[_TIME_UNITS[kind.name]]
            return value
        if kind.decimal_digits:
            return int.from_bytes(data, "big", signed=True)
        if name == "string":
            return data.decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise TerminalError(
            f"a bound of a column of type {kind} is damaged: {error}", "Restore the manifest from a backup"
        ) from None
    if name in ("binary", "uuid") or kind.fixed_length is not None:
        return data
    raise _unknown_value_error(kind)


def encode_unscaled(value: int) -> bytes:
    """Return an unscaled decimal in as few bytes as possible: two's complement, most significant byte first."""
    return value.to_bytes(((value if value >= 0 else ~value).bit_length() // 8) + 1, "big", signed=True)


def value_to_json(kind: PrimitiveType, value: Any) -> Any:
    """Return the JSON form of a value, as used for defaults of columns.

    :raises TerminalError: if the type has none.
    """
    name = kind.name
    if name in ("boolean", "int", "long", "string"):
        return value
    if name in ("float", "double"):
        if not np.isfinite(value):
            raise TerminalError(f"an Iceberg column cannot have the default value {value}", "Change the default value")
        return float(value)
    if digits := kind.decimal_digits:
        return _decimal_text(value, digits[1])
    if name == "date":
        return str(np.datetime64(value, "D"))
    if name in _TIME_UNITS:
        text = str(np.datetime64(value, _TIME_UNITS[name]))
        return f"{text}+00:00" if name.startswith("timestamptz") else text
    if name == "time":
        return str(np.datetime64(value, "us")).partition("T")[2]
    if name == "uuid":
        return str(uuid.UUID(bytes=bytes(value)))
    if name == "binary" or kind.fixed_length is not None:
        return bytes(value).hex()
    raise _unknown_value_error(kind)


def value_from_json(kind: PrimitiveType, value: Any) -> Any:
    """Inverse of :func:`value_to_json`.

    :raises TerminalError: if the type has none.
    """
    name = kind.name
    if name in ("boolean", "int", "long", "string", "float", "double"):
        return value
    if digits := kind.decimal_digits:
        whole, _, fraction = str(value).partition(".")
        return int(whole + fraction.ljust(digits[1], "0"))
    if name in _TIME_UNITS:
        unit = _TIME_UNITS[name]
        return int(np.datetime64(str(value).removesuffix("+00:00").removesuffix("Z"), unit).astype(np.int64))
    if name == "time":
        return int(np.datetime64(f"1970-01-01T{value}", "us").astype(np.int64))
    if name == "uuid":
        return uuid.UUID(value).bytes
    if name == "binary" or kind.fixed_length is not None:
        return bytes.fromhex(value)
    raise _unknown_value_error(kind)


def array_from_json(kind: PrimitiveType, value: Any, arrow_type: pa.DataType) -> pa.Array:
    """Return an array of one value with a JSON form.

    :param arrow_type: Arrow type of the values of the type.
    :raises TerminalError: if the JSON is not one of the type.
    """
    try:
        if kind.decimal_digits:
            return pa.array([Decimal(value)], arrow_type)
        return pa.array([value_from_json(kind, value)], arrow_type)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
        raise TerminalError(
            f"the default value {value!r} of a column of type {kind} is damaged: {error}",
            "Restore the table's metadata from a backup",
        ) from None


def values_of_array(array: pa.Array) -> list[Any]:
    """Return the values of an Arrow array, ``None`` for NULL. For arrays of a few values, such as partitions."""
    kind = array.type
    if pa.types.is_date32(kind):
        array = array.cast(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        array = array.cast(pa.int64())
    values: list[Any] = array.to_pylist()
    if pa.types.is_decimal(kind):
        return [None if value is None else _unscaled_number(value, kind.scale) for value in values]
    return values


def _unscaled_number(value: Any, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (exponent + scale)
    return -number if sign else number


def _decimal_text(unscaled: int, scale: int) -> str:
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}" if scale else f"{sign}{digits}"


def _unknown_value_error(kind: PrimitiveType) -> TerminalError:
    return TerminalError(
        f"single values of the Iceberg type {kind} are not supported", "Install a newer version of this software"
    )
