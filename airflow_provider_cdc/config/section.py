"""A section of a pipeline: each field declares, in its annotation, how its value is checked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from airflow_provider_cdc.config.patterns import check_patterns
from airflow_provider_cdc.model.value_checks import check_choice, check_conn_id, check_flag, check_integer

#: Gets the dotted key and the value; returns the value to keep, or raises an error that names the key.
Check = Callable[[str, Any], Any]

ConnId = Annotated[str, check_conn_id]
Flag = Annotated[bool, check_flag]
TablePatterns = Annotated[tuple[str, ...], check_patterns]
ColumnPatterns = Annotated[tuple[str, ...], partial(check_patterns, dots=2)]


def whole_number(low: int, high: int | None = None) -> Check:
    """Return the check for a whole number within a range."""
    return partial(check_integer, low=low, high=high)


def one_of(*words: str) -> Check:
    """Return the check for one of some words."""
    return partial(check_choice, supported=words)


class Section:
    """Base of the sections, which are frozen dataclasses."""

    _checks: ClassVar[dict[str, Check]]

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        parts = ((name, part) for name, hint in hints.items() for part in (hint, *get_args(hint)))  # of a union
        cls._checks = {name: part.__metadata__[0] for name, part in parts if hasattr(part, "__metadata__")}

    def __post_init__(self) -> None:
        """Check each value; ``None`` is always allowed where it is the default."""
        for name, check in self._checks.items():
            value = getattr(self, name)
            if value is not None or getattr(type(self), name, "required") is not None:
                self._set(name, check(f"{type(self).__name__.lower()}.{name}", value))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
