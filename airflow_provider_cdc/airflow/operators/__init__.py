"""Operators of Airflow; :mod:`airflow_provider_cdc.airflow.operators.cdc` holds them all."""
