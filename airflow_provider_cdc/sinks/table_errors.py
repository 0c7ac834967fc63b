"""Adds the table to errors that a sink raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import TableSchema


@contextmanager
def name_table_in_errors(table: TableSchema) -> Iterator[None]:
    """Name the table in errors that the sink raises.

    :raises TerminalError: also if a file of the sink table is missing.
    """
    try:
        yield
    except TerminalError as error:
        error.table = error.table or table.label
        raise
    except FileNotFoundError as error:
        message = f"a file of the copy of table {table.label} is missing: {error.filename or error}"
        raise TerminalError(message, "Find out what deletes files of the copy", table=table.label) from error
