"""Airflow sensors. All of them are in :mod:`airflow_provider_cdc.airflow.sensors.cdc`."""
