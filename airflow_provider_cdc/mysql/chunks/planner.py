"""Cut tables into chunks. Bounds come from the server, and only index entries at the bounds are read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from pymysql.connections import Connection

from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import CdcError, TableChangedError, TerminalError, TransientError
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.plan import Chunk, Plan, PlanningCost, chunks_from_bounds, number_and_group
from airflow_provider_cdc.model.plan_history import Replan
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.client.catalog import (
    ALTERED_REMEDY,
    ApplyRules,
    find_key_index,
    find_tables,
    read_captured_schemas,
    read_schema,
)
from airflow_provider_cdc.mysql.client.key_sql import chunk_condition, count_passed_bounds, text_literal
from airflow_provider_cdc.mysql.client.session import query_pairs, query_rows
from airflow_provider_cdc.mysql.keys.chunk_bounds import ChunkBounds
from airflow_provider_cdc.mysql.positions.binlog_files import with_exact_gtids, with_file_start_time
from airflow_provider_cdc.mysql.positions.p0 import take_p0, with_open_xa

#: Target for the maximum size of a chunk in bytes, however few rows that is.
MAX_CHUNK_BYTES = 16 << 20
#: Attempts to plan tables that are altered meanwhile.
_TRIES = 20
P = TypeVar("P")
D = TypeVar("D")


def make_plan(
    connection: Connection[Any],
    pipeline: str,
    captures: Callable[[str, str], bool],
    *,
    patterns: tuple[tuple[str, ...], ...],
    apply_rules: ApplyRules = lambda table: table.select_columns(lambda _: True),
    generation: int,
    chunk_rows: int,
    group_rows: int,
    open_at: OpenStreamAt,
) -> Plan:
    """Take P0, then plan the chunks of every captured table.

    :param captures: whether a (database, table) is captured.
    :param patterns: the patterns of the pipeline's source, which decide this.
    :param apply_rules: as for :func:`~airflow_provider_cdc.mysql.client.catalog.read_schema`.
    :param generation: number of the snapshot.
    :param chunk_rows: wanted rows per chunk.
    :param group_rows: wanted rows per chunk group.
    :param open_at: opens a binlog stream at a position.
    :raises NotReadyError: if no table matches, or a table cannot be copied exactly.
    :raises TransientError: if tables are altered during every attempt.
    """
    (p0, open_xa), tables = _with_stable_definitions(
        lambda: take_p0(connection), lambda: read_captured_schemas(connection, captures, apply_rules)
    )
    p0 = with_exact_gtids(connection, p0, open_at)
    p0 = with_open_xa(connection, p0, open_xa, tables, open_at)
    chunks: list[Chunk] = []
    session_costs = [_session_cost(connection)]
    for index, table in enumerate(tables):
        chunks += plan_table(connection, index, table, chunk_rows)
        session_costs.append(_session_cost(connection))
    # Each query of the counters is itself a statement.
    costs = [
        PlanningCost(b.statements - a.statements - 1, b.rows - a.rows) for a, b in itertools.pairwise(session_costs)
    ]
    timeline = Timeline(p0.server, p0.at.file)
    grouped = number_and_group(chunks, group_rows, chunk_rows)
    return Plan(
        pipeline,
        generation,
        p0,
        timeline,
        patterns,
        tuple(map(DefinitionHistory.from_single, tables)),
        grouped,
        tuple(costs),
    )


def make_replan_amendment(
    connection: Connection[Any],
    plan: Plan,
    index: int,
    apply_rules: ApplyRules,
    decide_definition: Callable[[TableSchema], TableSchema],
) -> Replan:
    """Plan an altered table again: a low watermark after the DDL, the definition there, and the bounds.

    Its chunks stay the same, except that the outermost bounds move out to the smallest and largest key.

    :param apply_rules: as for :func:`~airflow_provider_cdc.mysql.client.catalog.read_schema`.
    :param decide_definition: returns the part of the definition that the copy adopts.
    :raises NotReadyError: if the table is gone, or can no longer be copied.
    :raises TerminalError: if the planned chunks no longer fit the table.
    :raises TransientError: if the table is altered during every attempt.
    """
    old, chunks = plan.tables[index], [c for c in plan.chunks if c.table == index]

    def read() -> TableSchema:
        return decide_definition(_read_definition(connection, old, apply_rules))

    since, definition = _with_stable_definitions(lambda: take_p0(connection, plan.p0.server)[0].at, read)
    if definition.key_columns != old.key_columns:
        raise TerminalError(f"the key of {old.label} was altered while it was read, before {since}", ALTERED_REMEDY)
    low, high = _chunk_bounds(connection, definition).edge_keys() if definition.key else (None, None)
    lower, upper = (chunks[0].lower, chunks[-1].upper) if chunks else (None, None)
    if low is not None and high is not None:
        if lower is None or upper is None:
            raise TerminalError(
                f"{old.label} was empty when it was planned, and was altered while it was read, before {since}",
                ALTERED_REMEDY,
            )
        keys = [lower, upper, low, high]
        ranks = query_rows(connection, count_passed_bounds(definition, keys, [(key, False) for key in keys]))
        order = sorted((int(str(rank)), int(str(number))) for number, rank in ranks)
        lower, upper = keys[order[0][1]], keys[order[-1][1]]
    replanned = plan.definitions[index].replanned(since, definition)
    return Replan(index, replanned, lower, upper)


def plan_resnapshot(
    connection: Connection[Any],
    old: TableSchema,
    index: int,
    server: str,
    *,
    apply_rules: ApplyRules,
    cut_chunks: Callable[[Connection[Any], TableSchema], list[Chunk]],
    open_at: OpenStreamAt,
) -> tuple[Offset, TableSchema, list[Chunk]]:
    """Plan the re-snapshot of one table as it is now: a low watermark, the definition there, and chunks.

    :param old: the table, in any definition.
    :param index: index of the table in the plan.
    :param server: expected identity of the server.
    :param apply_rules: as for :func:`~airflow_provider_cdc.mysql.client.catalog.read_schema`.
    :param cut_chunks: cuts the table, or the part of it to read, into chunks.
    :param open_at: opens a binlog stream at a position.
    :returns: the low watermark, the definition and the chunks.
    :raises NotReadyError: if the table is gone, or can no longer be copied.
    :raises TransientError: if the table is altered during every attempt, or was while its keys were looked up.
    """
    read = partial(_read_definition, connection, old, apply_rules)
    (since, open_xa), definition = _with_stable_definitions(lambda: take_p0(connection, server), read)
    since = with_open_xa(connection, with_exact_gtids(connection, since, open_at), open_xa, [definition], open_at)
    try:
        chunks = cut_chunks(connection, definition)
    except CdcError:
        if read() == definition:
            raise
        raise TableChangedError(f"table {definition.label} was altered while it was planned", "Run again") from None
    return with_file_start_time(since, open_at), definition, chunks


def _read_definition(connection: Connection[Any], old: TableSchema, apply_rules: ApplyRules) -> TableSchema:
    """Return the definition that a table has now."""
    tables = find_tables(connection, lambda database, table: (database, table) == old.id)
    return read_schema(connection, *old.id, engine=tables[0][2] if tables else "InnoDB", apply_rules=apply_rules)


def _with_stable_definitions(place: Callable[[], P], read: Callable[[], D]) -> tuple[P, D]:
    """Return a place in the binlog and the definitions that are valid there, being the same before and after it.

    Otherwise the definitions might already include a DDL that comes after the place, and the stream would follow it a
    second time.
    """
    definitions = read()
    for _ in range(_TRIES):
        before, at, definitions = definitions, place(), read()
        if definitions == before:
            return at, definitions
    raise TransientError("tables were altered during every attempt to plan them", "Run again when this has stopped")


def plan_table(connection: Connection[Any], index: int, table: TableSchema, chunk_rows: int) -> list[Chunk]:
    """Plan the chunks of a table from its smallest to its largest key: none if it is empty, one if it has no key.

    :param index: index of the table in the plan.
    :param chunk_rows: wanted rows per chunk.
    """
    if not table.key:
        return [Chunk(0, index, 0, (), (), includes_upper=True)]
    bounds = _chunk_bounds(connection, table)
    low, high = bounds.edge_keys()
    if low is None or high is None:
        return []
    estimate, width = estimate_rows_and_row_bytes(connection, table)
    chunk_rows = min(chunk_rows, max(1, MAX_CHUNK_BYTES // max(1, width)))
    return chunks_from_bounds(index, bounds.lower_bounds(low, high, estimate, chunk_rows), high)


def plan_ranges(
    connection: Connection[Any], table: TableSchema, ranges: Sequence[Chunk], chunk_rows: int
) -> list[Chunk]:
    """Plan the chunks of key ranges. The chunks end where the ranges end, whatever keys there are now.

    :param ranges: key ranges in key order, without overlaps.
    """
    bounds, chunks = _chunk_bounds(connection, table), list[Chunk]()
    chunk_rows = min(chunk_rows, max(1, MAX_CHUNK_BYTES // max(1, estimate_rows_and_row_bytes(connection, table)[1])))
    for span in ranges:
        if span.lower == span.upper and len(span.lower) == len(table.key):  # a single key
            chunks.append(span)
            continue
        low, high = bounds.edge_keys(chunk_condition(table, span))
        if low is None or high is None:
            chunks.append(span)
            continue
        _, *inner = bounds.lower_bounds(low, high, bounds.estimate_rows(low, high), chunk_rows)
        *first, last = chunks_from_bounds(span.table, [span.lower, *inner], span.upper)
        chunks += [*first, last.replace(includes_upper=span.includes_upper)]
    return chunks


def _chunk_bounds(connection: Connection[Any], table: TableSchema) -> ChunkBounds:
    return ChunkBounds(connection, table, find_key_index(connection, table))


def estimate_rows_and_row_bytes(connection: Connection[Any], table: TableSchema) -> tuple[int, int]:
    """Return the estimated rows of a table and the bytes per row, from the server's statistics."""
    statistics = query_rows(
        connection,
        "SELECT table_rows, avg_row_length FROM information_schema.tables "
        f"WHERE table_schema = {text_literal(table.database)} AND table_name = {text_literal(table.name)}",
    )
    return (int(statistics[0][0] or 0), int(statistics[0][1] or 0)) if statistics else (0, 0)


def _session_cost(connection: Connection[Any]) -> PlanningCost:
    """Return the cost of the session for the server so far."""
    # Reads without an index (rnd) are left out: they occur only for results such as that of this statement.
    names = "'Questions', 'Handler_read_first', 'Handler_read_last', 'Handler_read_key', 'Handler_read_next', "
    counted = query_pairs(connection, f"SHOW SESSION STATUS WHERE variable_name IN ({names} 'Handler_read_prev')")
    return PlanningCost(int(counted.pop("Questions")), sum(int(n) for n in counted.values()))
