"""Compare the rows of both sides value by value: floats bit by bit, NULL as a distinct value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.comparison import DIFFERENT, EXTRA, MISSING
from airflow_provider_cdc.model.multiset import number_images, row_images
from airflow_provider_cdc.model.schema import TableSchema

_EXAMPLES, _EXAMPLE_LENGTH = 3, 200
_ROW = "row"


@dataclass
class RowDiff:
    """Differences between source and sink.

    :param counts: how many keys (or rows) are missing, extra and different.
    :param allowed_extra: number of keys that only the sink has, where that is allowed.
    :param differing_keys: the first differences, as (kind, keys as a table, the columns that differ for each key).
    :param differing_columns: how many rows differ, by column.
    :param examples: a few keys or rows of each kind, as text.
    """

    counts: dict[str, int] = field(default_factory=lambda: {MISSING: 0, EXTRA: 0, DIFFERENT: 0})
    allowed_extra: int = 0
    differing_keys: list[tuple[str, pa.Table, list[tuple[str, ...]]]] = field(default_factory=list)
    differing_columns: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of keys or rows that differ."""
        return sum(self.counts.values())

    def merge(self, other: RowDiff) -> None:
        """Add the differences found among other keys."""
        for kind, count in other.counts.items():
            self.counts[kind] += count
        self.allowed_extra += other.allowed_extra
        self.differing_keys += other.differing_keys
        for name, count in other.differing_columns.items():
            self.differing_columns[name] = self.differing_columns.get(name, 0) + count
        for kind, texts in other.examples.items():
            self.examples[kind] = [*self.examples.get(kind, ()), *texts][:_EXAMPLES]

    def add(self, kind: str, keys: pa.Table, max_keys: int, columns: list[tuple[str, ...]] | None = None) -> None:
        """Add keys that differ.

        :param kind: ``missing``, ``extra`` or ``different``.
        :param max_keys: how many of the keys are kept.
        :param columns: the columns in which the rows of each key differ.
        """
        self.counts[kind] += keys.num_rows
        kept_keys = keys.slice(0, max_keys)
        if kept_keys.num_rows:
            self.differing_keys.append((kind, kept_keys, columns or [()] * kept_keys.num_rows))
            shown = [f"{kind} {tuple(row.values())!r}" for row in kept_keys.slice(0, _EXAMPLES).to_pylist()]
            self.examples.setdefault(kind, []).extend(shown)


def diff_by_key(
    table: TableSchema, source: pa.Table, sink: pa.Table, *, max_keys: int, allow_extra: bool = False
) -> RowDiff:
    """Compare rows by key.

    :param max_keys: how many keys of each kind are kept.
    :param allow_extra: whether the sink may have rows that the source lacks.
    """
    names = [c.name for c in table.copy.copied_columns]
    order = [str(names.index(k)) for k in table.copy.key]
    left, right = (row_images(side, names) for side in (source, sink))
    left, right = (side.append_column(_ROW, pa.array(np.arange(side.num_rows))) for side in (left, right))
    diff = RowDiff()
    missing = left.select([*order, _ROW]).join(right.select(order), order, join_type="left anti")[_ROW]
    diff.add(MISSING, _take_in_order(source.select(list(table.copy.key)), missing), max_keys)
    extra = right.select([*order, _ROW]).join(left.select(order), order, join_type="left anti")[_ROW]
    counted = (
        right.select([*order, _ROW]).group_by(order, use_threads=False).aggregate([(_ROW, "count"), (_ROW, "min")])
    )
    duplicates = counted.filter(pc.greater(counted[f"{_ROW}_count"], 1))
    duplicate_rows = int(pc.sum(duplicates[f"{_ROW}_count"]).as_py() or 0) - duplicates.num_rows
    if allow_extra:
        diff.allowed_extra = len(extra)
    else:
        diff.add(EXTRA, _take_in_order(sink.select(list(table.copy.key)), extra), max_keys)
    diff.add(EXTRA, _take_in_order(sink.select(list(table.copy.key)), duplicates[f"{_ROW}_min"]), max_keys)
    diff.counts[EXTRA] += duplicate_rows - duplicates.num_rows  # every surplus row counts
    if duplicates.num_rows:  # there is no way to tell which of them to compare with the source's row
        right = right.join(duplicates.select(order), order, join_type="left anti")
    matched = left.select([*order, _ROW]).join(
        right.select([*order, _ROW]), order, join_type="inner", right_suffix="_of_sink"
    )
    matched = matched.sort_by(_ROW)
    source_rows, sink_rows = source.take(matched[_ROW]), sink.take(matched[f"{_ROW}_of_sink"])
    _diff_common_keys(diff, table, source_rows, sink_rows, max_keys)
    return diff


def _diff_common_keys(
    diff: RowDiff, table: TableSchema, source_rows: pa.Table, sink_rows: pa.Table, max_keys: int
) -> None:
    """Compare rows whose keys are the same, in the same order."""
    names = [c.name for c in table.copy.copied_columns]
    left, right = row_images(source_rows, names), row_images(sink_rows, names)
    masks = {name: _difference_mask(left[str(i)], right[str(i)]) for i, name in enumerate(names)}
    masks = {name: mask for name, mask in masks.items() if mask.any()}
    if not masks:
        return
    diff.differing_columns = {name: int(mask.sum()) for name, mask in masks.items()}
    rows = np.flatnonzero(np.logical_or.reduce(list(masks.values())))
    columns = [tuple(name for name, mask in masks.items() if mask[row]) for row in rows[:max_keys]]
    diff.add(DIFFERENT, source_rows.select(list(table.copy.key)).take(pa.array(rows)), max_keys, columns)


def _difference_mask(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Any:
    """Return a mask of the rows in which two columns of row images differ."""
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    return pc.or_(unequal, pc.not_equal(pc.is_null(left), pc.is_null(right))).to_numpy()


def _take_in_order(keys: pa.Table, rows: pa.ChunkedArray) -> pa.Table:
    """Return the keys of some rows, in row order."""
    return keys.take(pa.array(np.sort(rows.to_numpy()).astype(np.int64)))


def diff_by_count(table: TableSchema, sides: Sequence[tuple[pa.Table, pa.Table, Any]]) -> RowDiff:
    """Compare how often each row occurs.

    :param sides: source and sink, each as (rows, changes that these lack, weight of each change).
    """
    names = [c.name for c in table.copy.copied_columns]
    all_rows = pa.concat_tables([row_images(rows, names) for side in sides for rows in side[:2]])
    number, begin = number_images(all_rows), 0
    counts = []
    for rows, _, weights in sides:
        weight = np.concatenate((np.ones(rows.num_rows), weights))
        end = begin + len(weight)
        counts.append(np.bincount(number[begin:end], weight, minlength=number.max(initial=-1) + 1).astype(np.int64))
        begin = end
    surplus = counts[0] - counts[1]
    diff = RowDiff()
    for kind, which in ((MISSING, np.flatnonzero(surplus > 0)), (EXTRA, np.flatnonzero(surplus < 0))):
        diff.counts[kind] = int(np.abs(surplus[which]).sum())
        for image in which[:_EXAMPLES]:
            row = all_rows.slice(int(np.flatnonzero(number == image)[0]), 1).to_pylist()[0]
            diff.examples.setdefault(kind, []).append(
                f"{kind} {abs(int(surplus[image]))} of {_truncate(tuple(row.values()))}"
            )
    return diff


def _truncate(row: tuple[Any, ...]) -> str:
    text = repr(row)
    return text if len(text) <= _EXAMPLE_LENGTH else f"{text[:_EXAMPLE_LENGTH]}..."
