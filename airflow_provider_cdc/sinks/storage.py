"""Where files lie: the one way to plans, manifests, notes, staged batches and data files.

A name is a relative string with ``/`` between folders, such as ``_cdc/shop/plan.json``. Folders need not be made.
``tests/sinks/test_storage.py`` holds what any storage must do; each promise that exactly-once rests on is tested there.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from airflow_provider_cdc import rights
from airflow_provider_cdc.core.store_access import StoreAccess
from airflow_provider_cdc.core.store_address import StoreAddress, folder_of
from airflow_provider_cdc.exceptions import NoRoomError

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
#: How often a folder is made again that somebody removes, since it is empty, before there is a file in it.
_TRIES = 100


class Storage(Protocol):
    """A tree of files. It travels to Spark tasks, so it can be pickled.

    ``remote`` says whether each call is a request to a server: then many are made at a time, and none in vain.

    What one process has written (:meth:`write` and :meth:`write_once` have returned, a file of :meth:`open` is closed)
    every process reads and lists from then on, also after a host has lost power.
    """

    @property
    def remote(self) -> bool:
        """See above."""

    def read(self, name: str) -> bytes | None:
        """What a file holds; ``None`` if there is none of this name."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file, or replace it, whole or not at all: also if the writer is killed, and while others read."""

    def write_once(self, name: str, data: bytes) -> bool:
        """Like :meth:`write`, but a file that is there stays: of several writers, the first one wins.

        :returns: whether this call has written it.
        """

    def size(self, name: str) -> int | None:
        """Size of a file in bytes; ``None`` if there is none of this name."""

    def modified(self, name: str) -> float | None:
        """When a file was written, in seconds since 1970 by the storage's clock; ``None`` if there is none."""

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Names and sizes (bytes) of all files in a folder and below, in any order; none if there is no such folder.

        Names are relative to the root, as for all other methods. What a writer has not finished is not listed, other
        than files of :meth:`open`.

        :param folder: ``""`` for the root.
        """

    def delete(self, *names: str) -> None:
        """Delete files; those that are not there are passed over. A folder that is empty then is no more."""

    def clear(self, folder: str) -> None:
        """Delete a folder with everything below it, as far as that is possible now. It must not be the root."""

    def open(self, name: str, mode: Literal["rb", "wb"]) -> pa.NativeFile:
        """Open a file to read it, or to write it in pieces; a context manager.

        A file that is being written may be seen in part, also after its writer was killed. So it needs a name that
        nobody else uses, and counts only when something that was written whole names it.

        :raises FileNotFoundError: if it is to be read and not there.
        """

    def within(self, folder: str) -> Storage:
        """The storage of a folder: the same files, under names relative to it."""

    def make_private(self, folder: str) -> None:
        """Keep a folder from those outside of the owner's group, where files have such rights."""

    def location(self, name: str = "") -> str:
        """Where a file, a folder or the root is, for people."""

    def uri(self, name: str = "") -> str:
        """The same for libraries that find files by themselves."""

    def options(self) -> dict[str, str]:
        """What such libraries need to know besides; it may hold secrets."""


def storage_at(path: str | Path, access: StoreAccess | None = None) -> Storage:
    """The storage of ``sink.path``.

    :param access: what ``sink.conn_id`` says of an object store.
    """
    address = StoreAddress.of(str(path))
    if address is None:
        return LocalStorage(folder_of(str(path)) or path)
    from airflow_provider_cdc.sinks.object_storage import ObjectStorage  # not for those who have a folder

    return ObjectStorage(address, access)


