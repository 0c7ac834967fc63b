"""Send a control request to the running stream through the state database, and wait for its outcome."""

from __future__ import annotations

import getpass
import os
import time

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.resnapshot.read import find_table_index
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.state.control_requests import RESNAPSHOT

_POLL_SECONDS = 0.5
#: Seconds after which the waiting user is told that the stream has not picked up the request yet.
_WARN_AFTER_SECONDS = 30.0


def os_user() -> str:
    """Return the name of the operating-system user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have none
        return f"user {os.getuid()}"


def request_and_wait(context: RunContext, store: StateDatabase, kind: str, table: str, by: str) -> str:
    """Request the suspension or re-snapshot of a table, and wait until the running stream has handled it.

    :param kind: ``suspend`` or ``reread``.
    :param table: ``database.table``.
    :param by: name of the requester.
    :returns: the outcome in one line, or that the next stream will handle it.
    :raises NotReadyError: if the pipeline copies no such table, or the stream refuses the request.
    """
    name = context.pipeline.name
    find_table_index(context, context.plans.require(), table)
    request_id, seen_taken = store.add_request(name, kind, table, by), False
    warn_at = time.monotonic() + _WARN_AFTER_SECONDS
    while True:
        request = store.request(name, request_id)
        if request is None:
            raise NotReadyError(f"request {request_id} is no longer in the state database", "Run again")
        if request.finished_at is not None:
            if request.state == "done":
                return request.outcome or ""
            raise NotReadyError(f"the stream has {request.state} it: {request.outcome}")
        run, is_alive = context.liveness.check_once(store, name)
        if run is None or is_alive is False:
            return f"no stream is running: the next one will handle it (request {request_id})"
        if run.paused_by is not None and kind == RESNAPSHOT:
            remedy = "it re-snapshots the table when it is resumed: airflow-cdc resume"
            return f"the stream is paused ({run.paused_by} asked for it): {remedy} (request {request_id})"
        if request.state == "taken" and not seen_taken:
            seen_taken = True
            context.reporter.line(f"request {request_id} is being handled by epoch {run.epoch} of the stream")
        elif request.state == "open" and time.monotonic() > warn_at:
            warn_at = float("inf")
            context.reporter.line(
                f"request {request_id}: epoch {run.epoch} of the stream has not picked it up yet. It is busy with a "
                "batch. If it ends before that, the next epoch will handle it, so you can stop waiting (Ctrl-C)"
            )
        time.sleep(_POLL_SECONDS)
