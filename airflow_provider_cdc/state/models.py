"""Tables of the state database.

A change here needs a migration in ``migrations/versions``; a test compares the two. Rows that the state database
returns are detached from their session.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    DateTime,
    Dialect,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

#: Constraint names are fixed, so that later migrations can refer to them.
CONSTRAINT_NAMES = {"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_N_name)s"}


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def storable_text(text: str | None) -> str | None:
    """Return text that every database accepts: without NUL and without surrogates of names that did not decode."""
    return None if text is None else text.encode("utf-8", "replace").decode().replace("\0", "")


class JsonText(TypeDecorator[Any]):
    """Any JSON value, stored as text, because some servers' JSON types reorder keys or round large numbers."""

    impl = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Convert a value to text; ``None`` to NULL."""
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Convert text to a value."""
        return None if value is None else json.loads(value)


class UtcDateTime(TypeDecorator[datetime]):
    """A time with a zone, stored in UTC without one, because not every database has a type for it."""

    impl = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a time to UTC without a zone."""
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Add the zone UTC."""
        return None if value is None else value.replace(tzinfo=UTC)


def case_sensitive_text(length: int) -> String:
    """Return a text type that is case-sensitive in every database (MySQL's default is not)."""
    return String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


_LONG_TEXT = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


class Base(DeclarativeBase):
    """Common base of all tables."""

    metadata = MetaData(naming_convention=CONSTRAINT_NAMES)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy's own form)
        str: case_sensitive_text(64),
        int: BigInteger,
        bool: Boolean,
        float: Double,
        datetime: UtcDateTime,
        dict[str, Any]: JsonText,
        list[Any]: JsonText,
    }


class PipelineRow(Base):
    """A pipeline, the server it reads, and the highest epoch given out.

    ``source`` describes the server in human-readable terms: ``conn_id``, ``host``, ``port`` and ``version``, never a
    user or a password. ``past_batches`` and ``past_changes`` are totals of runs of its stream that are no longer kept.
    ``stop_requested_by`` is the user who has asked the stream to stop; until it is started again, no run begins.
    ``start_request`` is the request of a task that has last started it, the same for all tries.
    """

    __tablename__ = "pipelines"
    name: Mapped[str] = mapped_column(primary_key=True)
    server_uuid: Mapped[str]
    source: Mapped[dict[str, Any] | None]
    epoch: Mapped[int] = mapped_column(default=0)
    past_batches: Mapped[int] = mapped_column(default=0)
    past_changes: Mapped[int] = mapped_column(default=0)
    stop_requested_by: Mapped[str | None] = mapped_column(_LONG_TEXT)
    start_request: Mapped[str | None] = mapped_column(_LONG_TEXT)


class SnapshotRow(Base):
    """One generation of a pipeline's snapshot. ``state`` is ``running`` or ``done``.

    ``tables`` is the number of its planned tables, ``rows_estimate`` the sum of their estimated rows.
    """

    __tablename__ = "snapshots"
    pipeline: Mapped[str] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(Integer, primary_key=True)
    state: Mapped[str] = mapped_column(case_sensitive_text(16), default="running")
    tables: Mapped[int] = mapped_column(default=0)
    rows_estimate: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class PlannedTableRow(Base):
    """A captured table as it was when the snapshot was planned."""

    __tablename__ = "tables"
    pipeline: Mapped[str] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(Integer, primary_key=True)
    database: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    rows_estimate: Mapped[int]


#: State of a chunk group with nothing left to read: its tables were re-snapshotted as a whole or are suspended.
TAKEN_OVER = "taken_over"
#: States of chunk groups that a snapshot need not wait for. A group stays published while it is re-snapshotted.
PUBLISHED_STATES = ("done", "rereading", TAKEN_OVER)


class ChunkGroupRow(Base):
    """A chunk group, the unit of retry.

    ``state`` is ``pending``, ``running``, ``done``, ``rereading`` or ``taken_over``; ``attempt`` counts from 1.
    ``tables`` is a list of ``[database, table]``. ``holder`` is the process that reads the group while ``heartbeat_at``
    is recent; it reads up to ``readers`` chunks at the same time. ``traffic`` holds the object-store request counts of
    the process that finished the group, and of its tasks.
    """

    __tablename__ = "chunk_groups"
    pipeline: Mapped[str] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(Integer, primary_key=True)
    group_no: Mapped[int] = mapped_column(Integer, primary_key=True)
    tables: Mapped[list[Any]]
    state: Mapped[str] = mapped_column(case_sensitive_text(16), default="pending")
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    rows: Mapped[int | None]
    holder: Mapped[str | None] = mapped_column(_LONG_TEXT)
    readers: Mapped[int | None] = mapped_column(Integer)
    heartbeat_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    traffic: Mapped[Any | None] = mapped_column(JsonText)

    __table_args__ = (Index(None, "pipeline", "generation", "state"),)


