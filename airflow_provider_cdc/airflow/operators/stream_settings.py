"""Applies pipeline settings that were changed since the running stream began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.config.fingerprint import RELOADABLE_SETTINGS, changed_settings, settings_fingerprint

if TYPE_CHECKING:
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import EpochRow, StateDatabase


def apply_changed_settings(run_context: RunContext, store: StateDatabase, run: EpochRow, by: str, log: Any) -> bool:
    """Apply the current pipeline settings to a stream that was found running.

    The stream adopts a changed list of tables while it runs. For all other changes it is asked to stop at a transaction
    boundary, and the next epoch begins with the new settings.

    :param run: the live run.
    :param by: the task that found it.
    :param log: the task's logger.
    :returns: whether the stream was asked to stop.
    """
    from airflow_provider_cdc.resnapshot.membership import reload_tables

    changed = changed_settings(run.settings or {}, settings_fingerprint(run_context.pipeline))
    if not changed:
        return False
    description = f"the pipeline has changed since epoch {run.epoch} began: {', '.join(changed)}"
    if run.log is None:  # it runs in a terminal
        log.warning(
            "%s. The stream was started from the command line on %s, and keeps its old settings until it is restarted",
            description,
            run.host,
        )
        return False
    if RELOADABLE_SETTINGS.issuperset(changed):
        if run.desired_state != "run":
            log.warning("%s. The stream is paused, and adopts the new list of tables when it is restarted", description)
            return False
        log.info("%s. The stream adopts these while it runs", description)
        added, removed = reload_tables(run_context, store) or ([], [])
        log.info("added: %s; removed: %s", ", ".join(added) or "none", ", ".join(removed) or "none")
        return False
    log.info("%s. Asking the stream to stop; the next epoch begins with the new settings", description)
    store.request_stop(run.pipeline, run.epoch, by=by)
    return True
