"""Initial tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# The types as of this revision: a migration must not follow later changes of the models.
_INTEGER, _BIGINT = sa.Integer(), sa.BigInteger()
_DOUBLE: Any = sa.Double()
_BOOLEAN = sa.Boolean()
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _text(length: int = 64) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


_NAME = _text()


def _create_table(table: str, key: dict[str, Any], required: dict[str, Any], optional: dict[str, Any]) -> None:
    """Create a table.

    :param key: types of the columns of the primary key, by name; likewise the other columns.
    :param optional: columns that may be NULL.
    """
    op.create_table(
        table,
        *(sa.Column(name, kind, nullable=False) for name, kind in {**key, **required}.items()),
        *(sa.Column(name, kind, nullable=True) for name, kind in optional.items()),
        sa.PrimaryKeyConstraint(*key, name=f"pk_{table}"),
    )


def upgrade() -> None:
    _create_table(
        "pipelines",
        {"name": _NAME},
        {"server_uuid": _NAME, "epoch": _BIGINT, "past_batches": _BIGINT, "past_changes": _BIGINT},
        {"source": _LONG},
    )
    _create_snapshot_tables()
    _create_stream_tables()
    _create_observation_tables()
    for table, columns in (
        ("chunk_groups", ["pipeline", "generation", "state"]),
        ("chunks", ["pipeline", "generation", "group_no", "chunk_no"]),
        ("events", ["pipeline", "id"]),
        ("events", ["pipeline", "kind", "id"]),
        ("events", ["pipeline", "level", "id"]),
        ("events", ["pipeline", "table", "id"]),
        ("events", ["pipeline", "needs_attention", "id", "kind"]),
        ("table_states", ["pipeline", "state", "kind", "verified_equal"]),
        ("requests", ["pipeline", "state"]),
    ):
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, columns)


def _create_snapshot_tables() -> None:
    snapshot = {"pipeline": _NAME, "generation": _INTEGER}
    sizes = {"tables": _BIGINT, "rows_estimate": _BIGINT}
    _create_table("snapshots", snapshot, {"state": _text(16), **sizes, "created_at": _TIME}, {"finished_at": _TIME})
    _create_table("tables", {**snapshot, "database": _NAME, "name": _NAME}, {"rows_estimate": _BIGINT}, {})
    _create_table(
        "chunk_groups",
        {**snapshot, "group_no": _INTEGER},
        {"tables": _LONG, "state": _text(16), "attempt": _INTEGER},
        {
            "rows": _BIGINT,
            "holder": _LONG,
            "readers": _INTEGER,
            "heartbeat_at": _TIME,
            "started_at": _TIME,
            "finished_at": _TIME,
            "traffic": _LONG,
        },
    )
    _create_table(
        "chunks",
        {**snapshot, "chunk_no": _BIGINT},
        {"group_no": _INTEGER, "database": _NAME, "table_name": _NAME, "state": _text(16), "attempt": _INTEGER},
        {"lw": _LONG, "hw": _LONG, "rows": _BIGINT, "bytes": _BIGINT, "corrected": _BIGINT, "seconds": _DOUBLE},
    )


def _create_stream_tables() -> None:
    epoch = {"pipeline": _NAME, "epoch": _BIGINT}
    _create_table(
        "streams",
        epoch,
        {
            "host": _text(255),
            "pid": _BIGINT,
            "pid_started": _DOUBLE,
            "state": _text(16),
            "desired_state": _text(16),
            "started_at": _TIME,
            "heartbeat_at": _TIME,
            "batches": _BIGINT,
            "changes": _BIGINT,
            "bytes": _BIGINT,
        },
        {
            "progress_at": _TIME,
            "error": _LONG,
            "error_kind": _text(32),
            "mode": _text(16),
            "log": _LONG,
            "ui": _text(512),
            "supervisor": _LONG,
            "supervised_at": _TIME,
            "stop_by": _LONG,
            "stop_user": _LONG,
            "ended_at": _TIME,
            "start_offset": _LONG,
            "end_offset": _LONG,
            "machine": _NAME,
            "index_bytes": _BIGINT,
            "index_disk_bytes": _BIGINT,
            "traffic": _LONG,
            "paused_by": _LONG,
            "paused_at": _TIME,
            "settings": _LONG,
        },
    )
    lags = {"lag_p50_ms": _DOUBLE, "lag_p95_ms": _DOUBLE, "lag_max_ms": _DOUBLE}
    _create_table(
        "batches",
        {**epoch, "batch_id": _BIGINT},
        {"changes": _BIGINT, "bytes": _BIGINT, "seconds": _DOUBLE, "committed_at": _TIME},
        {"start_offset": _LONG, "end_offset": _LONG, **lags, "traffic": _LONG},
    )
    _create_table(
        "events",
        {"id": _ID},
        {
            "pipeline": _NAME,
            "at": _TIME,
            "kind": _NAME,
            "detail": _LONG,
            "level": _text(16),
            "needs_attention": _BOOLEAN,
        },
        {"table": _text(255), "remedy": _LONG, "by": _LONG, "acknowledged_by": _LONG, "acknowledged_at": _TIME},
    )
    _create_table(
        "requests",
        {"id": _ID},
        {
            "pipeline": _NAME,
            "at": _TIME,
            "by": _LONG,
            "kind": _text(16),
            "table": _text(255),
            "state": _text(16),
        },
        {"condition": _LONG, "outcome": _LONG, "finished_at": _TIME},
    )


def _create_observation_tables() -> None:
    table = {"database": _NAME, "name": _NAME}
    _create_table(
        "samples",
        {"pipeline": _NAME, "at": _TIME},
        {},
        {
            "epoch": _BIGINT,
            "lag_seconds": _DOUBLE,
            "lag_bytes": _BIGINT,
            "purge_hours": _DOUBLE,
            "unknown": _LONG,
        },
    )
    _create_table(
        "table_states",
        {"pipeline": _NAME, **table},
        {
            "state": _text(16),
            "since": _TIME,
            "chunks_done": _BIGINT,
            "chunks_total": _BIGINT,
            "definitions": _LONG,
            "inserts": _BIGINT,
            "updates": _BIGINT,
            "deletes": _BIGINT,
            "updated_at": _TIME,
        },
        {
            "position": _LONG,
            "kind": _NAME,
            "reason": _LONG,
            "remedy": _LONG,
            "files": _BIGINT,
            "bytes": _BIGINT,
            "rows": _BIGINT,
            "dead_rows": _BIGINT,
            "compactions": _BIGINT,
            "compacted_at": _TIME,
            "compaction_seconds": _DOUBLE,
            "last_verified_at": _TIME,
            "last_verified": _LONG,
            "verified_equal": _BOOLEAN,
        },
    )
    _create_table(
        "alerts",
        {"pipeline": _NAME, "kind": _NAME, "subject": _text(255)},
        {"since": _TIME, "detail": _LONG},
        {"told_at": _TIME},
    )
    _create_table(
        "windows",
        {"pipeline": _NAME, "audience": _NAME, **table},
        {"by": _LONG, "after": _LONG},
        {"before": _LONG},
    )
