"""A pipeline that was changed since its stream began: which settings, and how the stream gets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.config.fingerprint import RELOADABLE_SETTINGS, changed_settings, settings_fingerprint

if TYPE_CHECKING:
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import EpochRow, StateDatabase


def apply_changed_settings(run_context: RunContext, store: StateDatabase, run: EpochRow, by: str, log: Any) -> bool:
    """Let a stream that was found running have the settings of the pipeline as they are now.

    Other tables it takes over while it runs. For all else it is asked to stop, at a transaction boundary: the next
    epoch begins with them.

    :param run: the run, which lives.
    :param by: the task that has found it.
    :param log: the task's logger.
    :returns: whether it was asked to stop.
    """
    from airflow_provider_cdc.resnapshot.reload_tables import reload_tables

    changed = changed_settings(run.settings or {}, settings_fingerprint(run_context.pipeline))
    if not changed:
        return False
    description = f"the pipeline has changed since epoch {run.epoch} began: {', '.join(changed)}"
    if run.log is None:  # somebody has it in a terminal
        log.warning(
            "%s. It was started by the command line on %s, and keeps its settings until it is", description, run.host
        )
        return False
    if RELOADABLE_SETTINGS.issuperset(changed):
        if run.desired_state != "run":
            log.warning("%s. It is paused, and copies other tables when it is started anew", description)
            return False
        log.info("%s. It takes these over while it runs", description)
        added, removed = reload_tables(run_context, store) or ([], [])
        log.info("added: %s; removed: %s", ", ".join(added) or "none", ", ".join(removed) or "none")
        return False
    log.info("%s. It is asked to stop, and the next epoch begins with the new settings", description)
    store.request_stop(run.pipeline, run.epoch, by=by)
    return True
