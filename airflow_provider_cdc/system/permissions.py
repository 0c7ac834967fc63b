"""Access to the files of the project: for its user, and for the group as far as the umask allows."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

#: Modes of new folders and files before the umask: no access for users outside the group.
FOLDER_MODE, FILE_MODE = 0o770, 0o660


def make_folder_denying_others(folder: Path) -> None:
    """Make a folder that users outside the group cannot access; if it exists, remove their access."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(FOLDER_MODE, exist_ok=True)
    remove_others_access(folder)


def remove_others_access(path: Path) -> None:
    """Remove the access of users outside the group from a file or folder that this user owns."""
    with suppress(OSError):  # it does not exist, or the file system has no permissions
        status = path.stat()
        if status.st_mode & 0o007 and status.st_uid == os.geteuid():
            path.chmod(status.st_mode & 0o7770)
