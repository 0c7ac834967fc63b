"""Which policies a column may have."""

from __future__ import annotations

from airflow_provider_cdc.model.column_policy import EXCLUDE, HASH, KEEP, MASK, NULL, TRUNCATE, ColumnPolicy
from airflow_provider_cdc.model.schema import (
    ADDRESS_TYPES,
    BINARY_TYPES,
    GEOMETRY_TYPES,
    INTEGER_TYPES,
    MEMBER_TYPES,
    TEXT_TYPES,
    Column,
)

#: Types whose equal values have one text or one sequence of bytes.
HASHED_TYPES = (
    INTEGER_TYPES
    | TEXT_TYPES
    | BINARY_TYPES
    | MEMBER_TYPES
    | ADDRESS_TYPES.keys()
    | {"decimal", "date", "datetime", "timestamp", "year"}
)
MASKED_TYPES = TEXT_TYPES | MEMBER_TYPES
TRUNCATED_TYPES = TEXT_TYPES | MEMBER_TYPES | BINARY_TYPES
#: For each action that not every type allows: the types that do, and the same in words.
_POSSIBLE_TYPES = {
    HASH: (HASHED_TYPES, "text, binary, whole and decimal numbers, dates, and dates with times"),
    MASK: (MASKED_TYPES, "text"),
    TRUNCATE: (TRUNCATED_TYPES, "text and binary"),
}
_NOT_HASHED = {
    **dict.fromkeys(("float", "double"), "its numbers are not exact, and have no single text"),
    "json": "MySQL and MariaDB write the same document differently",
    **dict.fromkeys((*GEOMETRY_TYPES, "vector"), "the same value may be stored as different bytes"),
    "bit": "the bytes of the same bits depend on the width of the column",
    "time": "the same time has several texts",
}


def policy_problem(column: Column, policy: ColumnPolicy, is_key: bool) -> tuple[str, str] | None:
    """Return why a column cannot have a policy, and the remedy; ``None`` if it can.

    :param column: the column of the source.
    :param policy: its policy; the action may also be :data:`~airflow_provider_cdc.model.column_policy.EXCLUDE`.
    :param is_key: whether the column is part of the key.
    """
    action = policy.action
    if is_key and action in (MASK, TRUNCATE, NULL, EXCLUDE):
        return (
            f"column {column.name}: it is part of the key, and transforms.columns has {action} for it",
            "Different rows would no longer have different keys: a key column can only be hashed or renamed",
        )
    if action in (KEEP, NULL, EXCLUDE):
        return None
    if action not in _POSSIBLE_TYPES:
        return (
            f"column {column.name}: the policy {action} is not known",
            "A newer version wrote it: install that version",
        )
    types, described = _POSSIBLE_TYPES[action]
    if column.data_type in types:
        return None
    reason = f": {_NOT_HASHED[column.data_type]}" if action == HASH and column.data_type in _NOT_HASHED else ""
    return (
        f"column {column.name}: transforms.columns has {action} for it, which type {column.column_type} cannot "
        f"have{reason}",
        f"Use {'another action' if is_key else 'null or exclude'} for it; {action} is for {described}",
    )
