"""Rows that no key tells apart: they are compared by all their values, and equal ones are counted.

The **image** of a row is its copied source columns without those that the project adds. Two images are equal if they
are so bit by bit: NULL equals NULL, -0.0 is not 0.0, and text is compared by its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.schema import META_COLUMNS, OP_COLUMN, SEQ_COLUMN

_ROW = "row"
#: For each file the rows that it loses: number of a row group -> indices in it.
RemovedRows = dict[str, dict[int, Any]]


class MissingRowsError(Exception):
    """Rows that are to be deleted are not there.

    :param row: the deletion, a table of one row.
    :param count: how many of the equal rows are missing.
    """

    def __init__(self, row: pa.Table, count: int) -> None:
        super().__init__(f"{count} rows are missing")
        self.row, self.count = row, count


@dataclass(frozen=True)
class NetChange:
    """What changes come to in the end.

    :param added: the rows that are more than before: of several equal ones the newest.
    :param removed: one row for each image of which there are fewer: the newest that was deleted.
    :param removed_counts: how many fewer, one number for each of these.
    """

    added: pa.Table
    removed: pa.Table
    removed_counts: Any

    def __bool__(self) -> bool:
        return bool(self.added.num_rows or self.removed.num_rows)


def row_images(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Images of rows, in a form whose equality is that of their bits: columns ``0``, ``1``, ...

    :param names: columns of the source.
    """
    columns = [_bit_comparable(rows[name]) for name in names]
    return pa.table(columns, names=[str(i) for i in range(len(columns))])


def number_images(images: pa.Table) -> Any:
    """A number for each row of :func:`images`, counted from 0: equal images have the same one, others do not.

    :returns: array of int64.
    """
    keyed = images.append_column(_ROW, pa.array(np.arange(images.num_rows), pa.int64()))
    rows_by_image = keyed.group_by(images.column_names, use_threads=False).aggregate([(_ROW, "list")])[f"{_ROW}_list"]
    image_numbers = np.empty(images.num_rows, np.int64)
    sizes = pc.list_value_length(rows_by_image).to_numpy()
    image_numbers[pc.list_flatten(rows_by_image).to_numpy()] = np.repeat(np.arange(len(sizes)), sizes)
    return image_numbers


def change_weights(changes: pa.Table) -> Any:
    """1 for each change that leaves a row behind, -1 for each that takes one away."""
    return np.where(pc.equal(changes[OP_COLUMN], "d").to_numpy(), -1, 1)


def net_change(changes: pa.Table, names: Sequence[str]) -> NetChange:
    """Add up changes: what is put in and taken out again, in whatever order, leaves nothing to do.

    :param changes: changes in binlog order, an update as a deletion and an insertion.
    :param names: columns of the source.
    """
    number, weight = number_images(row_images(changes, names)), change_weights(changes)
    sums = np.bincount(number, weight).astype(np.int64)
    # From the newest on; the first ones of each image, as many as there are more.
    newest = np.arange(changes.num_rows)[::-1]
    added = take_first_of_each(newest[weight[newest] > 0], number, sums)
    removed = take_first_of_each(newest[weight[newest] < 0], number, np.where(sums < 0, 1, 0))
    return NetChange(changes.take(np.sort(added)), changes.take(removed), -sums[number[removed]])


def take_first_of_each(rows: Any, number: Any, wanted: Any) -> Any:
    """The first of some rows of each number, as many as are wanted of it.

    :param rows: indices into ``number``.
    :param wanted: how many, indexed by number.
    """
    rows = rows[np.argsort(number[rows], kind="stable")]
    rank = np.arange(len(rows)) - np.searchsorted(number[rows], number[rows])
    return rows[rank < wanted[number[rows]]]


def find_removed_rows(
    files: Iterable[tuple[str, Iterable[pa.Table]]], change: NetChange, ignore_below_seq: int = 0
) -> RemovedRows:
    """Where the rows are that a change takes away. Files are read one after the other, and no further than needed.

    :param files: name and row groups of each.
    :param ignore_below_seq: rows with a lower ``_cdc_seq`` go in any case, and do not count; all files are read then.
    :raises MissingRowsError: if there are fewer rows than are taken away.
    """
    names = [name for name in change.removed.column_names if name not in META_COLUMNS]
    wanted, missing_counts, removed_rows = (
        row_images(change.removed, names),
        change.removed_counts.copy(),
        RemovedRows(),
    )
    for path, groups in files:
        if not missing_counts.any() and not ignore_below_seq:
            break
        for number, rows in enumerate(groups):
            old = pc.less(rows[SEQ_COLUMN], ignore_below_seq).to_numpy()
            indices = np.flatnonzero(old)
            if missing_counts.any():
                indices = np.concatenate((indices, _match_rows(row_images(rows, names), wanted, missing_counts, ~old)))
            if len(indices):
                removed_rows.setdefault(path, {})[number] = indices
    if missing_counts.any():
        missing = int(np.flatnonzero(missing_counts)[0])
        raise MissingRowsError(change.removed.slice(missing, 1), int(missing_counts[missing]))
    return removed_rows


def without_removed_rows(groups: Iterable[pa.Table], removed: dict[int, Any]) -> Iterator[pa.Table]:
    """What is left of a file.

    :param groups: its row groups.
    :param removed: rows that it loses, as in :data:`Lost`.
    """
    for number, rows in enumerate(groups):
        mask = np.ones(rows.num_rows, dtype=bool)
        mask[removed.get(number, [])] = False
        yield rows.filter(pa.array(mask))


def _match_rows(rows: pa.Table, wanted: pa.Table, left: Any, mask: Any) -> Any:
    """Indices of rows that equal one that is wanted, no more of each than are left; those are then counted down.

    :param mask: which of the rows count.
    """
    for name in rows.column_names:  # most rows differ in one of the first columns from all
        mask = mask & pc.is_in(rows[name], value_set=wanted[name].combine_chunks()).to_numpy()
        if not mask.any():
            return np.empty(0, np.int64)
    candidates = np.flatnonzero(mask)
    number = number_images(pa.concat_tables([wanted, rows.take(candidates)]))
    row_of = np.full(len(number), -1)
    row_of[number[: wanted.num_rows]] = np.arange(wanted.num_rows)
    equal = row_of[number[wanted.num_rows :]]
    matched = take_first_of_each(np.flatnonzero(equal >= 0), equal, left)
    left -= np.bincount(equal[matched], minlength=len(left))
    return candidates[matched]


def _bit_comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_floating(kind):
        bits = pa.int32() if kind == pa.float32() else pa.int64()
        return pa.chunked_array([chunk.view(bits) for chunk in column.chunks], bits)
    if pa.types.is_list(kind):
        return pa.chunked_array([_vector_bytes(chunk) for chunk in column.chunks], pa.large_binary())
    # Large: no more than 2 GiB of one column could be grouped otherwise.
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return column.cast(large.get(kind, kind))


def _vector_bytes(vectors: pa.ListArray) -> pa.LargeBinaryArray:
    lengths = pc.fill_null(pc.list_value_length(vectors), 0).to_numpy().astype(np.int64)
    values = vectors.flatten()
    offsets = np.concatenate(([0], np.cumsum(lengths * values.type.bit_width // 8))).astype(np.int64)
    valid = pc.is_valid(vectors).cast(pa.uint8()).to_numpy()
    validity = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    content = pa.py_buffer(np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).tobytes())
    return pa.Array.from_buffers(pa.large_binary(), len(vectors), [validity, pa.py_buffer(offsets.tobytes()), content])
