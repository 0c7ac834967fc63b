"""Record the state of a pipeline about once a minute, for display: its lag, and the state of each table.

Nothing depends on these records, so nothing waits for them: a separate thread writes them. An outage of the state
database only leaves a gap in the samples; changes counted meanwhile are recorded afterwards.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.observe.lag import Lag, measure_lag
from airflow_provider_cdc.observe.stream_summary import StreamCounts, summary_line
from airflow_provider_cdc.observe.table_state import PipelineState, describe_table, describe_versions
from airflow_provider_cdc.resnapshot.staged_files import tables_pending_publication
from airflow_provider_cdc.resnapshot.suspension import tables_known_missing
from airflow_provider_cdc.runtime.background import BackgroundLoop
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Measurable, SinkTable, TableSize
from airflow_provider_cdc.state import StateDatabase, TableProgress, TableStatus, utc_now
from airflow_provider_cdc.state.values import LastCompaction

#: Seconds between two samples, and from the start to the first one.
_INTERVAL_SECONDS, _FIRST_SAMPLE_SECONDS = 60.0, 5.0
#: Seconds for which a sample is good for all drivers that read a snapshot in parallel, so that only one queries the
#: source.
_FRESH_SECONDS = 45.0
#: Maximum seconds that the end of a driver waits for the observer.
_END_SECONDS = 10.0


@dataclass(frozen=True)
class DriverView:
    """What a driver knows about its pipeline at one moment.

    :param state: state of the pipeline.
    :param offset: the resume point.
    :param timeline: its timeline.
    :param epoch: epoch of the stream; ``None`` for a snapshot.
    """

    state: PipelineState
    offset: Offset
    timeline: Timeline
    epoch: int | None = None

    @property
    def plan(self) -> Plan:
        """The current plan."""
        return self.state.plan


@dataclass
class _Unwritten:
    """What was observed since the last write, by index of the table."""

    applied: dict[int, Counter[str]] = field(default_factory=dict)
    sizes: dict[int, TableSize] = field(default_factory=dict)
    compactions: dict[int, LastCompaction] = field(default_factory=dict)

    def count_applied(self, operations: Mapping[int, Counter[str]]) -> None:
        """Add changes that were applied, by table and operation."""
        for index, counts in operations.items():
            self.applied.setdefault(index, Counter()).update(counts)

    def add_newer(self, newer: _Unwritten) -> None:
        """Add what was observed later."""
        self.count_applied(newer.applied)
        self.sizes |= newer.sizes
        self.compactions |= newer.compactions


class Observer(BackgroundLoop):
    """Records the state of a pipeline while a driver works.

    :param get_view: returns what the driver knows now; ``None`` if another driver records it.
    """

    def __init__(self, context: RunContext, store: StateDatabase, get_view: Callable[[], DriverView | None]) -> None:
        super().__init__("observer", _INTERVAL_SECONDS, _END_SECONDS)
        self._context, self._store, self._get_view = context, store, get_view
        self._lock, self._write_lock = threading.Lock(), threading.Lock()
        self._unwritten = _Unwritten()
        self._written: dict[int, TableStatus] = {}
        self._definition_cache: tuple[Plan, Sequence[DefinitionHistory], dict[int, list[dict[str, Any]]]] | None = None
        self._chunk_progress: Mapping[tuple[str, str], TableProgress] | None = None
        self._missing: Collection[int] = ()
        self._wake_event, self._sample_due = threading.Event(), 0.0
        self._counts = StreamCounts()
        self._lag: Lag | None = None

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._wake_event.set()
        super().__exit__()

    def wake(self) -> None:
        """Record the state of the tables soon, because something has changed."""
        self._wake_event.set()

    def add_applied(self, operations: Mapping[int, Counter[str]]) -> None:
        """Count the changes of a batch, by table and operation."""
        with self._lock:
            self._unwritten.count_applied(operations)
            self._counts.add_batch(sum(counts.total() for counts in operations.values()))

    def add_size(self, index: int, size: TableSize) -> None:
        """Record the size of a table with the next write."""
        with self._lock:
            self._unwritten.sizes[index] = size

    def add_compaction(self, index: int, compaction: LastCompaction) -> None:
        """Record the last compaction of a table with the next write."""
        with self._lock:
            self._unwritten.compactions[index] = compaction

    def write(self, tables: Mapping[int, SinkTable] | None = None) -> None:
        """Record the state of the tables now.

        :param tables: only these tables, by index, including their sizes; ``None`` for all, without measuring them.
        """
        if self._stopping.is_set() and self._write_lock.locked():
            return  # the thread waits for a database that does not respond: the end of the driver must not wait as well
        with self._log_failures("the state of the tables"), self._write_lock:
            view = self._get_view()
            if view is not None:
                self._write(view, tables)

    def _run(self) -> None:
        self._sample_due = time.monotonic() + _FIRST_SAMPLE_SECONDS
        while not self._stopping.is_set():
            self._step()

    def _step(self) -> None:
        if self._wake_event.wait(max(0.0, self._sample_due - time.monotonic())):
            self._wake_event.clear()
        else:
            self._sample_due = time.monotonic() + self._interval
            self._lag = None
            with self._log_failures("the lag"):
                self._record_sample()
            with self._log_failures("the progress of the stream"):
                self._report_summary()
        if not self._stopping.is_set():
            with self._log_failures("the tables that are missing in the source"):
                if (view := self._get_view()) is not None:
                    self._missing = tables_known_missing(self._context, view.plan)
            self.write()

    def _record_sample(self) -> None:
        view = self._get_view()
        if view is None or (view.epoch is None and self._is_fresh(view.plan.pipeline)):
            return
        self._lag = lag = measure_lag(self._context, view.offset, slots.LAG_SAMPLE)
        self._store.record_sample(
            view.plan.pipeline,
            view.epoch,
            lag_seconds=lag.seconds,
            lag_bytes=lag.bytes,
            purge_hours=None if lag.seconds_to_purge is None else lag.seconds_to_purge / 3600,
            unknown=lag.unknown,
        )

    def _report_summary(self) -> None:
        """Report what the stream has done since the last summary."""
        view = self._get_view()
        if view is None or view.epoch is None:
            return
        with self._lock:
            counts, self._counts = self._counts, StreamCounts()
        self._context.reporter.line(summary_line(view.epoch, counts, self._lag, view.offset.at))

    def _is_fresh(self, pipeline: str) -> bool:
        sample = self._store.last_sample(pipeline)
        return sample is not None and 0 <= (utc_now() - sample.at).total_seconds() < _FRESH_SECONDS

    def _write(self, view: DriverView, tables: Mapping[int, SinkTable] | None) -> None:
        plan, is_first = view.plan, tables is None and not self._written
        if view.epoch is None:
            self._chunk_progress = None  # it only changes during a snapshot
        measured = {
            index: table.table_size() for index, table in (tables or {}).items() if isinstance(table, Measurable)
        }
        with self._lock:
            unwritten, self._unwritten = self._unwritten, _Unwritten()
            unwritten.sizes |= measured
        try:
            states = {index: self._describe_table(view, index) for index in (tables or range(len(plan.tables)))}
            # The position of the stream changes all the time, and is not worth a write on its own.
            changed = unwritten.applied.keys() | unwritten.sizes.keys() | unwritten.compactions.keys()
            due = {i: s for i, s in states.items() if i in changed or _without_position(s) != self._written.get(i)}
            if not due and not is_first:
                return
            self._store.write_table_states(
                plan.pipeline,
                list(due.values()),
                sizes={plan.tables[i].id: size.to_json() for i, size in unwritten.sizes.items()},
                last_compactions={plan.tables[i].id: compaction for i, compaction in unwritten.compactions.items()},
                applied_counts={
                    plan.tables[i].id: [counts[op] for op in "cud"] for i, counts in unwritten.applied.items()
                },
                delete_others=is_first,
            )
        except BaseException:
            with self._lock:
                unwritten.add_newer(self._unwritten)
                self._unwritten = unwritten
            raise
        if tables is None:
            self._written |= {index: _without_position(state) for index, state in due.items()}

    def _describe_table(self, view: DriverView, index: int) -> TableStatus:
        progress = self._table_progress(view.plan).get(view.plan.tables[index].id)
        state = replace(view.state, missing=self._missing)
        return describe_table(self._context, state, index, progress, self._definitions(view, index))

    def _table_progress(self, plan: Plan) -> Mapping[tuple[str, str], TableProgress]:
        if self._chunk_progress is None:
            rows = self._store.table_progress(plan.pipeline, plan.generation)
            self._chunk_progress = {(row.database, row.table): row for row in rows}
        return self._chunk_progress

    def _definitions(self, view: DriverView, index: int) -> list[dict[str, Any]]:
        """Return the definitions of a table. The driver of a chunk group describes only the tables of the group."""
        if self._definition_cache is None or self._definition_cache[0] is not view.plan:
            self._definition_cache = view.plan, view.plan.definitions_for(view.timeline), {}
        _, histories, described = self._definition_cache
        if index not in described:
            described[index] = describe_versions(histories[index])
        return described[index]

    @contextmanager
    def _log_failures(self, what: str) -> Iterator[None]:
        """Suppress all errors, so that the driver continues; log unexpected ones, outages are reported elsewhere."""
        try:
            yield
        except (CdcError, SQLAlchemyError):
            return
        except Exception as error:  # Spark, or the process, may be ending
            if not self._stopping.is_set():
                text = f"{what} could not be recorded: {type(error).__name__}: {error}"
                self._context.warn(text)


def snapshot_observer(context: RunContext, store: StateDatabase, plan: Plan) -> Observer:
    """Return the observer of a driver that reads a part of a snapshot."""
    return Observer(context, store, partial(_snapshot_view, context, store, plan))


def _snapshot_view(context: RunContext, store: StateDatabase, plan: Plan) -> DriverView | None:
    """Return the state of the snapshot; ``None`` while a stream runs, whose driver records it."""
    stream = store.newest_epoch(plan.pipeline)
    if stream is not None and stream.state == "running":
        return None
    plan = context.plans.refresh(plan)
    groups = {row.group_no: row.state for row in store.groups(plan.pipeline, plan.generation)}
    snapshot = store.snapshot(plan.pipeline, plan.generation)
    complete = snapshot is not None and snapshot.state == "done"
    resume_point = context.sink.resume_point().read_with_timeline()
    offset, timeline = resume_point or (plan.p0, plan.timeline)
    at = str(offset.at) if resume_point else None
    pending = tables_pending_publication(context, plan)
    state = PipelineState(plan, groups, complete, None if stream is None else False, at, pending)
    return DriverView(state, offset, timeline)


def _without_position(state: TableStatus) -> TableStatus:
    return state._replace(position=None)
