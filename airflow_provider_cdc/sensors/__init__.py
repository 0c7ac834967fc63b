"""Airflow's sensors; :mod:`airflow_provider_cdc.sensors.cdc` holds them all."""
