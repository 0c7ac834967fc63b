"""Wait, in the process that has read a staged read, until its rows are published."""

from __future__ import annotations

import time

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup
from airflow_provider_cdc.model.errors import TerminalError, TransientError
from airflow_provider_cdc.model.staged_read import GROUP, StagedRead
from airflow_provider_cdc.model.supervision import EpochWatch
from airflow_provider_cdc.resnapshot.publish import explain_overwritten, publish_in_unstreamed_tables
from airflow_provider_cdc.resnapshot.staged_files import ReadOutcome, list_pending_reads, load_outcome
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.processes import has_died_here

_POLL_SECONDS = 1.0


def publish_or_wait(group: ChunkGroup, staged: StagedRead, store: StateDatabase) -> bool:
    """Publish a chunk group in tables that no stream has touched; for all else, wait for a running stream.

    :param group: the chunks that were read.
    :returns: whether the rows are published; if not, no stream is running, and the next one publishes them.
    :raises TransientError: if the stream could not publish them, and another try may succeed, or the work was
        interrupted.
    :raises TerminalError: if an older re-snapshot of a whole table has overwritten them.
    """
    reporter, description = group.context.reporter, staged.describe(group.plan)
    if staged.scope == GROUP:
        publish_in_unstreamed_tables(group, staged)
    if (outcome := _wait_for_outcome(group, store, staged)) is None:
        reporter.line(f"{description}; no stream is running: the next one will publish it")
        return False
    if not outcome.published:
        message = f"{description}, but cannot be published: {outcome.message}"
        raise TransientError(message, "Run again to read it again")
    return True


def _wait_for_outcome(group: ChunkGroup, store: StateDatabase, staged: StagedRead) -> ReadOutcome | None:
    """Wait while a stream is running that will end the read.

    :returns: how it ended; ``None`` if no such stream is running.
    """
    watch: EpochWatch | None = None
    was_paused, reporter = False, group.context.reporter
    while (outcome := _find_outcome(group, staged)) is None:
        group.context.check_interrupted()
        run = store.newest_epoch(group.plan.pipeline)
        if run is None or run.state != "running" or has_died_here(run.host, run.machine, run.pid, run.pid_started):
            return None
        if watch is None or watch.epoch != run.epoch:
            watch = EpochWatch(run.epoch)
            reporter.line(
                f"{staged.describe(group.plan)}; the stream (epoch {run.epoch}) publishes it when it reaches "
                f"{staged.high_watermark}"
            )
        if watch.observe(run, time.monotonic()) is not None:
            return None
        if run.paused_by is not None and not was_paused:
            reporter.line(f"the stream is paused ({run.paused_by} asked for it). To resume it: airflow-cdc resume")
        was_paused = run.paused_by is not None
        time.sleep(_POLL_SECONDS)
    return outcome


def _find_outcome(group: ChunkGroup, staged: StagedRead) -> ReadOutcome | None:
    """Return how a read ended; ``None`` while it waits.

    :raises TerminalError: if an older re-snapshot of a whole table has overwritten the rows.
    """
    context, plan = group.context, group.plan
    is_pending = any(pending.group == staged.group for pending in list_pending_reads(context, plan))
    # Only after that check: requests are removed last.
    if staged.scope != GROUP:
        outcome = load_outcome(context, plan.generation, staged.group)
        return outcome if is_pending or outcome is not None else ReadOutcome(False, "its request no longer exists")
    published = (group.published_attempt() or 0) >= staged.attempt
    if is_pending and not published:
        return None
    read_tables = {entry["table"] for entry in group.read_manifest(staged.attempt)}
    if (overwritten := explain_overwritten(context.plans.refresh(plan), staged, read_tables)) is not None:
        raise TerminalError(*overwritten)
    return ReadOutcome(published, "the rows published before stay")
