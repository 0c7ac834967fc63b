"""The bookkeeping database: what is planned, what is done, who runs. All of it can be rebuilt from the sink."""

from airflow_provider_cdc.state.models import TAKEN_OVER, GroupRow, RequestRow, SampleRow, StreamRow, TableStateRow, now
from airflow_provider_cdc.state.repository import Store
from airflow_provider_cdc.state.snapshots import ChunkResult
from airflow_provider_cdc.state.values import (
    BatchTotals,
    Beat,
    EpochTotals,
    GroupProgress,
    Segment,
    TableCounts,
    TableProgress,
    TableStanding,
)

__all__ = [
    "TAKEN_OVER",
    "BatchTotals",
    "Beat",
    "ChunkResult",
    "EpochTotals",
    "GroupProgress",
    "GroupRow",
    "RequestRow",
    "SampleRow",
    "Segment",
    "TableStanding",
    "Store",
    "StreamRow",
    "TableCounts",
    "TableProgress",
    "TableStateRow",
    "now",
]
