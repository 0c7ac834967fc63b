"""Where to cut a table: chunk bounds by the server's row estimates. Nothing is read but index entries at the cuts.

A range of keys that the server estimates as too many rows is cut in two. What is proposed as the cut is computed
(:mod:`airflow_provider_cdc.mysql.keys.midpoints`); where it really is, is looked up in the index: each part begins and
ends with a key that exists. So gaps cost nothing, one value in the first column of a key does no harm, and it ends:
both parts are smaller. All ranges of a round are looked up and estimated together, some dozens in one statement.

Estimates may be wrong; these are the rules that keep a wrong one from making a huge chunk:

- A range of integers has no more rows than numbers. If that is not far above the estimate, it is cut evenly, without
  looking: the number of statements is the same for every size of table.
- Every other chunk has been estimated itself, by looking at the index at both of its ends (of integers: two or three
  chunks together).
- The server limits its estimates to half of the table's rows, as it believes them to be. Where that could hide a range
  that is too large, since the table is believed to be small, and where proposed cuts are no good, the index is walked:
  every chunk is counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import TableChangedError, UnfitError
from airflow_provider_cdc.model.plan import Key, even_chunk_width
from airflow_provider_cdc.model.schema import INTEGER_TYPES, TableSchema
from airflow_provider_cdc.model.unsupported_values import KEY_REMEDY
from airflow_provider_cdc.mysql.client.charsets import NoRoundTripError
from airflow_provider_cdc.mysql.client.key_sql import (
    canonical_expression,
    compare_key,
    key_list,
    parse_canonical,
    quote_name,
    table_name,
)
from airflow_provider_cdc.mysql.client.session import query_dicts, query_rows
from airflow_provider_cdc.mysql.keys.midpoints import Midpoints

#: The index of a table with fewer chunks is walked: all of them are then counted, for few statements.
_MAX_WALKED_CHUNKS = 16
#: A range is cut if it is estimated as so many times the wanted rows; so the parts are around what is wanted.
_CUT_ABOVE = 1.5
#: A range of integers with so few chunks is cut evenly without looking again: all its rows may well be one chunk.
_TRUSTED_CHUNKS = 3
#: A cut misses if so large a part is left on one side. After so many misses it is not tried further.
_MISS_SHARE, _MAX_MISSES = 15 / 16, 64
#: Ranges that are looked up or estimated in one statement.
_RANGES_PER_QUERY = 64


@dataclass(frozen=True)
class _EstimatedRange:
    """Keys from ``first`` to ``last``, both of which exist (or did), and how many there are about.

    :param is_final: whether it is left as it is.
    :param misses: cuts on the way to it that took little away.
    """

    first: Key
    last: Key
    rows: float
    is_final: bool = False
    misses: int = 0


class ChunkBounds:
    """Finds the bounds of the chunks of one table.

    :param connection: connection.
    :param table: the table.
    :param index: name of the index of its key.
    """

    def __init__(self, connection: Connection[Any], table: TableSchema, index: str) -> None:
        self._connection, self._table = connection, table
        self._from_sql = f"FROM {table_name(table)}"
        # Forced for reading (else the server may scan another index), but not for estimates: then it makes none.
        self._force_index_sql, self._use_index_sql = (
            f"FORCE INDEX ({quote_name(index)})",
            f"USE INDEX ({quote_name(index)})",
        )
        self._canonical = ", ".join(canonical_expression(c) for c in table.key_columns)
        self._midpoints = Midpoints(connection, table)

    def edge_key(self, direction: str = "", condition: str = "TRUE") -> Key | None:
        """The smallest key, or the largest with the direction `` DESC``; ``None`` if there is none.

        :param condition: SQL condition on the key columns.
        """
        return self._look_up_key(condition, direction, "1")

    def estimate_rows(self, low: Key, high: Key) -> int:
        """The server's estimate of the rows from one key to another."""
        return round(next(self._estimate_ranges([_EstimatedRange(low, high, 0)])))

    def lower_bounds(self, low: Key, high: Key, estimate: int, chunk_rows: int) -> list[Key]:
        """Lower bounds of chunks from ``low`` to ``high``, in order; the first one is ``low``.

        :param low: smallest key.
        :param high: largest key.
        :param estimate: estimated rows of the table, 0 if unknown.
        :param chunk_rows: wanted rows a chunk.
        """
        whole = _EstimatedRange(low, high, estimate)
        ranges = self._cut_evenly(whole, chunk_rows, trusted=0)
        if ranges is None and estimate < _MAX_WALKED_CHUNKS * chunk_rows:
            ranges = list(self._walk_index(whole, chunk_rows))
        if ranges is None:
            return _merge_small(self._bisect(whole, chunk_rows), estimate, chunk_rows)
        return [key_range.first for key_range in ranges]

    def _bisect(self, whole: _EstimatedRange, chunk_rows: int) -> list[_EstimatedRange]:
        ranges = [whole]
        while open_ranges := [r for r in ranges if not self._is_small_enough(r, chunk_rows)]:
            parts = iter(self._cut_ranges(open_ranges, chunk_rows))
            ranges = [part for r in ranges for part in ([r] if self._is_small_enough(r, chunk_rows) else next(parts))]
        return ranges

    def _is_small_enough(self, key_range: _EstimatedRange, chunk_rows: int) -> bool:
        return key_range.is_final or key_range.first == key_range.last or key_range.rows <= _CUT_ABOVE * chunk_rows

    def _cut_ranges(self, ranges: Sequence[_EstimatedRange], chunk_rows: int) -> list[list[_EstimatedRange]]:
        """The parts of each range."""
        parts = [self._cut_evenly(r, chunk_rows) for r in ranges]
        uneven = [i for i, part in enumerate(parts) if part is None]
        cuts = self._midpoints.propose_cuts([(ranges[i].first, ranges[i].last) for i in uneven])
        cuts = [None if ranges[i].misses == _MAX_MISSES else cut for i, cut in zip(uneven, cuts, strict=True)]
        around = self._keys_around([(ranges[i], cut) for i, cut in zip(uneven, cuts, strict=True) if cut is not None])
        halves: list[tuple[int, _EstimatedRange]] = []
        for i, cut in zip(uneven, cuts, strict=True):
            below, above = next(around) if cut is not None else (None, None)
            if below is None or above is None:  # nothing to propose, or it was not between the two
                parts[i] = list(self._walk_index(ranges[i], chunk_rows))
            else:
                parts[i] = []
                halves += [
                    (i, _EstimatedRange(ranges[i].first, below, 0)),
                    (i, _EstimatedRange(above, ranges[i].last, 0)),
                ]
        for (i, half), estimate in zip(halves, self._estimate_ranges([half for _, half in halves]), strict=True):
            misses = ranges[i].misses + (estimate > _MISS_SHARE * ranges[i].rows)
            parts[i] = [*(parts[i] or []), _EstimatedRange(half.first, half.last, estimate, misses=misses)]
        return [part or [] for part in parts]

    def _cut_evenly(
        self, key_range: _EstimatedRange, chunk_rows: int, trusted: int = _TRUSTED_CHUNKS
    ) -> list[_EstimatedRange] | None:
        """Parts of equal width, if keys differ in an integer that comes last and no part can be far too large.

        :param trusted: for how many chunks the estimate is trusted.
        """
        *shared, column = self._table.key_columns
        if column.data_type not in INTEGER_TYPES or key_range.first[: len(shared)] != key_range.last[: len(shared)]:
            return None
        first, last = int(key_range.first[-1]), int(key_range.last[-1])
        if trusted and key_range.rows <= trusted * chunk_rows:
            step: int | None = math.ceil((last - first + 1) * chunk_rows / max(key_range.rows, chunk_rows))
        else:
            step = even_chunk_width(first, last, round(key_range.rows), chunk_rows)
        if step is None:
            return None
        prefix, rows_a_part = key_range.first[:-1], min(chunk_rows, key_range.rows)
        ends = [*range(first + step, last + 1, step), last]
        return [
            _EstimatedRange((*prefix, value), (*prefix, end), rows_a_part, is_final=True)
            for value, end in zip(range(first, last + 1, step), ends, strict=True)
        ]

    def _walk_index(self, key_range: _EstimatedRange, chunk_rows: int) -> Iterator[_EstimatedRange]:
        """Step through the index: each bound is the key that stands ``chunk_rows`` entries behind the one before."""
        current: Key | None = key_range.first
        end = compare_key(self._table, key_range.last, "<=")
        while current is not None:
            start, condition = current, f"{compare_key(self._table, current, '>=')} AND {end}"
            current = self._look_up_key(condition, "", f"{chunk_rows}, 1")
            yield _EstimatedRange(start, key_range.last, chunk_rows, is_final=True)

    def _look_up_key(self, condition: str, direction: str, limit: str) -> Key | None:
        key_rows = query_rows(self._connection, self._lookup_sql(self._canonical, condition, direction, limit))
        return self._parse_key(key_rows[0]) if key_rows else None

    def _keys_around(self, cuts: Sequence[tuple[_EstimatedRange, Key]]) -> Iterator[tuple[Key | None, Key | None]]:
        """For each cut the last key before it and the first one at or after it, of its range."""
        for start in range(0, len(cuts), _RANGES_PER_QUERY):
            batch, dives = cuts[start : start + _RANGES_PER_QUERY], []
            for n, (key_range, cut) in enumerate(batch):
                for side, operator, direction in ((0, "<", " DESC"), (1, ">=", "")):
                    condition = f"{self._range_condition(key_range)} AND {compare_key(self._table, cut, operator)}"
                    dives.append(
                        f"({self._lookup_sql(f'{2 * n + side}, {self._canonical}', condition, direction, '1')})"
                    )
            keys = {
                int(str(no)): self._parse_key(key)
                for no, *key in query_rows(self._connection, " UNION ALL ".join(dives))
            }
            yield from ((keys.get(2 * n), keys.get(2 * n + 1)) for n in range(len(batch)))

    def _estimate_ranges(self, ranges: Sequence[_EstimatedRange]) -> Iterator[float]:
        """The server's estimate of the rows of each range."""
        for start in range(0, len(ranges), _RANGES_PER_QUERY):
            batch = ranges[start : start + _RANGES_PER_QUERY]
            selects = (
                f"SELECT {key_list(self._table)} {self._from_sql} {self._use_index_sql} WHERE "
                f"{self._range_condition(r)}"
                for r in batch
            )
            sql = f"EXPLAIN FORMAT=TRADITIONAL {' UNION ALL '.join(selects)}"
            plan_rows = [row for row in query_dicts(self._connection, sql) if row["select_type"] != "UNION RESULT"]
            # No number of rows: the server has looked and found none.
            yield from (float(row["rows"] or 0) for row, _ in zip(plan_rows, batch, strict=True))

    def _range_condition(self, key_range: _EstimatedRange) -> str:
        return f"{compare_key(self._table, key_range.first, '>=')} AND {compare_key(self._table, key_range.last, '<=')}"

    def _lookup_sql(self, wanted: str, condition: str, direction: str, limit: str) -> str:
        order = key_list(self._table, direction)
        return (
            f"SELECT {wanted} {self._from_sql} {self._force_index_sql} WHERE {condition} ORDER BY {order} LIMIT {limit}"
        )

    def _parse_key(self, texts: Sequence[str | None]) -> Key:
        key = []
        for column, text in zip(self._table.key_columns, texts, strict=True):
            try:
                key.append(parse_canonical(column, str(text)))
            except NoRoundTripError as error:
                message = f"{error} in column {column.name} of {self._table.label}"
                raise UnfitError(
                    message, KEY_REMEDY, table=self._table.label, column=column.name, reason="key"
                ) from None
            except ValueError:  # the value stays unsaid: it is one of a row
                label = self._table.label
                raise TableChangedError(
                    f"{label} was altered while its keys were looked up: {column.name} is no {column.column_type} now",
                    "Run again",
                    table=label,
                ) from None
        return tuple(key)


def _merge_small(ranges: Sequence[_EstimatedRange], estimate: int, chunk_rows: int) -> list[Key]:
    """Where chunks begin if small neighbours share one."""
    # InnoDB doubles what it estimates of a range of many pages, and does not for a few or for the whole table.
    doubled = min(1.0, max(0.5, estimate / max(1.0, sum(found.rows for found in ranges))))
    lowers: list[Key] = []
    held = 0.0
    for key_range in ranges:
        if not lowers or held + key_range.rows * doubled > chunk_rows:
            lowers.append(key_range.first)
            held = 0
        held += key_range.rows * doubled
    return lowers
