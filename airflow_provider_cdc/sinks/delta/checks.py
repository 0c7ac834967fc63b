"""Checks that a Delta table is still the expected one and may be written to."""

from __future__ import annotations

from airflow_provider_cdc.config.delete_policy import HARD
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.sinks.delta.adoption import owner_of
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.merge.partitions import Partitioning
from airflow_provider_cdc.sinks.delta.table_metadata import DELETES_PROPERTY, SOURCE_PROPERTY, DeltaTableOptions


def check_owner(log: DeltaLog, pipeline: str) -> None:
    """Refuse a table that the pipeline does not own.

    :raises TerminalError: if another pipeline, or none, owns it.
    """
    if owner_of(log.metadata) != pipeline:
        raise TerminalError(
            f"the {log.name} was not created by pipeline {pipeline}",
            "Choose another sink.path: only one pipeline may write to a table",
        )


def check_has_owner(log: DeltaLog) -> None:
    """Refuse a table that no pipeline owns.

    :raises TerminalError: if it has no owner.
    """
    if owner_of(log.metadata) is None:
        raise TerminalError(
            f"the {log.name} belongs to no pipeline: it was replaced by another one, or created by other software",
            "Start with a fresh sink.path",
        )


def check_settings(log: DeltaLog, partitioning: Partitioning, options: DeltaTableOptions) -> None:
    """Refuse a table that was created with other unchangeable settings, or for another source table.

    :raises TerminalError: if its partitioning differs.
    :raises NotReadyError: if its ``sink.deletes`` differs, or it is the copy of another table.
    """
    table_source, own_source = log.configuration.get(SOURCE_PROPERTY), options.properties.get(SOURCE_PROPERTY)
    if table_source is not None and own_source is not None and table_source != own_source:
        raise NotReadyError(
            f"the {log.name} is the copy of table {table_source}, and not of {own_source}: their folders are the same "
            "there, as if case did not count",
            "Give the tables different folders in sink.table_path, or exclude one of them",
        )
    partitioning.check_partition_columns(log.name, log.metadata)
    table_deletes = log.configuration.get(DELETES_PROPERTY, HARD)
    if table_deletes != options.deletes:
        raise NotReadyError(
            f"the {log.name} was created with sink.deletes {table_deletes}, which is {options.deletes} now",
            f"It cannot be changed later: set it back to {table_deletes} for this table, or start with a fresh "
            "sink.path",
        )
