"""Tests of airflow-provider-cdc. They run against real MySQL servers: see ``tests/support/servers.py``."""

from pathlib import Path

#: The project's folder.
ROOT = Path(__file__).resolve().parent.parent
