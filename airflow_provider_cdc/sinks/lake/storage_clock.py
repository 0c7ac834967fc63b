"""The clock by which a storage dates its files. Clocks of hosts do not count where files are deleted for good."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from airflow_provider_cdc.model.errors import NoRoomError
from airflow_provider_cdc.sinks.lake.merge.table_edit import CHANGES_FOLDER
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Hours after which a file that no version refers to is abandoned: its writer was killed.
ABANDONED_HOURS = 48


def storage_time(storage: Storage, newest_commit_time: Callable[[], float | None]) -> float:
    """Return the current time by the clock that dates the files of a table: that of a file written now.

    On a full disk, return the time of the newest commit, because that is when deleting old files matters most.

    :param storage: storage of the table's folder.
    :param newest_commit_time: returns when the newest commit was written.
    """
    name = f"{CHANGES_FOLDER}/clock-{uuid.uuid4().hex}"
    try:
        storage.write(name, b"")
        written_at_time = storage.modified_at(name)
    except NoRoomError:
        written_at_time = newest_commit_time()
    finally:
        storage.delete(name)
    if written_at_time is None or written_at_time == float("inf"):
        raise FileNotFoundError(f"{storage.location(name)} was deleted immediately")
    return written_at_time


def file_time(storage: Storage, name: str) -> float:
    """Return when a file was written, by the storage's clock; infinity if it no longer exists."""
    written = storage.modified_at(name)
    return float("inf") if written is None else written
