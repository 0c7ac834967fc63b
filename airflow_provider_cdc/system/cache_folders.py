"""Cache folders for what is executed later: machine code and Java classes. What others could change is never used."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_folders(kind: str) -> Iterator[Path]:
    """Yield the folders that a cache may be in: in the user's cache folder, else in that for temporary files.

    The parent of each is a folder that other users cannot rename or replace it in.

    :param kind: name of the cache.
    """
    with contextlib.suppress(RuntimeError):  # a user without a home
        named = os.environ.get("XDG_CACHE_HOME", "")
        cache = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
        yield cache / "airflow-provider-cdc" / kind
    yield Path(tempfile.gettempdir()) / f"airflow-provider-cdc-{os.geteuid()}-{kind}"


def machine_code_folders() -> Iterator[Path]:
    """Yield the folders that may contain machine code, in subfolders by what it was compiled from."""
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(named) / "airflow-provider-cdc"
    yield from cache_folders("machine-code")


#: Where machine code is below the prefix of a Python environment that was packed together with it.
PACKED_MACHINE_CODE = "share/airflow-provider-cdc"


def packed_machine_code_folder() -> Path:
    """Return the folder with the machine code that came with this Python environment; it need not exist."""
    return Path(sys.prefix) / PACKED_MACHINE_CODE


def package_owner() -> int:
    """Return the user that owns this package, and so decides anyway what this process executes.

    It may be that of a node's manager, which has unpacked the environment for drivers of other users.
    """
    return os.stat(__file__).st_uid


def is_trusted_folder(folder: Path, *owners: int) -> bool:
    """Return whether a folder exists, and only its owner can write to it: this user, or root.

    :param owners: further users who may own it.
    """
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid in (os.geteuid(), 0, *owners) and not status.st_mode & 0o022


def make_writable_folder(folder: Path) -> bool:
    """Create a folder unless it exists, and return whether this process can write to it and no other user can."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if is_trusted_folder(folder.parent) and is_trusted_folder(folder):
            with tempfile.TemporaryFile(dir=folder):
                return True
    except OSError:
        pass
    return False
