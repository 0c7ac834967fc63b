"""The stream's re-snapshot worker: a thread that reads tables one at a time and looks for newly created tables.

It reads tables that were added, tables that were suspended because of a DDL, and tables or key ranges that a user
requested. The thread only reads and requests publication; the stream's driver publishes, as it does for every request.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import closing

from airflow_provider_cdc.chunk_groups.task import JobRunner, run_in_threads
from airflow_provider_cdc.model.errors import ADDED, REMOVED, CdcError, NotReadyError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Suspension
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.staged_read import TABLE
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import estimate_table_sizes
from airflow_provider_cdc.resnapshot.dropped_tables import is_copy_emptied, should_empty_copy
from airflow_provider_cdc.resnapshot.membership import find_new_tables
from airflow_provider_cdc.resnapshot.publish import PublishResult
from airflow_provider_cdc.resnapshot.read import stage_requested, stage_table
from airflow_provider_cdc.resnapshot.staged_files import list_pending_reads
from airflow_provider_cdc.resnapshot.suspension import (
    is_resnapshot_automatic,
    list_suspensions,
    tables_missing_in_source,
)
from airflow_provider_cdc.runtime.background import BackgroundLoop
from airflow_provider_cdc.runtime.request_inbox import RequestInbox
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.state import ControlRequestRow, StateDatabase

#: Consecutive failures to re-snapshot a table after which a run of the stream leaves the table to the user.
_MAX_TRIES = 20
_POLL_SECONDS = 0.2
#: Seconds before a read is retried after a transient error.
_RETRY_SECONDS = 10.0
#: Seconds between two searches for new tables. A table is added only if two searches in a row find it.
_CATALOG_SECONDS = 30.0
#: Bytes up to which the driver reads a table itself. A task would take longer to start, and on a small host it would
#: take a core away from the batches.
_SMALL_BYTES = 16 << 20
#: Seconds for which a table must be missing before its copy is emptied: a tool that alters a table may drop it and
#: give its name to another one right away.
_MISSING_SECONDS = 3.0
#: Seconds for which a stream that ends waits for a read to end.
_END_SECONDS = 60.0


class ResnapshotWorker(BackgroundLoop):
    """Re-snapshots suspended and requested tables.

    :param store: gets an event when a table is left to the user.
    :param runner: runs the slices of a table that is not small.
    :param inbox: control requests to the stream. No read begins while the stream is paused.
    """

    def __init__(self, context: RunContext, store: StateDatabase, runner: JobRunner, inbox: RequestInbox) -> None:
        super().__init__("resnapshot-worker", _POLL_SECONDS, _END_SECONDS)
        self._context, self._store, self.runner, self._inbox = context, store, runner, inbox
        self._requests: dict[int, ControlRequestRow] = {}
        self._request_queue: list[int] = []
        self._request_tries: Counter[int] = Counter()
        self._suspended_queue: list[int] = []
        self._pending: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._given_up: set[int] = set()
        self._missing: set[int] = set()
        self._dropped: list[int] = []
        self._enqueued_at: dict[int, float] = {}
        self._seen_tables: set[tuple[str, str]] = set()
        self._created: list[TableSchema] = []
        self._logged: set[str] = set()
        self._searched_at = time.monotonic()
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether any table is being read or waits to be published."""
        return bool(self._pending or self._requests)

    @property
    def has_requests(self) -> bool:
        """Whether users have requested re-snapshots that have not ended yet."""
        return bool(self._requests)

    @property
    def given_up(self) -> frozenset[int]:
        """Tables that this run leaves to the user."""
        with self._lock:
            return frozenset(self._given_up)

    def is_working_on(self, index: int) -> bool:
        """Return whether a table, or a part of it, is being read or waits to be published."""
        return index in self._pending or index in self._requests

    def enqueue_request(self, request: ControlRequestRow, index: int) -> None:
        """Enqueue a request to re-snapshot a table or key ranges of it. The worker must not be working on that table.

        Rows that an earlier run has staged for the request are not read again: they wait to be published. Only the
        stream's driver calls this, so nothing is published between the check and the enqueueing.
        """
        pending = list_pending_reads(self._context, self._context.plans.require())
        with self._lock:
            self._requests[index] = request
            if all(staged.request_id != request.id for staged in pending):
                self._request_queue.append(index)

    def enqueue_suspended(self, plan: Plan) -> None:
        """Enqueue the suspended tables that the stream handles automatically."""
        for suspension in list_suspensions(self._context, plan):
            if self._is_read_automatically(suspension) or should_empty_copy(self._context, plan, suspension):
                self._enqueue(suspension.table)

    def _is_read_automatically(self, suspension: Suspension) -> bool:
        return suspension.kind in (ADDED, REMOVED) or is_resnapshot_automatic(self._context, suspension)

    def take_created_tables(self) -> list[TableSchema]:
        """Return the tables to add that were created since the last call."""
        with self._lock:
            tables, self._created = self._created, []
        return tables

    def take_dropped_tables(self) -> list[int]:
        """Return dropped tables, missing in the source, whose copies are to be emptied or have been."""
        with self._lock:
            indexes, self._dropped = self._dropped, []
        return indexes

    def on_table_done(self, index: int) -> None:
        """Note that a table has rejoined, or that its copy was emptied: earlier failures no longer count."""
        with self._lock:
            self._pending.discard(index)
            self._failures.pop(index, None)
            self._given_up.discard(index)

    def on_request_outcome(self, index: int, request: int, result: PublishResult) -> None:
        """Note the outcome of a request: if the staged rows have become unusable, read them again."""
        is_known = index in self._requests and self._requests[index].id == request
        if is_known and not result.published and result.can_retry and self._request_tries[request] < _MAX_TRIES:
            with self._lock:
                self._request_queue.append(index)
        elif is_known or result.published:  # else this run does not know the request yet, and will read it
            self._inbox.end_request(request, "done" if result.published else "refused", result.message)
            self._request_tries.pop(request, None)
            with self._lock:
                self._requests.pop(index if is_known else -1, None)

    def on_table_failed(self, index: int, label: str, reason: str) -> None:
        """Note that a table could not be read, or that its staged rows have become unusable.

        It is read again unless that has failed too often in a row.

        :param label: ``database.table``.
        :param reason: human-readable cause.
        """
        with self._lock:
            if index not in self._pending:
                return
            self._failures[index] += 1
            can_retry = self._failures[index] < _MAX_TRIES
            if can_retry:
                self._pending.discard(index)
        if can_retry:
            self._enqueue(index)
        else:
            self._give_up(index, label, f"it has failed {_MAX_TRIES} times in a row, most recently because: {reason}")

    def _give_up(self, index: int, label: str, reason: str) -> None:
        """Leave a table to the user, and report that."""
        message = f"{label} is not re-snapshotted by the stream: {reason}"
        if index in self._given_up:
            self._context.warn(message)
        else:
            remedy = f"Re-snapshot it: airflow-cdc resume --table {label}"
            self._context.report_event(self._store, "reread_given_up", message, table=label, remedy=remedy)
        with self._lock:
            self._given_up.add(index)
            self._pending.discard(index)

    def _enqueue(self, index: int) -> None:
        with self._lock:
            if index not in self._pending and self._failures[index] < _MAX_TRIES:
                self._enqueued_at[index] = time.monotonic()
                self._pending.add(index)
                self._suspended_queue.append(index)

    def _step(self) -> None:
        if self._inbox.paused:
            return
        with self._lock:
            index = self._suspended_queue.pop(0) if self._suspended_queue else None
            requested = self._request_queue.pop(0) if index is None and self._request_queue else None
        if index is not None:
            self._read_suspended(index)
        elif requested is not None:
            self._serve_request(requested)
        elif time.monotonic() > self._searched_at + _CATALOG_SECONDS:
            self._find_created_tables()
            self._searched_at = time.monotonic()

    def _find_created_tables(self) -> None:
        """Look for tables that were created, and for missing ones that are back."""
        context = self._context
        try:
            plan = context.plans.require()
            new_tables = list(find_new_tables(context, plan))
            returned = self._missing - tables_missing_in_source(context, plan) if self._missing else set()
            returned &= {
                step.table for step in list_suspensions(context, plan)
            }  # not tables that a user has re-snapshotted in the meantime
        except Exception as error:  # an outage, or Spark or the process may be ending
            if not self._stopping.is_set():
                context.warn(f"could not look for new tables: {error}")
            return
        self._missing -= returned
        for index in returned:
            self._enqueue(index)
        for refused in (one for one in new_tables if isinstance(one, NotReadyError)):
            message = f"table {refused.table} cannot be added: {refused}"
            if message not in self._logged:
                self._logged.add(message)
                context.warn(message)
        tables = {one.id: one for one in new_tables if isinstance(one, TableSchema)}
        with self._lock:
            already_created = {table.id for table in self._created}
            self._created += [
                t for name, t in tables.items() if name in self._seen_tables and name not in already_created
            ]
        self._seen_tables = set(tables)

    def _read_suspended(self, index: int) -> None:
        """Read one suspended table. After a failure it stays suspended, and the reason is reported."""
        context = self._context
        label = str(index)
        try:
            plan = context.plans.require()
            label = plan.tables[index].label
            if any(staged.scope == TABLE and staged.table == index for staged in list_pending_reads(context, plan)):
                return  # another process has read it already
            suspension = plan.suspension_of(index)
            if self._handle_missing(plan, index, suspension):
                return
            if suspension is None:  # it has rejoined in the meantime
                self.on_table_done(index)
                return
            if not self._is_read_automatically(suspension):
                self._clear_pending(index)
                return
            size = self._table_bytes(plan, index)
            max_bytes = context.pipeline.stream.reread_max_bytes
            if size <= max_bytes or suspension.kind in (ADDED, REMOVED):  # added and removed tables were requested
                stage_table(context, index, self._choose_runner(size))
                return
            reason = f"it has {size:,} bytes, and stream.reread_max_bytes is {max_bytes:,}"
        except Exception as error:  # no error may end the thread; Spark may be ending
            if self._stopping.is_set():
                return
            reason = str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}"
            if isinstance(error, TransientError):
                if not self._stopping.wait(_RETRY_SECONDS):
                    context.warn(f"{label} could not be re-snapshotted: {reason}")
                    self.on_table_failed(index, label, reason)
                return
        self._give_up(index, label, reason)

    def _serve_request(self, index: int) -> None:
        """Read what a request asks for. The request ends if that is impossible."""
        context, request = self._context, self._requests.get(index)
        if request is None:  # what an earlier run had read was published in the meantime
            return
        self._request_tries[request.id] += 1
        try:
            plan = context.plans.require()
            run = self._choose_runner(self._table_bytes(plan, index))
            stage_requested(context, index, request.condition, run, request)
            return
        except Exception as error:  # as in _read_suspended: if this run is ending, the next one takes up the request
            if self._stopping.is_set():
                return
            reason = str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}"
            can_retry = isinstance(error, TransientError) and self._request_tries[request.id] < _MAX_TRIES
        what = f"{request.table} cannot be re-snapshotted as requested by {request.by}"
        if can_retry:
            context.warn(f"{what}; retrying: {reason}")
            if not self._stopping.wait(_RETRY_SECONDS):
                with self._lock:
                    self._request_queue.append(index)
            return
        context.warn(f"{what}: {reason}")
        self._inbox.end_request(request.id, "refused", reason)
        with self._lock:
            self._requests.pop(index, None)

    def _table_bytes(self, plan: Plan, index: int) -> int:
        with closing(connect(self._context.connect_args)) as connection:
            ((_, size),) = estimate_table_sizes(connection, [plan.tables[index].id]) or [(0, 0)]
        return size

    def _choose_runner(self, size: int) -> JobRunner:
        return run_in_threads if size <= _SMALL_BYTES else self.runner

    def _handle_missing(self, plan: Plan, index: int, suspension: Suspension | None) -> bool:
        """Return whether the source no longer has a table; if so, handle its copy."""
        context, label = self._context, plan.tables[index].label
        if index not in tables_missing_in_source(context, plan):
            return False
        empties_copy = should_empty_copy(context, plan, suspension)
        if not empties_copy or is_copy_emptied(context, plan, index):
            stays = "was emptied" if empties_copy else "stays as it was"
            context.reporter.line(f"{label} no longer exists in the source: its copy {stays}")
        elif self._stopping.wait(max(0.0, self._enqueued_at[index] + _MISSING_SECONDS - time.monotonic())):
            return True
        elif index not in tables_missing_in_source(context, plan):
            return False
        self._missing.add(index)
        if empties_copy:
            with self._lock:
                self._dropped.append(index)
        else:
            self._clear_pending(index)
        return True

    def _clear_pending(self, index: int) -> None:
        """Stop waiting for a table: there is nothing to read, and nothing has failed."""
        with self._lock:
            self._pending.discard(index)
