"""Options of a table that do not depend on its format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_cdc.config.delete_policy import HARD
from airflow_provider_cdc.sinks.lake.merge.partitions import PartitionField


@dataclass(frozen=True)
class TableOptions:
    """Options of a table.

    :param deletion_vectors: whether rows are deleted by deletion vectors; otherwise files are rewritten.
    :param index_bytes: memory limit in bytes of its key index.
    :param deletes: how rows that the source deletes are handled; one of
        :data:`~airflow_provider_cdc.config.delete_policy.DELETE_MODES`.
    :param properties: table properties in addition to those that the project sets.
    :param column_metadata: metadata by column.
    :param adopt: whether a table made by other software is adopted.
    :param nullable_columns: names of the columns that may be NULL in the source.
    :param partitioned_by: columns, and parts of dates.
    :param shared: how rows are identified if several source tables are copied into the table; empty for one.
    """

    deletion_vectors: bool = True
    index_bytes: int = 1 << 28
    deletes: str = HARD
    properties: Mapping[str, str] = field(default_factory=dict)
    column_metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    adopt: bool = False
    nullable_columns: frozenset[str] = frozenset()
    partitioned_by: tuple[PartitionField, ...] = ()
    shared: str = ""
