"""Read-only queries about the chunks and chunk groups of a snapshot, for status displays.

Only the first query of a snapshot reads all of its chunks. Later ones read the chunks of the groups that have changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Select, case, cast, func, select

from airflow_provider_cdc.state.database import Database
from airflow_provider_cdc.state.models import ChunkGroupRow, ChunkRow
from airflow_provider_cdc.state.snapshots import IS_SAME_GROUP

#: Names of the codes of chunk states. A chunk that nobody has read yet is ``waiting``.
CHUNK_STATES = ("waiting", "reading", "read", "published", "corrected", "retried", "failed")
STATE_CODES = {name: number for number, name in enumerate(CHUNK_STATES)}
#: Maximum number of groups in one list of a query.
_GROUPS_PER_QUERY = 500


class GroupVersion(NamedTuple):
    """What shows whether a chunk group has changed."""

    group_no: int
    state: str
    attempt: int
    readers: int | None
    finished_at: Any


class ChunkTotals(NamedTuple):
    """Chunks of one table in one group: their number, the range of their numbers, and what was read of them."""

    group_no: int
    database: str
    table: str
    first: int
    last: int
    chunks: int
    done: int
    rows: int
    bytes: int
    corrected: int


class ChunkReader(Database):
    """Adds the queries about chunks and chunk groups."""

    def group_versions(self, pipeline: str, generation: int) -> list[GroupVersion]:
        """Return all groups of a snapshot, ordered by number, with only what shows whether they have changed."""
        columns = [getattr(ChunkGroupRow, name) for name in GroupVersion._fields]
        query = select(*columns).where(ChunkGroupRow.pipeline == pipeline, ChunkGroupRow.generation == generation)
        with self._read_session() as session:
            return [GroupVersion(*row) for row in session.execute(query.order_by(ChunkGroupRow.group_no))]

    def groups_page(
        self, pipeline: str, generation: int, numbers: Collection[int] | None, states: Sequence[str], page: slice
    ) -> list[ChunkGroupRow]:
        """Return some groups, ordered by number.

        :param numbers: only these groups; ``None`` for all.
        :param states: only groups in these states; empty for all.
        :param page: positions of the groups to return.
        """
        query = select(ChunkGroupRow).filter_by(pipeline=pipeline, generation=generation)
        if numbers is not None:
            query = query.where(ChunkGroupRow.group_no.in_(numbers))
        if states:
            query = query.where(ChunkGroupRow.state.in_(states))
        query = query.order_by(ChunkGroupRow.group_no).offset(page.start or 0)
        return self._read_rows(query.limit(page.stop - (page.start or 0)))

    def snapshot_times(self, pipeline: str, generation: int) -> tuple[datetime | None, datetime | None]:
        """Return when the first group of a snapshot was begun, and the last sign of a reader, by their clocks."""
        row = ChunkGroupRow
        signs = (func.max(column) for column in (row.heartbeat_at, row.finished_at))
        query = select(func.min(row.started_at), *signs)
        with self._read_session() as session:
            begun_at, *last = session.execute(query.where(row.pipeline == pipeline, row.generation == generation)).one()
        return begun_at, max((at for at in last if at is not None), default=None)

    def chunk_totals(
        self, pipeline: str, generation: int, groups: Collection[int] | None = None
    ) -> Iterator[ChunkTotals]:
        """Yield totals by group and table.

        :param groups: only these groups; by default all.
        """
        is_done = case((ChunkRow.state != "pending", 1), else_=0)
        sums = (func.coalesce(func.sum(c), 0) for c in (is_done, ChunkRow.rows, ChunkRow.bytes, ChunkRow.corrected))
        key = ChunkRow.group_no, ChunkRow.database, ChunkRow.table_name
        query: Any = select(*key, func.min(ChunkRow.chunk_no), func.max(ChunkRow.chunk_no), func.count(), *sums)
        for part in self._select_by_groups(query.group_by(*key), pipeline, generation, groups):
            with self._read_session() as session:
                for number, database, table, *counts in session.execute(part):
                    yield ChunkTotals(int(number), database, table, *map(int, counts))

    def chunk_state_runs(
        self, pipeline: str, generation: int, groups: Collection[int] | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield the states of chunks as runs of equal states.

        The database computes the runs, so the size of the result depends on the number of runs, not of chunks.

        :param groups: only chunks of these groups; by default all.
        :returns: for each run, the number of its first chunk, the number of chunks, and the index of their state in
            :data:`CHUNK_STATES`, as far as it does not depend on whether a process reads the group.
        """
        coded: Any = select(ChunkRow.chunk_no.label("no"), _state_code().label("code"))
        for part in self._select_by_groups(coded, pipeline, generation, groups):
            chunks = part.subquery()
            # For consecutive numbers of one state, the number minus its rank in the state is constant. MySQL's ranks
            # are unsigned, and so would be the difference.
            rank = cast(func.row_number().over(partition_by=chunks.c.code, order_by=chunks.c.no), BigInteger)
            ranked = select(chunks.c.no, chunks.c.code, (chunks.c.no - rank).label("island")).subquery()
            query = select(func.min(ranked.c.no), func.count(), ranked.c.code).group_by(ranked.c.code, ranked.c.island)
            with self._read_session() as session:
                for no, n, code in session.execute(query):
                    yield int(no), int(n), int(code)

    def chunk_with_group(self, pipeline: str, generation: int, chunk_no: int) -> tuple[ChunkRow, ChunkGroupRow] | None:
        """Return one chunk and its group."""
        same = ChunkRow.pipeline == pipeline, ChunkRow.generation == generation, ChunkRow.chunk_no == chunk_no
        query = select(ChunkRow, ChunkGroupRow).join(ChunkGroupRow, IS_SAME_GROUP).where(*same)
        with self._read_session() as session:
            row = session.execute(query).first()
            return None if row is None else (row[0], row[1])

    @staticmethod
    def _select_by_groups(
        query: Select[Any], pipeline: str, generation: int, groups: Collection[int] | None
    ) -> Iterator[Select[Any]]:
        query = query.where(ChunkRow.pipeline == pipeline, ChunkRow.generation == generation)
        if groups is None:
            yield query
            return
        listed = sorted(groups)
        for start in range(0, len(listed), _GROUPS_PER_QUERY):
            yield query.where(ChunkRow.group_no.in_(listed[start : start + _GROUPS_PER_QUERY]))


def _state_code() -> ColumnElement[int]:
    published = case(
        (ChunkRow.corrected > 0, STATE_CODES["corrected"]),
        (ChunkRow.attempt > 1, STATE_CODES["retried"]),
        else_=STATE_CODES["published"],
    )
    return case(
        (ChunkRow.state == "done", published),
        (ChunkRow.state == "read", STATE_CODES["read"]),
        else_=STATE_CODES["waiting"],
    )
