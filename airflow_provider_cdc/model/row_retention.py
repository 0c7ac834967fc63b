"""Whether a copy can keep deleted rows (``sink.deletes``) when the columns of its table change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

#: Most decimal digits of Arrow's integer types.
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


@dataclass(frozen=True)
class RetainedRowsLoss:
    """Rows kept by ``sink.deletes`` that would be lost if the copy changed to another definition.

    :param reason: why they cannot be kept.
    :param rows: how many would be lost.
    :param is_exact: whether ``rows`` is exact; otherwise it is an upper bound.
    """

    reason: str
    rows: int
    is_exact: bool = True

    def __str__(self) -> str:
        count = f"{self.rows:,} row{'' if self.rows == 1 else 's'}"
        deleted = "that the source has deleted (sink.deletes) would be lost"
        return f"{self.reason}: {count if self.is_exact else 'those'} {deleted}" + (
            "" if self.is_exact else f"; it is not known which of its {count} these are"
        )


def why_not_retainable(old: pa.Schema, old_key: Sequence[str], new: pa.Schema, new_key: Sequence[str]) -> str | None:
    """Return why rows written under one definition cannot be kept under another; ``None`` if they can.

    A removed column is dropped, and a new one is NULL. If there are both, a column may have been renamed, and its
    values would be lost.

    :param old: schema of the rows.
    :param old_key: key columns of the rows.
    :param new: schema that they are to have.
    :param new_key: key columns that they are to have.
    """
    if [*old_key] != [*new_key]:
        return f"its key changed from ({', '.join(old_key)}) to ({', '.join(new_key)})"
    for field in new:
        place = old.get_field_index(field.name)
        if place >= 0 and not can_hold_all_values(field.type, was := old.field(place).type):
            return f"column {field.name} changed from {was} to {field.type}"
    removed = [name for name in old.names if name not in new.names]
    added = [name for name in new.names if name not in old.names]
    if removed and added:
        return f"column {removed[0]} is gone and column {added[0]} is new, which may be a renamed column"
    return None


def can_hold_all_values(new: pa.DataType, old: pa.DataType) -> bool:
    """Return whether a column can hold all values of another type unchanged."""
    return bool(new == old) or is_wider(old, new)


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a type has all values of another one, and more."""
    if old in _INTEGER_DIGITS and new in _INTEGER_DIGITS:
        return _INTEGER_DIGITS[old] < _INTEGER_DIGITS[new]
    if pa.types.is_decimal(new) and (old in _INTEGER_DIGITS or pa.types.is_decimal(old)):
        digits, scale = (_INTEGER_DIGITS[old], 0) if old in _INTEGER_DIGITS else (old.precision - old.scale, old.scale)
        return bool(new.scale >= scale and new.precision - new.scale >= digits)
    return bool(old == pa.float32() and new == pa.float64())
