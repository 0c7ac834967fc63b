"""Upkeep of the sink's tables: compaction, checkpoints, old files. It goes on beside a stream, and never holds it up.

It writes no row and no marker, so it needs no fence: a stream that commits at the same time is always right, and a
compaction that comes too late is thrown away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from airflow_provider_cdc.apply.follow_ddl import copies_with_old_definition, tolerate_concurrent_ddl
from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables
from airflow_provider_cdc.maintenance.compaction_runners import CompactionRunner
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.resnapshot.dropped_tables import list_emptied_copies
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.table_size import TableSize
from airflow_provider_cdc.sinks.protocol import Compactable, Measurable, SinkTable
from airflow_provider_cdc.sinks.storage.request_counts import with_current_counts
from airflow_provider_cdc.state import utc_now
from airflow_provider_cdc.state.values import LastCompaction

#: Compactions whose results are committed together.
_COMPACTIONS_PER_COMMIT = 8
#: Seconds between two looks at the tables that have changed, and between two times that old files are looked for.
_POLL_SECONDS, _TIDY_SECONDS = 1.0, 600.0
#: Seconds between two times that what a table takes is looked up, where it changes.
_MEASURE_SECONDS = 60.0
#: Seconds for which the end of a stream waits for upkeep.
_END_SECONDS = 60.0


def compact_table(
    table: SinkTable, runner: CompactionRunner, should_stop: Callable[[], bool] = lambda: False, *, purge: bool = False
) -> int:
    """Compact a table until there is nothing to do.

    :param should_stop: whether to leave the rest.
    :param purge: whether to write anew, once, all files that have dead rows, and to put all small ones together.
    :returns: how many compactions stand.
    """
    count = 0
    while isinstance(table, Compactable) and not should_stop() and (compactions := table.plan_compactions(purge=purge)):
        if not purge:  # what is small comes first, and beside a stream there is more of it by then
            compactions = compactions[:_COMPACTIONS_PER_COMMIT]
        committed, purge = 0, False  # rows go on dying beside a stream: that has no end
        for at in range(0, len(compactions), _COMPACTIONS_PER_COMMIT):
            if should_stop():
                return count
            batch = compactions[at : at + _COMPACTIONS_PER_COMMIT]
            committed += table.commit_compactions(list(zip(batch, runner(batch), strict=True)))
        count += committed
        if not committed:
            break  # others are writing the same files anew
    return count


def maintain_tables(context: RunContext, runner: CompactionRunner, *, purge: bool = False) -> dict[str, Any]:
    """Compact and tidy all tables of a pipeline, once; beside a stream, or without one. The source is not asked.

    :param purge: as for :func:`compact`.
    :returns: JSON value: ``tables``, each with ``table`` and ``compactions``.
    :raises CdcError: of the first table that it cannot be done to, after it was done to the others.
    """
    plan, results = context.require_plan(), []
    open_tables, errors = open_sink_tables(context, plan), list[CdcError]()
    # A suspended one may be what nobody understands; one that was emptied has files that are to go.
    for index in sorted([*plan.active_tables, *list_emptied_copies(context, plan)]):
        schema, open_table = plan.tables[index], open_tables[index]
        try:
            with tolerate_concurrent_ddl(context, plan):
                outdated = copies_with_old_definition(context, plan, [index]) if index in plan.active_tables else {}
                table = context.sink.table(outdated[index]) if outdated else open_table
                count = compact_table(table, runner, purge=purge)
                table.clean_up()
        except CdcError as error:
            context.reporter.line(f"{schema.label} is not compacted: {error}")
            errors.append(error)
            continue
        context.reporter.line(f"{schema.label}: {count or 'no'} compaction{'' if count == 1 else 's'}")
        results.append({"table": schema.label, "compactions": count})
    resume_point = context.sink.resume_point()
    if resume_point.exists():
        resume_point.clean_up()
    if errors:
        raise errors[0]
    return {"tables": results}


class MaintenanceWorker:
    """Looks after the tables of a stream in a thread of its own.

    :param tables: objects that nobody else uses.
    :param runner: runs compactions; ``None`` for no compaction.
    :param log_line: gets a line for each problem.
    """

    def __init__(
        self, tables: Sequence[SinkTable], runner: CompactionRunner | None, log_line: Callable[[str], None]
    ) -> None:
        self._tables, self.runner, self._log_line = list(tables), runner, log_line
        self._changed: set[int] = set()
        self._lock = threading.Lock()
        self._since_tidied: set[int] = set()
        self._since_measured: set[int] = set()
        self._sizes: dict[int, TableSize] = {}
        self._compacted: dict[int, LastCompaction] = {}
        self._emptied: set[int] = set()
        self._tidied_at = self._measured_at = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=with_current_counts(self._loop), name="upkeep", daemon=True)

    def mark_changed(self, index: int) -> None:
        """Hear of a table that was written to."""
        with self._lock:
            self._changed.add(index)

    def take_sizes(self) -> dict[int, TableSize]:
        """What tables take, by index: those that were looked at since the last call."""
        with self._lock:
            sizes, self._sizes = self._sizes, {}
        return sizes

    def take_compactions(self) -> dict[int, LastCompaction]:
        """The last compaction of each table that was compacted since the last call, by index."""
        with self._lock:
            compactions, self._compacted = self._compacted, {}
        return compactions

    def add_table(self, table: SinkTable) -> None:
        """Look after one table more.

        :param table: an object that nobody else uses.
        """
        self._tables.append(table)

    def replace_table(self, index: int, table: SinkTable) -> None:
        """Look after a table through another object from now on: that of its new definition.

        Nobody waits for what the old object does at this moment, which may be a compaction of minutes: it ends after
        the portion that it is at. What it writes then does not stand if the sink has altered the table meanwhile, and
        that is no failure. The new object looks at the table soon.

        :param index: of the table in the list.
        :param table: an object that nobody else uses.
        """
        self._tables[index] = table
        with self._lock:
            self._emptied.discard(index)
        self.mark_changed(index)

    def mark_emptied(self, index: int) -> None:
        """Look for old files of a table each time: it was emptied, and will not change any more."""
        with self._lock:
            self._emptied.add(index)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_END_SECONDS)
        if not self._thread.is_alive():
            self._tidy()
            self._measure()

    def _loop(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            with self._lock:
                written, self._changed = self._changed, set()
            self._since_tidied |= written
            self._since_measured |= written
            for index in sorted(written):
                self._run_on_table(index, partial(self._compact, index))
            if time.monotonic() - self._tidied_at > _TIDY_SECONDS:
                self._tidy()
            if time.monotonic() - self._measured_at > _MEASURE_SECONDS:
                self._measure()

    def _compact(self, index: int, table: SinkTable) -> None:
        if self.runner is None:
            return
        begun = time.monotonic()
        if compact_table(table, self.runner, lambda: self._stopping.is_set() or self._tables[index] is not table):
            with self._lock:
                self._compacted[index] = LastCompaction(utc_now(), time.monotonic() - begun)

    def _tidy(self) -> None:
        self._tidied_at = time.monotonic()
        with self._lock:
            changed, self._since_tidied = self._since_tidied | self._changed | self._emptied, set()
        for index in sorted(changed):
            self._run_on_table(index, lambda table: table.clean_up())

    def _measure(self) -> None:
        self._measured_at = time.monotonic()
        with self._lock:
            changed, self._since_measured = self._since_measured | self._changed, set()
        for index in sorted(changed):
            self._run_on_table(index, partial(self._measure_table, index))

    def _measure_table(self, index: int, table: SinkTable) -> None:
        if isinstance(table, Measurable):
            size = table.table_size()
            with self._lock:
                self._sizes[index] = size

    def _run_on_table(self, index: int, action: Callable[[SinkTable], None]) -> None:
        """What fails is done the next time: the stream needs none of it to be right."""
        table = self._tables[index]
        try:
            action(table)
        except Exception as error:  # whatever it is: it must not end the thread, and Spark may be ending
            if self._stopping.is_set() or self._tables[index] is not table:
                return
            text = str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}"
            self._log_line(f"upkeep of the {table.name} failed, and is tried again after its next change: {text}")
