"""One run of the stream, section by section: apply batches, follow DDL, let tables leave and rejoin."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any

from airflow_provider_cdc.apply.applier import AppliedBatch, Applier
from airflow_provider_cdc.apply.follow_ddl import follow_ddl
from airflow_provider_cdc.apply.task import StreamJob
from airflow_provider_cdc.chunk_groups.chunk_group import read_coverage
from airflow_provider_cdc.maintenance.table_maintenance import MaintenanceWorker
from airflow_provider_cdc.model.errors import CdcError, NotReadyError
from airflow_provider_cdc.model.offset import Offset, Position
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.staged_read import TABLE, StagedRead, order_for_publishing
from airflow_provider_cdc.observe.observer import DriverView, Observer
from airflow_provider_cdc.observe.table_state import PipelineState
from airflow_provider_cdc.resnapshot.dropped_tables import empty_copy
from airflow_provider_cdc.resnapshot.membership import (
    add_table,
    apply_reload_request,
    list_addable_tables,
    plan_removals,
)
from airflow_provider_cdc.resnapshot.publish import ReadPublisher
from airflow_provider_cdc.resnapshot.read import find_table_index
from airflow_provider_cdc.resnapshot.staged_files import list_pending_reads, list_request_files, whole_tables
from airflow_provider_cdc.resnapshot.superseded_files import remove_superseded_amendments, remove_superseded_reads
from airflow_provider_cdc.resnapshot.suspension import (
    list_requested_suspensions,
    record_suspensions,
    suspend_on_request,
    suspend_table,
    table_to_suspend,
)
from airflow_provider_cdc.resnapshot.worker import ResnapshotWorker
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.runtime.request_inbox import RequestInbox
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.storage.request_counts import RequestCounts, count_requests_in, format_counts
from airflow_provider_cdc.snapshot.run import record_superseded_groups
from airflow_provider_cdc.state import ControlRequestRow, StateDatabase
from airflow_provider_cdc.state.control_requests import REPAIR, SUSPEND, VERIFY
from airflow_provider_cdc.stream.prefetch import PrefetchWorker
from airflow_provider_cdc.verify.worker import VerifyWorker

#: Seconds between two checks for the end of a pause.
_PAUSE_POLL_SECONDS = 0.2
#: Seconds between two checks for re-snapshotted groups, where a check is a request to an object store.
_PUBLISH_CHECK_SECONDS = 5.0


@dataclass
class Epoch:
    """One run of the stream, fenced against all earlier ones.

    :param number: number of the epoch.
    :param job: what source and tasks need for the current section; a section ends where a DDL must be followed.
    :param section_start: where the section begins.
    :param target: position at which a catch-up ends; ``None`` for a continuous stream.
    :param details: further values of the epoch in the state database.
    :param maintenance: maintains the tables while the epoch runs.
    :param prefetch_worker: prefetches for the tables while the epoch begins.
    :param resnapshot_worker: re-snapshots suspended tables, and handles requests for re-snapshots.
    :param request_counts: requests to an object store since the epoch began.
    :param inbox: control requests from users.
    :param verify_worker: handles requests to verify and to repair.
    :param is_idle: returns whether the source waits for changes.
    :param release_source: disconnects from the source before a pause.
    :param lease_seconds: seconds for which the epoch continues without a task that supervises it.

    ``observer`` records the state that users see. ``ended_cleanly`` says that no commit was uncertain at the end.
    """

    context: RunContext
    store: StateDatabase
    plan: Plan
    number: int
    job: StreamJob
    section_start: Offset
    applier: Applier
    target: Position | None
    details: dict[str, Any]
    maintenance: MaintenanceWorker
    prefetch_worker: PrefetchWorker
    resnapshot_worker: ResnapshotWorker
    request_counts: RequestCounts
    inbox: RequestInbox
    stop: threading.Event = field(default_factory=threading.Event)
    _: KW_ONLY
    verify_worker: VerifyWorker
    batches: int = 0
    before_ddl: bool = False
    needs_new_section: bool = False
    has_pending_tables: bool = False
    is_idle: Callable[[], bool] = lambda: False
    release_source: Callable[[], None] = lambda: None
    lease_seconds: float | None = None
    is_running: bool = True
    pending_tables: set[int] = field(default_factory=set)
    ended_cleanly: bool = False
    observer: Observer = field(init=False)
    _commits_certain: bool = True
    _published_at: float = -_PUBLISH_CHECK_SECONDS
    _open_requests: list[ControlRequestRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Create the observer."""
        self.observer = Observer(self.context, self.store, self.driver_view)
        self.maintenance.on_measured = self.observer.add_size
        self.maintenance.on_compacted = self.observer.add_compaction

    def driver_view(self) -> DriverView:
        """Return the current state, for the observer."""
        offset = self.applier.offset
        given_up = self.resnapshot_worker.given_up
        position = str(offset.at)
        state = PipelineState(self.plan, {}, True, self.is_running, position, self.pending_tables, given_up=given_up)
        return DriverView(state, offset, self.applier.timeline, self.number)

    def apply_batch(self, manifest: dict[str, Any]) -> AppliedBatch:
        """Apply a batch and record it in the state database."""
        began = time.monotonic()
        with count_requests_in(RequestCounts(self.request_counts)) as requests:
            applied = self.applier.apply(manifest)
        requests.add(manifest["asked"])
        start, end = Offset.from_json(manifest["start"]), Offset.from_json(manifest["end"])
        size = end.at.position - (start.at.position if start.at.file == end.at.file else 0)
        with tolerate_outage():  # an outage of the state database must not stop the stream
            self.store.record_batch(
                self.plan.pipeline,
                self.number,
                self.batches,
                start_offset=manifest["start"],
                end_offset=manifest["end"],
                changes=applied.changes,
                bytes=size,
                seconds=time.monotonic() - began,
                lag_p50_ms=applied.lag_percentile(50),
                lag_p95_ms=applied.lag_percentile(95),
                lag_max_ms=applied.lag_percentile(100),
                index_bytes_used=self.applier.index_bytes,
                request_counts=(requests.to_json(), self.request_counts.to_json())
                if self.context.storage.is_remote
                else None,
            )
        self.batches += 1
        self.observer.add_applied(applied.operations)
        self.before_ddl = end.before_ddl
        if applied.changes:
            lag = f"lag p95 {(applied.lag_percentile(95) or 0) / 1000:.1f} s"
            more = f"; {format_counts(requests.to_json())}" if self.context.storage.is_remote else ""
            self.context.reporter.line(f"batch to {end.at}: {applied.changes} changes, {lag}{more}", logging.DEBUG)
        self.publish_pending()
        return applied

    def run_sections(self, run_section: Callable[[], None]) -> None:
        """Run section after section until the epoch is over; suspend tables that cannot continue.

        :param run_section: applies batches until the section is over.
        """
        self._run_sections(run_section)
        self.ended_cleanly = self._commits_certain

    def _run_sections(self, run_section: Callable[[], None]) -> None:
        work: Callable[[], None] = self.publish_pending
        while True:
            if self.inbox.paused and not self._wait_while_paused():
                return
            try:
                work()
            except CdcError as error:
                self._commits_certain = False
                self.suspend_for_error(error)
            if self.is_over():
                return
            work = partial(self._run_section, run_section)

    def mark_ended(self) -> None:
        """Record in the sink that nothing will be committed under this epoch any more, if that is certain.

        After an error it is not: a commit whose response was lost may still reach an object store. Then the next epoch
        fences this one off.
        """
        if self.ended_cleanly:
            with suppress(CdcError, OSError):  # without it, the next epoch fences this one off
                self.applier.raise_end_fence()

    def _wait_while_paused(self) -> bool:
        """Wait until the stream is resumed, without reading anything.

        :returns: whether to continue; otherwise the epoch is to end.
        """
        self.release_source()
        remedy = "To resume it: airflow-cdc resume"
        self.context.reporter.line(f"the stream is paused at {self.applier.offset.at}: {self.pause_reason}. {remedy}")
        while self.inbox.paused and not self.stop.is_set():
            self.handle_requests()
            time.sleep(_PAUSE_POLL_SECONDS)  # not Event.wait(): a signal handler that sets the event would deadlock
        self.needs_new_section = True
        if not self.stop.is_set():
            self.context.reporter.line(f"the stream continues at {self.applier.offset.at}")
        return not self.stop.is_set()

    def _run_section(self, run: Callable[[], None]) -> None:
        """Begin the next section if that is due, following its DDL, and run it."""
        if self.before_ddl:
            self.follow_ddl()
        elif self.needs_new_section:
            self._begin_section()
        run()

    def follow_ddl(self) -> None:
        """Follow the DDL at the current position, and begin the next section.

        :raises DdlError: if that is not possible.
        """
        with count_requests_in(self.request_counts):
            self.plan, index = follow_ddl(self.context, self.store, self.plan, self.applier)
            self._replace_table(index)
        self._begin_section()

    def suspend_for_error(self, error: CdcError) -> None:
        """Suspend the table that an error is about, and continue without it in a new section.

        :raises CdcError: the error itself, if it is not about a single table or must stop the stream.
        """
        if error.table is None:
            raise error
        with count_requests_in(self.request_counts):
            self.plan = self.context.plans.require()  # the error may be about an amendment that was just recorded
            index = table_to_suspend(self.context, self.plan, error)
            if index is None:
                raise error
            self.plan = suspend_table(self.context, self.store, self.plan, self.applier, index, error)
            self.applier.use_plan(self.plan)
        self.resnapshot_worker.enqueue_suspended(self.plan)
        self._begin_section()

    def _begin_section(self) -> None:
        self.job = replace(self.job, section=self.job.section + 1)
        self.section_start, self.before_ddl, self.needs_new_section = self.applier.offset, False, False
        remove_superseded_amendments(self.context.storage, self.context.layout, self.plan)
        self.observer.wake()

    def handle_requests(self) -> None:
        """Carry out control requests; those of one table in the order in which they were made."""
        self._open_requests += self.inbox.take_new_requests()
        if self.before_ddl:  # the DDL must be followed with the current plan
            return
        postponed, blocked_tables = [], set[str]()
        for request in self._open_requests:
            if request.table in blocked_tables or not self._handle_request(request):
                postponed.append(request)
                blocked_tables.add(request.table)
        self._open_requests = postponed

    def _handle_request(self, request: ControlRequestRow) -> bool:
        """Carry out or start one request.

        :returns: ``False`` if it must wait, because its table is being re-snapshotted, or because a catch-up has not
            reached its end yet: until then the copy lacks too much to be compared.
        """
        if request.kind in (VERIFY, REPAIR) and not request.table:
            return self._start_comparison(request)
        try:
            index = find_table_index(self.context, self.plan, request.table)
            if self.resnapshot_worker.is_working_on(index):
                return False
            if request.kind in (VERIFY, REPAIR):
                return self._start_comparison(request)
            if request.kind != SUSPEND:
                self.resnapshot_worker.enqueue_request(request, index)
                return True
            with count_requests_in(self.request_counts):
                self.plan, message = suspend_on_request(
                    self.context, self.store, self.plan, self.applier, index, request.by
                )
            self.applier.use_plan(self.plan)
            self.needs_new_section = True
            self.observer.wake()
            self.inbox.end_request(request.id, "done", message)
        except NotReadyError as error:
            self.context.warn(f"request by {request.by} refused: {error}")
            self.inbox.end_request(request.id, "refused", str(error))
        return True

    def _start_comparison(self, request: ControlRequestRow) -> bool:
        is_behind = self.target is not None and self.applier.offset.at < self.target
        if is_behind or (not request.table and self.resnapshot_worker.has_requests):
            return False
        self.verify_worker.enqueue_request(request)
        return True

    def publish_pending(self) -> None:
        """Handle requests, and publish re-snapshots that are due. Without any, this only lists a folder."""
        if self.inbox.paused:
            return
        self.handle_requests()
        for table in self.resnapshot_worker.take_created_tables():
            self._add_table(table)
        for index in self.resnapshot_worker.take_dropped_tables():
            self._empty_copy(index)
        now = time.monotonic()
        if self.context.storage.is_remote and now < self._published_at + _PUBLISH_CHECK_SECONDS and not self.is_over():
            return
        self._published_at = now
        with count_requests_in(self.request_counts):
            names = list_request_files(self.context, self.plan)
            if self.context.layout.reload_request(self.plan.generation) in names and not self.before_ddl:
                self._reload_tables()
            pending = list_pending_reads(self.context, self.plan, names)
            self.pending_tables = whole_tables(pending)
            self.has_pending_tables = bool(self.pending_tables)
            at, timeline = self.applier.offset.at, self.applier.timeline
            for staged in order_for_publishing(pending, lambda read: read.is_due(self.plan, at, timeline)):
                self._publish(staged)

    def _reload_tables(self) -> None:
        """Reload the list of tables: suspend tables that were removed, and add new ones."""
        self.context.pipeline = apply_reload_request(self.context, self.plan)
        self.applier.check_fence()  # amendments are not fenced themselves
        suspensions = plan_removals(self.context, self.plan)
        if suspensions:
            record_suspensions(self.context, self.store, self.plan, suspensions)
            self.plan = self.context.plans.require()
            self.applier.use_plan(self.plan)
            self.needs_new_section = True
        for table in list_addable_tables(self.context, self.store, self.plan):
            self._add_table(table)
        self.resnapshot_worker.enqueue_suspended(self.plan)
        self.context.storage.delete(self.context.layout.reload_request(self.plan.generation))

    def _add_table(self, table: TableSchema) -> None:
        """Add a new table. The current section is not affected until the table has been read."""
        if table.id in {known.id for known in self.plan.tables}:
            return
        with count_requests_in(self.request_counts):
            self.applier.check_fence()  # amendments are not fenced themselves
            self.plan = add_table(self.context, self.store, self.plan, table)
            self.applier.add_table(self.plan, self.context.sink.table(table))
            self.maintenance.add_table(self.context.sink.table(table))
        self.observer.wake()
        self.resnapshot_worker.enqueue_suspended(self.plan)

    def _empty_copy(self, index: int) -> None:
        """Empty the copy of a dropped table. The current section is not affected."""
        with count_requests_in(self.request_counts):
            if empty_copy(self.context, self.store, self.plan, self.applier, index):
                self.maintenance.mark_emptied(index)
        self.resnapshot_worker.on_table_done(index)

    def _publish(self, staged: StagedRead) -> None:
        """Publish or drop a staged read, if it is due; a table that rejoins gets a new section."""
        publisher = ReadPublisher(self.context, self.store, self.plan, self.applier, self.job, staged)
        result, index = publisher.publish_if_due(), staged.table
        if result is None or index is None:
            return
        if result.plan is not self.plan:
            self.plan = result.plan
            self._replace_table(index)
            remove_superseded_reads(self.context, self.plan, index)
            if (new_coverage := read_coverage(self.context, self.plan, self.applier.tables)) is not None:
                self.applier.set_coverage(new_coverage)
            self.needs_new_section = True
            with tolerate_outage():  # only for display; the next start does it as well
                record_superseded_groups(self.store, self.plan)
        if staged.scope == TABLE:
            self.pending_tables.discard(index)
            # Another process may have read it. The worker must know whether the table is still suspended.
            if self.plan.suspension_of(index) is None or not result.can_retry:
                self.resnapshot_worker.on_table_done(index)
            else:
                self.resnapshot_worker.on_table_failed(index, self.plan.tables[index].label, result.message)
        if staged.request_id is not None:
            self.resnapshot_worker.on_request_outcome(index, staged.request_id, result)

    def _replace_table(self, index: int) -> None:
        table = self.plan.tables[index]
        self.applier.replace_table(self.plan, index, self.context.sink.table(table))
        self.maintenance.replace_table(index, self.context.sink.table(table))

    @property
    def caught_up(self) -> bool:
        """Whether a catch-up is done, including pending re-snapshots."""
        return self.target is not None and self.target <= self.applier.offset.at and not self._busy

    @property
    def pause_reason(self) -> str:
        """Who requested the pause, as text."""
        return f"{self.inbox.paused_by or 'a user'} asked for it"

    @property
    def _busy(self) -> bool:
        """Whether a re-snapshot or a comparison is running, or a request is open."""
        is_working = self.resnapshot_worker.busy or self.verify_worker.busy
        return is_working or bool(self._open_requests) or self.inbox.has_new_requests

    def is_over(self) -> bool:
        """Return whether the epoch is to end: it was asked to stop, or it has caught up or no table is left.

        It does not end while it is paused. If users have suspended the last tables, it waits until one is resumed.
        """
        if self.stop.is_set():
            return True
        nothing_left = not self.plan.active_tables and not self._busy and not self.has_pending_tables
        nothing_left = nothing_left and not list_requested_suspensions(self.context, self.plan)
        return (self.caught_up or nothing_left) and not self.inbox.paused

    def is_section_over(self) -> bool:
        """Return whether the section is to end.

        It ends before a DDL, when a table has rejoined or was suspended by request, for a pause, and with the epoch.
        """
        if self.inbox.paused:
            self.needs_new_section = True  # even if it is resumed before the next check
        return self.before_ddl or self.needs_new_section or self.is_over()
