"""Airflow's triggers; :mod:`airflow_provider_cdc.triggers.cdc` holds them all."""
