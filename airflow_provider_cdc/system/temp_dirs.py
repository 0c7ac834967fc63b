"""Temporary folders that are always removed: each process removes those that killed processes have left.

A folder belongs to the process that holds a lock on a file in it. The kernel releases the lock when the process ends,
in whatever way, so neither process ids, which are reused, nor host names must be trusted.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX, _LOCK = "airflow-cdc-", ".lock"


@contextmanager
def temporary_folder(parent: str | Path | None = None) -> Iterator[Path]:
    """Make a folder for this process that is removed at the end of the block.

    Folders of dead processes are removed first.

    :param parent: where to make it; by default the system's folder for temporary files.
    """
    parent = Path(parent or tempfile.gettempdir())
    remove_stale_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    # The lock file gets its name only once it is locked: a lock that is free belongs to a dead process.
    lock = os.open(folder / f"{_LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(folder / f"{_LOCK}.new", folder / _LOCK)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_stale_folders(parent: Path) -> None:
    """Remove the folders of this user's dead processes."""
    for path in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError):  # belongs to another user, or no longer exists
            status = path.parent.lstat()
            if path.parent.is_symlink() or status.st_uid != os.geteuid():
                continue
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(lock)
