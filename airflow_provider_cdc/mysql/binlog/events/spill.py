"""Move bytes that may have to be kept for a long time from memory to an unnamed temporary file."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence

from airflow_provider_cdc.model.errors import TransientError


def spill_to_disk(parts: Sequence[memoryview]) -> list[memoryview]:
    """Copy bytes to a temporary file and return views of it; the file vanishes with the last view.

    :returns: views with the same content, in the same order.
    :raises TransientError: if the file cannot be written.
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
            "Free space there, or set TMPDIR to a folder with more space",
        ) from None
    views, at = [], 0
    for part in parts:
        views.append(area[at : at + len(part)])
        at += len(part)
    return views
