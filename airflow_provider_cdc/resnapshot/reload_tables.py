"""Ask a running stream to reload its list of tables from the pipeline as it is now.

The requesting process writes the patterns to a file next to the plan, and waits. The stream's driver applies them
between two batches: see :meth:`~airflow_provider_cdc.stream.epoch.Epoch._reload_tables`.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.fingerprint import RELOADABLE_SETTINGS, settings_fingerprint
from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.mysql.client.catalog import find_tables
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.storage.storage import read_json, write_json
from airflow_provider_cdc.state import StateDatabase

_POLL_SECONDS = 0.5


def reload_tables(context: RunContext, store: StateDatabase) -> tuple[list[str], list[str]] | None:
    """Ask the running stream to copy the tables of the pipeline as it is now, and wait until it does.

    :returns: labels of the tables that were added, and of those that were removed; ``None`` if no stream is running:
        the next one copies them.
    :raises NotReadyError: if no pattern matches a table.
    :raises TransientError: if the stream ends in the meantime.
    """
    before = context.require_plan()
    with closing(connect(context.connect_args)) as connection:
        if not find_tables(connection, context.pipeline.captures):
            raise NotReadyError(
                f"pipeline {before.pipeline} would copy no table: no pattern of source.tables matches one",
                "Correct source.tables and source.exclude",
            )
    run, is_running = context.liveness.wait_until_known(store, before.pipeline)
    if run is None or not is_running:
        return None
    source, name = context.pipeline.source, context.layout.reload_request(before.generation)
    write_json(context.storage, name, {"tables": source.tables, "exclude": source.exclude})
    while context.storage.size(name) is not None:
        now, is_running = context.liveness.wait_until_known(store, before.pipeline)
        if not is_running or now is None or now.epoch != run.epoch:
            raise TransientError(
                f"epoch {run.epoch} of the stream ended before it applied the new list of tables", "Run again"
            )
        time.sleep(_POLL_SECONDS)
    digests = settings_fingerprint(context.pipeline)
    store.update_settings(before.pipeline, run.epoch, {key: digests[key] for key in RELOADABLE_SETTINGS})
    after = context.require_plan()
    known = {table.id for table in before.tables}
    added = [table.label for table in after.tables if table.id not in known]
    removed = [
        before.tables[i].label for i in before.active_tables if not context.pipeline.captures(*before.tables[i].id)
    ]
    return added, removed


def apply_reload_request(context: RunContext, plan: Plan) -> Pipeline:
    """Return the pipeline with the patterns of the reload request."""
    requested = read_json(context.storage, context.layout.reload_request(plan.generation))
    source = replace(context.pipeline.source, tables=tuple(requested["tables"]), exclude=tuple(requested["exclude"]))
    return replace(context.pipeline, source=source)
