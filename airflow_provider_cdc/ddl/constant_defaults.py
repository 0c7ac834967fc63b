"""Which value existing rows get in a new column: only what is certainly the same in the source and in the copy."""

from __future__ import annotations

import datetime
import re
from contextlib import suppress

from airflow_provider_cdc.ddl.column_parser import ColumnDefinition
from airflow_provider_cdc.ddl.token_cursor import DdlNotFollowed
from airflow_provider_cdc.model.schema import Column

_INTEGER_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_DECIMAL = re.compile(r"(-?)([0-9]{1,65})(?:\.([0-9]{1,30}))?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATETIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,6}))?")
_TEXT_TYPES = ("varchar", "char")


def constant_default(definition: ColumnDefinition, where: str) -> str | None:
    """Return the value of a new column in all existing rows, as text; ``None`` for NULL.

    :param where: clause and column, for messages.
    :raises DdlNotFollowed: if the value is not certain, or may have another form in the copy.
    """
    literal, column = definition.default, definition.column
    if literal is None:
        if definition.nullability is not False:
            return None
        value = _implicit_default(column)
    else:
        value = None if literal.text is None else _exact_value(column, literal.text, literal.is_quoted)
    if value is None:
        raise DdlNotFollowed(f"{where}: existing rows get a value that is not certain")
    return value


def _implicit_default(column: Column) -> str | None:
    """Return what existing rows get in a column that is NOT NULL and has no DEFAULT; ``None`` if it is not certain."""
    if column.data_type in _INTEGER_BYTES or column.data_type == "decimal":
        return "0"
    return "" if column.data_type in _TEXT_TYPES else None


def _exact_value(column: Column, text: str, is_quoted: bool) -> str | None:
    """Return the value that a column has for a literal; ``None`` if it is not certain."""
    kind = column.data_type
    if kind in _INTEGER_BYTES:
        return _exact_integer(column, text)
    if kind == "decimal":
        return _exact_decimal(column, text)
    if not is_quoted:
        return None
    if kind in _TEXT_TYPES:
        return _exact_text(column, text)
    if kind == "enum":
        return text if text in column.members and text.isascii() else None
    with suppress(ValueError):
        if kind == "date" and _DATE.fullmatch(text):
            return datetime.date.fromisoformat(text).isoformat()
        if kind == "datetime" and (match := _DATETIME.fullmatch(text)) and len(match[2] or "") <= column.fsp:
            datetime.datetime.fromisoformat(match[1])
            return text
    return None


def _exact_integer(column: Column, text: str) -> str | None:
    if not _INTEGER.fullmatch(text):
        return None
    bits, value = 8 * _INTEGER_BYTES[column.data_type], int(text)
    low, high = (0, 2**bits - 1) if column.is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return str(value) if low <= value <= high else None


def _exact_decimal(column: Column, text: str) -> str | None:
    match = _DECIMAL.fullmatch(text)
    precision, scale = column.precision or 10, column.scale or 0
    if match is None or precision > 38:  # longer ones are text in the copy
        return None
    whole, fraction = match[2].lstrip("0"), (match[3] or "").rstrip("0")
    if len(whole) > precision - scale or len(fraction) > scale or (match[1] and column.is_unsigned):
        return None
    digits = f"{whole or '0'}{'.' + fraction if fraction else ''}"
    return digits if not whole and not fraction else match[1] + digits


def _exact_text(column: Column, text: str) -> str | None:
    """Other than ASCII depends on character sets; CHAR loses the spaces at its end."""
    is_plain = text.isascii() and text.isprintable()
    if not is_plain or len(text) > (column.length or 0) or (column.data_type == "char" and text.endswith(" ")):
        return None
    return text
