"""Record the state of a pipeline about once a minute, for display: its lag, and the state of each table.

Nothing depends on these records, so nothing waits for them: a separate thread writes them. An outage of the state
database only leaves a gap in the samples; changes counted meanwhile are recorded afterwards.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Self

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.ddl.schema_policy import describe_change
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import ADDED, CdcError
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.observe.lag import measure_lag
from airflow_provider_cdc.observe.table_state import PipelineState, table_state
from airflow_provider_cdc.resnapshot.staged_files import tables_pending_publication
from airflow_provider_cdc.resnapshot.suspension import suspension_remedy, tables_known_missing
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Measurable, SinkTable, TableSize
from airflow_provider_cdc.sinks.storage.request_counts import with_current_counts
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

    :param plan: the current plan.
    :param offset: the resume point.
    :param timeline: its timeline.
    :param state: state of the pipeline.
    :param epoch: epoch of the stream; ``None`` for a snapshot.
    """

    plan: Plan
    offset: Offset
    timeline: Timeline
    state: PipelineState
    epoch: int | None = None


class Observer:
    """Records the state of a pipeline while a driver works. A context manager.

    :param get_view: returns what the driver knows now; ``None`` if another driver records it.
    :param sizes: returns the sizes, by index, of tables that were measured since the last call.
    :param compacted: returns the last compaction, by index, of tables that were compacted since the last call.
    """

    def __init__(
        self,
        context: RunContext,
        store: StateDatabase,
        get_view: Callable[[], DriverView | None],
        sizes: Callable[[], Mapping[int, TableSize]] = dict,
        compacted: Callable[[], Mapping[int, LastCompaction]] = dict,
    ) -> None:
        self._context, self._store, self._get_view, self._take_sizes = context, store, get_view, sizes
        self._take_compacted = compacted
        self._lock, self._write_lock = threading.Lock(), threading.Lock()
        self._applied: dict[int, Counter[str]] = {}
        self._sizes: dict[int, TableSize] = {}
        self._compacted: dict[int, LastCompaction] = {}
        self._written: dict[int, TableStatus] = {}
        self._definition_cache: tuple[Plan, list[list[Any]]] | None = None
        self._chunk_progress: Mapping[tuple[str, str], TableProgress] | None = None
        self._missing: Collection[int] = ()
        self._wake_event, self._stopping = threading.Event(), False
        self._thread = threading.Thread(target=with_current_counts(self._loop), name="observer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._wake_event.set()
        self._thread.join(_END_SECONDS)

    def wake(self) -> None:
        """Record the state of the tables soon, because something has changed."""
        self._wake_event.set()

    def add_applied(self, operations: Mapping[int, Counter[str]]) -> None:
        """Count changes that were applied, by table and operation."""
        with self._lock:
            for index, counts in operations.items():
                self._applied.setdefault(index, Counter()).update(counts)

    def write(self, tables: Mapping[int, SinkTable] | None = None) -> None:
        """Record the state of the tables now.

        :param tables: only these tables, by index, including their sizes; ``None`` for all, without measuring them.
        """
        if self._stopping and self._write_lock.locked():
            return  # the thread waits for a database that does not respond: the end of the driver must not wait as well
        with self._log_failures("the state of the tables"), self._write_lock:
            view = self._get_view()
            if view is not None:
                self._write(view, tables)

    def _loop(self) -> None:
        due = time.monotonic() + _FIRST_SAMPLE_SECONDS
        while not self._stopping:
            if self._wake_event.wait(max(0.0, due - time.monotonic())):
                self._wake_event.clear()
            else:
                due = time.monotonic() + _INTERVAL_SECONDS
                with self._log_failures("the lag"):
                    self._record_sample()
            if not self._stopping:
                with self._log_failures("the tables that are missing in the source"):
                    if (view := self._get_view()) is not None:
                        self._missing = tables_known_missing(self._context, view.plan)
                self.write()

    def _record_sample(self) -> None:
        view = self._get_view()
        if view is None or (view.epoch is None and self._is_fresh(view.plan.pipeline)):
            return
        lag = measure_lag(self._context, view.offset, slots.LAG_SAMPLE)
        self._store.record_sample(
            view.plan.pipeline,
            view.epoch,
            lag_seconds=lag.seconds,
            lag_bytes=lag.bytes,
            purge_hours=None if lag.seconds_to_purge is None else lag.seconds_to_purge / 3600,
            unknown=lag.unknown,
        )

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
            self._sizes |= {**self._take_sizes(), **measured}
            sizes, self._sizes = self._sizes, {}
            self._compacted |= self._take_compacted()
            compacted, self._compacted = self._compacted, {}
            applied, self._applied = self._applied, {}
        try:
            states = {index: self._table_state(view, index) for index in (tables or range(len(plan.tables)))}
            # The position of the stream changes all the time, and is not worth a write on its own.
            changed = applied.keys() | sizes.keys() | compacted.keys()
            due = {i: s for i, s in states.items() if i in changed or _without_position(s) != self._written.get(i)}
            if not due and not is_first:
                return
            self._store.write_table_states(
                plan.pipeline,
                list(due.values()),
                sizes={plan.tables[index].id: size.to_json() for index, size in sizes.items()},
                last_compactions={plan.tables[index].id: compaction for index, compaction in compacted.items()},
                applied_counts={plan.tables[i].id: [counts[op] for op in "cud"] for i, counts in applied.items()},
                delete_others=is_first,
            )
        except BaseException:
            with self._lock:
                self._sizes = {**sizes, **self._sizes}
                self._compacted = {**compacted, **self._compacted}
                for index, counts in applied.items():
                    self._applied.setdefault(index, Counter()).update(counts)
            raise
        if tables is None:
            self._written |= {index: _without_position(standing) for index, standing in due.items()}

    def _table_state(self, view: DriverView, index: int) -> TableStatus:
        plan, table = view.plan, view.plan.tables[index]
        suspension, progress = plan.suspension_of(index), self._table_progress(plan).get(table.id)
        state = replace(view.state, missing=self._missing)
        was_added = suspension is not None and suspension.kind == ADDED
        return TableStatus(
            *table.id,
            table_state(self._context, plan, index, state),
            position=state.position if suspension is None else None if was_added else suspension.at,
            since=None if suspension is None else datetime.fromisoformat(suspension.since),
            kind=suspension.kind if suspension else None,
            reason=suspension.message if suspension else None,
            remedy=(suspension_remedy(plan, suspension) if suspension else "") or None,
            chunks_done=progress.done if progress else 0,
            chunks_total=progress.chunks if progress else 0,
            definitions=self._definitions(view)[index],
        )

    def _table_progress(self, plan: Plan) -> Mapping[tuple[str, str], TableProgress]:
        if self._chunk_progress is None:
            rows = self._store.table_progress(plan.pipeline, plan.generation)
            self._chunk_progress = {(row.database, row.table): row for row in rows}
        return self._chunk_progress

    def _definitions(self, view: DriverView) -> list[list[Any]]:
        if self._definition_cache is None or self._definition_cache[0] is not view.plan:
            by_table_index = []
            for definitions in view.plan.definitions_for(view.timeline):
                versions, before = [], None
                for since, schema in definitions.versions:
                    changed = describe_change(before, schema).removeprefix("; ") if before else ""
                    versions.append(
                        {
                            "since": None if since is None else str(since),
                            "columns": {column.name: column.column_type for column in schema.copied_columns},
                            "key": list(schema.key),
                            "changed": changed,
                        }
                    )
                    before = schema
                by_table_index.append(versions)
            self._definition_cache = view.plan, by_table_index
        return self._definition_cache[1]

    @contextmanager
    def _log_failures(self, what: str) -> Iterator[None]:
        """Suppress all errors, so that the driver continues; log unexpected ones, outages are reported elsewhere."""
        try:
            yield
        except (CdcError, SQLAlchemyError):
            return
        except Exception as error:  # Spark, or the process, may be ending
            if not self._stopping:
                self._context.reporter.line(f"{what} could not be recorded: {type(error).__name__}: {error}")


def snapshot_observer(context: RunContext, store: StateDatabase, plan: Plan) -> Observer:
    """Return the observer of a driver that reads a part of a snapshot."""
    return Observer(context, store, partial(_snapshot_view, context, store, plan))


def _snapshot_view(context: RunContext, store: StateDatabase, plan: Plan) -> DriverView | None:
    """Return the state of the snapshot; ``None`` while a stream runs, whose driver records it."""
    stream = store.newest_epoch(plan.pipeline)
    if stream is not None and stream.state == "running":
        return None
    plan = context.refresh_plan(plan)
    groups = {row.group_no: row.state for row in store.groups(plan.pipeline, plan.generation)}
    snapshot = store.snapshot(plan.pipeline, plan.generation)
    complete, resume_point = (
        snapshot is not None and snapshot.state == "done",
        context.sink.resume_point().read_with_timeline(),
    )
    offset, timeline = resume_point or (plan.p0, plan.timeline)
    at = str(offset.at) if resume_point else None
    pending_resnapshots = tables_pending_publication(context, plan)
    state = PipelineState(groups, complete, None if stream is None else False, at, None, pending_resnapshots, ())
    return DriverView(plan, offset, timeline, state)


def _without_position(state: TableStatus) -> TableStatus:
    return state._replace(position=None)
