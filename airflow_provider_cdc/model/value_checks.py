"""Checks of single values given by users. Each error names the key, the value, and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
import re
import reprlib
from collections.abc import Mapping
from typing import Any

from airflow_provider_cdc.model.errors import NotReadyError

_CONN_ID = re.compile(r"[A-Za-z0-9_.\-]{1,250}")


def invalid_value(key: str, value: object, allowed: str) -> NotReadyError:
    """Make the error for a value that is not allowed."""
    return NotReadyError(f"{key} is {reprlib.repr(value)}", f"It must be {allowed}")


def not_supported_yet(key: str, value: object, remedy: str) -> NotReadyError:
    """Make the error for a value that a later version may support."""
    return NotReadyError(f"{key}: {reprlib.repr(value)} is not supported yet", remedy)


def check_integer(key: str, value: object, low: int, high: int | None = None) -> None:
    """Reject a value that is not an integer within a range."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high)
    if not fits:
        allowed = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
        raise invalid_value(key, value, allowed)


def check_choice(key: str, value: object, supported: tuple[str, ...], planned: tuple[str, ...], remedy: str) -> None:
    """Reject a value that is not one of the supported words.

    :param supported: the words that this version supports.
    :param planned: words that a later version may support.
    :param remedy: what to use instead of one of these.
    """
    if value in supported:
        return
    if value in planned:
        raise not_supported_yet(key, value, remedy)
    raise invalid_value(key, value, f"one of {', '.join(supported)}" if len(supported) > 1 else supported[0])


def check_conn_id(key: str, value: object) -> None:
    """Reject a value that cannot be a connection id."""
    if not isinstance(value, str) or not _CONN_ID.fullmatch(value):
        # The value is not shown: people paste whole addresses here, with the password.
        raise NotReadyError(
            f"{key} is not the id of a connection", "It must be a name such as cdc_source, not an address"
        )


def format_keys(section: type[Any]) -> str:
    """Return the keys of a section as human-readable text.

    :param section: a dataclass.
    """
    return ", ".join(f.name for f in dataclasses.fields(section))


def check_keys(prefix: str, value: Mapping[Any, Any], section: type[Any]) -> None:
    """Reject unknown and missing keys.

    :param prefix: dotted path of the section, with a trailing dot.
    :param section: a dataclass.
    """
    known = {f.name: f for f in dataclasses.fields(section)}
    for key in value:
        if key not in known:
            # The value is not shown: a key that does not belong here may well be a password.
            name = key if isinstance(key, str) and key.isprintable() else repr(key)
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"Did you mean {prefix}{near[0]}? " if near else ""
            raise NotReadyError(f"unknown key {prefix}{name[:80]}", f"{hint}The keys here are {format_keys(section)}")
    for key, spec in known.items():
        required = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        if required and value.get(key) is None and (prefix or key == "name"):
            raise NotReadyError(f"{prefix}{key} is missing", "Set it: it has no default")
