"""Tests of airflow-provider-cdc. They run against real MySQL servers: see ``tests/servers.py``."""
