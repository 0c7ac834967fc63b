"""The PySpark data source ``mysql_cdc``: the changes of one table as a DataFrame, without a pipeline or a sink.

``data_source.MySQLCdcDataSource`` is what users register with Spark. ``options.SourceOptions`` checks the options,
which name the login but never contain it. ``stream_reader`` reads a stream (Spark 4.2). ``range_reader`` reads a range,
which it divides among tasks. ``changes_planner`` finds positions, and searches the binlog for DDL before any row is
read. ``table_changes.TableChanges`` reads whole transactions through ``mysql.binlog.walk``, and returns typed changes
with their positions. A batch that is read again has the same rows. The room is called by Spark in its planner and its
workers. The pipeline's own stream does not use it: see ``stream.spark_source``.
"""

from airflow_provider_cdc.data_source.data_source import MySQLCdcDataSource

__all__ = ["MySQLCdcDataSource"]
