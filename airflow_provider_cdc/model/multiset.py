"""Rows of tables without a key, which are compared by all of their values; equal rows are counted.

The **image** of a row consists of its copied source columns, without the columns that the project adds. Two images are
equal if they are bit-identical: NULL equals NULL, -0.0 differs from 0.0, and text is compared by its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.schema import OP_COLUMN, PROJECT_COLUMNS, SEQ_COLUMN

_ROW = "row"
#: For each file, the rows to remove: number of a row group -> indices in it.
RemovedRows = dict[str, dict[int, Any]]


class MissingRowsError(Exception):
    """Rows to delete do not exist.

    :param row: the deletion, a table of one row.
    :param count: how many of the equal rows are missing.
    """

    def __init__(self, row: pa.Table, count: int) -> None:
        super().__init__(f"{count} rows are missing")
        self.row, self.count = row, count


@dataclass(frozen=True)
class NetChange:
    """The net effect of some changes.

    :param added: rows to add; of several equal rows, the newest ones.
    :param removed: one row for each image that has fewer rows than before: the newest deletion.
    :param removed_counts: number of rows to remove, one number for each row of ``removed``.
    """

    added: pa.Table
    removed: pa.Table
    removed_counts: Any

    def __bool__(self) -> bool:
        return bool(self.added.num_rows or self.removed.num_rows)


def row_images(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return images of rows as columns ``0``, ``1``, ..., whose equality is bit equality.

    :param names: columns of the source.
    """
    columns = [_bit_comparable(rows[name]) for name in names]
    return pa.table(columns, names=[str(i) for i in range(len(columns))])


def number_images(images: pa.Table) -> Any:
    """Number the images from :func:`row_images` from 0: equal images get the same number.

    :returns: array of int64, one number per row.
    """
    keyed = images.append_column(_ROW, pa.array(np.arange(images.num_rows), pa.int64()))
    rows_by_image = keyed.group_by(images.column_names, use_threads=False).aggregate([(_ROW, "list")])[f"{_ROW}_list"]
    image_numbers = np.empty(images.num_rows, np.int64)
    sizes = pc.list_value_length(rows_by_image).to_numpy()
    image_numbers[pc.list_flatten(rows_by_image).to_numpy()] = np.repeat(np.arange(len(sizes)), sizes)
    return image_numbers


def change_weights(changes: pa.Table) -> Any:
    """Return 1 for each change that adds a row, -1 for each that removes one."""
    return np.where(pc.equal(changes[OP_COLUMN], "d").to_numpy(), -1, 1)


def net_change(changes: pa.Table, names: Sequence[str]) -> NetChange:
    """Add up changes: an insertion and a deletion of equal rows cancel out, in whatever order they occur.

    :param changes: changes in binlog order; an update is a deletion and an insertion.
    :param names: columns of the source.
    """
    number, weight = number_images(row_images(changes, names)), change_weights(changes)
    sums = np.bincount(number, weight).astype(np.int64)
    # Newest first: of each image, as many rows as were added on balance.
    newest = np.arange(changes.num_rows)[::-1]
    added = take_first_of_each(newest[weight[newest] > 0], number, sums)
    removed = take_first_of_each(newest[weight[newest] < 0], number, np.where(sums < 0, 1, 0))
    return NetChange(changes.take(np.sort(added)), changes.take(removed), -sums[number[removed]])


def take_first_of_each(rows: Any, number: Any, wanted: Any) -> Any:
    """Select the first rows of each number, up to the wanted count.

    :param rows: indices into ``number``.
    :param wanted: wanted count, indexed by number.
    """
    rows = rows[np.argsort(number[rows], kind="stable")]
    rank = np.arange(len(rows)) - np.searchsorted(number[rows], number[rows])
    return rows[rank < wanted[number[rows]]]


def find_removed_rows(
    files: Iterable[tuple[str, Iterable[pa.Table]]], change: NetChange, ignore_below_seq: int = 0
) -> RemovedRows:
    """Find the rows that a change removes. Files are read one after the other, and no further than needed.

    :param files: name and row groups of each file.
    :param ignore_below_seq: rows with a lower ``_cdc_seq`` are always removed and do not count; all files are read
        then.
    :raises MissingRowsError: if fewer rows exist than are to be removed.
    """
    names = [name for name in change.removed.column_names if name not in PROJECT_COLUMNS]
    wanted = row_images(change.removed, names)
    missing_counts, removed_rows = change.removed_counts.copy(), RemovedRows()
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
    """Yield the remaining rows of a file.

    :param groups: its row groups.
    :param removed: rows to remove, as in :data:`RemovedRows`.
    """
    for number, rows in enumerate(groups):
        mask = np.ones(rows.num_rows, dtype=bool)
        mask[removed.get(number, [])] = False
        yield rows.filter(pa.array(mask))


def _match_rows(rows: pa.Table, wanted: pa.Table, left: Any, mask: Any) -> Any:
    """Return the indices of rows that equal a wanted row, at most as many of each as ``left`` allows.

    ``left`` is decreased in place.

    :param mask: which rows are considered.
    """
    for name in rows.column_names:  # most rows already fail to match in one of the first columns
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
    # Without the large types, at most 2 GiB of a column could be grouped.
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
