"""Triggers for Airflow, which poll the state database in a thread."""