class ChunkRow(Base):
    """A chunk of one table, without its bounds, which are values of rows.

    ``state`` is ``pending``, ``read`` (it is in a finished file of ``attempt``) or ``done`` (the sink has it as
    published by ``attempt``). ``corrected`` counts the rows that the replay of (LW, HW] changed. ``bytes`` is its share
    of the file size, ``seconds`` the time that the read took.
    """

    __tablename__ = "chunks"
    pipeline: Mapped[str] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(Integer, primary_key=True)
    chunk_no: Mapped[int] = mapped_column(primary_key=True)
    group_no: Mapped[int] = mapped_column(Integer)
    database: Mapped[str]
    table_name: Mapped[str]
    state: Mapped[str] = mapped_column(case_sensitive_text(16), default="pending")
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    lw: Mapped[Any | None] = mapped_column(JsonText)
    hw: Mapped[Any | None] = mapped_column(JsonText)
    rows: Mapped[int | None]
    bytes: Mapped[int | None]
    corrected: Mapped[int | None]
    seconds: Mapped[float | None]

    __table_args__ = (Index(None, "pipeline", "generation", "group_no", "chunk_no"),)


class EpochRow(Base):
    """One run of a stream.

    ``state`` is ``running``, ``caught_up``, ``stopped`` or ``failed``; ``desired_state`` is ``run``, ``pause`` or
    ``stop``. ``paused_by`` is the requester of the pause, at ``paused_at``. ``ended_at`` is when the run ended.

    ``mode`` is ``continuous`` or ``catch_up``, ``log`` the driver's log file, and ``ui`` the address of Spark's web UI.
    ``supervisor`` is the task that last supervised the run, at ``supervised_at``. ``stop_by`` is the task that asked
    for the stop (empty for a user), and ``stop_user`` the user who did. ``error_kind`` is the class of the error.
    ``machine`` is the scope in which ``pid`` is unique: the boot of a kernel and a PID namespace.

    The sums and the offsets cover all batches of the run, including old ones that were removed.
    ``index_bytes`` and ``index_disk_bytes`` are the size of the key index after the last batch. ``traffic`` holds the
    object-store request counts of the batches and of everything else in the run. ``settings`` holds digests of the
    run's settings by key, never their values.
    """

    __tablename__ = "streams"
    pipeline: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    host: Mapped[str] = mapped_column(case_sensitive_text(255))
    pid: Mapped[int]
    pid_started: Mapped[float]
    state: Mapped[str] = mapped_column(case_sensitive_text(16), default="running")
    desired_state: Mapped[str] = mapped_column(case_sensitive_text(16), default="run")
    started_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]
    progress_at: Mapped[datetime | None]
    error: Mapped[str | None] = mapped_column(_LONG_TEXT)
    error_kind: Mapped[str | None] = mapped_column(case_sensitive_text(32))
    mode: Mapped[str | None] = mapped_column(case_sensitive_text(16))
    log: Mapped[str | None] = mapped_column(_LONG_TEXT)
    ui: Mapped[str | None] = mapped_column(case_sensitive_text(512))
    supervisor: Mapped[str | None] = mapped_column(_LONG_TEXT)
    supervised_at: Mapped[datetime | None]
    stop_by: Mapped[str | None] = mapped_column(_LONG_TEXT)
    stop_user: Mapped[str | None] = mapped_column(_LONG_TEXT)
    ended_at: Mapped[datetime | None]
    batches: Mapped[int] = mapped_column(default=0)
    changes: Mapped[int] = mapped_column(default=0)
    bytes: Mapped[int] = mapped_column(default=0)
    start_offset: Mapped[Any | None] = mapped_column(JsonText)
    end_offset: Mapped[Any | None] = mapped_column(JsonText)
    machine: Mapped[str | None] = mapped_column(case_sensitive_text(64))
    index_bytes: Mapped[int | None] = mapped_column(BigInteger)
    index_disk_bytes: Mapped[int | None] = mapped_column(BigInteger)
    traffic: Mapped[Any | None] = mapped_column(JsonText)
    paused_by: Mapped[str | None] = mapped_column(_LONG_TEXT)
    paused_at: Mapped[datetime | None]
    settings: Mapped[dict[str, Any] | None]


