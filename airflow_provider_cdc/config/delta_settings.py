"""Settings of a sink of kind ``delta``, checked by the rules of Delta and its readers."""

from __future__ import annotations

from airflow_provider_cdc.config.store_address import local_folder_of
from airflow_provider_cdc.config.table_properties import TableProperties
from airflow_provider_cdc.model.errors import NotReadyError

#: Parts of dates that may partition a table.
DELTA_PARTITION_UNITS = ("year", "month", "day", "hour")


def check_delta_settings(path: str, table_properties: object) -> None:
    """Check the settings whose rules are those of Delta.

    :param path: ``sink.path``.
    :param table_properties: ``sink.table_properties``.
    :raises NotReadyError: for the first setting that is not usable.
    """
    if "%" in (local_folder_of(path) or path):
        raise NotReadyError(
            f"sink.path has a percent sign: {path[:60]!r}",
            "Name a folder without one: readers of Delta tables treat it as the start of an escape",
        )
    TableProperties.parse(table_properties)
