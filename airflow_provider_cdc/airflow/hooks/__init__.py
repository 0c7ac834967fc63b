"""Airflow's connections, for this project and for people."""
