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
_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _text(length: int = 64) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


def _column(name: str, kind: Any, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def _key(table: str, *names: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*names, name=f"pk_{table}")


def upgrade() -> None:
    op.create_table(
        "pipelines",
        _column("name", _text()),
        _column("server_uuid", _text()),
        _column("created_at", _TIME),
        _column("epoch", sa.BigInteger()),
        _key("pipelines", "name"),
    )
    op.create_table(
        "snapshots",
        _column("pipeline", _text()),
        _column("generation", sa.Integer()),
        _column("state", _text(16)),
        _column("plan", _LONG),
        _column("created_at", _TIME),
        _column("finished_at", _TIME, null=True),
        _key("snapshots", "pipeline", "generation"),
    )
    op.create_table(
        "tables",
        _column("pipeline", _text()),
        _column("generation", sa.Integer()),
        _column("database", _text()),
        _column("name", _text()),
        _column("schema", _LONG),
        _column("fingerprint", _text()),
        _column("rows_estimate", sa.BigInteger()),
        _key("tables", "pipeline", "generation", "database", "name"),
    )
    op.create_table(
        "chunk_groups",
        _column("pipeline", _text()),
        _column("generation", sa.Integer()),
        _column("group_no", sa.Integer()),
        _column("tables", _LONG),
        _column("state", _text(16)),
        _column("attempt", sa.Integer()),
        _column("rows", sa.BigInteger(), null=True),
        _column("min_lw", _LONG, null=True),
        _column("max_hw", _LONG, null=True),
        _column("started_at", _TIME, null=True),
        _column("finished_at", _TIME, null=True),
        _key("chunk_groups", "pipeline", "generation", "group_no"),
    )
    op.create_table(
        "chunks",
        _column("pipeline", _text()),
        _column("generation", sa.Integer()),
        _column("chunk_no", sa.BigInteger()),
        _column("group_no", sa.Integer()),
        _column("database", _text()),
        _column("table_name", _text()),
        _column("lower", _LONG, null=True),
        _column("upper", _LONG, null=True),
        _column("state", _text(16)),
        _column("attempt", sa.Integer()),
        _column("lw", _LONG, null=True),
        _column("hw", _LONG, null=True),
        _column("rows", sa.BigInteger(), null=True),
        _column("bytes", sa.BigInteger(), null=True),
        _column("corrected", sa.BigInteger(), null=True),
        _column("seconds", sa.Double(), null=True),
        _key("chunks", "pipeline", "generation", "chunk_no"),
    )
    op.create_index(
        "ix_chunks_pipeline_generation_group_no_chunk_no",
        "chunks",
        ["pipeline", "generation", "group_no", "chunk_no"],
    )
    op.create_table(
        "lineage",
        _column("pipeline", _text()),
        _column("segment_no", sa.Integer()),
        _column("server", _text()),
        _column("start_file", _text(512)),
        _column("start_position", sa.BigInteger()),
        _column("base_ordinal", sa.BigInteger()),
        _key("lineage", "pipeline", "segment_no"),
    )
    op.create_table(
        "streams",
        _column("pipeline", _text()),
        _column("epoch", sa.BigInteger()),
        _column("host", _text(255)),
        _column("pid", sa.BigInteger()),
        _column("pid_started", sa.Double()),
        _column("state", _text(16)),
        _column("desired_state", _text(16)),
        _column("started_at", _TIME),
        _column("heartbeat_at", _TIME),
        _column("progress_at", _TIME, null=True),
        _column("error", _LONG, null=True),
        _key("streams", "pipeline", "epoch"),
    )
    op.create_table(
        "batches",
        _column("pipeline", _text()),
        _column("epoch", sa.BigInteger()),
        _column("batch_id", sa.BigInteger()),
        _column("start_offset", _LONG, null=True),
        _column("end_offset", _LONG, null=True),
        _column("changes", sa.BigInteger()),
        _column("bytes", sa.BigInteger()),
        _column("seconds", sa.Double()),
        _column("lag_p50_ms", sa.Double(), null=True),
        _column("lag_p95_ms", sa.Double(), null=True),
        _column("lag_max_ms", sa.Double(), null=True),
        _column("committed_at", _TIME),
        _key("batches", "pipeline", "epoch", "batch_id"),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        _column("pipeline", _text()),
        _column("at", _TIME),
        _column("kind", _text()),
        _column("detail", _LONG),
        _key("events", "id"),
    )
    op.create_index("ix_events_pipeline_id", "events", ["pipeline", "id"])


def downgrade() -> None:
    for table in (
        "events",
        "batches",
        "streams",
        "lineage",
        "chunks",
        "chunk_groups",
        "tables",
        "snapshots",
        "pipelines",
    ):
        op.drop_table(table)
