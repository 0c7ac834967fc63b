"""A live data file in a version of an Iceberg table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from airflow_provider_cdc.sinks.files.parquet import PartitionValues
from airflow_provider_cdc.sinks.iceberg.format.manifests import ManifestEntry
from airflow_provider_cdc.sinks.iceberg.format.partition_spec import PartitionSpec
from airflow_provider_cdc.sinks.iceberg.format.partition_values import partition_value_text, value_name
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema
from airflow_provider_cdc.sinks.iceberg.format.values import decode_value
from airflow_provider_cdc.sinks.lake.log.table_log import RowOrigin

_INTEGER_TYPES = ("int", "long")


@dataclass(frozen=True)
class IcebergLiveFile:
    """A data file in a version.

    :param path: path in the table's folder.
    :param entry: its entry in a manifest, with what it inherits.
    :param vector: the entry of its deletion vector.
    :param schema: schema of the table.
    :param spec: partition spec of the file.
    :param spec_schema: schema that has the columns of the partition spec.
    """

    path: str
    entry: ManifestEntry
    vector: ManifestEntry | None
    schema: IcebergSchema
    spec: PartitionSpec
    spec_schema: IcebergSchema

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.entry.file.file_size_in_bytes

    @property
    def row_count(self) -> int:
        """Number of its rows, including dead ones."""
        return self.entry.file.record_count

    @property
    def dead_row_count(self) -> int:
        """Number of dead rows."""
        return self.vector.file.record_count if self.vector else 0

    @cached_property
    def partition(self) -> PartitionValues:
        """Its partition: values, as text, by name."""
        if not self.spec.fields:
            return {}
        types = self.spec.result_types(self.spec_schema)
        return {
            value_name(part.name): partition_value_text(
                types[part.field_id], self.entry.file.partition.get(part.field_id)
            )
            for part in self.spec.fields
        }

    @property
    def row_origin(self) -> RowOrigin | None:
        """What its rows inherit from it; ``None`` if the table has no row ids."""
        first_row_id, number = self.entry.file.first_row_id, self.entry.sequence_number
        return None if first_row_id is None or number is None else RowOrigin(first_row_id, number)

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Return lowest and highest value; see :class:`~airflow_provider_cdc.sinks.lake.log.table_log.LiveFile`."""
        file, nested = self.entry.file, self.schema.columns.get(column)
        kind = self.schema.primitive_type_of(nested.id) if nested else None
        if nested is None or kind is None or (kind.name not in _INTEGER_TYPES and kind.decimal_digits != (20, 0)):
            return None
        if not nested.required and (file.null_value_counts or {}).get(nested.id) != 0:
            return None
        low, high = ((limits or {}).get(nested.id) for limits in (file.lower_bounds, file.upper_bounds))
        return None if low is None or high is None else (decode_value(kind, low), decode_value(kind, high))
