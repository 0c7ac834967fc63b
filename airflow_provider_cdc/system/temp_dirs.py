"""Temporary folders that do not stay behind: what a process that was killed has left, the next one removes.

A folder belongs to the process that holds a lock on a file in it. The kernel gives the lock back when that process
ends, however it does: so neither process ids, which come around again, nor names of hosts need to be believed.
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
    """A folder of this process's own, gone at the end of the block. Before it, those of dead processes go.

    :param parent: where it is made; by default where temporary files belong.
    """
    parent = Path(parent or tempfile.gettempdir())
    remove_stale_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    # Under its name only when it is locked: a lock that can be taken is that of a dead process.
    lock = os.open(folder / f"{_LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(folder / f"{_LOCK}.new", folder / _LOCK)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_stale_folders(parent: Path) -> None:
    """Remove the folders of this user's processes that have died."""
    for path in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError):  # somebody else's, or gone by now
            status = path.parent.lstat()
            if path.parent.is_symlink() or status.st_uid != os.geteuid():
                continue
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(lock)
