"""The interface to all files: plans, manifests, signals, staged batches and data files.

A name is a relative path with ``/`` between folders, such as ``_cdc/shop/plan.json``. Folders need not be created.
``tests/sinks/storage/test_storage.py`` defines what every storage must do, and tests each guarantee that exactly-once
delivery relies on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from airflow_provider_cdc.model.json_record import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class Storage(Protocol):
    """A tree of files. It can be pickled, because it is sent to Spark tasks.

    Once a process has written a file (:meth:`write` or :meth:`write_once` has returned, or a file from :meth:`open` is
    closed), every process can read and list it, even after a host has lost power.
    """

    @property
    def is_remote(self) -> bool:
        """Whether each call is a request to a server, so that calls should run in parallel and be few."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or ``None`` if it does not exist."""

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file atomically, even if the writer is killed or others read it at the same time."""

    def write_once(self, name: str, data: bytes) -> bool:
        """Write a file like :meth:`write` unless it exists: of several writers, the first one wins.

        :returns: whether this call wrote it.
        """

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or ``None`` if it does not exist."""

    def modified_at(self, name: str) -> float | None:
        """Return when a file was written (seconds since 1970, by the storage's clock), or ``None`` if it is missing."""

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield names and sizes (bytes) of all files in a folder and below, in any order.

        A missing folder has no files. Names are relative to the root, as in all other methods. Unfinished files are not
        listed, except those of :meth:`open`.

        :param folder: ``""`` for the root.
        """

    def delete(self, *names: str) -> None:
        """Delete files, ignoring those that do not exist. Folders that become empty are removed."""

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with everything in it, as far as that is possible now. It must not be the root."""

    def open(self, name: str, mode: Literal["rb", "wb"]) -> pa.NativeFile:
        """Open a file for reading, or for writing in several parts; a context manager.

        While it is being written, and after its writer was killed, others may see it partially. It therefore needs a
        name that no other writer uses, and is valid only once a completely written file refers to it.

        :raises FileNotFoundError: if a file to read does not exist.
        """

    def subfolder(self, folder: str) -> Storage:
        """Return the storage of a folder: the same files, with names relative to the folder."""

    def deny_others(self, folder: str) -> None:
        """Deny access to a folder to everyone outside the owner's group, where files have such permissions."""

    def location(self, name: str = "") -> str:
        """Return the human-readable location of a file, a folder or the root."""

    def uri(self, name: str = "") -> str:
        """Return the same location as a URI, for libraries that open files themselves."""

    def storage_options(self) -> dict[str, str]:
        """Return further options for such libraries; they may contain secrets."""


def checked_name(name: str, root: object) -> str:
    """Return the name of a file or folder unchanged.

    :param root: location of the root, for the error message.
    :raises ValueError: if the name is not valid or leads outside the root.
    """
    if not all(part not in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not the name of a file below {root}")
    return name


def read_json(storage: Storage, name: str) -> Any:
    """Return the JSON value in a file, or ``None`` if the file does not exist.

    :raises ValueError: if the file is damaged.
    """
    data = storage.read(name)
    return None if data is None else json.loads(data)


def read_json_if_intact(storage: Storage, name: str) -> Any:
    """Return the same as :func:`read_json`, but ``None`` also if the file is damaged."""
    try:
        return read_json(storage, name)
    except ValueError:
        return None


def read_record(storage: Storage, name: str, record_type: type[T]) -> T | None:
    """Return the record in a file, or ``None`` if the file does not exist.

    :raises TerminalError: if the file is damaged, or was written by a newer version.
    """
    data = storage.read(name)
    return None if data is None else parse_json(data, record_type, storage.location(name))


def write_json(storage: Storage, name: str, value: Any) -> None:
    """Write a JSON value with :meth:`Storage.write`."""
    storage.write(name, json.dumps(value).encode())


def write_json_once(storage: Storage, name: str, value: Any) -> bool:
    """Write a JSON value with :meth:`Storage.write_once`.

    :returns: whether this call wrote it.
    """
    return storage.write_once(name, json.dumps(value).encode())
