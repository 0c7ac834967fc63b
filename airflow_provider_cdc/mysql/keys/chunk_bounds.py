"""Where to cut a table: chunk bounds by the server's row estimates. Only index entries at the cuts are read.

A key range is cut in two if the server estimates that it has too many rows. The proposed cut is computed
(:mod:`airflow_provider_cdc.mysql.keys.midpoints`). The actual cut is then looked up in the index, so that each part
begins and ends with an existing key. Gaps therefore cost nothing, a first key column with a single value does no harm,
and the cutting terminates, because both parts are smaller. All ranges of a round are looked up and estimated together,
dozens of them in one statement.

Estimates may be wrong. These rules keep a wrong estimate from producing a huge chunk:

- An integer range has no more rows than numbers. If that limit is not far above the estimate, the range is cut evenly
  without lookups, so the number of statements does not depend on the size of the table.
- Every other chunk is estimated individually by index dives at both of its ends (for integers, two or three chunks
  together).
- The server caps its estimates at half of the number of rows that it assumes for the table. If the table is assumed to
  be so small that the cap could hide a range that is too large, or if proposed cuts are useless, the index is walked
  and the rows of every chunk are counted.
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
from airflow_provider_cdc.model.unsupported_values import KEY_REMEDY, describe_key
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

#: For a table with fewer chunks, the index is walked: few statements then count the rows of every chunk.
_MAX_WALKED_CHUNKS = 16
#: A range is cut if its estimate is more than this multiple of the wanted rows, so its parts are about the wanted size.
_CUT_ABOVE = 1.5
#: An integer range of no more chunks than this is cut evenly without another estimate: at worst one chunk has all rows.
_TRUSTED_CHUNKS = 3
#: A cut is a miss if one part keeps more than this share of the rows. After the maximum of misses, the index is walked.
_MISS_SHARE, _MAX_MISSES = 15 / 16, 64
#: Ranges to look up or estimate in one statement.
_RANGES_PER_QUERY = 64


@dataclass(frozen=True)
class _EstimatedRange:
    """The keys from ``first`` to ``last``, both of which exist or existed, and about how many rows there are.

    :param is_final: whether the range is not cut any further.
    :param misses: number of earlier cuts that removed few rows.
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
        # FORCE INDEX for lookups, or the server may scan another index. With it, the server makes no estimates.
        self._force_index_sql = f"FORCE INDEX ({quote_name(index)})"
        self._use_index_sql = f"USE INDEX ({quote_name(index)})"
        self._canonical = ", ".join(canonical_expression(c) for c in table.key_columns)
        self._midpoints = Midpoints(connection, table)

    def edge_keys(self, condition: str = "TRUE") -> tuple[Key | None, Key | None]:
        """Return the smallest and the largest key; ``None`` if there is none.

        :param condition: SQL condition on the key columns.
        """
        return self._look_up_key(condition, "", "1"), self._look_up_key(condition, " DESC", "1")

    def estimate_rows(self, low: Key, high: Key) -> int:
        """Return the server's estimate of the rows from one key to another."""
        return round(next(self._estimate_ranges([_EstimatedRange(low, high, 0)])))

    def lower_bounds(self, low: Key, high: Key, estimate: int, chunk_rows: int) -> list[Key]:
        """Return the lower bounds of the chunks from ``low`` to ``high``, in order; the first is ``low``.

        :param low: smallest key.
        :param high: largest key.
        :param estimate: estimated rows of the table, 0 if unknown.
        :param chunk_rows: wanted rows per chunk.
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
        """Return the parts of each range."""
        parts = [self._cut_evenly(r, chunk_rows) for r in ranges]
        uneven = [i for i, part in enumerate(parts) if part is None]
        cuts = self._midpoints.propose_cuts([(ranges[i].first, ranges[i].last) for i in uneven])
        cuts = [None if ranges[i].misses == _MAX_MISSES else cut for i, cut in zip(uneven, cuts, strict=True)]
        around = self._keys_around([(ranges[i], cut) for i, cut in zip(uneven, cuts, strict=True) if cut is not None])
        halves: list[tuple[int, _EstimatedRange]] = []
        for i, cut in zip(uneven, cuts, strict=True):
            below, above = next(around) if cut is not None else (None, None)
            if below is None or above is None:  # no proposal, or it was not inside the range
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
        """Return parts of equal width, if keys differ only in a last integer column and no part can be far too large.

        :param trusted: number of chunks up to which the estimate is trusted.
        :returns: ``None`` if the range cannot be cut evenly.
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
        """Step through the index: each bound is the key ``chunk_rows`` entries after the previous one."""
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
        """Yield, for each cut, the last key before it and the first key at or after it within its range."""
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
        """Yield the server's estimate of the rows of each range."""
        for start in range(0, len(ranges), _RANGES_PER_QUERY):
            batch = ranges[start : start + _RANGES_PER_QUERY]
            selects = (
                f"SELECT {key_list(self._table)} {self._from_sql} {self._use_index_sql} WHERE "
                f"{self._range_condition(r)}"
                for r in batch
            )
            sql = f"EXPLAIN FORMAT=TRADITIONAL {' UNION ALL '.join(selects)}"
            plan_rows = [row for row in query_dicts(self._connection, sql) if row["select_type"] != "UNION RESULT"]
            # NULL means that the server has looked and found no rows.
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
                what = describe_key(self._table, column.name, error)
                message = f"{what} in column {column.name} of {self._table.label}"
                raise UnfitError(
                    message, KEY_REMEDY, table=self._table.label, column=column.name, reason="key"
                ) from None
            except ValueError:  # the message omits the value, because it is data of a row
                label = self._table.label
                raise TableChangedError(
                    f"{label} was altered while its keys were looked up: {column.name} is no longer "
                    f"{column.column_type}",
                    "Run again",
                    table=label,
                ) from None
        return tuple(key)


def _merge_small(ranges: Sequence[_EstimatedRange], estimate: int, chunk_rows: int) -> list[Key]:
    """Return the lower bounds of chunks after small neighbors are merged."""
    # InnoDB doubles its estimate for a range of many pages, but not for one of few pages or for the whole table.
    doubled = min(1.0, max(0.5, estimate / max(1.0, sum(found.rows for found in ranges))))
    lowers: list[Key] = []
    held = 0.0
    for key_range in ranges:
        if not lowers or held + key_range.rows * doubled > chunk_rows:
            lowers.append(key_range.first)
            held = 0
        held += key_range.rows * doubled
    return lowers
