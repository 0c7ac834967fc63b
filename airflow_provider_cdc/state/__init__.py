"""The state database: plans, progress and runs of pipelines. All of it can be rebuilt from the sink.

``state_database.StateDatabase`` combines the methods of ``snapshots`` (groups and chunks), ``streams`` (epochs and
batches), ``control_requests``, ``observations`` (lag samples, table states), ``alerts`` and ``asset_windows``.
``models`` defines the tables, and ``migrations`` has their history. ``reader`` has the queries of the page. ``engine``
makes connections that never wait forever, and ``pruning`` removes old rows. The database numbers attempts and epochs,
shows progress, and carries control requests. It never decides about rows. The room is called by ``runtime`` and all
phases, by ``observe``, by triggers and by ``ui``.
"""

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
