"""Reads and writes of the bookkeeping database that are for people: samples of the lag, and how each table stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import exc, select

from airflow_provider_cdc.state.database import Database
from airflow_provider_cdc.state.models import SampleRow, TableStateRow, clean, now
from airflow_provider_cdc.state.pruning import prune
from airflow_provider_cdc.state.values import Compacted, TableStanding

#: Rows of tables that are looked up one by one; of more, all are read.
_FEW = 20
_COUNTS = ("inserts", "updates", "deletes")
_SIZES = ("files", "bytes", "rows", "dead_rows", "compactions")

#: (database, name) of a table.
TableId = tuple[str, str]


class ObservationStore(Database):
    """What drivers have seen now and then."""

    def sample(
        self,
        pipeline: str,
        epoch: int | None,
        *,
        lag_seconds: float | None,
        lag_bytes: int | None,
        purge_hours: float | None,
        changes: int = 0,
        batches: int = 0,
        unknown: str | None = None,
    ) -> None:
        """Write down how far a pipeline is behind now; parameters as of :class:`SampleRow`. What is older than
        what is kept goes (:mod:`~airflow_provider_cdc.state.pruning`).
        """
        values = {"lag_seconds": lag_seconds, "lag_bytes": lag_bytes, "purge_hours": purge_hours}
        at = now()
        with self._write() as session:
            session.merge(
                SampleRow(
                    pipeline=pipeline,
                    at=at,
                    epoch=epoch,
                    **values,
                    changes=changes,
                    batches=batches,
                    unknown=clean(unknown),
                )
            )
            prune(session, pipeline, at)

    def samples(self, pipeline: str, since: datetime) -> list[SampleRow]:
        """The samples from a moment on, the oldest first."""
        query = select(SampleRow).where(SampleRow.pipeline == pipeline, SampleRow.at >= since)
        with self._read() as session:
            return list(session.scalars(query.order_by(SampleRow.at)))

    def last_sample(self, pipeline: str) -> SampleRow | None:
        """The newest sample, if there is one."""
        query = select(SampleRow).where(SampleRow.pipeline == pipeline).order_by(SampleRow.at.desc()).limit(1)
        with self._read() as session:
            return session.scalars(query).first()

    def table_states(self, pipeline: str) -> list[TableStateRow]:
        """How all tables stand, by name."""
        query = select(TableStateRow).where(TableStateRow.pipeline == pipeline)
        with self._read() as session:
            return list(session.scalars(query.order_by(TableStateRow.database, TableStateRow.name)))

    def write_table_states(
        self,
        pipeline: str,
        standings: Sequence[TableStanding],
        *,
        sizes: Mapping[TableId, Mapping[str, int | None]] | None = None,
        compacted: Mapping[TableId, Compacted] | None = None,
        applied: Mapping[TableId, Sequence[int]] | None = None,
        all_of_them: bool = False,
    ) -> None:
        """Write down how tables stand. Rows that say so already are left alone.

        :param sizes: what copies take: ``files``, ``bytes``, ``rows``, ``dead_rows``, ``compactions``; of others what
            is known stays.
        :param compacted: the last compaction of each, if there was one since the last call.
        :param applied: inserts, updates and deletes that were applied since the last call, which are added.
        :param all_of_them: whether the pipeline has no other tables: rows of others go.
        """
        for last in (False, True):
            try:
                self._write_table_states(pipeline, standings, sizes or {}, compacted or {}, applied or {}, all_of_them)
                return
            except exc.IntegrityError:  # another driver was faster to write of a table for the first time
                if last:
                    raise

    def _write_table_states(
        self,
        pipeline: str,
        standings: Sequence[TableStanding],
        sizes: Mapping[TableId, Mapping[str, int | None]],
        compacted: Mapping[TableId, Compacted],
        applied: Mapping[TableId, Sequence[int]],
        all_of_them: bool,
    ) -> None:
        moment = now()
        with self._write() as session:
            if all_of_them or len(standings) > _FEW:
                query = select(TableStateRow).where(TableStateRow.pipeline == pipeline)
                known = {(row.database, row.name): row for row in session.scalars(query)}
            else:
                found = (session.get(TableStateRow, (pipeline, *standing[:2])) for standing in standings)
                known = {(row.database, row.name): row for row in found if row is not None}
            for standing in standings:
                table = standing[:2]
                row = known.pop(table, None)
                values = _values(standing)
                values |= {name: sizes[table].get(name) for name in _SIZES} if table in sizes else {}
                if (last := compacted.get(table)) is not None:
                    values |= {"compacted_at": last.at, "compaction_seconds": last.seconds}
                if row is None:
                    row = TableStateRow(pipeline=pipeline, database=table[0], name=table[1], definitions=[])
                    row.inserts = row.updates = row.deletes = 0
                    session.add(row)
                for name, count in zip(_COUNTS, applied.get(table, ()), strict=False):
                    if count:
                        values[name] = getattr(row, name) + count
                changed = {name: value for name, value in values.items() if getattr(row, name) != value}
                if not changed:
                    continue
                if "state" in changed or (standing.since and standing.since != row.since):
                    row.since = standing.since or moment
                for name, value in changed.items():
                    setattr(row, name, value)
                row.position, row.updated_at = standing.position, moment
            for row in known.values() if all_of_them else ():
                session.delete(row)

    def verified(self, pipeline: str, results: Mapping[TableId, Mapping[str, Any]]) -> None:
        """Write down what the comparison of tables has found.

        What was found of a table stays if it cannot be compared any more, and so does when that was.

        :param results: JSON values; they hold no value of a row. That of a table which could not be compared is
            ``not_comparable``, which says why. Tables that no driver has written of are passed over.
        """
        with self._write() as session:
            for table, result in results.items():
                row = session.get(TableStateRow, (pipeline, *table))
                if row is None:
                    continue
                if result.get("not_comparable") is not None:
                    row.last_verified = {**(row.last_verified or {}), **result}
                else:
                    row.last_verified_at, row.last_verified = now(), dict(result)


def _values(standing: TableStanding) -> dict[str, Any]:
    """What is compared of a table: its place moves all the time, and is written together with other things."""
    values = standing._asdict()
    for name in ("database", "name", "position", "since"):
        del values[name]
    for name in ("kind", "reason", "remedy"):
        values[name] = clean(values[name])
    return {**values, "kind": values["kind"] and values["kind"][:64], "definitions": list(standing.definitions)}
