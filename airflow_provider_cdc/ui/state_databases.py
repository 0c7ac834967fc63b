"""The state databases that the page shows: their addresses, how they are queried, and their pipelines."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import URL, make_url

from airflow_provider_cdc.config.connections import ResolvedConnection, database_url
from airflow_provider_cdc.model.errors import CdcError, TransientError
from airflow_provider_cdc.model.supervision import HeartbeatMonitor
from airflow_provider_cdc.state.database import NoStateDatabaseError
from airflow_provider_cdc.state.models import TableStateRow
from airflow_provider_cdc.state.reader import PipelineOverview, StateDatabaseReader
from airflow_provider_cdc.ui.declared_tasks import DeclaredTask
from airflow_provider_cdc.ui.snapshot_progress import SnapshotProgress

#: Seconds for which an overview is reused, and for which a database that did not answer is not queried again.
OVERVIEW_SECONDS, RETRY_SECONDS = 1.5, 15.0
#: Seconds for which one request waits for the databases. Later answers are used by the next request.
WAIT_SECONDS = 4.0
#: Seconds between two writes of a driver, and seconds without a write after which there were no changes.
WRITE_SECONDS, SILENT_SECONDS = 60.0, 150.0
#: What to check if a pipeline has run, and its state database is a file that this host does not see.
_FILE_HINT = (
    "If it has run, its state database is a file on a different host than this API server: set state.conn_id of the "
    "pipeline to a database that both can reach"
)


def database_key(url: URL) -> str:
    """Return a short key for a database, which reveals nothing about it."""
    return hashlib.sha256(url.set(query={}).render_as_string(hide_password=True).encode()).hexdigest()[:12]


class ChangeRate:
    """Changes per second of a table, from two samples of the counts that a driver records about once a minute."""

    def __init__(self) -> None:
        self._at: datetime | None = None
        self._counts: tuple[int, ...] = ()
        self._rates: tuple[float, ...] | None = None
        self._since = 0.0

    def update(self, at: datetime, counts: tuple[int, ...], clock: float) -> tuple[float, ...] | None:
        """Add a sample of the counts.

        :param at: when the driver wrote them, by its clock.
        :param counts: changes by operation.
        :param clock: seconds on this host's clock.
        :returns: changes per second by operation, or ``None`` until that is known.
        """
        if at != self._at:
            if self._at is not None and self._at < at:
                # A driver writes nothing for an unchanged table, so new changes must not be spread over a long gap.
                passed = (at - self._at).total_seconds()
                seconds = passed if passed < SILENT_SECONDS else WRITE_SECONDS
                self._rates = tuple(max(n - m, 0) / seconds for n, m in zip(counts, self._counts, strict=True))
            self._at, self._counts, self._since = at, counts, clock
        elif clock - self._since > SILENT_SECONDS:
            self._rates = (0.0,) * len(counts)
        return self._rates


@dataclass
class PageDatabase:
    """One state database. Threads may share it.

    :param key: its key in addresses of the page.
    :param label: its human-readable name: the id of the connection, or the file.
    :param url: its address, including the password.
    """

    key: str
    label: str
    url: URL = field(repr=False)
    _reader: StateDatabaseReader | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _overview: list[PipelineOverview] = field(default_factory=list, repr=False)
    _queried_at: float = float("-inf")
    _error: CdcError | None = None
    _pulses: dict[tuple[object, ...], HeartbeatMonitor] = field(default_factory=dict, repr=False)
    _rates: dict[tuple[str, str, str], ChangeRate] = field(default_factory=dict, repr=False)
    _snapshots: dict[str, SnapshotProgress] = field(default_factory=dict, repr=False)

    def open_reader(self) -> StateDatabaseReader:
        """Return the reader of the database, connecting if necessary.

        :raises CdcError: if the database cannot be used. It is then not tried again for a while.
        """
        with self._lock:
            if self._error is not None and time.monotonic() < self._queried_at + RETRY_SECONDS:
                raise self._error
            if self._reader is None:
                try:
                    self._reader, self._error = StateDatabaseReader.open(self.url, migrate=False), None
                except CdcError as error:
                    self._error, self._queried_at = error, time.monotonic()
                    raise
            return self._reader

    def read_overview(self) -> list[PipelineOverview]:
        """Return all its pipelines. Concurrent requests share one query.

        :raises CdcError: if it cannot be read.
        """
        reader = self.open_reader()
        with self._lock:
            if time.monotonic() >= self._queried_at + OVERVIEW_SECONDS:
                try:
                    self._overview = reader.read_overview()
                except TransientError as error:
                    self._error = error
                    raise
                finally:
                    self._queried_at = time.monotonic()
                self._error = None
            return self._overview

    def is_stream_alive(self, overview: PipelineOverview) -> bool | None:
        """Return whether the newest run of the stream is alive, or ``None`` while that is unknown, as after a start.

        Clocks of two hosts are never compared. What counts is how long the heartbeat has not changed by this host's
        clock.
        """
        if overview.newest_epoch is None:
            return False
        return self._is_beating(
            (overview.name, "stream"), (overview.newest_epoch.epoch, overview.newest_epoch.heartbeat_at)
        )

    def lost_groups(self, overview: PipelineOverview) -> frozenset[int]:
        """Return the chunk groups that were begun but have no reader any more: the readers have given up or died."""
        held_groups = () if overview.chunk_groups is None else overview.chunk_groups.unfinished
        return frozenset(
            one.group_no
            for one in held_groups
            if (one.heartbeat_at is None and one.state == "running")
            or (
                one.heartbeat_at is not None
                and self._is_beating((overview.name, one.group_no), (one.attempt, one.heartbeat_at)) is False
            )
        )

    def snapshot_progress(self, pipeline: str, generation: int) -> SnapshotProgress:
        """Return the progress of a snapshot. Concurrent requests share it; that of an older one is dropped."""
        with self._lock:
            progress = self._snapshots.get(pipeline)
            if progress is None or progress.generation != generation:
                progress = self._snapshots[pipeline] = SnapshotProgress(pipeline, generation)
            return progress

    def change_rates(self, row: TableStateRow) -> tuple[float, ...] | None:
        """Return inserts, updates and deletes per second that the stream applies to a table, if known yet."""
        counts = (row.inserts, row.updates, row.deletes)
        with self._lock:
            rate = self._rates.setdefault((row.pipeline, row.database, row.name), ChangeRate())
            return rate.update(row.updated_at, counts, time.monotonic())

    def _is_beating(self, owner: tuple[object, ...], beat: object) -> bool | None:
        with self._lock:
            return self._pulses.setdefault(owner, HeartbeatMonitor()).observe(beat, time.monotonic())

    def close(self) -> None:
        """Close its connections."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None