def checked_name(name: str, root: object) -> str:
    """A name of a file or folder, as it is.

    :param root: where it is looked for.
    :raises ValueError: if it is none, or leads elsewhere.
    """
    if not all(part not in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not the name of a file below {root}")
    return name


#: Names of files that :meth:`LocalStorage.write` and :meth:`LocalStorage.write_once` have not finished.
_UNFINISHED = re.compile(r"\.(.+\.)?[0-9a-f]{32}\.tmp")


class LocalStorage:
    """A folder of a file system that all processes share.

    Files get their names by ``rename`` and ``link``, which are atomic in a POSIX file system. What a file holds is
    forced to disk before it gets its name, and the name before the call returns.

    :param root: the folder; it need not exist.
    """

    remote = False

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()

    def read(self, name: str) -> bytes | None:
        """See :class:`Storage`."""
        try:
            return self._path(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def write(self, name: str, data: bytes) -> None:
        """See :class:`Storage`."""
        with self._unfinished(name, data) as path:
            os.replace(path, self._path(name))
        sync_folder(self._path(name).parent)

    def write_once(self, name: str, data: bytes) -> bool:
        """See :class:`Storage`."""
        with self._unfinished(name, data) as path:
            try:
                os.link(path, self._path(name))
                first = True
            except FileExistsError:
                first = False
        sync_folder(self._path(name).parent)  # also for whoever comes second, and goes by what is there
        return first

    def size(self, name: str) -> int | None:
        """See :class:`Storage`."""
        path = self._path(name)
        try:
            return path.stat().st_size if path.is_file() else None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def modified(self, name: str) -> float | None:
        """See :class:`Storage`."""
        try:
            return self._path(name).stat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """See :class:`Storage`."""
        root = self._path(folder) if folder else self._root
        for parent, _, files in os.walk(root, onerror=_pass_missing):
            for file in files:
                if not _UNFINISHED.fullmatch(file):
                    path = Path(parent, file)
                    with suppress(FileNotFoundError):  # deleted by now
                        yield path.relative_to(self._root).as_posix(), path.stat().st_size

    def delete(self, *names: str) -> None:
        """See :class:`Storage`."""
        paths = [self._path(name) for name in names]
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
        for folder in {path.parent for path in paths}:
            self._remove_empty(folder)

    def clear(self, folder: str) -> None:
        """See :class:`Storage`."""
        shutil.rmtree(self._path(folder), ignore_errors=True)

    def open(self, name: str, mode: Literal["rb", "wb"]) -> pa.NativeFile:
        """See :class:`Storage`."""
        path = self._path(name)
        if mode == "rb":
            import pyarrow as pa  # not for those that only look at plans and manifests

            return pa.OSFile(str(path), "rb")
        from airflow_provider_cdc.sinks.durable_file import DurableFile

        with room_errors(path):
            return _in_folder(path.parent, lambda: DurableFile(path))

    def within(self, folder: str) -> LocalStorage:
        """See :class:`Storage`."""
        return LocalStorage(self._path(folder))

    def make_private(self, folder: str) -> None:
        """See :class:`Storage`."""
        rights.make_private(self._path(folder))

    def location(self, name: str = "") -> str:
        """See :class:`Storage`."""
        return str(self._path(name) if name else self._root)

    def uri(self, name: str = "") -> str:
        """See :class:`Storage`."""
        return (self._path(name) if name else self._root).as_uri()

    def options(self) -> dict[str, str]:
        """See :class:`Storage`."""
        return {}

    def _remove_empty(self, folder: Path) -> None:
        """Remove a folder if it is empty, and those above it: else each run of a stream would leave some."""
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:  # something is in it, or it is gone
                return
            folder = folder.parent

    def _path(self, name: str) -> Path:
        return self._root / checked_name(name, self._root)

    @contextmanager
    def _unfinished(self, name: str, data: bytes) -> Iterator[Path]:
        """The data in a file under a name of its own, in the folder of the file that it is to become."""
        folder = self._path(name).parent
        path = folder / f".{uuid.uuid4().hex}.tmp"
        try:
            with room_errors(self._path(name)):
                with _in_folder(folder, lambda: open(path, "wb")) as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                yield path
        finally:
            path.unlink(missing_ok=True)


def _in_folder(folder: Path, create: Callable[[], _T]) -> _T:
    """Create a file, and its folder, which another process removes at any moment when it is empty."""
    named = list[Path]()
    for last in (*[False] * (_TRIES - 1), True):
        try:
            _make_folder(folder, named)
            found = create()
        except FileNotFoundError:
            if last:
                raise
            continue
        for above in dict.fromkeys(named):  # now that nobody removes them any more
            sync_folder(above)
        return found
    raise AssertionError("unreachable")


@contextmanager
def room_errors(path: str | Path | None = None) -> Iterator[None]:
    """Say of a full disk what it is.

    :param path: what is written, if that is known.
    :raises NoRoomError: in the place of the system's error.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        named = path or error.filename
        disk = f"the disk of {Path(os.fsdecode(named)).parent}" if named else "the disks of this host"
        raise NoRoomError(
            f"{named or 'a file'} could not be written: {os.strerror(error.errno)}",
            f"Make room on {disk} (or raise the quota), then run again: nothing is lost",
        ) from None


def _make_folder(folder: Path, named: list[Path]) -> None:
    """Make a folder, and those above it, as far as they are missing.

    :param named: gets the folders in which there are new names.
    """
    if not folder.is_dir():
        _make_folder(folder.parent, named)
        folder.mkdir(exist_ok=True)
        named.append(folder.parent)


def sync_folder(folder: Path) -> None:
    """Force the names of a folder's files to disk, where the file system can do that for folders."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # it may be writable and not readable, or gone with the file
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS):
            raise
    finally:
        os.close(opened)


def _pass_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def read_json(storage: Storage, name: str) -> Any:
    """JSON value of a file; ``None`` if there is none of this name.

    :raises ValueError: if it is damaged.
    """
    data = storage.read(name)
    return None if data is None else json.loads(data)


def read_whole_json(storage: Storage, name: str) -> Any:
    """Like :func:`read_json`, and ``None`` also if the file is damaged."""
    try:
        return read_json(storage, name)
    except ValueError:
        return None


def write_json(storage: Storage, name: str, value: Any) -> None:
    """Write a JSON value as :meth:`Storage.write` does."""
    storage.write(name, json.dumps(value).encode())


def write_json_once(storage: Storage, name: str, value: Any) -> bool:
    """Write a JSON value as :meth:`Storage.write_once` does.

    :returns: whether this call has written it.
    """
    return storage.write_once(name, json.dumps(value).encode())
