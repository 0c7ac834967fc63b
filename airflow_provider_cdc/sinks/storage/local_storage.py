"""Storage on a file system."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from airflow_provider_cdc.sinks.storage.disk import fsync_folder, translate_disk_full
from airflow_provider_cdc.sinks.storage.storage import checked_name
from airflow_provider_cdc.system import permissions

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
#: How often a folder is created again if another process removes it, because it is empty, before it has a file.
_CREATE_TRIES = 100


#: Folder of the pipelines' own files in a sink.
_OWN_FOLDER = "_cdc"
#: Names of files that :meth:`LocalStorage.write` and :meth:`LocalStorage.write_once` have not finished.
_UNFINISHED_NAME = re.compile(r"\.(.+\.)?[0-9a-f]{32}\.tmp")


class LocalStorage:
    """A folder of a file system that all processes share.

    Files get their names by ``rename`` and ``link``, which are atomic in a POSIX file system. The content of a file is
    forced to disk before it gets its name, and the name before the call returns.

    :param root: the folder; it need not exist.
    """

    is_remote = False

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
        with self._temporary_file(name, data) as path:
            os.replace(path, self._path(name))
        fsync_folder(self._path(name).parent)

    def write_once(self, name: str, data: bytes) -> bool:
        """See :class:`Storage`."""
        with self._temporary_file(name, data) as path:
            try:
                os.link(path, self._path(name))
                first = True
            except FileExistsError:
                first = False
        fsync_folder(self._path(name).parent)  # also for a later writer, which relies on the existing file
        return first

    def size(self, name: str) -> int | None:
        """See :class:`Storage`."""
        path = self._path(name)
        try:
            return path.stat().st_size if path.is_file() else None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def modified_at(self, name: str) -> float | None:
        """See :class:`Storage`."""
        try:
            return self._path(name).stat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """See :class:`Storage`."""
        root = self._path(folder) if folder else self._root
        for parent, _, files in os.walk(root, onerror=_ignore_missing):
            for file in files:
                if not _UNFINISHED_NAME.fullmatch(file):
                    path = Path(parent, file)
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        yield path.relative_to(self._root).as_posix(), path.stat().st_size

    def delete(self, *names: str) -> None:
        """See :class:`Storage`."""
        paths = [self._path(name) for name in names]
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
        for folder in {path.parent for path in paths}:
            self._remove_empty_folders(folder)

    def delete_folder(self, folder: str) -> None:
        """See :class:`Storage`."""
        shutil.rmtree(self._path(folder), ignore_errors=True)

    def open(self, name: str, mode: Literal["rb", "wb"]) -> pa.NativeFile:
        """See :class:`Storage`."""
        path = self._path(name)
        if mode == "rb":
            import pyarrow as pa  # only for data files: plans and manifests do not need it

            return pa.OSFile(str(path), "rb")
        from airflow_provider_cdc.sinks.storage.durable_file import DurableFile

        with translate_disk_full(path):
            return _create_in_folder(path.parent, lambda: DurableFile(path))

    def subfolder(self, folder: str) -> LocalStorage:
        """See :class:`Storage`."""
        return LocalStorage(self._path(folder))

    def deny_others(self, folder: str) -> None:
        """See :class:`Storage`."""
        permissions.make_folder_denying_others(self._path(folder))

    def location(self, name: str = "") -> str:
        """See :class:`Storage`."""
        return str(self._path(name) if name else self._root)

    def uri(self, name: str = "") -> str:
        """See :class:`Storage`."""
        return (self._path(name) if name else self._root).as_uri()

    def storage_options(self) -> dict[str, str]:
        """See :class:`Storage`."""
        return {}

    def _remove_empty_folders(self, folder: Path) -> None:
        """Remove a folder and its parents if they are empty; otherwise each run of a stream would leave some behind."""
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:  # not empty, or already removed
                return
            folder = folder.parent

    def _path(self, name: str) -> Path:
        return self._root / checked_name(name, self._root)

    @contextmanager
    def _temporary_file(self, name: str, data: bytes) -> Iterator[Path]:
        """Write the data to a file with a temporary name, in the folder of the final file."""
        folder = self._path(name).parent
        path = folder / f".{uuid.uuid4().hex}.tmp"
        try:
            with translate_disk_full(self._path(name)):
                with _create_in_folder(folder, lambda: open(path, "wb", opener=self._opener(folder))) as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                yield path
        finally:
            path.unlink(missing_ok=True)

    @staticmethod
    def _opener(folder: Path) -> Callable[[str, int], int] | None:
        """Return what opens files that hold values of rows, such as bounds of keys, and are not data files."""
        return _open_denying_others if _OWN_FOLDER in folder.parts else None


def _open_denying_others(path: str, flags: int) -> int:
    return os.open(path, flags, permissions.FILE_MODE)


def _create_in_folder(folder: Path, create: Callable[[], _T]) -> _T:
    """Create a file and its folder, which another process may remove at any moment while it is empty."""
    changed_folders = list[Path]()
    for is_last_try in (*[False] * (_CREATE_TRIES - 1), True):
        try:
            _make_folder(folder, changed_folders)
            created = create()
        except FileNotFoundError:
            if is_last_try:
                raise
            continue
        for changed_folder in dict.fromkeys(changed_folders):  # no process removes them from now on
            fsync_folder(changed_folder)
        return created
    raise AssertionError("unreachable")


def _make_folder(folder: Path, changed_folders: list[Path]) -> None:
    """Create a folder and its missing parents.

    :param changed_folders: receives the folders that got new entries.
    """
    if not folder.is_dir():
        _make_folder(folder.parent, changed_folders)
        folder.mkdir(exist_ok=True)
        changed_folders.append(folder.parent)


def _ignore_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
