"""Compaction: small files become larger ones, and dead rows go. It loses to nobody, and nobody waits for it.

What is written is a function of files that never change, so it may be run anywhere, at any time and twice: each time
under another name, as a task that was given up may go on behind the commit of what another one has written. Only the
commit looks at the table as it stands: rows that have died since are dead in the new file, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from airflow_provider_cdc.sinks.delta.edit import Written, alive, rows_of
from airflow_provider_cdc.sinks.delta.log import LiveFile, Log, added
from airflow_provider_cdc.sinks.delta.vectors import write_vectors
from airflow_provider_cdc.sinks.files import DataFile, row_groups, write_file
from airflow_provider_cdc.sinks.storage import Storage

#: Files below these sizes are put together when there are so many of them.
SMALL, SMALLS = 4 << 20, 32
MIDDLE, MIDDLES = 16 << 20, 16
#: The share of dead rows above which a file is written anew.
DEAD = 0.2
#: A file that is put together becomes no larger than this, or than the table's share of it.
_LARGE, _SHARE = 64 << 20, 256
#: Above so many files some readers hang if they have vectors.
_MOST = 400


@dataclass(frozen=True)
class Compaction:
    """Files that shall become one.

    :param storage: that of the table's folder.
    :param schema: schema of its rows.
    :param sources: paths, each with its dead rows (serialized).
    :param key: name of the single integer key column.
    """

    storage: Storage
    schema: pa.Schema
    sources: tuple[tuple[str, bytes], ...]
    key: str | None

    def run(self) -> list[DataFile]:
        """Write the living rows of the files as one.

        :returns: what was written; nothing if no row lives.
        """
        parts = (
            alive(row_groups(self.storage, path, self.schema), BitMap.deserialize(dead)) for path, dead in self.sources
        )
        path = f"part-{uuid.uuid4().hex}.parquet"
        try:
            file = write_file(self.storage, path, self.schema, chain.from_iterable(parts), self.key)
        except BaseException:
            self.storage.delete(path)
            raise
        if not file.rows:
            self.storage.delete(path)
        return [file] if file.rows else []


def plan(log: Log, schema: pa.Schema, key: str | None, *, vectors: bool) -> list[Compaction]:
    """What is to be compacted now.

    :param vectors: whether rows may die by deletion vectors; if not, files that have one are written anew.
    """
    return [
        Compaction(log.storage, schema, tuple((f.path, bytes(log.dead(f).serialize())) for f in files), key)
        for files in chosen(list(log.files.values()), lambda f: rows_of(log.storage, f), vectors=vectors)
    ]


def chosen(files: Sequence[LiveFile], rows: Any, *, vectors: bool = True) -> list[list[LiveFile]]:
    """Groups of files that shall become one each.

    :param rows: how many rows a file has.
    """
    total = sum(f.size for f in files)
    large = max(_LARGE, total // _SHARE)
    small = [f for f in files if f.size < SMALL]
    middle = [f for f in files if SMALL <= f.size < MIDDLE]
    worn = [f for f in files if f.size >= SMALL and f.dead and (not vectors or f.dead > DEAD * rows(f))]
    found: list[list[LiveFile]] = []
    together = [*small, *middle] if len(small) >= SMALLS and len(middle) >= MIDDLES else []
    if not together:
        together = small if len(small) >= SMALLS else middle if len(middle) >= MIDDLES else []
    if not together and len(files) > _MOST:
        together, large = sorted(files, key=lambda f: f.size)[: len(files) // 2], max(large, 4 * total // _MOST)
    if not vectors:
        together = [*together, *(f for f in small if f.dead and f not in together)]
    found += _bins(together, large)
    taken = {f.path for group in found for f in group}
    return found + [[f] for f in worn if f.path not in taken]


def _bins(files: Sequence[LiveFile], large: int) -> Iterable[list[LiveFile]]:
    held: list[LiveFile] = []
    for file in files:
        if held and sum(f.size for f in held) + file.size > large:
            yield held
            held = []
        held.append(file)
    if len(held) > 1 or any(f.dead for f in held):
        yield held


def committed(
    log: Log, done: Sequence[tuple[Compaction, Sequence[DataFile]]], key: str | None, *, change: bool = False
) -> Written | None:
    """What is to be committed for compactions that have run, on a version of the table.

    :returns: ``None`` if a file that was read is not there any more.
    """
    found, late = Written(), dict[str, BitMap]()
    for compaction, files in done:
        start, dead = 0, BitMap()
        for path, before in compaction.sources:
            if path not in log.files:
                return None
            old = log.files[path]
            gone, now = BitMap.deserialize(before), log.dead(old)
            if not gone.issubset(now):
                return None  # rows came back: somebody has restored an older version
            count = rows_of(log.storage, old)
            fresh = np.asarray((now - gone).to_array(), np.int64)
            dead |= BitMap((start + fresh - np.searchsorted(np.asarray(gone.to_array(), np.int64), fresh)).astype("u4"))
            start += count - len(gone)
            found.actions.append(old.removed(change=change))
        for file in files:
            if len(dead) < file.rows:
                if dead:
                    late[file.path] = dead
                found.actions.append({"file": file})
            else:
                found.spare.append(file.path)
    vectors = write_vectors(log.storage, late)
    found.files += {v.file for v in vectors.values() if v.file}
    found.actions = [
        added(a["file"], key, vectors.get(a["file"].path), change=change) if "file" in a else a for a in found.actions
    ]
    found.vectors = late
    return found
