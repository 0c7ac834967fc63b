"""A key value about halfway between two others: a proposal for where to cut a key range.

It only has to be a value that the column can be compared with. The server decides whether the value is between the two,
and which keys are on either side. A bad proposal costs nothing but time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.plan import Key, KeyValue
from airflow_provider_cdc.model.schema import BINARY_TYPES, TEXT_TYPES, Column, TableSchema
from airflow_provider_cdc.mysql.client.key_sql import format_time, key_literal, row_literal
from airflow_provider_cdc.mysql.client.session import query_rows

#: Characters (or bytes) that count, from the first one that differs.
_MAX_DIGITS = 12
#: Number of candidate characters between two characters, and the first code point of a candidate.
_LETTERS_BETWEEN, _BEYOND_LATIN = 16, 0x250
_PRINTABLE = "".join(map(chr, range(32, 127)))
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


class Midpoints:
    """Proposes cuts in the key of one table.

    :param connection: connection for querying how characters sort.
    :param table: the table.
    """

    def __init__(self, connection: Connection[Any], table: TableSchema) -> None:
        self._columns = table.key_columns
        self._alphabets = [
            _CollationAlphabet(connection, c) if c.data_type in TEXT_TYPES else None for c in self._columns
        ]

    def propose_cuts(self, ranges: Sequence[tuple[Key, Key]]) -> list[Key | None]:
        """Propose a partial key for each pair of keys: the values they have in common, then one between the next two.

        :param ranges: pairs of a lower and a higher key.
        :returns: for each pair, as many leading values of a key as needed; ``None`` if there is no proposal.
        """
        for i, alphabet in enumerate(self._alphabets):
            if alphabet is not None:
                alphabet.load_characters(
                    [(_decode_key_text(low[i]), _decode_key_text(high[i])) for low, high in ranges]
                )
        return [self._propose_cut(low, high) for low, high in ranges]

    def _propose_cut(self, low: Key, high: Key) -> Key | None:
        for i, (column, alphabet) in enumerate(zip(self._columns, self._alphabets, strict=True)):
            if low[i] != high[i]:
                middle = _middle_text(alphabet, low[i], high[i]) if alphabet else _middle_value(column, low[i], high[i])
                if middle is not None:
                    return (*low[:i], middle)
                # Otherwise the two may be spellings of one value, which differ in the next column.
        return None


def _middle_value(column: Column, low: KeyValue, high: KeyValue) -> KeyValue | None:
    if column.data_type in BINARY_TYPES:
        first, last = bytes.fromhex(str(low)), bytes.fromhex(str(high))
        shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        # A byte is a digit from 1 to 256, and the end of the value is the digit 0.
        digits = _halfway_digits([b + 1 for b in first[shared:]], [b + 1 for b in last[shared:]], 0, 257)
        return None if digits is None else (first[:shared] + bytes(d - 1 for d in digits)).hex()
    try:
        a, b = _to_number(column, low), _to_number(column, high)
        return _from_number(column, (a + b + 1) // 2) if a < b else None
    except (ValueError, OverflowError):
        return None  # such as a zero date


def _to_number(column: Column, value: KeyValue) -> int:
    kind = column.data_type
    if kind == "decimal":
        return int(str(value).replace(".", ""))
    if kind == "date":
        return date.fromisoformat(str(value)).toordinal()
    if kind in {"datetime", "timestamp"}:
        return (datetime.fromisoformat(str(value)) - _EPOCH) // _MICROSECOND
    if kind == "time":
        text = str(value)
        hours, minutes, seconds = text.lstrip("-").split(":")
        whole, _, fraction = seconds.partition(".")
        micros = (int(hours) * 3600 + int(minutes) * 60 + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0"))
        return -micros if text.startswith("-") else micros
    return int(value)


def _from_number(column: Column, number: int) -> KeyValue:
    kind, scale = column.data_type, column.scale or 0
    if kind == "decimal":
        digits = str(abs(number)).rjust(scale + 1, "0")
        sign = "-" if number < 0 else ""
        return f"{sign}{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}".rstrip(".")
    if kind == "date":
        return date.fromordinal(number).isoformat()
    if kind in {"datetime", "timestamp"}:
        return (_EPOCH + number * _MICROSECOND).isoformat(sep=" ", timespec="microseconds")
    if kind == "time":
        return format_time(number)
    return number


class _CollationAlphabet:
    """Characters in the order of a column's collation, as the server sorts them."""

    def __init__(self, connection: Connection[Any], column: Column) -> None:
        self._connection, self._column = connection, column
        self._ranks: dict[str, int] = {}
        self._by_rank: dict[int, str] = {}

    def load_characters(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Query the order of all characters in these texts and of some between them, in one statement if any is new."""
        needed = {"", *_PRINTABLE}
        for low, high in pairs:
            needed.update(low, high, *(_between_letters(a, b) for a, b in zip(low, high, strict=False)))
        if needed <= self._ranks.keys():
            return
        letters = sorted(needed | self._ranks.keys())
        value_rows = ", ".join(
            row_literal(f"{i}, {key_literal(self._column, c.encode().hex())}") for i, c in enumerate(letters)
        )
        ranked = query_rows(
            self._connection, f"WITH a (n, c) AS (VALUES {value_rows}) SELECT n, DENSE_RANK() OVER (ORDER BY c) FROM a"
        )
        self._ranks = {letters[int(str(n))]: int(str(rank)) for n, rank in ranked}
        self._by_rank = {rank: letter for letter, rank in sorted(self._ranks.items(), reverse=True)}

    @property
    def end(self) -> int:
        """The digit for the end of a text, which is not the lowest digit if texts are padded with spaces."""
        return self._ranks[""]

    @property
    def base(self) -> int:
        """The base of the number system: one more than the highest digit."""
        return len(self._by_rank) + 1

    def digits(self, text: str) -> list[int]:
        """Return the ranks of the characters in a text."""
        return [self._ranks[c] for c in text]

    def text(self, digits: Iterable[int]) -> str:
        """Return a text with these digits."""
        return "".join(self._by_rank[d] for d in digits)


def _decode_key_text(value: KeyValue) -> str:
    return bytes.fromhex(str(value)).decode("utf-8", "replace")


def _between_letters(a: str, b: str) -> str:
    """Return some characters between two, by code point. Latin ones are left out, because some sort as several."""
    low, high = sorted((ord(a), ord(b)))
    first = max(low, _BEYOND_LATIN)
    step = max(1, (high - first) // _LETTERS_BETWEEN)
    return "".join(chr(n) for n in range(first, high, step) if not 0xD800 <= n < 0xE000)


def _middle_text(alphabet: _CollationAlphabet, low: KeyValue, high: KeyValue) -> KeyValue | None:
    first, last = _decode_key_text(low), _decode_key_text(high)
    a, b = alphabet.digits(first), alphabet.digits(last)
    shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    digits = _halfway_digits(a[shared:], b[shared:], alphabet.end, alphabet.base)
    return None if digits is None else (first[:shared] + alphabet.text(digits)).encode().hex()


def _halfway_digits(low: Sequence[int], high: Sequence[int], end: int, base: int) -> list[int] | None:
    """Return the number halfway between two numbers of :data:`_MAX_DIGITS` digits; ``None`` unless ``low < high``."""
    a, b = _digits_to_number(low, end, base), _digits_to_number(high, end, base)
    if a >= b:
        return None
    number, digits = (a + b + 1) // 2, list[int]()
    for _ in range(_MAX_DIGITS):
        number, digit = divmod(number, base)
        digits.insert(0, digit)
    # No character has the digit 0, and nothing follows the end.
    stop = next((i for i, digit in enumerate(digits) if digit in (0, end)), _MAX_DIGITS)
    leading_digits = digits[:stop]
    # If no value that can be written is between the two, cut at the higher one.
    return leading_digits if _digits_to_number(leading_digits, end, base) > a else list(high[:_MAX_DIGITS])


def _digits_to_number(digits: Sequence[int], end: int, base: int) -> int:
    number = 0
    for digit in [*digits[:_MAX_DIGITS], *[end] * (_MAX_DIGITS - len(digits))]:
        number = number * base + digit
    return number
