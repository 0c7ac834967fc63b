"""Airflow links. All of them are in :mod:`airflow_provider_cdc.airflow.links.cdc`."""
