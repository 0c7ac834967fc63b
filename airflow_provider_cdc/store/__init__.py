"""The bookkeeping database: what is planned, what is done, who runs. All of it can be rebuilt from the sink."""

from airflow_provider_cdc.store.models import BatchTotals, GroupRow, Segment, StreamRow, TableProgress
from airflow_provider_cdc.store.repository import Store

__all__ = ["BatchTotals", "GroupRow", "Segment", "Store", "StreamRow", "TableProgress"]
