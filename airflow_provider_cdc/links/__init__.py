"""Airflow's links; :mod:`airflow_provider_cdc.links.cdc` holds them all."""
