"""The state database: plans, progress and runs of pipelines. All of it can be rebuilt from the sink."""

from airflow_provider_cdc.state.models import (
    TAKEN_OVER,
    ChunkGroupRow,
    ControlRequestRow,
    EpochRow,
    LagSampleRow,
    TableStateRow,
    utc_now,
)
from airflow_provider_cdc.state.snapshots import ChunkResult
from airflow_provider_cdc.state.state_database import StateDatabase
from airflow_provider_cdc.state.values import (
    BatchTotals,
    GroupProgress,
    HeartbeatReply,
    TableCounts,
    TableProgress,
    TableStatus,
)

__all__ = [
    "TAKEN_OVER",
    "BatchTotals",
    "HeartbeatReply",
    "ChunkResult",
    "GroupProgress",
    "ChunkGroupRow",
    "ControlRequestRow",
    "LagSampleRow",
    "TableStatus",
    "StateDatabase",
    "EpochRow",
    "TableCounts",
    "TableProgress",
    "TableStateRow",
    "utc_now",
]
