"""Change data capture from MySQL into a lakehouse, with Airflow and Spark."""

__version__ = "0.1.0"
