"""Airflow's sensors; :mod:`airflow_provider_cdc.airflow.sensors.cdc` holds them all."""
