"""The live files of a table as delta-rs reads them, to be compared before files are permanently deleted."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from airflow_provider_cdc.model.errors import TerminalError, TransientError
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Errors of delta-rs; OSError if an object store did not respond.
DELTA_RS_ERRORS = (DeltaError, OSError)


def check_live_files(storage: Storage, name: str, version: int, live_paths: Collection[str]) -> None:
    """Check that delta-rs finds the same live files in the log, before files are permanently deleted.

    The two programs read the log with independent code, so that a part missed by one of them shows as a difference.

    :param storage: storage of the table's folder.
    :param name: name of the table in messages.
    :param version: version of the table.
    :param live_paths: its live files as this project reads them.
    :raises TransientError: if delta-rs cannot read the log now.
    :raises TerminalError: if it finds other files.
    """
    try:
        table = DeltaTable(storage.uri(), version=version, storage_options=storage.storage_options() or None)
        delta_rs_paths = {unquote(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()}
    except DELTA_RS_ERRORS as error:
        raise TransientError(
            f"no old files of the {name} were deleted: delta-rs cannot read it: {error_line(error)}",
            "The next maintenance run will try again",
        ) from None
    if delta_rs_paths != {*live_paths}:
        names = sorted(delta_rs_paths ^ {*live_paths})
        raise TerminalError(
            f"no old files of the {name} were deleted: version {version} has {len(live_paths)} data files, but "
            f"{len(delta_rs_paths)} as delta-rs reads it; {names[0]} is in only one of the two lists",
            "Do not run VACUUM. Stop the stream, run airflow-cdc verify, and report it with the folder _delta_log",
        )


def error_line(error: Exception) -> str:
    """Return the text of an error of delta-rs, which prints a colored tree, as one line."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|\u21b3", "", str(error)).split())
