"""The sections of a pipeline other than its sink: source, snapshot, stream, state database, alerts and Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_cdc.config.load_limits import LoadLimits
from airflow_provider_cdc.config.patterns import check_patterns
from airflow_provider_cdc.config.spark_conf import check_conf, check_master
from airflow_provider_cdc.ddl.schema_modes import CHANGE_KINDS, EVOLVE, EXCEPTION, LENIENT, SCHEMA_MODES
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.start_mode import SNAPSHOT, StreamStart, check_start
from airflow_provider_cdc.model.value_checks import check_choice, check_conn_id, check_integer, invalid_value

#: Highest value of ``source.server_id``: the slots of a pipeline follow it and must stay below 2^32.
MAX_SERVER_ID = 2**32 - 1 - slots.LAST_SLOT

#: ``stream.on_table_error``: the stream continues without a table that cannot continue.
SUSPEND = "suspend"
_PLANNED_SCHEMA_CHANGES = ("try_evolve",)
_ZERO_DATES = ("error", "null")
#: Kinds of schema changes that other tools let a pipeline choose, and the setting to use instead.
_CHOSEN_ELSEWHERE = {
    "rename.column": "A renamed column is one dropped and one added: use drop.column and add.column",
    "rename.table": "Leave it out: the copy of a renamed table is left unchanged",
    "drop.table": "Use sink.on_dropped",
    "truncate.table": "TRUNCATE deletes all rows: use sink.deletes",
    "create.table": "Choose tables by source.tables and source.exclude",
}


@dataclass(frozen=True)
class Source:
    """Where rows come from.

    :param conn_id: Airflow connection of the server.
    :param tables: anchored regular expressions ``database.table`` of the tables to capture; at least one.
    :param exclude: tables to exclude, in the same form.
    :param server_id: first of the replication server ids that the pipeline uses; derived from its name when ``None``.
    :param include_columns: anchored regular expressions ``database.table.column`` of the columns to copy; all if empty.
        Key columns are always copied.
    :param exclude_columns: columns to exclude, in the same form; only one of the two lists may be given.
    :param zero_dates: how an invalid date such as 0000-00-00 is handled: ``error`` stops; ``null`` (or ``None``, which
        is how YAML reads the bare word) makes it NULL.
    """

    conn_id: str
    tables: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    server_id: int | None = None
    include_columns: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()
    zero_dates: str = "error"

    def __post_init__(self) -> None:
        zero_dates: object = self.zero_dates
        if zero_dates is None:
            object.__setattr__(self, "zero_dates", "null")
        check_choice("source.zero_dates", self.zero_dates, _ZERO_DATES, (), "")
        check_conn_id("source.conn_id", self.conn_id)
        object.__setattr__(self, "tables", check_patterns("source.tables", self.tables))
        object.__setattr__(self, "exclude", check_patterns("source.exclude", self.exclude))
        for key in ("include_columns", "exclude_columns"):
            object.__setattr__(self, key, check_patterns(f"source.{key}", getattr(self, key), dots=2))
        if self.include_columns and self.exclude_columns:
            raise NotReadyError(
                "source.include_columns and source.exclude_columns are both set", "Leave one of them out"
            )
        if not self.tables:
            raise invalid_value("source.tables", [], "at least one regular expression such as shop.order_.*")
        if self.server_id is not None:
            check_integer("source.server_id", self.server_id, 1, MAX_SERVER_ID)

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """All patterns that determine what is captured, by key."""
        return {key: getattr(self, key) for key in ("tables", "exclude", "include_columns", "exclude_columns")}


@dataclass(frozen=True)
class Snapshot:
    """How existing rows are read.

    :param chunk_rows: rows per chunk, the unit of watermarks.
    :param group_rows: rows per chunk group, the unit of retry.
    :param parallelism: number of chunks read at the same time.
    :param max_rows_per_second: rows per second that all readers of a group together read from the server.
    :param max_bytes_per_second: the same in bytes.
    :param max_threads_running: no chunk is begun while the server's ``Threads_running`` is above it.
    :param max_replica_lag_seconds: no chunk is begun while the server, if it is a replica, has a higher lag.
    """

    chunk_rows: int = 8096
    group_rows: int = 4_000_000
    parallelism: int = 2
    max_rows_per_second: int | None = None
    max_bytes_per_second: int | None = None
    max_threads_running: int | None = None
    max_replica_lag_seconds: int | None = None

    def __post_init__(self) -> None:
        check_integer("snapshot.chunk_rows", self.chunk_rows, 1, 1_000_000)
        check_integer("snapshot.group_rows", self.group_rows, 1)
        if self.group_rows < self.chunk_rows:
            raise invalid_value(
                "snapshot.group_rows", self.group_rows, f"at least snapshot.chunk_rows ({self.chunk_rows})"
            )
        check_integer("snapshot.parallelism", self.parallelism, 1, slots.MAX_PARALLELISM)
        for name in ("max_rows_per_second", "max_bytes_per_second", "max_replica_lag_seconds"):
            if getattr(self, name) is not None:
                check_integer(f"snapshot.{name}", getattr(self, name), 1)
        if self.max_threads_running is not None:
            # Each reader itself causes up to two running threads, one of which queries the number.
            check_integer("snapshot.max_threads_running", self.max_threads_running, 2 * self.parallelism + 1)

    @property
    def load_limits(self) -> LoadLimits:
        """Limits for all readers of a group together."""
        return LoadLimits(
            self.max_rows_per_second,
            self.max_bytes_per_second,
            self.max_threads_running,
            self.max_replica_lag_seconds,
        )


@dataclass(frozen=True)
class Stream:
    """How changes are followed.

    :param mode: ``continuous``, or ``catch_up`` to end at the position seen at the start.
    :param trigger_seconds: minimum seconds between the starts of two batches. A batch begins as soon as there are
        changes, and immediately after a full one.
    :param schema_changes: how a DDL of a captured table is handled, see docs/schema_changes.md. ``evolve`` follows it
        where possible; ``lenient`` does too, but drops no column; ``ignore`` keeps the columns of the copy;
        ``exception`` stops the stream.
    :param max_batch_bytes: soft limit of one batch in bytes of binlog.
    :param max_batch_rows: soft limit of one batch in changed rows.
    :param parallelism: number of tasks that read one batch.
    :param start: ``snapshot``; or, to read no rows of the tables and only follow the binlog, ``earliest``, ``latest``,
        or a mapping with ``gtid_set``, with ``file`` and ``position``, or with ``timestamp``.
    :param on_purged: when the server has purged binlogs that were never read: ``stop``, or ``reread`` all tables.
    :param on_table_error: when a single table cannot continue: ``suspend`` it and continue with the others, or
        ``stop``.
    :param fail_on_suspended: whether a stream that ends with suspended tables has failed.
    :param reread: whether a table that was suspended because of a DDL is re-snapshotted automatically (``auto``) or on
        request (``ask``).
    :param reread_max_bytes: largest size in the source of a table that is re-snapshotted automatically.
    :param include_schema_changes: kinds of changes to apply to the copy: ``add.column``, ``drop.column``,
        ``alter.column.type``; all if empty. Only with ``evolve`` and ``lenient``.
    :param exclude_schema_changes: kinds of changes not to apply, even if they are included.
    """

    mode: str = "continuous"
    trigger_seconds: float = 0.5
    schema_changes: str = EVOLVE
    max_batch_bytes: int = 268_435_456
    max_batch_rows: int = 5_000_000
    parallelism: int = 2
    start: StreamStart = field(default=SNAPSHOT, hash=False)
    on_purged: str = "stop"
    on_table_error: str = SUSPEND
    fail_on_suspended: bool = True
    reread: str = "auto"
    reread_max_bytes: int = 10 << 30
    include_schema_changes: tuple[str, ...] = ()
    exclude_schema_changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("stream.mode", self.mode, ("continuous", "catch_up"), (), "")
        seconds: object = self.trigger_seconds
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= 3600:
            raise invalid_value("stream.trigger_seconds", seconds, "a number from 0 to 3600")
        remedy = "Use evolve (the default), lenient, ignore or exception"
        check_choice("stream.schema_changes", self.schema_changes, SCHEMA_MODES, _PLANNED_SCHEMA_CHANGES, remedy)
        for key in ("include_schema_changes", "exclude_schema_changes"):
            object.__setattr__(self, key, _check_change_kinds(f"stream.{key}", getattr(self, key), self.schema_changes))
        check_integer("stream.max_batch_bytes", self.max_batch_bytes, 1024 * 1024)
        check_integer("stream.max_batch_rows", self.max_batch_rows, 1000)
        check_integer("stream.parallelism", self.parallelism, 1, slots.MAX_PARALLELISM)
        object.__setattr__(self, "start", check_start("stream.start", self.start))
        check_choice("stream.on_table_error", self.on_table_error, (SUSPEND, "stop"), (), "")
        check_choice("stream.reread", self.reread, ("auto", "ask"), (), "")
        check_integer("stream.reread_max_bytes", self.reread_max_bytes, 0)
        if not isinstance(self.fail_on_suspended, bool):
            raise invalid_value("stream.fail_on_suspended", self.fail_on_suspended, "true or false")
        check_choice("stream.on_purged", self.on_purged, ("stop", "reread"), (), "")
        if self.on_purged == "reread" and self.start != SNAPSHOT:
            raise invalid_value(
                "stream.on_purged", self.on_purged, "stop: a pipeline without a snapshot has nothing to re-snapshot"
            )

    @property
    def follows_ddl(self) -> bool:
        """Whether a DDL of a captured table is followed where possible."""
        return self.schema_changes != EXCEPTION


def _check_change_kinds(key: str, kinds: object, mode: str) -> tuple[str, ...]:
    """Check a list of kinds of changes.

    :raises NotReadyError: if it is not valid, or the mode does not allow a choice.
    """
    if not isinstance(kinds, list | tuple) or not all(isinstance(kind, str) for kind in kinds):
        raise invalid_value(key, kinds, f"a list of {', '.join(CHANGE_KINDS)}")
    for kind in kinds:
        if kind in _CHOSEN_ELSEWHERE:
            raise NotReadyError(f"{key}: {kind!r} is not chosen here", _CHOSEN_ELSEWHERE[kind])
        check_choice(key, kind, CHANGE_KINDS, (), "")
    if kinds and mode not in (EVOLVE, LENIENT):
        raise NotReadyError(f"{key} is set, and stream.schema_changes is {mode}", f"Use {EVOLVE} or {LENIENT} with it")
    return tuple(kinds)


@dataclass(frozen=True)
class State:
    """Where the state database is.

    :param conn_id: Airflow connection of the state database; ``None`` for a SQLite file.
    """

    conn_id: str | None = None

    def __post_init__(self) -> None:
        if self.conn_id is not None:
            check_conn_id("state.conn_id", self.conn_id)


@dataclass(frozen=True)
class Alerts:
    """Thresholds for calling the alert hooks of the stream's task.

    :param lag_seconds: ``on_lag`` is called if the source's oldest unread commit is older. ``None`` for never.
    :param hours_to_purge: ``on_purge_risk`` is called if the source may purge required binlogs sooner. ``None`` for
        never.
    """

    lag_seconds: float | None = None
    hours_to_purge: float | None = None

    def __post_init__(self) -> None:
        for name in ("lag_seconds", "hours_to_purge"):
            value: object = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9
            if value is not None and not number:
                raise invalid_value(f"alerts.{name}", value, "a number above 0, or null")


@dataclass(frozen=True)
class Spark:
    """Where Spark runs, and how.

    :param conn_id: Airflow connection of a Spark master, instead of ``master``; or of a Spark Connect server, which
        runs all jobs but the stream.
    :param master: address of a Spark master; ``local[2]`` if there is no ``conn_id`` either. With a Spark Connect
        server, it is where the stream runs.
    :param conf: further Spark settings; they override those of the connection. A Spark Connect server has its own.
    """

    conn_id: str | None = None
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.conn_id is not None:
            check_conn_id("spark.conn_id", self.conn_id)
        elif self.master is None:
            object.__setattr__(self, "master", "local[2]")
        if self.master is not None:
            check_master("spark.master", self.master)
        object.__setattr__(self, "conf", check_conf("spark.conf", {} if self.conf is None else self.conf))
