"""Count and delete everything that the state database has of a pipeline."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Table, delete, func, select

from airflow_provider_cdc.state.database import Database
from airflow_provider_cdc.state.models import Base, PipelineRow


class PipelineRemoval(Database):
    """Counts and deletes all rows of a pipeline."""

    def count_rows_by_table(self, pipeline: str) -> dict[str, int]:
        """Return the number of rows of a pipeline by database table, without tables that have none."""
        with self._read_session() as session:
            counts = {
                table.name: session.scalar(select(func.count()).select_from(table).where(owner == pipeline))
                for table, owner in _tables_with_owner()
            }
        return {name: count for name, count in counts.items() if count}

    def delete_pipeline(self, pipeline: str) -> None:
        """Delete all rows of a pipeline. Rows of other pipelines stay."""
        with self._write_session() as session:
            for table, owner in _tables_with_owner():
                session.execute(delete(table).where(owner == pipeline))


def _tables_with_owner() -> list[tuple[Table, ColumnElement[Any]]]:
    """Return all database tables, each with the column that holds the pipeline's name."""
    tables = Base.metadata.sorted_tables
    return [(t, t.c.name if t.name == PipelineRow.__tablename__ else t.c.pipeline) for t in tables]
