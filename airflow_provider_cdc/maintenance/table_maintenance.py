"""Maintenance of sink tables: compaction, checkpoints, old files. It runs alongside a stream and never delays it.

It writes no rows and no markers, so it needs no fence: a stream that commits at the same time always wins, and a
compaction that comes too late is discarded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from airflow_provider_cdc.apply.follow_ddl import copies_with_old_definition, tolerate_concurrent_ddl
from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables
from airflow_provider_cdc.maintenance.task import CompactionRunner
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.resnapshot.dropped_tables import list_emptied_copies
from airflow_provider_cdc.runtime.background import BackgroundLoop
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Compactable, Measurable, SinkTable, TableSize
from airflow_provider_cdc.state import utc_now
from airflow_provider_cdc.state.values import LastCompaction

#: Compactions whose results are committed together.
_COMPACTIONS_PER_COMMIT = 8
#: Seconds between two checks for changed tables, and between two searches for old files.
_POLL_SECONDS, _TIDY_SECONDS = 1.0, 600.0
#: Seconds between two measurements of the sizes of changed tables.
_MEASURE_SECONDS = 60.0
#: Maximum seconds that the end of a stream waits for maintenance.
_END_SECONDS = 60.0


def compact_table(
    table: SinkTable, runner: CompactionRunner, should_stop: Callable[[], bool] = lambda: False, *, purge: bool = False
) -> int:
    """Compact a table until there is nothing left to do.

    :param should_stop: returns whether to leave the rest.
    :param purge: whether to rewrite, once, all files with deleted rows, and merge all small files.
    :returns: number of committed compactions.
    """
    count = 0
    while isinstance(table, Compactable) and not should_stop() and (compactions := table.plan_compactions(purge=purge)):
        if not purge:  # small files come first, and a running stream adds more of them meanwhile
            compactions = compactions[:_COMPACTIONS_PER_COMMIT]
        committed, purge = 0, False  # only once: a running stream keeps deleting rows, so purging would never end
        for at in range(0, len(compactions), _COMPACTIONS_PER_COMMIT):
            if should_stop():
                return count
            batch = compactions[at : at + _COMPACTIONS_PER_COMMIT]
            committed += table.commit_compactions(list(zip(batch, runner(batch), strict=True)))
        count += committed
        if not committed:
            break  # other processes are rewriting the same files
    return count


def maintain_tables(context: RunContext, runner: CompactionRunner, *, purge: bool = False) -> dict[str, Any]:
    """Compact and clean up all tables of a pipeline once, with or without a running stream, and without the source.

    :param purge: as for :func:`compact_table`.
    :returns: JSON value: ``tables``, each with ``table`` and ``compactions``.
    :raises CdcError: the error of the first table that fails, after all others were processed.
    """
    plan, results = context.plans.require(), []
    open_tables, errors = open_sink_tables(context, plan), list[CdcError]()
    # The state of a suspended table may be undefined. One that was emptied has old files to delete.
    for index in sorted([*plan.active_tables, *list_emptied_copies(context, plan)]):
        schema, open_table = plan.tables[index], open_tables[index]
        try:
            with tolerate_concurrent_ddl(context, plan):
                outdated = copies_with_old_definition(context, plan, [index]) if index in plan.active_tables else {}
                table = context.sink.table(outdated[index]) if outdated else open_table
                count = compact_table(table, runner, purge=purge)
                table.clean_up()
        except CdcError as error:
            context.warn(f"{schema.label} was not compacted: {error}")
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


class MaintenanceWorker(BackgroundLoop):
    """Maintains the tables of a stream.

    :param tables: sink tables that are used by no other thread.
    :param runner: runs compactions; ``None`` for no compaction.
    :param log_line: receives a line for each problem.

    ``on_measured`` and ``on_compacted`` receive the size of each table that was measured, and the last compaction of
    each that was compacted, with the index of the table.
    """

    def __init__(
        self, tables: Sequence[SinkTable], runner: CompactionRunner | None, log_line: Callable[[str], None]
    ) -> None:
        super().__init__("table-maintenance", _POLL_SECONDS, _END_SECONDS)
        self._tables, self.runner, self._log_line = list(tables), runner, log_line
        self.on_measured: Callable[[int, TableSize], None] = lambda *_: None
        self.on_compacted: Callable[[int, LastCompaction], None] = lambda *_: None
        self._changed: set[int] = set()
        self._lock = threading.Lock()
        self._since_tidied: set[int] = set()
        self._since_measured: set[int] = set()
        self._emptied: set[int] = set()
        self._tidied_at = self._measured_at = time.monotonic()

    def mark_changed(self, index: int) -> None:
        """Mark a table as changed, so that it is maintained."""
        with self._lock:
            self._changed.add(index)

    def add_table(self, table: SinkTable) -> None:
        """Maintain one more table.

        :param table: sink table that is used by no other thread.
        """
        self._tables.append(table)

    def replace_table(self, index: int, table: SinkTable) -> None:
        """Use another object for a table from now on, with its new definition.

        This does not wait for maintenance that is running on the old object, which may take minutes; it ends after its
        current portion. If the table was altered in the sink meanwhile, the result is discarded, without an error. The
        table is soon maintained through the new object.

        :param index: index of the table.
        :param table: sink table that is used by no other thread.
        """
        self._tables[index] = table
        with self._lock:
            self._emptied.discard(index)
        self.mark_changed(index)

    def mark_emptied(self, index: int) -> None:
        """Clean up a table each time from now on, because it was emptied and will not be marked as changed any more."""
        with self._lock:
            self._emptied.add(index)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if not self._thread.is_alive():
            self._tidy()
            self._measure()

    def _step(self) -> None:
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
            self.on_compacted(index, LastCompaction(utc_now(), time.monotonic() - begun))

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
            self.on_measured(index, table.table_size())

    def _run_on_table(self, index: int, action: Callable[[SinkTable], None]) -> None:
        """Run an action on a table. A failure is only logged, because the stream does not depend on maintenance."""
        table = self._tables[index]
        try:
            action(table)
        except Exception as error:  # no error may end the thread; Spark may be shutting down
            if self._stopping.is_set() or self._tables[index] is not table:
                return
            text = str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}"
            self._log_line(f"maintenance of the {table.name} failed, and is retried after its next change: {text}")
