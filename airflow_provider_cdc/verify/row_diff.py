"""The rows of a table on two sides, compared value by value: floats bit by bit, NULL as a value of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.comparison import DIFFERENT, EXTRA, MISSING
from airflow_provider_cdc.model.multiset import images, numbers
from airflow_provider_cdc.model.schema import TableSchema

_EXAMPLES, _EXAMPLE_LENGTH = 3, 200
_ROW = "row"


@dataclass
class Unequal:
    """What is not the same.

    :param counts: how many keys (or rows) are missing, extra and different.
    :param kept: keys that only the sink has, as it may.
    :param keys: for each of the first that are not the same what it is, its key as a table of one row or more, and for
        each of these the columns that differ.
    :param columns: how many rows differ in a column.
    :param examples: a few of the keys or rows.
    """

    counts: dict[str, int] = field(default_factory=lambda: {MISSING: 0, EXTRA: 0, DIFFERENT: 0})
    kept: int = 0
    keys: list[tuple[str, pa.Table, list[tuple[str, ...]]]] = field(default_factory=list)
    columns: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many keys or rows are not the same."""
        return sum(self.counts.values())

    def join(self, other: Unequal) -> None:
        """Take in what was found among other keys."""
        for kind, count in other.counts.items():
            self.counts[kind] += count
        self.kept += other.kept
        self.keys += other.keys
        for name, count in other.columns.items():
            self.columns[name] = self.columns.get(name, 0) + count
        for kind, found in other.examples.items():
            self.examples[kind] = [*self.examples.get(kind, ()), *found][:_EXAMPLES]

    def add(self, kind: str, keys: pa.Table, most: int, columns: list[tuple[str, ...]] | None = None) -> None:
        """Take in keys.

        :param most: how many of them are kept.
        :param columns: the columns in which their rows differ.
        """
        self.counts[kind] += keys.num_rows
        some = keys.slice(0, most)
        if some.num_rows:
            self.keys.append((kind, some, columns or [()] * some.num_rows))
            shown = [f"{kind} {tuple(row.values())!r}" for row in some.slice(0, _EXAMPLES).to_pylist()]
            self.examples.setdefault(kind, []).extend(shown)


def by_key(table: TableSchema, source: pa.Table, sink: pa.Table, *, most: int, keeps: bool = False) -> Unequal:
    """Compare rows that have a key.

    :param most: how many keys of each kind are kept.
    :param keeps: whether the sink may have rows that the source lacks.
    """
    names = [c.name for c in table.copied]
    order = [str(names.index(k)) for k in table.key]
    left, right = (images(side, names) for side in (source, sink))
    left, right = (side.append_column(_ROW, pa.array(np.arange(side.num_rows))) for side in (left, right))
    found = Unequal()
    missing = left.select([*order, _ROW]).join(right.select(order), order, join_type="left anti")[_ROW]
    found.add(MISSING, _sorted(source.select(list(table.key)), missing), most)
    extra = right.select([*order, _ROW]).join(left.select(order), order, join_type="left anti")[_ROW]
    counted = (
        right.select([*order, _ROW]).group_by(order, use_threads=False).aggregate([(_ROW, "count"), (_ROW, "min")])
    )
    twice = counted.filter(pc.greater(counted[f"{_ROW}_count"], 1))
    more = int(pc.sum(twice[f"{_ROW}_count"]).as_py() or 0) - twice.num_rows
    if keeps:
        found.kept = len(extra)
    else:
        found.add(EXTRA, _sorted(sink.select(list(table.key)), extra), most)
    found.add(EXTRA, _sorted(sink.select(list(table.key)), twice[f"{_ROW}_min"]), most)
    found.counts[EXTRA] += more - twice.num_rows  # each row that is one too many counts
    if twice.num_rows:  # which of them the other side's row should be compared with nobody can say
        right = right.join(twice.select(order), order, join_type="left anti")
    both = left.select([*order, _ROW]).join(
        right.select([*order, _ROW]), order, join_type="inner", right_suffix="_of_sink"
    )
    both = both.sort_by(_ROW)
    here, there = source.take(both[_ROW]), sink.take(both[f"{_ROW}_of_sink"])
    _differing(found, table, here, there, most)
    return found


def _differing(found: Unequal, table: TableSchema, here: pa.Table, there: pa.Table, most: int) -> None:
    """Compare rows of the same keys, in the same order."""
    names = [c.name for c in table.copied]
    left, right = images(here, names), images(there, names)
    masks = {name: _differs(left[str(i)], right[str(i)]) for i, name in enumerate(names)}
    masks = {name: mask for name, mask in masks.items() if mask.any()}
    if not masks:
        return
    found.columns = {name: int(mask.sum()) for name, mask in masks.items()}
    rows = np.flatnonzero(np.logical_or.reduce(list(masks.values())))
    columns = [tuple(name for name, mask in masks.items() if mask[row]) for row in rows[:most]]
    found.add(DIFFERENT, here.select(list(table.key)).take(pa.array(rows)), most, columns)


def _differs(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Any:
    """Mask of the places at which two columns of :func:`~airflow_provider_cdc.model.multiset.images` differ."""
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    return pc.or_(unequal, pc.not_equal(pc.is_null(left), pc.is_null(right))).to_numpy()


def _sorted(keys: pa.Table, rows: pa.ChunkedArray) -> pa.Table:
    """Keys of some rows, in their order."""
    return keys.take(pa.array(np.sort(rows.to_numpy()).astype(np.int64)))


def by_count(table: TableSchema, sides: Sequence[tuple[pa.Table, pa.Table, Any]]) -> Unequal:
    """Compare how often each row is there.

    :param sides: of source and sink, the rows, the changes that they lack, and how often each of those counts.
    """
    names = [c.name for c in table.copied]
    every = pa.concat_tables([images(rows, names) for side in sides for rows in side[:2]])
    number, begin = numbers(every), 0
    counts = []
    for rows, _, weights in sides:
        weight = np.concatenate((np.ones(rows.num_rows), weights))
        end = begin + len(weight)
        counts.append(np.bincount(number[begin:end], weight, minlength=number.max(initial=-1) + 1).astype(np.int64))
        begin = end
    more = counts[0] - counts[1]
    found = Unequal()
    for kind, which in ((MISSING, np.flatnonzero(more > 0)), (EXTRA, np.flatnonzero(more < 0))):
        found.counts[kind] = int(np.abs(more[which]).sum())
        for image in which[:_EXAMPLES]:
            row = every.slice(int(np.flatnonzero(number == image)[0]), 1).to_pylist()[0]
            found.examples.setdefault(kind, []).append(
                f"{kind} {abs(int(more[image]))} of {_short(tuple(row.values()))}"
            )
    return found


def _short(row: tuple[Any, ...]) -> str:
    text = repr(row)
    return text if len(text) <= _EXAMPLE_LENGTH else f"{text[:_EXAMPLE_LENGTH]}..."
