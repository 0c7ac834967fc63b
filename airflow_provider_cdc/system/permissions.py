"""Who may look into what the project writes for itself: its user, and the group as far as the umask lets it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

#: Modes of new folders and files, before the umask: nothing for those who are not in the group.
FOLDER_MODE, FILE_MODE = 0o770, 0o660


def make_private_folder(folder: Path) -> None:
    """Make a folder that those outside of the group cannot look into, or take their rights from one that is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(FOLDER_MODE, exist_ok=True)
    remove_others_access(folder)


def remove_others_access(path: Path) -> None:
    """Take the rights of everybody outside of the group from a file or folder, if it is this user's own."""
    with suppress(OSError):  # it is not there, or the file system knows no rights
        status = path.stat()
        if status.st_mode & 0o007 and status.st_uid == os.geteuid():
            path.chmod(status.st_mode & 0o7770)
