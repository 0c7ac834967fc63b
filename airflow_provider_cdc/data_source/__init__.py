"""The PySpark data source ``mysql_cdc``: the changes of one table as a DataFrame, without a pipeline, state or a sink.

``data_source.MySQLCdcDataSource`` is what users register with Spark. ``options.SourceOptions`` checks the options;
the login is only ever named. ``stream_reader`` is the stream (Spark 4.2), and ``range_reader`` the range, cut into
parts that tasks read. ``changes_planner`` finds positions, and searches the binlog for DDL before a row is read.
``table_changes.TableChanges`` reads whole transactions by ``mysql.binlog.walk`` and returns typed changes with their
positions. Batches that are read again are the same. Called by Spark in its planner and its workers. The pipeline's
own stream does not use it: see ``stream.spark_source``.
"""

from airflow_provider_cdc.data_source.data_source import MySQLCdcDataSource

__all__ = ["MySQLCdcDataSource"]
