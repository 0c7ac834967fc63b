"""Merging of changes into tables that have no key: equal rows are counted, and as many as have gone are taken out.

Nothing tells where a row is, so its files are searched one after the other, the small ones first, until it is found. A
file that loses rows is written anew, in pieces that later changes need not read again. Of each file no more than a row
group is in memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from airflow_provider_cdc.core.multiset import Net, first, images, numbers
from airflow_provider_cdc.core.schema import META_COLUMNS, SEQ
from airflow_provider_cdc.sinks.delta import LARGE_FILE, SMALL_FILE, Actions
from airflow_provider_cdc.sinks.files import DataFile, files_of, write_file

#: For each file the rows that it loses: number of a row group -> indices in it.
_Lost = dict[str, dict[int, Any]]


class MissingRowsError(Exception):
    """Rows that are to be deleted are not there.

    :param row: the deletion, a table of one row.
    :param count: how many of the equal rows are missing.
    """

    def __init__(self, row: pa.Table, count: int) -> None:
        super().__init__(f"{count} rows are missing")
        self.row, self.count = row, count


def live_files(table: DeltaTable) -> list[tuple[str, int]]:
    """Path and size of each file of a Delta table as it stands."""
    return [(str(f["path"]), int(f["size_bytes"])) for f in files_of(table)]


def merged(
    root: Path, schema: pa.Schema, files: Sequence[tuple[str, int]], change: Net, *, since: int = 0, name: str = "part-"
) -> Actions:
    """Actions that take out as many rows as a change takes away of each image, and put in what it adds.

    Nothing is written unless all are found.

    :param root: the table's folder.
    :param schema: schema of its rows.
    :param files: path and size of each of its files.
    :param since: rows with a lower ``_cdc_seq`` go in any case, and do not count.
    :param name: how the paths of new files begin.
    :raises MissingRowsError: if there are fewer rows than are taken away.
    """
    files = sorted(files, key=lambda file: file[1])
    lost = _search(root, schema, files, change, since)
    if change.added.num_rows and not lost:
        small = next((path for path, size in files if size < SMALL_FILE), None)
        if small is not None:  # small files must not pile up
            lost[small] = {}
    kept = [_kept(root / path, schema, gone) for path, gone in lost.items()]
    return Actions(_write(root, schema, chain(*kept, [change.added]), name), list(lost))


def _search(root: Path, schema: pa.Schema, files: Sequence[tuple[str, int]], change: Net, since: int) -> _Lost:
    """Where the rows are that go."""
    names = [name for name in schema.names if name not in META_COLUMNS]
    wanted, left, lost = images(change.removed, names), change.counts.copy(), _Lost()
    for path, _ in files:
        if not left.any() and not since:
            break
        for number, rows in enumerate(_groups(root / path, schema)):
            old = pc.less(rows[SEQ], since).to_numpy()
            found = np.flatnonzero(old)
            if left.any():
                found = np.concatenate((found, _take(images(rows, names), wanted, left, ~old)))
            if len(found):
                lost.setdefault(path, {})[number] = found
    if left.any():
        first = int(np.flatnonzero(left)[0])
        raise MissingRowsError(change.removed.slice(first, 1), int(left[first]))
    return lost


def _take(rows: pa.Table, wanted: pa.Table, left: Any, mask: Any) -> Any:
    """Indices of rows that equal one that is wanted, no more of each than are left; those are then counted down.

    :param mask: which of the rows count.
    """
    for name in rows.column_names:  # most rows differ in one of the first columns from all
        mask = mask & pc.is_in(rows[name], value_set=wanted[name].combine_chunks()).to_numpy()
        if not mask.any():
            return np.empty(0, np.int64)
    candidates = np.flatnonzero(mask)
    number = numbers(pa.concat_tables([wanted, rows.take(candidates)]))
    row_of = np.full(len(number), -1)
    row_of[number[: wanted.num_rows]] = np.arange(wanted.num_rows)
    equal = row_of[number[wanted.num_rows :]]
    taken = first(np.flatnonzero(equal >= 0), equal, left)
    left -= np.bincount(equal[taken], minlength=len(left))
    return candidates[taken]


def _kept(path: Path, schema: pa.Schema, gone: dict[int, Any]) -> Iterator[pa.Table]:
    for number, rows in enumerate(_groups(path, schema)):
        mask = np.ones(rows.num_rows, dtype=bool)
        mask[gone.get(number, [])] = False
        yield rows.filter(pa.array(mask))


def _groups(path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for number in range(file.metadata.num_row_groups):
            yield file.read_row_group(number).select(schema.names).cast(schema)


def _write(root: Path, schema: pa.Schema, parts: Iterable[pa.Table], name: str) -> list[DataFile]:
    """Write tables as files of a limited size."""
    found, rest = [], (part for part in parts if part.num_rows)
    for head in rest:

        def some(head: pa.Table = head) -> Iterator[pa.Table]:
            size = head.nbytes
            yield head
            while size < LARGE_FILE and (part := next(rest, None)) is not None:
                size += part.nbytes
                yield part

        found.append(write_file(root, f"{name}{uuid.uuid4().hex}.parquet", schema, some(), None))
    return found
