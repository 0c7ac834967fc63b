"""Compaction: small files become larger ones, and dead rows go. It loses to nobody, and nobody waits for it.

What is written is a function of files that never change, so it may be run anywhere, at any time and twice: each time
under another name, as a task that was given up may go on behind the commit of what another one has written. Only the
commit looks at the table as it stands: rows that have died since are dead in the new file, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from pyroaring import BitMap

from airflow_provider_cdc.sinks.delta.edit import Written, alive, new_part, partition_of, rows_of
from airflow_provider_cdc.sinks.delta.live_file import LiveFile, added
from airflow_provider_cdc.sinks.delta.log import Log
from airflow_provider_cdc.sinks.delta.partitions import Partitioning, takes_vectors
from airflow_provider_cdc.sinks.delta.vectors import write_vectors
from airflow_provider_cdc.sinks.files import DataFile, Partition, row_groups, write_file
from airflow_provider_cdc.sinks.storage import Storage

#: Files below these sizes are put together when there are so many of them.
SMALL, SMALLS = 4 << 20, 32
MIDDLE, MIDDLES = 16 << 20, 16
#: Of a partition never fewer than these, however many partitions there are.
FEWEST = 4
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
    :param partitioning: how it is partitioned.
    :param sources: paths, each with its dead rows (serialized).
    :param key: name of the single integer key column.
    :param partition: the one that all of them are in.
    """

    storage: Storage
    partitioning: Partitioning
    sources: tuple[tuple[str, bytes], ...]
    key: str | None
    partition: Partition = field(default_factory=dict, hash=False)

    def run(self) -> list[DataFile]:
        """Write the living rows of the files as one.

        :returns: what was written; nothing if no row lives.
        """
        schema = self.partitioning.stored
        parts = (alive(row_groups(self.storage, path, schema), BitMap.deserialize(dead)) for path, dead in self.sources)
        path = self.partitioning.path("", self.partition, f"{new_part()}.parquet")
        try:
            file = write_file(
                self.storage,
                path,
                schema,
                chain.from_iterable(parts),
                self.key,
                partition=self.partition,
                group_rows=self.partitioning.group_rows,
            )
        except BaseException:
            self.storage.delete(path)
            raise
        if not file.rows:
            self.storage.delete(path)
        return [file] if file.rows else []


def plan(log: Log, partitioning: Partitioning, key: str | None, *, vectors: bool) -> list[Compaction]:
    """What is to be compacted now.

    :param vectors: whether rows may die by deletion vectors; if not, files that have one are written anew.
    """
    return [
        Compaction(
            log.storage,
            partitioning,
            tuple((f.path, bytes(log.dead(f).serialize())) for f in files),
            key,
            files[0].partition,
        )
        for files in chosen(list(log.files.values()), lambda f: rows_of(log.storage, f), vectors=vectors)
    ]


def chosen(files: Sequence[LiveFile], rows: Any, *, vectors: bool = True) -> list[list[LiveFile]]:
    """Groups of files that shall become one each.

    :param rows: how many rows a file has.
    """
    parts: dict[Any, list[LiveFile]] = {}
    for file in files:
        parts.setdefault(partition_of(file), []).append(file)
    total = sum(f.size for f in files)
    found: list[list[LiveFile]] = []
    for mine in parts.values():
        small = [f for f in mine if f.size < SMALL]
        worn = [f for f in mine if f.size >= SMALL and f.dead and (not vectors or f.dead > DEAD * rows(f))]
        together, large = _together(mine, len(parts)), max(_LARGE, total // _SHARE)
        if not together and len(files) > _MOST and len(mine) > max(1, _MOST // len(parts)):
            together, large = _even(mine), max(large, 4 * total // _MOST)
        if not vectors:
            together = [*together, *(f for f in small if f.dead and f not in together)]
        bins = list(_bins(together, large))
        taken = {f.path for group in bins for f in group}
        found += [*bins, *([f] for f in worn if f.path not in taken)]
    return found


def _together(files: Sequence[LiveFile], parts: int) -> list[LiveFile]:
    """The small files of a partition, if they are many: the more partitions there are, the fewer that is."""
    small = [f for f in files if f.size < SMALL]
    middle = [f for f in files if SMALL <= f.size < MIDDLE]
    many = [most if parts == 1 else max(FEWEST, min(most, _MOST // 2 // parts)) for most in (SMALLS, MIDDLES)]
    if len(small) >= many[0]:
        return [*small, *middle] if len(middle) >= many[1] else small
    return middle if len(middle) >= many[1] else []


def _even(files: Sequence[LiveFile]) -> list[LiveFile]:
    """The smaller half of the files of a partition, without those beside which the rest is nothing."""
    found = sorted(files, key=lambda f: f.size)[: max(2, len(files) // 2)]
    while found and found[-1].size > 4 * sum(f.size for f in found[:-1]):
        found.pop()
    return found


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

    :returns: ``None`` if a file that was read is not there any more, or must not be put in its place.
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
                if dead and not takes_vectors(file.path):
                    return None  # it is done again, some day, on what is there then
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
