"""The binlog of a MySQL or MariaDB server as a PySpark data source: the typed changes of one table.

Register :class:`MySQLCdcDataSource` with a Spark session and read ``format("mysql_cdc")``, as a stream or as a range of
the binlog. It needs no other part of this project. See docs/data_source.md.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from airflow_provider_cdc.data_source.options import SourceOptions, reword_errors
from airflow_provider_cdc.data_source.range_reader import RangeReader
from airflow_provider_cdc.model.errors import NotReadyError

if TYPE_CHECKING:
    from airflow_provider_cdc.data_source.stream_reader import TableStreamReader


class MySQLCdcDataSource(DataSource):
    """The data source ``mysql_cdc``. Register it with ``spark.dataSource.register(MySQLCdcDataSource)``.

    It stores no secrets: every process that reads looks up the connection in its environment or in a file.

    :param options: options of the reader. See docs/data_source.md.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__({})
        with reword_errors():
            self._options = SourceOptions.parse(options)
            self._table_changes = self._options.make_table_changes()

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "mysql_cdc"

    def schema(self) -> StructType:
        """Return the schema: the table's columns, followed by the columns that describe the change."""
        return from_arrow_schema(self._table_changes.schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> RangeReader:
        """Return a reader of a range."""
        return RangeReader(self._table_changes, self._options, self._to_arrow(schema))

    def streamReader(self, schema: StructType) -> TableStreamReader:
        """Return a reader of a stream.

        :raises NotReadyError: if the option ``end`` is set, or Spark is older than 4.2.
        """
        if self._options.end != "latest":
            raise NotReadyError("a stream has no end", "Omit the option end, or read a range")
        if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
            raise NotReadyError(
                f"Spark {pyspark.__version__} does not report to a source where a batch begins",
                "Install pyspark 4.2 or newer to read a stream. This version can read ranges",
            )
        from airflow_provider_cdc.data_source.stream_reader import TableStreamReader

        return TableStreamReader(self._table_changes, self._options, self._to_arrow(schema))

    def _to_arrow(self, schema: StructType) -> pa.Schema:
        if schema != self.schema():
            raise NotReadyError("the schema is defined by the table", "Omit .schema(...)")
        return to_arrow_schema(schema, timezone="UTC")
