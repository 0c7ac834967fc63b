"""The bookkeeping database: what is planned, what is done, who runs. All of it can be rebuilt from the sink."""

from airflow_provider_cdc.store.models import BatchTotals, EpochTotals, GroupRow, Segment, StreamRow, TableProgress
from airflow_provider_cdc.store.repository import Store

__all__ = ["BatchTotals", "EpochTotals", "GroupRow", "Segment", "Store", "StreamRow", "TableProgress"]
