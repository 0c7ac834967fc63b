"""Rows of a copy that the source has deleted (``sink.deletes``): whether they can have other columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

#: Digits that the whole numbers of Arrow have at most.
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


@dataclass(frozen=True)
class RetainedRowsLoss:
    """Rows that ``sink.deletes`` keeps, and that could not stay in a copy of another definition.

    :param reason: what is in the way.
    :param rows: how many would go.
    :param is_exact: whether it is known that all of these would; else it is the most that could.
    """

    reason: str
    rows: int
    is_exact: bool = True

    def __str__(self) -> str:
        count = f"{self.rows:,} row{'' if self.rows == 1 else 's'}"
        deleted = "that the source has deleted (sink.deletes) would go"
        return f"{self.reason}: {count if self.is_exact else 'those'} {deleted}" + (
            "" if self.is_exact else f", and which of its {count} these are is not known"
        )


def why_not_retainable(old: pa.Schema, old_key: Sequence[str], new: pa.Schema, new_key: Sequence[str]) -> str | None:
    """Why rows that were written under one definition cannot be rows under another one, ``None`` if they can.

    A column that is gone is left out, and one that is new is NULL. If there is one of each, a column may have got
    another name, and its values would be lost.

    :param old: columns of the rows, and ``old_key``, by which they are told apart.
    :param new: columns that they are to have, likewise.
    """
    if [*old_key] != [*new_key]:
        return f"its key was ({', '.join(old_key)}), and is ({', '.join(new_key)})"
    for field in new:
        place = old.get_field_index(field.name)
        if place >= 0 and not can_hold_all_values(field.type, was := old.field(place).type):
            return f"column {field.name} was {was}, and is {field.type}"
    removed = [name for name in old.names if name not in new.names]
    added = [name for name in new.names if name not in old.names]
    if removed and added:
        return (
            f"column {removed[0]} is gone and column {added[0]} is new, which may be another name for the same values"
        )
    return None


def can_hold_all_values(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether a column can have all values of another type, and not as others."""
    return bool(new == old) or is_wider(old, new)


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a type has all values of another one, and more."""
    if old in _INTEGER_DIGITS and new in _INTEGER_DIGITS:
        return _INTEGER_DIGITS[old] < _INTEGER_DIGITS[new]
    if pa.types.is_decimal(new) and (old in _INTEGER_DIGITS or pa.types.is_decimal(old)):
        digits, scale = (_INTEGER_DIGITS[old], 0) if old in _INTEGER_DIGITS else (old.precision - old.scale, old.scale)
        return bool(new.scale >= scale and new.precision - new.scale >= digits)
    return bool(old == pa.float32() and new == pa.float64())
