"""Operators of Airflow; :mod:`airflow_provider_cdc.operators.cdc` holds them all."""
