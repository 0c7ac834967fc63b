"""Airflow's links; :mod:`airflow_provider_cdc.airflow.links.cdc` holds them all."""
