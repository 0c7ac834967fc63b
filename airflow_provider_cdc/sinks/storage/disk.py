"""Errors of a full disk, syncing of folders, and whether a folder can be written."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from airflow_provider_cdc.model.errors import NoRoomError


@contextmanager
def translate_disk_full(path: str | Path | None = None) -> Iterator[None]:
    """Translate errors of a full disk.

    :param path: the path that is written, if known.
    :raises NoRoomError: instead of the system's error.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        failed_path = path or error.filename
        disk = f"the disk of {Path(os.fsdecode(failed_path)).parent}" if failed_path else "the disks of this host"
        raise NoRoomError(
            f"{failed_path or 'a file'} could not be written: {os.strerror(error.errno)}",
            f"Make room on {disk} (or raise the quota), then run again: no data is lost",
        ) from None


def fsync_folder(folder: Path) -> None:
    """Force the directory entries of a folder to disk, if the file system supports that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # it may be writable but not readable, or deleted together with the file
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def why_not_writable(folder: str | Path) -> str | None:
    """Write a file into a folder, with a second name as for each commit, and remove it.

    :returns: why that is not possible; ``None`` if it is.
    """
    if not os.path.isdir(folder):
        return "is not a folder"
    try:
        with NamedTemporaryFile(prefix=".airflow-cdc-check-", dir=folder) as probe:
            probe.write(b"check")
            probe.flush()
            os.fsync(probe.fileno())
            link = f"{probe.name}.link"
            try:
                os.link(probe.name, link)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(link)
    except OSError as error:
        return f"does not accept a file ({error.strerror})"
    return None


#: Types of file systems that other hosts may see, too.
_NETWORK_TYPES = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|9p|virtiofs|ceph|glusterfs|lustre|beegfs|gpfs|afs|ocfs2|gfs2|fuse(\..+)?"
)


def is_on_network(folder: str | Path) -> bool:
    """Return whether a folder, which need not exist yet, is in a file system that other hosts may see."""
    path, types = os.path.realpath(folder), {}
    with suppress(OSError), open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, place, kind, *_ = line.split()
            types[place.encode().decode("unicode_escape")] = kind
    while path not in types and path != "/":
        path = os.path.dirname(path)
    return _NETWORK_TYPES.fullmatch(types.get(path, "")) is not None
