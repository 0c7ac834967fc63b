"""Let a run of the stream take over and fence out the runs before it. The argument is in docs/correctness.md.

Only the sink decides whether an older run may still write: a run that has ended, and so commits nothing, records that
in the resume point. Nothing here depends on the state database, which may be lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_cdc.apply.applier import ended_epoch_fence, epoch_fence
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.sinks.protocol import Fence, Fenceable, Markers, ResumePoint


def claim_epoch(pipeline: str, resume_point: ResumePoint, fence: Fence) -> bool:
    """Raise the fence of an epoch in the resume point, before anything else is written under it.

    :param fence: fence of the epoch.
    :returns: whether all older epochs have ended. Otherwise one of them may still be alive.
    :raises FencedError: if a newer epoch has taken over.
    :raises TransientError: if another process has the same number, for example after the state database was lost.
    """
    if not resume_point.raise_fence(fence):
        raise TransientError(f"another process has begun epoch {fence.value} of {pipeline}", "Run again")
    # Not earlier: from here on, older epochs cannot write under their own fences. The ended marker must be that of the
    # previous epoch, which had fenced out all epochs before it, or knew that they had ended.
    return resume_point.markers().get(ended_epoch_fence(pipeline, 0).name) == fence.value - 1


def raise_fences(
    pipeline: str,
    fence: Fence,
    tables: Mapping[int, Fenceable],
    known_markers: Mapping[int, Markers],
    *,
    older_epochs_ended: bool,
) -> None:
    """Raise the fence of an epoch in the tables that need it now. In the others, the first commit raises it.

    A table that never had an epoch fence needs it: without one, re-snapshotted groups publish their rows themselves.

    :param tables: tables of the stream, by index.
    :param known_markers: markers of tables, by index, as of some earlier time.
    :param older_epochs_ended: what :func:`claim_epoch` returned.
    :raises FencedError: if a newer epoch has taken over.
    """
    name = epoch_fence(pipeline, 0).name
    for index, table in tables.items():
        if not older_epochs_ended or known_markers.get(index, {}).get(name) is None:
            table.raise_fence(fence)
