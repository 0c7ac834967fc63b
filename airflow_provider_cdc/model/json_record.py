"""Values that are stored or sent as JSON. Their fields are declared once, and reading them is strict."""

from __future__ import annotations

import json
import threading
from typing import Any, Self, TypeVar

import msgspec

from airflow_provider_cdc.model.errors import TerminalError

T = TypeVar("T")
#: Types whose fields msgspec knows. It finds them when it parses the first value of a type, and crashes the process if
#: two threads do that at the same time.
_known_types = set[Any]()
_lock = threading.Lock()


class JsonRecord(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An immutable value whose fields are its JSON.

    A field that has its default value is left out, if Python has only one object of this value: ``None``, a truth
    value, a small number, an empty string or tuple. Other defaults may be left out or not.
    """

    def to_json(self) -> Any:
        """Return a plain JSON value, the inverse of :meth:`from_json`."""
        return msgspec.to_builtins(self)

    @classmethod
    def from_json(cls, value: Any, place: str = "") -> Self:
        """Inverse of :meth:`to_json`; parameters and errors are those of :func:`parse_json`."""
        return parse_json(value, cls, place)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return msgspec.structs.replace(self, **changes)


def parse_json(value: Any, record_type: type[T], place: str = "") -> T:
    """Make a record from its JSON value, or from the bytes of its JSON text.

    :param place: where it was read.
    :raises TerminalError: if it is damaged, or was written by a newer version.
    """
    if record_type not in _known_types:
        with _lock:
            msgspec.json.Decoder(record_type)
            _known_types.add(record_type)
    try:
        # Not the decoder of msgspec, which rejects lone surrogates: names may contain them.
        return msgspec.convert(json.loads(value) if isinstance(value, bytes) else value, record_type)
    except ValueError as error:
        name = getattr(record_type, "__name__", "record")
        raise TerminalError(
            f"the {name}{place and f' in {place}'} cannot be read: {error}",
            "Restore it if it is damaged; if a newer version of this software wrote it, install that version",
        ) from None
