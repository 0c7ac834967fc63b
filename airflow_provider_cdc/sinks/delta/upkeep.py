"""What keeps the folder of a Delta table small: checkpoints of its log, and files that nobody needs."""

from __future__ import annotations

import time

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from airflow_provider_cdc.exceptions import TransientError
from airflow_provider_cdc.sinks.delta.edit import CHANGES, is_part
from airflow_provider_cdc.sinks.delta.log import FOLDER as LOG
from airflow_provider_cdc.sinks.delta.log import Log
from airflow_provider_cdc.sinks.delta.vectors import FOLDER as VECTORS

#: Hours for which files are kept that only older versions refer to.
KEEP_HOURS = 1
#: Hours after which a file that no version refers to was left by somebody who was killed.
_ABANDONED_HOURS = 48
#: Commits between two checkpoints.
_EVERY = 100


def checkpoint(log: Log) -> None:
    """Write a checkpoint of the log, if one is due, and delete what of the log is older than its retention.

    :raises TransientError: if that is not possible now.
    """
    if log.version - (log.checkpointed or 0) < _EVERY:
        return
    try:
        table = DeltaTable(log.storage.uri(), storage_options=log.storage.options() or None)
        table.create_checkpoint()
        table.cleanup_metadata()
    except DeltaError as error:
        raise TransientError(
            f"no checkpoint could be written of the {log.name}: {error}", "It is the next time"
        ) from None
    log.checkpointed = log.version


def sweep(log: Log, keep_hours: float = KEEP_HOURS) -> None:
    """Delete data files and vectors that no version of the last hours refers to, and those that somebody has left.

    :raises TransientError: if that is not possible now.
    """
    now = time.time()
    limit = (now - keep_hours * 3600) * 1000
    live = {*log.files} | {f.vector.file for f in log.files.values() if f.vector and f.vector.file}
    gone: list[str] = []
    try:
        for name, _ in log.storage.list(""):
            if name.startswith(f"{LOG}/") or name in live:
                continue
            removed = log.removed.get(name)
            if removed is not None:
                if removed <= limit:
                    gone.append(name)
            elif is_part(name) or name.startswith((f"{CHANGES}/", f"{VECTORS}/")):
                written = log.storage.modified(name)
                if written is not None and written < now - _ABANDONED_HOURS * 3600:
                    gone.append(name)
        log.storage.delete(*gone)
        log.removed = {name: at for name, at in log.removed.items() if at > limit}
    except OSError as error:
        raise TransientError(
            f"old files of the {log.name} could not be deleted: {error}", "They are the next time"
        ) from None
