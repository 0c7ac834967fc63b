"""The binlog of a MySQL or MariaDB server as a PySpark data source of its own: the changes of one table, typed.

Register :class:`MySQLCdcDataSource` with a Spark session and read ``format("mysql_cdc")``, as a stream or as a range of
the binlog. No other part of this project is needed. See docs/data_source.md.
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
    """The data source ``mysql_cdc``: ``spark.dataSource.register(MySQLCdcDataSource)``.

    It keeps no secret: every process that reads looks the connection up, in its environment or in a file.

    :param options: options of the reader; see docs/data_source.md.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__({})
        with reword_errors():
            self._options = SourceOptions.parse(options)
            self._table_changes = self._options.make_table_changes()

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "mysql_cdc"

    def schema(self) -> StructType:
        """The table's columns, then those that tell of the change."""
        return from_arrow_schema(self._table_changes.schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> RangeReader:
        """Reader of a range."""
        return RangeReader(self._table_changes, self._options, self._to_arrow(schema))

    def streamReader(self, schema: StructType) -> TableStreamReader:
        """Reader of a stream."""
        if self._options.end != "latest":
            raise NotReadyError("a stream has no end", "Leave the option end out, or read a range")
        if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
            raise NotReadyError(
                f"Spark {pyspark.__version__} does not tell a source where a batch begins",
                "Install pyspark 4.2 or newer to read a stream. Ranges can be read with this one",
            )
        from airflow_provider_cdc.data_source.stream_reader import TableStreamReader

        return TableStreamReader(self._table_changes, self._options, self._to_arrow(schema))

    def _to_arrow(self, schema: StructType) -> pa.Schema:
        if schema != self.schema():
            raise NotReadyError("the schema is that of the table", "Leave .schema(...) out")
        return to_arrow_schema(schema, timezone="UTC")