class BatchRow(Base):
    """One of the last batches that a stream applied. Offsets are JSON; ``bytes`` are bytes of binlog.

    ``traffic`` holds the object-store request counts of the batch.
    """

    __tablename__ = "batches"
    pipeline: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    batch_id: Mapped[int] = mapped_column(primary_key=True)
    start_offset: Mapped[Any | None] = mapped_column(JsonText)
    end_offset: Mapped[Any | None] = mapped_column(JsonText)
    changes: Mapped[int]
    bytes: Mapped[int]
    seconds: Mapped[float]
    lag_p50_ms: Mapped[float | None]
    lag_p95_ms: Mapped[float | None]
    lag_max_ms: Mapped[float | None]
    committed_at: Mapped[datetime]
    traffic: Mapped[Any | None] = mapped_column(JsonText)


class EventRow(Base):
    """An entry in the event journal of a pipeline.

    ``table`` is the table concerned, as ``database.table``; ``remedy`` is what to do; ``by`` is the user or task that
    caused the event, if any. ``level`` is ``failed``, ``warning`` or ``info``. ``needs_attention`` is whether a user
    has to look at it: the problem is not over, and nobody has acknowledged the event. ``acknowledged_by`` is the user
    who acknowledged it, at ``acknowledged_at``.
    """

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    pipeline: Mapped[str]
    at: Mapped[datetime]
    kind: Mapped[str]
    detail: Mapped[str] = mapped_column(_LONG_TEXT)
    table: Mapped[str | None] = mapped_column(case_sensitive_text(255))
    remedy: Mapped[str | None] = mapped_column(_LONG_TEXT)
    by: Mapped[str | None] = mapped_column(_LONG_TEXT)
    level: Mapped[str] = mapped_column(case_sensitive_text(16), default="info")
    needs_attention: Mapped[bool] = mapped_column(default=False)
    acknowledged_by: Mapped[str | None] = mapped_column(_LONG_TEXT)
    acknowledged_at: Mapped[datetime | None]

    __table_args__ = (
        Index(None, "pipeline", "id"),
        Index(None, "pipeline", "kind", "id"),
        Index(None, "pipeline", "level", "id"),
        Index(None, "pipeline", "table", "id"),
        Index(None, "pipeline", "needs_attention", "id", "kind"),
    )


class ControlRequestRow(Base):
    """A control request to the running stream, which checks for requests with each heartbeat.

    ``kind`` is ``suspend``, ``reread``, ``verify`` or ``repair``; ``table`` is ``database.table``, or empty to verify
    or repair all tables. ``condition`` restricts a re-snapshot to rows with matching keys; ``None`` for the whole
    table. ``state`` is ``open``, ``taken`` (a stream is processing it), ``done``, ``refused`` or ``withdrawn``.
    ``outcome`` is one line with the result and, if needed, the remedy.
    """

    __tablename__ = "requests"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    pipeline: Mapped[str]
    at: Mapped[datetime]
    by: Mapped[str] = mapped_column(_LONG_TEXT)
    kind: Mapped[str] = mapped_column(case_sensitive_text(16))
    table: Mapped[str] = mapped_column(case_sensitive_text(255))
    condition: Mapped[str | None] = mapped_column(_LONG_TEXT)
    state: Mapped[str] = mapped_column(case_sensitive_text(16), default="open")
    outcome: Mapped[str | None] = mapped_column(_LONG_TEXT)
    finished_at: Mapped[datetime | None]

    __table_args__ = (Index(None, "pipeline", "state"),)


class LagSampleRow(Base):
    """The lag of a pipeline at one time. There is about one sample per minute while it reads.

    ``epoch`` is the epoch of the stream, ``None`` during a snapshot. ``purge_hours`` is ``None`` for never. ``unknown``
    is the reason if a value is missing.
    """

    __tablename__ = "samples"
    pipeline: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(primary_key=True)
    epoch: Mapped[int | None] = mapped_column(BigInteger)
    lag_seconds: Mapped[float | None]
    lag_bytes: Mapped[int | None]
    purge_hours: Mapped[float | None]
    unknown: Mapped[str | None] = mapped_column(_LONG_TEXT)


