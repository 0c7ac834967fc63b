"""What of a table belongs to one source table, if several source tables are copied into it.

The table is partitioned by ``_cdc_source``, so that each data file has rows of one source only. The markers of a source
have its name as prefix. A log with a scope shows only the files and markers of its source; whatever is decided on it,
such as a TRUNCATE or a re-snapshot, therefore concerns this source alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.sinks.files.parquet import PartitionValues


@dataclass(frozen=True)
class SourceScope:
    """The scope of a log.

    :param source: ``database.table``; ``None`` for the whole table, which is the copy of one source table.
    :param value_name: name of the partition value that is the source.
    """

    source: str | None = None
    value_name: str = ""

    def has_file(self, partition: PartitionValues) -> bool:
        """Return whether the files of a partition belong to the source."""
        return self.source is None or partition.get(self.value_name) == self.source

    def stored_marker(self, name: str) -> str:
        """Return the name that a marker of the source has in the table."""
        return name if self.source is None else f"{self.source}:{name}"

    def own_marker(self, stored_name: str) -> str | None:
        """Return the name of a marker of the source; ``None`` if it belongs to another one.

        :param stored_name: its name in the table.
        """
        if self.source is None:
            return stored_name
        prefix = self.stored_marker("")
        return stored_name.removeprefix(prefix) if stored_name.startswith(prefix) else None


#: The scope of a table that is the copy of one source table.
WHOLE_TABLE = SourceScope()
