"""The bookkeeping database: what is planned, what is done, who runs. All of it can be rebuilt from the sink."""

from airflow_provider_cdc.store.models import (
    BatchTotals,
    EpochTotals,
    GroupProgress,
    GroupRow,
    SampleRow,
    Segment,
    StreamRow,
    TableProgress,
    TableStanding,
    TableStateRow,
    now,
)
from airflow_provider_cdc.store.repository import Store
from airflow_provider_cdc.store.snapshots import ChunkResult

__all__ = [
    "BatchTotals",
    "ChunkResult",
    "EpochTotals",
    "GroupProgress",
    "GroupRow",
    "SampleRow",
    "Segment",
    "TableStanding",
    "Store",
    "StreamRow",
    "TableProgress",
    "TableStateRow",
    "now",
]
