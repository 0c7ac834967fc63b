"""All that the bookkeeping database has of a pipeline: counted, and removed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Table, delete, func, select

from airflow_provider_cdc.state.database import Database
from airflow_provider_cdc.state.models import Base, PipelineRow


class PipelineRemoval(Database):
    """The bookkeeping of a pipeline as a whole, whatever tables it has rows in."""

    def count_rows_by_table(self, pipeline: str) -> dict[str, int]:
        """How many rows of which tables are a pipeline's; tables without one are left out."""
        with self._read_session() as session:
            counts = {
                table.name: session.scalar(select(func.count()).select_from(table).where(owner == pipeline))
                for table, owner in _tables_with_owner()
            }
        return {name: count for name, count in counts.items() if count}

    def delete_pipeline(self, pipeline: str) -> None:
        """Remove all rows of a pipeline. Those of others stay, also in the same database."""
        with self._write_session() as session:
            for table, owner in _tables_with_owner():
                session.execute(delete(table).where(owner == pipeline))


def _tables_with_owner() -> list[tuple[Table, ColumnElement[Any]]]:
    """All tables, each with the column that says whose a row is."""
    tables = Base.metadata.sorted_tables
    return [(t, t.c.name if t.name == PipelineRow.__tablename__ else t.c.pipeline) for t in tables]
