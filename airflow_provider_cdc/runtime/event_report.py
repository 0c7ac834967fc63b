"""Report what happened to the user who watches a run, and to the journal."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.runtime.run_context import RunContext

if TYPE_CHECKING:
    from airflow_provider_cdc.state import StateDatabase


def report_event(
    context: RunContext,
    store: StateDatabase,
    kind: str,
    message: str,
    *,
    table: str | None = None,
    remedy: str | None = None,
    by: str | None = None,
) -> None:
    """Report an event as a line, and add it to the journal unless the state database is unavailable.

    See :meth:`~airflow_provider_cdc.state.StateDatabase.add_event` for the parameters.
    """
    context.reporter.line(f"{message}. {remedy}" if remedy else message)
    with suppress(CdcError, SQLAlchemyError):  # informational only: the line says the same
        store.add_event(context.pipeline.name, kind, message, table=table, remedy=remedy, by=by)
