"""What changes mean for the files of a Delta table: which of their rows die, and which files are added.

Where a key is, the index says; what is alive, the log says. Decision 0001 has the argument.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from airflow_provider_cdc.core.changes import upserts
from airflow_provider_cdc.core.multiset import MissingRowsError, first
from airflow_provider_cdc.core.schema import META_COLUMNS, OP, SEQ
from airflow_provider_cdc.sinks.delta.edit import SLICES, Edit, alive, new_part, write_part
from airflow_provider_cdc.sinks.delta.key_index import Facts, Found, KeyIndex
from airflow_provider_cdc.sinks.delta.log import LiveFile, Log
from airflow_provider_cdc.sinks.delta.partitions import PartitionedFiles, Partitioning
from airflow_provider_cdc.sinks.delta.words import Worder, Words
from airflow_provider_cdc.sinks.files import DataFile, read_file, row_groups, without_rows
from airflow_provider_cdc.sinks.protocol import Change, Counted, Emptied, Published, Replaced, Upserted

#: Columns that changes have beside their own: number of the file that has them, and the row in it.
FILE, ROW = "__file", "__row"
_FILES = b"files"
#: Files whose keys are read at the same time.
_READERS = 4


@dataclass(frozen=True)
class Keys:
    """What tells the rows of a table apart.

    :param partitioning: how it is partitioned.
    :param names: the key columns; none if rows are told by all their values.
    :param stat: the key column if it is a single integer, which file statistics are kept for.
    """

    partitioning: Partitioning
    names: Sequence[str] = ()
    stat: str | None = None

    @property
    def schema(self) -> pa.Schema:
        """Schema of its rows."""
        return self.partitioning.schema

    @property
    def told_by(self) -> list[str]:
        """Columns that tell rows apart."""
        return list(self.names) or [name for name in self.schema.names if name not in META_COLUMNS]


def placed(changes: pa.Table, files: Sequence[DataFile]) -> pa.Table:
    """Changes that stand in files already, with the file and row of each.

    :param changes: rows of the files, one file after the other.
    """
    number = np.repeat(np.arange(len(files)), [file.rows for file in files])
    row = np.concatenate([np.arange(file.rows) for file in files]) if files else np.empty(0, np.int64)
    found = changes.append_column(FILE, pa.array(number, pa.int64())).append_column(ROW, pa.array(row, pa.int64()))
    return in_files(found, files)


def in_files(changes: pa.Table, files: Sequence[DataFile]) -> pa.Table:
    """Changes with the number of the file and the row of each.

    :param files: which these are the numbers of.
    """
    return changes.replace_schema_metadata({_FILES: json.dumps([file.to_json() for file in files])})


class Merge:
    """Merges into one version of a table.

    :param log: the table as it stands.
    :param keys: what tells its rows apart.
    :param index: where they are.
    :param worder: makes the words of the index.
    """

    def __init__(self, log: Log, keys: Keys, index: KeyIndex, worder: Worder) -> None:
        self._log, self._keys, self._index, self._worder = log, keys, index, worder
        self._storage = log.storage

    def of(self, change: Change) -> Edit | None:
        """What a change comes to; ``None`` for nothing."""
        match change:
            case Upserted(changes):
                return self._upserted(changes)
            case Counted():
                return self._counted(change)
            case Emptied(seq):
                edit = self._emptied(seq)
                return edit if edit.gone or edit.dead else None
            case Published(slices):
                return Edit(new=_published(slices))
            case Replaced():
                return self._replaced(change)

    def _upserted(self, changes: pa.Table) -> Edit:
        words, seqs = self._worder(changes), changes[SEQ].to_numpy()
        edit, current = Edit(), np.ones(changes.num_rows, bool)
        if changes.num_rows:
            stat = self._keys.stat
            span = pc.min_max(changes[stat]).as_py() if stat else None
            found = self._find(words, (int(span["min"]), int(span["max"])) if span else None)
            lowest = int(seqs.min())
            for file, asked, rows in self._by_file(found):
                newer = np.ones(len(rows), bool)
                if self._index.newest(self._index.number(file.path)) >= lowest:
                    newer = seqs[asked] > self._column(file, SEQ)[rows]
                current[asked[~newer]] = False
                if newer.any():
                    edit.dead[file.path] = BitMap(rows[newer].astype(np.uint32))
        current &= pc.not_equal(changes[OP], "d").to_numpy()
        self._add(edit, changes, words, current)
        return edit

    def _add(self, edit: Edit, changes: pa.Table, words: Words, current: Any) -> None:
        """Add the rows of changes: from the files in which they stand, or written now."""
        if FILE not in changes.column_names:
            rows = upserts(changes.filter(pa.array(current)))
            if rows.num_rows:
                self._written(edit, rows, words.take(np.flatnonzero(current)))
            return
        files = [DataFile(**value) for value in json.loads(changes.schema.metadata[_FILES])]
        number, row = changes[FILE].to_numpy(), changes[ROW].to_numpy()
        newest = int(pc.max(changes[SEQ]).as_py() or 0)
        living = np.flatnonzero(current)
        for file, part in zip(files, by_number(number[living], len(files)), strict=True):
            mine = living[part]
            dead = BitMap(range(file.rows)) - BitMap(row[mine].astype(np.uint32))
            edit.new.append((file, dead))
            edit.facts[file.path] = Facts(words.take(mine), newest, row[mine].astype(np.uint32))

    def _written(self, edit: Edit, rows: pa.Table, words: Words) -> None:
        keys = self._keys
        rows = rows.select(keys.schema.names)
        if not keys.partitioning:
            made, of_each = [write_part(self._storage, keys.schema, [rows], keys.stat)], [np.arange(rows.num_rows)]
        else:
            files = PartitionedFiles(self._storage, "", new_part(), keys.partitioning, keys.stat)
            number, _ = files.add(rows)
            made = files.close()
            of_each = by_number(number, len(made))
        for file, mine in zip(made, of_each, strict=True):
            edit.new.append((file, BitMap()))
            edit.facts[file.path] = Facts(words.take(mine), file.newest or 0)

    def _counted(self, change: Counted) -> Edit:
        net = change.net
        edit = self._emptied(change.since) if change.since else Edit()
        if net.removed.num_rows:
            found = self._find(self._worder(net.removed), None)
            left = net.counts.copy()
            for file, asked, rows in self._by_file(found):
                if file.path in edit.gone:
                    continue
                free = np.ones(len(rows), bool)
                if file.path in edit.dead:
                    free = ~np.isin(rows, np.asarray(edit.dead[file.path].to_array(), np.int64))
                candidates = np.flatnonzero(free)
                taken = first(candidates, asked, left)
                left -= np.bincount(asked[taken], minlength=len(left))
                if len(taken):
                    edit.dead[file.path] = edit.dead.get(file.path, BitMap()) | BitMap(rows[taken].astype(np.uint32))
            if left.any():
                missing = int(np.flatnonzero(left)[0])
                raise MissingRowsError(net.removed.slice(missing, 1), int(left[missing]))
        if net.added.num_rows:
            self._written(edit, net.added, self._worder(net.added))
        return edit

    def _emptied(self, seq: int) -> Edit:
        """All rows with a lower ``_cdc_seq`` die."""
        edit = Edit()
        for file in self._log.files.values():
            bounds = file.bounds(SEQ)
            if bounds is not None and bounds[0] >= seq:
                continue
            if bounds is not None and bounds[1] < seq:
                edit.gone.add(file.path)
                continue
            old = BitMap(np.flatnonzero(self._column(file, SEQ) < seq).astype(np.uint32)) - self._log.dead(file)
            if old:
                edit.dead[file.path] = old
        return edit

    def _replaced(self, change: Replaced) -> Edit:
        """Slices take the place of all rows of a chunk group.

        Files of the snapshot hold rows of one chunk group alone: they go or stay as they are. All other files were
        written by merges and compactions, and only their rows that belong to the group go.
        """
        generation, group = change.group
        snapshot, home = f"{SLICES}/{generation}/", f"{SLICES}/{generation}/{group}/"
        edit = Edit(new=_published(change.slices))
        for file in self._log.files.values():
            if file.path.startswith(home):
                edit.gone.add(file.path)
            elif not file.path.startswith(snapshot) and not file.apart(self._keys.stat, change.span):
                keys = self._rows(file, self._keys.names or [SEQ])
                leaves = np.flatnonzero(change.owned(keys).to_numpy(zero_copy_only=False))
                rows = BitMap(leaves.astype(np.uint32)) - self._log.dead(file)
                if rows:
                    edit.dead[file.path] = rows
        return edit

    # ------------------------------------------------------------ looking up

    def _find(self, words: Words, span: tuple[int, int] | None) -> Found:
        """Where rows with such words are, after the files that may have them were indexed."""
        files = [f for f in self._log.files.values() if not f.apart(self._keys.stat, span)]
        missing = [f for f in files if f.path not in self._index]
        if len(missing) > 1:
            with ThreadPoolExecutor(_READERS) as pool:
                known = list(pool.map(self._facts, missing))
        else:
            known = [self._facts(f) for f in missing]
        for file, facts in zip(missing, known, strict=True):
            self._index.add(file.path, facts)
        self._index.follow(self._log.files, lambda path: self._log.dead(self._log.files[path]))
        return self._index.find(words)

    def _facts(self, file: LiveFile) -> Facts:
        names = self._keys.told_by
        bounds = file.bounds(SEQ)
        columns = names if bounds else [*names, SEQ]
        # Portions: values of a table without a key may be many times what is kept of them.
        parts, newest = [], bounds[1] if bounds else 0
        for rows in row_groups(self._storage, file.path, self._keys.schema, columns, file.partition):
            parts.append(self._worder(rows))
            if bounds is None and rows.num_rows:
                newest = max(newest, int(pc.max(rows[SEQ]).as_py()))
        return Facts.of(parts, newest)

    def _by_file(self, found: Found) -> Iterator[tuple[LiveFile, Any, Any]]:
        """What was found alive, file by file: the file, what was asked for, and the rows."""
        order = np.argsort(found.file, kind="stable")
        numbers, starts = np.unique(found.file[order], return_index=True)
        for number, mine in zip(numbers, np.split(order, starts[1:]), strict=False):
            file = self._log.files[self._index.name(int(number))]
            asked, rows = found.asked[mine], found.row[mine]
            if dead := self._log.dead(file):
                living = BitMap(rows.astype(np.uint32)) - dead
                kept = np.isin(rows, np.asarray(living.to_array(), np.int64))
                asked, rows = asked[kept], rows[kept]
            if len(rows):
                yield file, asked, rows

    def _column(self, file: LiveFile, name: str) -> Any:
        return self._rows(file, [name])[name].to_numpy()

    def _rows(self, file: LiveFile, columns: Sequence[str]) -> pa.Table:
        return read_file(self._storage, file.path, self._keys.schema, columns, file.partition)


def by_number(number: Any, count: int) -> list[Any]:
    """Indices of the rows that have each number, in their order.

    :param number: array of numbers below ``count``.
    """
    order = np.argsort(number, kind="stable")
    found: list[Any] = np.split(order, np.searchsorted(number[order], np.arange(1, count))) if count else []
    return found


def living_rows(log: Log, schema: pa.Schema, names: Collection[str] | None = None) -> pa.Table:
    """All rows of a version.

    :param names: only these files.
    """
    parts = [
        next(alive([read_file(log.storage, f.path, schema, partition=f.partition)], log.dead(f)))
        for f in log.files.values()
        if names is None or f.path in names
    ]
    return pa.concat_tables([without_rows(schema), *parts])


def _published(slices: Sequence[DataFile]) -> list[tuple[DataFile, BitMap]]:
    return [(file, BitMap()) for part in slices for file in part.files if file.rows]
