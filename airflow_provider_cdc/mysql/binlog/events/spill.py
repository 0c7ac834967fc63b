"""Bytes that may have to wait for long, put into a file without a name: memory that the system can take back."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence

from airflow_provider_cdc.model.errors import TransientError


def spill_to_disk(parts: Sequence[memoryview]) -> list[memoryview]:
    """The same bytes, read from a temporary file, which is gone with the last of them.

    :raises TransientError: if there is no room for them.
    """
    if not any(map(len, parts)):
        return list(parts)
    try:
        with tempfile.TemporaryFile() as file:
            file.writelines(parts)
            file.flush()
            area = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise TransientError(
            f"the rows of a prepared XA transaction cannot be kept in {tempfile.gettempdir()}: {error.strerror}",
            "Make room there, or let TMPDIR name a larger folder",
        ) from None
    views, at = [], 0
    for part in parts:
        views.append(area[at : at + len(part)])
        at += len(part)
    return views
