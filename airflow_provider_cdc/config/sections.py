"""The sections of a pipeline other than its sink: source, snapshot, stream, state database, alerts and Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from airflow_provider_cdc.config.load_limits import LoadLimits
from airflow_provider_cdc.config.section import (
    ColumnPatterns,
    ConnId,
    Flag,
    Section,
    TablePatterns,
    one_of,
    whole_number,
)
from airflow_provider_cdc.config.spark_conf import check_conf, check_master
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema_modes import CHANGE_KINDS, EVOLVE, EXCEPTION, LENIENT, SCHEMA_MODES
from airflow_provider_cdc.model.start_mode import SNAPSHOT, StreamStart, check_start
from airflow_provider_cdc.model.value_checks import check_choice, check_integer, invalid_value

#: Highest value of ``source.server_id``: the slots of a pipeline follow it and must stay below 2^32.
MAX_SERVER_ID = 2**32 - 1 - slots.LAST_SLOT

#: ``stream.on_table_error``: the stream continues without a table that cannot continue.
SUSPEND = "suspend"
_check_schema_mode = partial(
    check_choice,
    supported=SCHEMA_MODES,
    planned=("try_evolve",),
    remedy="Use evolve (the default), lenient, ignore or exception",
)
#: Kinds of schema changes that other tools let a pipeline choose, and the setting to use instead.
_CHOSEN_ELSEWHERE = {
    "rename.column": "A renamed column is one dropped and one added: use drop.column and add.column",
    "rename.table": "Leave it out: the copy of a renamed table is left unchanged",
    "drop.table": "Use sink.on_dropped",
    "truncate.table": "TRUNCATE deletes all rows: use sink.deletes",
    "create.table": "Choose tables by source.tables and source.exclude",
}


def _check_zero_dates(key: str, value: object) -> str:
    return check_choice(key, "null" if value is None else value, ("error", "null"))


def _check_trigger(key: str, seconds: object) -> float:
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= 3600:
        return seconds
    raise invalid_value(key, seconds, "a number from 0 to 3600")


def _check_threshold(key: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9:
        return value
    raise invalid_value(key, value, "a number above 0, or null")


def _check_change_kinds(key: str, kinds: object) -> tuple[str, ...]:
    if not isinstance(kinds, list | tuple) or not all(isinstance(kind, str) for kind in kinds):
        raise invalid_value(key, kinds, f"a list of {', '.join(CHANGE_KINDS)}")
    for kind in kinds:
        if kind in _CHOSEN_ELSEWHERE:
            raise NotReadyError(f"{key}: {kind!r} is not chosen here", _CHOSEN_ELSEWHERE[kind])
        check_choice(key, kind, CHANGE_KINDS)
    return tuple(kinds)


@dataclass(frozen=True)
class Source(Section):
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

    conn_id: ConnId
    tables: TablePatterns
    exclude: TablePatterns = ()
    server_id: Annotated[int | None, whole_number(1, MAX_SERVER_ID)] = None
    include_columns: ColumnPatterns = ()
    exclude_columns: ColumnPatterns = ()
    zero_dates: Annotated[str, _check_zero_dates] = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.include_columns and self.exclude_columns:
            raise NotReadyError(
                "source.include_columns and source.exclude_columns are both set", "Leave one of them out"
            )
        if not self.tables:
            raise invalid_value("source.tables", [], "at least one regular expression such as shop.order_.*")

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """All patterns that determine what is captured, by key."""
        return {key: getattr(self, key) for key in ("tables", "exclude", "include_columns", "exclude_columns")}


@dataclass(frozen=True)
class Snapshot(Section):
    """How existing rows are read.

    :param chunk_rows: rows per chunk, the unit of watermarks.
    :param group_rows: rows per chunk group, the unit of retry.
    :param parallelism: number of chunks read at the same time.
    :param max_rows_per_second: rows per second that all readers of a group together read from the server.
    :param max_bytes_per_second: the same in bytes.
    :param max_threads_running: no chunk is begun while the server's ``Threads_running`` is above it.
    :param max_replica_lag_seconds: no chunk is begun while the server, if it is a replica, has a higher lag.
    """

    chunk_rows: Annotated[int, whole_number(1, 1_000_000)] = 8096
    group_rows: Annotated[int, whole_number(1)] = 4_000_000
    parallelism: Annotated[int, whole_number(1, slots.MAX_PARALLELISM)] = 2
    max_rows_per_second: Annotated[int | None, whole_number(1)] = None
    max_bytes_per_second: Annotated[int | None, whole_number(1)] = None
    max_threads_running: int | None = None
    max_replica_lag_seconds: Annotated[int | None, whole_number(1)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_rows < self.chunk_rows:
            raise invalid_value(
                "snapshot.group_rows", self.group_rows, f"at least snapshot.chunk_rows ({self.chunk_rows})"
            )
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
class Stream(Section):
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

    mode: Annotated[str, one_of("continuous", "catch_up")] = "continuous"
    trigger_seconds: Annotated[float, _check_trigger] = 0.5
    schema_changes: Annotated[str, _check_schema_mode] = EVOLVE
    max_batch_bytes: Annotated[int, whole_number(1 << 20)] = 268_435_456
    max_batch_rows: Annotated[int, whole_number(1000)] = 5_000_000
    parallelism: Annotated[int, whole_number(1, slots.MAX_PARALLELISM)] = 2
    start: Annotated[StreamStart, check_start] = field(default=SNAPSHOT, hash=False)
    on_purged: Annotated[str, one_of("stop", "reread")] = "stop"
    on_table_error: Annotated[str, one_of(SUSPEND, "stop")] = SUSPEND
    fail_on_suspended: Flag = True
    reread: Annotated[str, one_of("auto", "ask")] = "auto"
    reread_max_bytes: Annotated[int, whole_number(0)] = 10 << 30
    include_schema_changes: Annotated[tuple[str, ...], _check_change_kinds] = ()
    exclude_schema_changes: Annotated[tuple[str, ...], _check_change_kinds] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("include_schema_changes", "exclude_schema_changes"):
            if getattr(self, key) and self.schema_changes not in (EVOLVE, LENIENT):
                raise NotReadyError(
                    f"stream.{key} is set, and stream.schema_changes is {self.schema_changes}",
                    f"Use {EVOLVE} or {LENIENT} with it",
                )
        if self.on_purged == "reread" and self.start != SNAPSHOT:
            raise invalid_value(
                "stream.on_purged", self.on_purged, "stop: a pipeline without a snapshot has nothing to re-snapshot"
            )

    @property
    def follows_ddl(self) -> bool:
        """Whether a DDL of a captured table is followed where possible."""
        return self.schema_changes != EXCEPTION


@dataclass(frozen=True)
class State(Section):
    """Where the state database is.

    :param conn_id: Airflow connection of the state database; ``None`` for a SQLite file.
    """

    conn_id: ConnId | None = None


@dataclass(frozen=True)
class Alerts(Section):
    """Thresholds for calling the alert hooks of the stream's task.

    :param lag_seconds: ``on_lag`` is called if the source's oldest unread commit is older. ``None`` for never.
    :param hours_to_purge: ``on_purge_risk`` is called if the source may purge required binlogs sooner. ``None`` for
        never.
    """

    lag_seconds: Annotated[float | None, _check_threshold] = None
    hours_to_purge: Annotated[float | None, _check_threshold] = None


@dataclass(frozen=True)
class Spark(Section):
    """Where Spark runs, and how.

    :param conn_id: Airflow connection of a Spark master; instead of ``master``.
    :param master: address of a Spark master; ``local[2]`` if there is no ``conn_id`` either.
    :param conf: further Spark settings; they override those of the connection.
    """

    conn_id: ConnId | None = None
    master: Annotated[str | None, check_master] = None
    conf: Annotated[Mapping[str, str], check_conf] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.conn_id is not None and self.master is not None:
            raise NotReadyError("spark.conn_id and spark.master are both set", "Leave one of them out")
        if self.conn_id is None and self.master is None:
            self._set("master", "local[2]")
