"""Where files lie: the one way to plans, manifests, notes, staged batches and data files.

A name is a relative string with ``/`` between folders, such as ``_cdc/shop/plan.json``. Folders need not be made.
``tests/sinks/storage/test_storage.py`` holds what any storage must do; each promise that exactly-once rests on is
tested there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class Storage(Protocol):
    """A tree of files. It travels to Spark tasks, so it can be pickled.

    ``remote`` says whether each call is a request to a server: then many are made at a time, and none in vain.

    What one process has written (:meth:`write` and :meth:`write_once` have returned, a file of :meth:`open` is closed)
    every process reads and lists from then on, also after a host has lost power.
    """

    @property
    def is_remote(self) -> bool:
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

    def modified_at(self, name: str) -> float | None:
        """When a file was written, in seconds since 1970 by the storage's clock; ``None`` if there is none."""

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Names and sizes (bytes) of all files in a folder and below, in any order; none if there is no such folder.

        Names are relative to the root, as for all other methods. What a writer has not finished is not listed, other
        than files of :meth:`open`.

        :param folder: ``""`` for the root.
        """

    def delete(self, *names: str) -> None:
        """Delete files; those that are not there are passed over. A folder that is empty then is no more."""

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with everything below it, as far as that is possible now. It must not be the root."""

    def open(self, name: str, mode: Literal["rb", "wb"]) -> pa.NativeFile:
        """Open a file to read it, or to write it in pieces; a context manager.

        A file that is being written may be seen in part, also after its writer was killed. So it needs a name that
        nobody else uses, and counts only when something that was written whole names it.

        :raises FileNotFoundError: if it is to be read and not there.
        """

    def subfolder(self, folder: str) -> Storage:
        """The storage of a folder: the same files, under names relative to it."""

    def make_private(self, folder: str) -> None:
        """Keep a folder from those outside of the owner's group, where files have such rights."""

    def location(self, name: str = "") -> str:
        """Where a file, a folder or the root is, for people."""

    def uri(self, name: str = "") -> str:
        """The same for libraries that find files by themselves."""

    def storage_options(self) -> dict[str, str]:
        """What such libraries need to know besides; it may hold secrets."""


def checked_name(name: str, root: object) -> str:
    """A name of a file or folder, as it is.

    :param root: where it is looked for.
    :raises ValueError: if it is none, or leads elsewhere.
    """
    if not all(part not in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not the name of a file below {root}")
    return name


def read_json(storage: Storage, name: str) -> Any:
    """JSON value of a file; ``None`` if there is none of this name.

    :raises ValueError: if it is damaged.
    """
    data = storage.read(name)
    return None if data is None else json.loads(data)


def read_json_if_intact(storage: Storage, name: str) -> Any:
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
