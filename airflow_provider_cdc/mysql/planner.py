"""Cut tables into chunks. Bounds come from the server; nothing is read but index entries at the bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.core.offset import Lineage, Offset
from airflow_provider_cdc.core.plan import Chunk, Key, Plan, chunks_of, even_bounds, even_step, number_and_group
from airflow_provider_cdc.core.schema import INTEGER_TYPES, TableSchema
from airflow_provider_cdc.exceptions import NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.mysql.catalog import find_tables, read_schema
from airflow_provider_cdc.mysql.keys import at_least, canonical, key_list, parse, quote, table_name, text_literal
from airflow_provider_cdc.mysql.session import rows, value
from airflow_provider_cdc.mysql.watermark import low_watermark

#: A chunk aims at no more than this many bytes, however few rows that are.
CHUNK_BYTES = 16 << 20
#: Chunks of an even split that are counted before the split is believed, and by how much they may exceed the aim.
PROBES, TOLERANCE = 5, 4
#: Seconds to wait for open XA transactions to end.
_XA_SECONDS = 10


def make_plan(
    connection: Connection[Any],
    pipeline: str,
    captures: Callable[[str, str], bool],
    *,
    patterns: tuple[tuple[str, ...], tuple[str, ...]],
    generation: int,
    chunk_rows: int,
    group_rows: int,
) -> Plan:
    """Take P0, then plan the chunks of every captured table.

    :param captures: which (database, table) is captured.
    :param patterns: ``source.tables`` and ``source.exclude``, which decide that.
    :param generation: number of the snapshot.
    :param chunk_rows: wanted rows a chunk.
    :param group_rows: wanted rows a chunk group.
    :raises NotReadyError: if no table matches or one cannot be copied exactly.
    """
    p0 = _start(connection)
    tables = capture(connection, captures)
    chunks: list[Chunk] = []
    for index, table in enumerate(tables):
        chunks += plan_table(connection, index, table, chunk_rows)
    lineage = Lineage(p0.server, p0.at.file)
    grouped = number_and_group(chunks, group_rows, chunk_rows)
    return Plan(pipeline, generation, p0, lineage, patterns, tuple(tables), grouped)


def capture(connection: Connection[Any], captures: Callable[[str, str], bool]) -> list[TableSchema]:
    """Schemas of all captured tables.

    :raises NotReadyError: if no table matches or one cannot be copied exactly.
    """
    found = find_tables(connection, captures)
    if not found:
        raise NotReadyError(
            "no table matches source.tables",
            "Check the patterns (anchored, database.table, dots between) and that the user has SELECT on the tables",
        )
    return [read_schema(connection, database, table, engine) for database, table, engine in found]


def plan_table(connection: Connection[Any], index: int, table: TableSchema, chunk_rows: int) -> list[Chunk]:
    """Chunks of one table from its smallest to its largest key; none if it is empty.

    :param index: index of the table in the plan.
    :param chunk_rows: wanted rows a chunk.
    """
    low, high = _edge(connection, table, ""), _edge(connection, table, " DESC")
    if low is None or high is None:
        return []
    estimate, width = estimates(connection, table)
    chunk_rows = min(chunk_rows, max(1, CHUNK_BYTES // max(1, width)))
    return chunks_of(index, _lowers(connection, table, low, high, estimate, chunk_rows), high)


def estimates(connection: Connection[Any], table: TableSchema) -> tuple[int, int]:
    """Estimated rows of a table and bytes a row, from the server's statistics."""
    found = rows(
        connection,
        "SELECT table_rows, avg_row_length FROM information_schema.tables "
        f"WHERE table_schema = {text_literal(table.database)} AND table_name = {text_literal(table.name)}",
    )
    return (int(found[0][0] or 0), int(found[0][1] or 0)) if found else (0, 0)


def _lowers(
    connection: Connection[Any], table: TableSchema, low: Key, high: Key, estimate: int, chunk_rows: int
) -> Iterator[Key]:
    columns = table.key_columns
    if len(columns) == 1 and columns[0].data_type in INTEGER_TYPES:
        first, last = int(low[0]), int(high[0])
        step = even_step(first, last, estimate, chunk_rows)
        if step is not None and _is_even(connection, table, first, last, step, chunk_rows):
            return even_bounds(first, last, step)
    return _walk(connection, table, low, chunk_rows)


def _is_even(
    connection: Connection[Any], table: TableSchema, first: int, last: int, step: int, chunk_rows: int
) -> bool:
    """Statistics may be stale: count a few chunks (never more than the tolerance) before believing them."""
    name = quote(table.key[0])
    count = (last - first) // step + 1
    for probe in sorted({count * i // PROBES for i in range(PROBES)} | {count - 1}):
        start = first + probe * step
        found = value(
            connection,
            f"SELECT COUNT(*) FROM (SELECT 1 FROM {table_name(table)} "
            f"WHERE {name} >= {start} AND {name} < {start + step} LIMIT {TOLERANCE * chunk_rows + 1}) AS p",
        )
        if int(found or 0) > TOLERANCE * chunk_rows:
            return False
    return True


def _walk(connection: Connection[Any], table: TableSchema, low: Key, chunk_rows: int) -> Iterator[Key]:
    """Step through the index: each bound is the key that stands ``chunk_rows`` entries behind the one before."""
    current: Key | None = low
    while current is not None:
        yield current
        current = _select_key(connection, table, f"WHERE {at_least(table, current)}", "", f"{chunk_rows}, 1")


def _edge(connection: Connection[Any], table: TableSchema, direction: str) -> Key | None:
    return _select_key(connection, table, "", direction, "1")


def _select_key(connection: Connection[Any], table: TableSchema, where: str, direction: str, limit: str) -> Key | None:
    columns = table.key_columns
    found = rows(
        connection,
        f"SELECT {', '.join(canonical(c) for c in columns)} FROM {table_name(table)} {where} "
        f"ORDER BY {key_list(table, direction)} LIMIT {limit}",
    )
    return tuple(parse(c, str(v)) for c, v in zip(columns, found[0], strict=True)) if found else None


def _start(connection: Connection[Any]) -> Offset:
    """P0: a low watermark at which no XA transaction is prepared and unfinished.

    The rows of a transaction that was prepared before P0 are in the binlog before P0 but not visible. Without the
    privilege to look, the stream stops at the first XA COMMIT whose PREPARE it has not seen.
    """
    end = time.monotonic() + _XA_SECONDS
    while True:
        p0 = low_watermark(connection)
        try:
            xids = [str(row[3]) for row in rows(connection, "XA RECOVER CONVERT XID")]
        except TerminalError as error:
            if "1401" not in error.message:  # XAER_RMERR: the user lacks XA_RECOVER_ADMIN
                raise
            return p0
        if not xids:
            return p0
        if time.monotonic() > end:
            raise TransientError(
                f"{len(xids)} XA transactions are prepared and not finished ({', '.join(xids[:3])})",
                "Commit or roll them back (XA RECOVER lists them), then run again",
            )
        time.sleep(0.5)