@dataclass(frozen=True)
class DatabaseTrouble:
    """A database that cannot be shown: its label, the reason, the remedy, and the DAGs that need it.

    There are no DAGs if it is named only in the configuration.
    """

    label: str
    message: str
    remedy: str
    dags: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotRunPipeline:
    """A pipeline that DAGs declare and that has not run yet.

    :param name: its name, or the name of its file if it has not been read yet.
    :param where: label of its state database.
    :param dags: ids of its DAGs.
    :param hint: what to check if it has run.
    """

    name: str
    where: str | None
    dags: tuple[str, ...]
    hint: str | None = None


@dataclass(frozen=True)
class ShownPipeline:
    """A pipeline and the tasks that work on it."""

    database: PageDatabase
    overview: PipelineOverview
    tasks: tuple[DeclaredTask, ...]

    @property
    def dags(self) -> tuple[str, ...]:
        """Ids of its DAGs. Empty if it was created by the command line."""
        return tuple(dict.fromkeys(one.dag_id for one in self.tasks))


class PageDatabases:
    """All state databases of this Airflow: those that its DAGs name, and those in the configuration.

    :param declared: returns the pipelines that the DAGs declare.
    :param configured: returns connection ids and absolute paths of SQLite files.
    :param resolve: returns a connection by its id.
    """

    def __init__(
        self,
        declared: Callable[[], Iterable[DeclaredTask]],
        configured: Callable[[], Iterable[str]],
        resolve: Callable[[str], ResolvedConnection],
    ) -> None:
        self._declared, self._configured, self._resolve = declared, configured, resolve
        self._lock = threading.Lock()
        self._databases: dict[str, PageDatabase] = {}
        self._urls: dict[str, tuple[float, URL | CdcError]] = {}
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="cdc-page")
        self._pending: dict[str, Future[list[PipelineOverview]]] = {}

    def read_all(self) -> tuple[list[ShownPipeline], list[NotRunPipeline], list[DatabaseTrouble]]:
        """Return every pipeline that can be read, those that have not run yet, and databases that cannot be read."""
        wanted, troubles = self._wanted_databases()
        with self._lock:
            for key, (database, _) in wanted.items():
                if key not in self._pending:
                    self._pending[key] = self._pool.submit(database.read_overview)
            queries = {key: self._pending[key] for key in wanted}
        wait(queries.values(), timeout=WAIT_SECONDS)
        shown: list[ShownPipeline] = []
        not_run: list[NotRunPipeline] = []
        for key, future in queries.items():
            database, declared = wanted[key]
            try:
                if not future.done():
                    raise TransientError(
                        f"state database {database.label} has not answered yet", "Still waiting for an answer"
                    )
                overviews = future.result()
            except NoStateDatabaseError as error:
                if declared:
                    not_run += _not_run_pipelines(database.label, _tasks_by_pipeline(declared))
                else:
                    troubles.append(_make_trouble(database.label, error, declared))
            except CdcError as error:
                troubles.append(_make_trouble(database.label, error, declared))
            else:
                names = _tasks_by_pipeline(declared)
                shown += [ShownPipeline(database, row, tuple(names.pop(row.name, ()))) for row in overviews]
                not_run += _not_run_pipelines(database.label, names)
            finally:
                with self._lock:
                    if future.done() and self._pending.get(key) is future:
                        del self._pending[key]
        return shown, not_run, troubles

    def find_pipeline(self, key: str, name: str) -> ShownPipeline | None:
        """Return one pipeline, or ``None`` if it does not exist.

        :raises CdcError: if its database cannot be read.
        """
        database, declared = self._wanted_databases()[0].get(key, (None, []))
        if database is None:
            return None
        row = next((row for row in database.read_overview() if row.name == name), None)
        return row and ShownPipeline(database, row, tuple(one for one in declared if one.pipeline_name == name))

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for database in self._databases.values():
            database.close()

    def _wanted_databases(self) -> tuple[dict[str, tuple[PageDatabase, list[DeclaredTask]]], list[DatabaseTrouble]]:
        """Return the databases by key, each with the declared tasks whose state is in it, and the databases that cannot
        be used.
        """
        places: dict[str, list[DeclaredTask]] = {place: [] for place in self._configured()}
        for one in self._declared():
            if one.pipeline_name:
                places.setdefault(str(one.conn_id or one.state_file), []).append(one)
        wanted: dict[str, tuple[PageDatabase, list[DeclaredTask]]] = {}
        troubles: list[DatabaseTrouble] = []
        for place, declared in places.items():
            try:
                url = self._resolve_url(place)
            except CdcError as error:
                troubles.append(_make_trouble(place, error, declared))
                continue
            with self._lock:
                database = self._databases.setdefault(key := database_key(url), PageDatabase(key, place, url))
                if database.url != url:  # the password was changed
                    database.close()
                    database = self._databases[key] = PageDatabase(key, place, url)
            wanted.setdefault(key, (database, []))[1].extend(declared)
        return wanted, troubles

    def _resolve_url(self, place: str) -> URL:
        expires_at, cached = self._urls.get(place, (0.0, None))
        if cached is None or time.monotonic() > expires_at:
            try:
                cached = make_url(f"sqlite:///{place}") if place.startswith("/") else database_url(self._resolve(place))
            except CdcError as error:
                cached = error
            self._urls[place] = time.monotonic() + RETRY_SECONDS, cached
        if isinstance(cached, CdcError):
            raise cached
        return cached


def _tasks_by_pipeline(declared: Iterable[DeclaredTask]) -> dict[str, list[DeclaredTask]]:
    names: dict[str, list[DeclaredTask]] = {}
    for one in declared:
        names.setdefault(one.pipeline_name, []).append(one)
    return names


def _not_run_pipelines(label: str, tasks_by_name: Mapping[str, Iterable[DeclaredTask]]) -> Iterator[NotRunPipeline]:
    for name, tasks in tasks_by_name.items():
        yield NotRunPipeline(
            name,
            label,
            tuple(dict.fromkeys(one.dag_id for one in tasks)),
            _FILE_HINT if label.startswith("/") else None,
        )


def _make_trouble(label: str, error: CdcError, declared: Iterable[DeclaredTask]) -> DatabaseTrouble:
    return DatabaseTrouble(label, error.message, error.remedy, tuple(dict.fromkeys(one.dag_id for one in declared)))


def split_setting(text: Any) -> list[str]:
    """Split a configuration value at commas and white space."""
    return str(text or "").replace(",", " ").split()