class TableStateRow(Base):
    """The state of a table of a pipeline, as a driver last saw it at ``updated_at``.

    ``state`` is a table state of ``airflow-cdc status``, and ``since`` is when it began. The copy is complete up to
    ``position``. ``kind``, ``reason`` and ``remedy`` describe why a table is suspended. ``definitions`` is a list, the
    oldest first, each with ``since``, ``columns``, ``key`` and ``changed``. ``files``, ``bytes``, ``rows`` and
    ``dead_rows`` are the size of the copy, ``None`` if unknown. ``compactions`` is the number of compactions;
    ``compacted_at`` and ``compaction_seconds`` describe the last one. ``inserts``, ``updates`` and ``deletes`` count
    the changes that the stream has applied. ``last_verified`` is the result of the last comparison, and
    ``verified_equal`` whether source and copy were equal. If a later attempt
    could not compare the table, its ``not_comparable`` is the reason.
    """

    __tablename__ = "table_states"
    pipeline: Mapped[str] = mapped_column(primary_key=True)
    database: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(case_sensitive_text(16))
    since: Mapped[datetime]
    position: Mapped[str | None] = mapped_column(_LONG_TEXT)
    kind: Mapped[str | None]
    reason: Mapped[str | None] = mapped_column(_LONG_TEXT)
    remedy: Mapped[str | None] = mapped_column(_LONG_TEXT)
    chunks_done: Mapped[int] = mapped_column(default=0)
    chunks_total: Mapped[int] = mapped_column(default=0)
    definitions: Mapped[list[Any]]
    files: Mapped[int | None]
    bytes: Mapped[int | None]
    rows: Mapped[int | None]
    dead_rows: Mapped[int | None]
    compactions: Mapped[int | None]
    compacted_at: Mapped[datetime | None]
    compaction_seconds: Mapped[float | None]
    inserts: Mapped[int] = mapped_column(default=0)
    updates: Mapped[int] = mapped_column(default=0)
    deletes: Mapped[int] = mapped_column(default=0)
    last_verified_at: Mapped[datetime | None]
    last_verified: Mapped[Any | None] = mapped_column(JsonText)
    verified_equal: Mapped[bool | None]
    updated_at: Mapped[datetime]

    __table_args__ = (Index(None, "pipeline", "state", "kind", "verified_equal"),)


class AlertRow(Base):
    """An active alert. The row is deleted when the problem is over.

    ``kind`` is the alert hook, ``subject`` the table, or empty. ``told_at`` is when the notification was sent.
    """

    __tablename__ = "alerts"
    pipeline: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(case_sensitive_text(255), primary_key=True)
    since: Mapped[datetime]
    told_at: Mapped[datetime | None]
    detail: Mapped[str] = mapped_column(_LONG_TEXT)


class AssetWindowRow(Base):
    """The last asset window of a table that was reported to an audience. The next window begins at its end.

    ``by`` is the task that reported the window, which goes from ``before`` to ``after``: JSON values as defined in
    :mod:`airflow_provider_cdc.observe.asset_windows`.
    """

    __tablename__ = "windows"
    pipeline: Mapped[str] = mapped_column(primary_key=True)
    audience: Mapped[str] = mapped_column(primary_key=True)
    database: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    by: Mapped[str] = mapped_column(_LONG_TEXT)
    before: Mapped[Any | None] = mapped_column(JsonText)
    after: Mapped[Any] = mapped_column(JsonText)


class DriverRow(Base):
    """A driver that runs in a cluster. The row exists before anything is created there.

    ``state`` is ``wanted``, ``submitted``, ``running`` or ``ended``; ``what`` is its work, in human-readable form;
    ``requester`` is the task that wants it, so that a later try of the task finds it. ``handle`` is its id in the
    cluster, ``link`` the address of its page there, ``log`` that of its log. ``sealed`` is the encrypted request, until
    the driver takes it. ``owner`` is the try of the task that it works for. ``last_line`` is the last line of its log,
    as of a heartbeat. ``outcome`` is ``{"outcome": ...}`` or ``{"error": {kind, message, remedy}}``.
    """

    __tablename__ = "drivers"
    id: Mapped[str] = mapped_column(primary_key=True)
    pipeline: Mapped[str]
    what: Mapped[str] = mapped_column(_LONG_TEXT)
    requester: Mapped[str] = mapped_column(_LONG_TEXT)
    state: Mapped[str] = mapped_column(case_sensitive_text(16))
    handle: Mapped[str | None] = mapped_column(_LONG_TEXT)
    link: Mapped[str | None] = mapped_column(_LONG_TEXT)
    log: Mapped[str | None] = mapped_column(_LONG_TEXT)
    sealed: Mapped[str | None] = mapped_column(_LONG_TEXT)
    owner: Mapped[str | None]
    last_line: Mapped[str | None] = mapped_column(_LONG_TEXT)
    outcome: Mapped[Any | None] = mapped_column(JsonText)
    created_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]

    __table_args__ = (Index(None, "pipeline", "state"),)
