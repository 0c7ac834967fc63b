"""Scan a source table chunk by chunk, with several readers; each chunk is exact as of its high watermark.

The rows are summed, or those of some buckets are kept. A reader holds at most one chunk in memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.config.load_limits import LoadLimits
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.offset import Position, Timeline
from airflow_provider_cdc.model.plan import Chunk
from airflow_provider_cdc.model.progress import ChunkProgress
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.chunks.keyless import read_parts
from airflow_provider_cdc.mysql.chunks.window_reader import WindowReader
from airflow_provider_cdc.mysql.client.charsets import load_decoders
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.client.throttle import Throttle
from airflow_provider_cdc.mysql.positions.watermarks import make_watermarks
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.verify.task import RowCollector


class _StoppedError(Exception):
    """Another reader has failed."""


@dataclass
class TableSource:
    """Reads a source table for a comparison.

    :param definition_history: definitions of the table.
    :param timeline: numbers the transactions of the server.
    :param limits: limits of the load on the server, for all readers together.
    """

    context: RunContext
    table: TableSchema
    definition_history: DefinitionHistory
    timeline: Timeline
    limits: LoadLimits

    def open_window_reader(
        self, connection: Connection[Any], slot: int, *, before_images: bool = False
    ) -> WindowReader:
        """Return a reader of the table's changes.

        :param connection: used to look up text decoders while changes are read.
        :param slot: the reader's slot.
        :param before_images: whether updates include their old image.
        """
        return WindowReader(
            self.context.binlog_source(slot, self.timeline.server),
            self.definition_history.with_full_before_images(before_images),
            self.timeline,
            load_decoders(lambda: nullcontext(connection), [self.table]),
            with_before_images=before_images,
        )

    def read_chunks(
        self, chunks: Sequence[Chunk], make_collector: Callable[[], RowCollector]
    ) -> tuple[RowCollector, list[Position]]:
        """Read all chunks.

        :param make_collector: creates the collector of a reader's rows.
        :returns: the merged collectors, and the high watermark of each chunk.
        """
        scan = _SharedScan(self, chunks, make_collector)
        count = max(1, min(self.context.pipeline.snapshot.parallelism, len(slots.VERIFY_READERS), len(chunks)))
        limits = self.limits.per_reader(count)
        with ThreadPoolExecutor(count) as pool:
            running = [pool.submit(scan.run, slot, limits) for slot in slots.VERIFY_READERS[:count]]
        errors = [error for done in running if (error := done.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, _StoppedError)):
            raise error
        collected = make_collector()
        for done in running:
            collected.merge(done.result())
        return collected, [scan.high_watermarks[number] for number in range(len(chunks))]


@dataclass
class _SharedScan:
    """Chunks that several readers share."""

    source: TableSource
    chunks: Sequence[Chunk]
    make_collector: Callable[[], RowCollector]
    high_watermarks: dict[int, Position] = field(default_factory=dict)
    rows: int = 0
    corrected: int = 0

    def __post_init__(self) -> None:
        self._next, self._lock, self._stop = iter(range(len(self.chunks))), threading.Lock(), threading.Event()
        self._began = time.monotonic()

    def run(self, slot: int, limits: LoadLimits) -> RowCollector:
        """Read chunks until none is left, over a separate connection."""
        collected, source = self.make_collector(), self.source
        transform = source.context.row_transform(source.table)
        with self._stop_others_on_error(), closing(connect(source.context.connect_args)) as connection:
            throttle = Throttle(connection, limits, self._report_pause)
            marks = make_watermarks(connection, source.timeline.server)
            with closing(source.open_window_reader(connection, slot)) as log:
                while (number := self._next_chunk()) is not None:
                    throttle.wait_for_turn(self._check_stopped)
                    began = time.monotonic()
                    parts = read_parts(log, source.table, self.chunks[number], marks)
                    with closing(parts):
                        for part in parts:
                            throttle.record_chunk(began, part.rows.num_rows, part.rows.nbytes)
                            collected.add(transform.rows(part.rows))
                            self._record_progress(number, part.high, part.rows.num_rows, part.corrected)
                            del part  # frees its memory before the next one is read
                            if not source.table.key:
                                throttle.wait_for_rates(self._check_stopped)
                            began = time.monotonic()
        return collected

    def _next_chunk(self) -> int | None:
        with self._lock:
            return next(self._next, None)

    def _check_stopped(self) -> None:
        if self._stop.is_set():
            raise _StoppedError
        self.source.context.check_interrupted()

    @contextmanager
    def _stop_others_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._stop.set()
            raise

    def _report_pause(self, why: str | None) -> None:
        with self._lock:
            self.source.context.reporter.progress(self._current_progress(why))

    def _record_progress(self, number: int, high: Position, rows: int, corrected: int) -> None:
        with self._lock:
            self.high_watermarks[number] = high
            self.rows += rows
            self.corrected += corrected
            self.source.context.reporter.progress(self._current_progress(None))

    def _current_progress(self, paused: str | None) -> ChunkProgress:
        done, rows, seconds = len(self.high_watermarks), self.rows, time.monotonic() - self._began
        label, total = self.source.table.label, len(self.chunks)
        return ChunkProgress(label, done, total, rows, self.corrected, done, rows, seconds, paused)
