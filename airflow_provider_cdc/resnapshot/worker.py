"""A stream reads tables by itself that were added, or suspended because of a DDL; and tables, or parts of them, that
somebody wants to be read again. A thread of its own does that, one by one. It also looks for tables that were created.

The thread only reads, and asks for the rows to be exchanged: the stream's driver does that, as for everybody who asks.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import closing, suppress

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.chunk_groups.task import JobRunner, run_in_threads
from airflow_provider_cdc.model.errors import CdcError, NotFollowedError, NotReadyError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Suspension
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.staged_read import TABLE
from airflow_provider_cdc.model.suspension_kinds import ADDED, REMOVED
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import estimate_table_sizes
from airflow_provider_cdc.resnapshot.dropped_tables import is_copy_emptied, should_empty_copy
from airflow_provider_cdc.resnapshot.key_ranges import stage_where
from airflow_provider_cdc.resnapshot.membership import find_new_tables
from airflow_provider_cdc.resnapshot.overwrite import OverwriteResult
from airflow_provider_cdc.resnapshot.staged_files import list_pending_reads
from airflow_provider_cdc.resnapshot.suspension import list_suspensions, tables_missing_in_source
from airflow_provider_cdc.resnapshot.whole_table import stage_table
from airflow_provider_cdc.runtime.request_inbox import RequestInbox
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.storage.request_counts import with_current_counts
from airflow_provider_cdc.state import ControlRequestRow, StateDatabase

#: How often in a row one run of the stream fails to read a table again before it leaves the table to people.
_MAX_TRIES = 20
_POLL_SECONDS = 0.2
#: Seconds before a reading is tried once more that failed for a while.
_RETRY_SECONDS = 10.0
#: Seconds from one look for tables that were created to the next. One that is not there twice is not added.
_CATALOG_SECONDS = 30.0
#: Bytes up to which the driver reads a table itself. A task would take longer until it has begun, and take a core of a
#: small host from the batches meanwhile.
_SMALL_BYTES = 16 << 20
#: Seconds for which a table must not be there before its copy is emptied: a tool that alters it may drop it, and give
#: its name to another one at once.
_MISSING_SECONDS = 3.0
#: Seconds for which the end of a stream waits for a reading to end.
_END_SECONDS = 60.0


class ResnapshotWorker:
    """Reads suspended tables again. A context manager, which ends it.

    :param store: gets an event when a table is left to people.
    :param runner: runs the slices of a table that is not small.
    :param inbox: what people want of the stream. Nothing is begun while it is paused.
    """

    def __init__(self, context: RunContext, store: StateDatabase, runner: JobRunner, inbox: RequestInbox) -> None:
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
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=with_current_counts(self._loop), name="rereading", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_END_SECONDS)

    @property
    def busy(self) -> bool:
        """Whether a table is being read, or waits for the stream to take it in."""
        return bool(self._pending or self._requests)

    def is_working_on(self, index: int) -> bool:
        """Whether a table, or a part of it, is being read, or waits for the stream to take it in."""
        return index in self._pending or index in self._requests

    def enqueue_request(self, request: ControlRequestRow, index: int) -> None:
        """Read a table again, or rows of it, that somebody wants to be read. It is not at that table already.

        What a run before this one has read for the request is not read again: that waits, and the stream takes it in.
        Only the stream's driver calls this, so nothing is taken in between the look and the note.
        """
        pending = list_pending_reads(self._context, self._context.require_plan())
        with self._lock:
            self._requests[index] = request
            if all(staged.request_id != request.id for staged in pending):
                self._request_queue.append(index)

    def enqueue_suspended(self, plan: Plan) -> None:
        """Read again what is suspended, if that is for the stream to do."""
        for suspension in list_suspensions(self._context, plan):
            if self._is_read_automatically(suspension) or should_empty_copy(self._context, plan, suspension):
                self._enqueue(suspension.table)

    def _is_read_automatically(self, suspension: Suspension) -> bool:
        is_automatic = self._context.pipeline.stream.reread == "auto"
        return suspension.kind in (ADDED, REMOVED) or (is_automatic and suspension.kind == NotFollowedError.__name__)

    def take_created_tables(self) -> list[TableSchema]:
        """Tables that have been created since the last time, and are to be added."""
        with self._lock:
            tables, self._created = self._created, []
        return tables

    def take_dropped_tables(self) -> list[int]:
        """Tables that were dropped, are not there any more, and whose copies are to be emptied, or were."""
        with self._lock:
            indexes, self._dropped = self._dropped, []
        return indexes

    def on_table_done(self, index: int) -> None:
        """Hear that a table has rejoined, or that its copy was emptied: no failure before counts any more."""
        with self._lock:
            self._pending.discard(index)
            self._failures.pop(index, None)
            self._given_up.discard(index)

    def on_request_outcome(self, index: int, request: int, result: OverwriteResult) -> None:
        """Hear what has become of what was read for a request: rows of no use any more are read once more."""
        is_known = index in self._requests and self._requests[index].id == request
        if is_known and not result.published and result.can_retry and self._request_tries[request] < _MAX_TRIES:
            with self._lock:
                self._request_queue.append(index)
        elif is_known or result.published:  # else this run does not know of it yet, and reads it then
            self._inbox.end_request(request, "done" if result.published else "refused", result.message)
            self._request_tries.pop(request, None)
            with self._lock:
                self._requests.pop(index if is_known else -1, None)

    def on_table_failed(self, index: int, label: str, reason: str) -> None:
        """Hear that a table could not be read, or that what was read of it is of no use any more: it is read again,
        unless that has failed too often in a row.

        :param label: the table, and ``reason``: what was in the way; for people.
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
            self._give_up(index, label, f"that has failed {_MAX_TRIES} times in a row, the last time since {reason}")

    def _give_up(self, index: int, label: str, reason: str) -> None:
        """Leave a table to people, and tell them."""
        message = f"{label} is not read again by the stream: {reason}"
        self._context.reporter.line(message)
        if index not in self._given_up:
            with suppress(CdcError, SQLAlchemyError):  # the line says it, too
                remedy = f"Read it again: airflow-cdc resnapshot --table {label}"
                self._store.add_event(
                    self._context.pipeline.name, "reread_given_up", message, table=label, remedy=remedy
                )
        with self._lock:
            self._given_up.add(index)
            self._pending.discard(index)

    def _enqueue(self, index: int) -> None:
        with self._lock:
            if index not in self._pending and self._failures[index] < _MAX_TRIES:
                self._enqueued_at[index] = time.monotonic()
                self._pending.add(index)
                self._suspended_queue.append(index)

    def _loop(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            if self._inbox.paused:
                continue
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
        """Look for tables that were created, and for those that are there again."""
        context = self._context
        try:
            plan = context.require_plan()
            new_tables = list(find_new_tables(context, plan))
            returned = self._missing - tables_missing_in_source(context, plan) if self._missing else set()
            returned &= {
                step.table for step in list_suspensions(context, plan)
            }  # not what somebody has read again meanwhile
        except Exception as error:  # an outage; and Spark, or the process, may be ending
            if not self._stopping.is_set():
                context.reporter.line(f"tables that were created could not be looked for: {error}")
            return
        self._missing -= returned
        for index in returned:
            self._enqueue(index)
        for refused in (one for one in new_tables if isinstance(one, NotReadyError)):
            message = f"table {refused.table} cannot be added: {refused}"
            if message not in self._logged:
                self._logged.add(message)
                context.reporter.line(message)
        tables = {one.id: one for one in new_tables if isinstance(one, TableSchema)}
        with self._lock:
            already_created = {table.id for table in self._created}
            self._created += [
                t for name, t in tables.items() if name in self._seen_tables and name not in already_created
            ]
        self._seen_tables = set(tables)

    def _read_suspended(self, index: int) -> None:
        """Read one table; what fails leaves it suspended, and says why."""
        context = self._context
        label = str(index)
        try:
            plan = context.require_plan()
            label = plan.tables[index].label
            if any(staged.scope == TABLE and staged.table == index for staged in list_pending_reads(context, plan)):
                return  # somebody has read it already
            suspension = plan.suspension_of(index)
            if self._handle_missing(plan, index, suspension):
                return
            if suspension is None:  # it has rejoined meanwhile
                self.on_table_done(index)
                return
            if not self._is_read_automatically(suspension):
                self._clear_pending(index)
                return
            size = self._table_bytes(plan, index)
            max_bytes = context.pipeline.stream.reread_max_bytes
            if size <= max_bytes or suspension.kind in (ADDED, REMOVED):  # those somebody has asked for
                stage_table(context, index, self._choose_runner(size))
                return
            reason = f"it has {size:,} bytes, and stream.reread_max_bytes is {max_bytes:,}"
        except Exception as error:  # whatever it is: it must not end the thread, and Spark may be ending
            if self._stopping.is_set():
                return
            reason = str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}"
            if isinstance(error, TransientError) and not self._stopping.wait(_RETRY_SECONDS):
                context.reporter.line(f"{label} could not be read again: {reason}")
                self.on_table_failed(index, label, reason)
                return
        self._give_up(index, label, reason)

    def _serve_request(self, index: int) -> None:
        """Read what somebody wants to be read; the request ends where that is not possible."""
        context, request = self._context, self._requests.get(index)
        if request is None:  # what a run before this one has read was exchanged meanwhile
            return
        self._request_tries[request.id] += 1
        try:
            plan = context.require_plan()
            run = self._choose_runner(self._table_bytes(plan, index))
            if request.condition is None:
                stage_table(context, index, run, requested_by_user=True, by_request=request)
            else:
                stage_where(context, index, request.condition, run, request)
            return
        except Exception as error:  # as in _read: the next run takes the request up, if this one is ending
            if self._stopping.is_set():
                return
            reason = str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}"
            can_retry = isinstance(error, TransientError) and self._request_tries[request.id] < _MAX_TRIES
        what = f"{request.table} cannot be read again as {request.by} wants it"
        if can_retry:
            context.reporter.line(f"{what}, which is tried once more: {reason}")
            if not self._stopping.wait(_RETRY_SECONDS):
                with self._lock:
                    self._request_queue.append(index)
            return
        context.reporter.line(f"{what}: {reason}")
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
        """Whether the source does not have a table any more. What becomes of its copy then is seen to."""
        context, label = self._context, plan.tables[index].label
        if index not in tables_missing_in_source(context, plan):
            return False
        empties_copy = should_empty_copy(context, plan, suspension)
        if not empties_copy or is_copy_emptied(context, plan, index):
            stays = "was emptied" if empties_copy else "stays as it was"
            context.reporter.line(f"{label} is gone from the source: its copy {stays}")
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
        """There is nothing to read, and nothing has failed."""
        with self._lock:
            self._pending.discard(index)
