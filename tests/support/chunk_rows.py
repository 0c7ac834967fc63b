"""The chunks of a group as the bookkeeping has them. The product only counts them."""

from __future__ import annotations

from sqlalchemy import select

from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.state.models import ChunkRow


def chunk_rows(store: StateDatabase, pipeline: str, group: int) -> list[ChunkRow]:
    """The chunks of a group of the first snapshot, by number."""
    query = select(ChunkRow).filter_by(pipeline=pipeline, generation=1, group_no=group)
    with store._read_session() as session:
        return list(session.scalars(query.order_by(ChunkRow.chunk_no)))
