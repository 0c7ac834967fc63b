"""Outages of the state database, which stop neither a stream nor a snapshot."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_cdc.model.errors import CdcError


def tolerate_outage() -> suppress:
    """Return a context manager that ignores errors of the state database, which decides nothing about rows."""
    from sqlalchemy.exc import SQLAlchemyError  # not every process that imports this has a state database

    return suppress(CdcError, SQLAlchemyError)
