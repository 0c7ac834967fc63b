"""Settings of a sink of kind ``iceberg``, checked by the rules of Iceberg and its readers."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_cdc.config.table_properties import TableProperties
from airflow_provider_cdc.model.errors import NotReadyError

#: Parts of dates, and other transforms of columns, that may partition a table. ``[n]`` is the number of buckets, or the
#: width of a truncated value.
ICEBERG_PARTITION_UNITS = ("year", "month", "day", "hour", "bucket[n]", "truncate[n]")
#: Properties that a setting of the pipeline or the project itself determines.
_MANAGED = {
    "format-version": "sink.merge decides it",
    "write.delete.mode": "sink.merge decides it",
    "write.update.mode": "sink.merge decides it",
    "write.merge.mode": "sink.merge decides it",
    "write.data.path": "the files of a table are in its folder",
    "write.metadata.path": "the files of a table are in its folder",
    "write.object-storage.enabled": "the files of a table are in its folder",
    "schema.name-mapping.default": "all files have field ids",
}


def check_iceberg_settings(path: str, table_properties: object) -> None:
    """Check the settings whose rules are those of Iceberg.

    :param path: ``sink.path``.
    :param table_properties: ``sink.table_properties``.
    :raises NotReadyError: for the first setting that is not usable.
    """
    TableProperties.parse(table_properties)
    for name in table_properties if isinstance(table_properties, Mapping) else ():
        if name in _MANAGED:
            raise NotReadyError(f"sink.table_properties: {name} cannot be set: {_MANAGED[name]}", "Leave it out")
        if name.lower().startswith("delta."):
            raise NotReadyError(
                f"sink.table_properties: {name} is a property of Delta tables, and the sink is of kind iceberg",
                "Leave it out",
            )
