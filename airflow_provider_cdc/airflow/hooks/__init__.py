"""Airflow hooks: the MySQL hook, and the connections that Airflow resolves."""
