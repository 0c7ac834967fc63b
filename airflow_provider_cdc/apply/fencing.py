"""A run of the stream takes over: it shuts out the runs before it. The argument is in docs/correctness.md.

Whether an older run may still write is decided in the sink alone: a run that has ended, and commits nothing any more,
says so in the resume point. Nothing here depends on the bookkeeping, which may be lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_cdc.apply.applier import ended_epoch_fence, epoch_fence
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.sinks.protocol import Fence, Fenceable, Markers, ResumePoint


def claim_epoch(pipeline: str, resume_point: ResumePoint, fence: Fence) -> bool:
    """Raise the fence of an epoch in the resume point, before anything else is written under it.

    :param fence: of the epoch.
    :returns: whether all older epochs are over. If not, or if it is not known, one of them may still be alive.
    :raises FencedError: if a newer epoch has taken over.
    :raises TransientError: if another process has the same number, as after a loss of the bookkeeping.
    """
    if not resume_point.raise_fence(fence):
        raise TransientError(f"another process has begun epoch {fence.value} of {pipeline}", "Run again")
    # Not earlier: what an older epoch writes from here on it cannot write under its own fence. It numbered the one
    # before this, and that one had shut out all before it, or knew that they were over.
    return resume_point.markers().get(ended_epoch_fence(pipeline, 0).name) == fence.value - 1


def raise_fences(
    pipeline: str,
    fence: Fence,
    tables: Mapping[int, Fenceable],
    known_markers: Mapping[int, Markers],
    *,
    older_epochs_ended: bool,
) -> None:
    """Raise the fence of an epoch in the tables that need it now. In the others it comes with the first commit.

    A table that has never had one needs it: groups that are read again publish their rows as long as there is none.

    :param tables: by index, those of the stream.
    :param known_markers: markers of tables, as they were at some time before.
    :param older_epochs_ended: what :func:`claim_epoch` returned.
    :raises FencedError: if a newer epoch has taken over.
    """
    name = epoch_fence(pipeline, 0).name
    for index, table in tables.items():
        if not older_epochs_ended or known_markers.get(index, {}).get(name) is None:
            table.raise_fence(fence)
