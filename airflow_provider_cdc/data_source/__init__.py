"""The PySpark data source ``mysql_cdc``."""

from airflow_provider_cdc.data_source.data_source import MySQLCdcDataSource

__all__ = ["MySQLCdcDataSource"]
