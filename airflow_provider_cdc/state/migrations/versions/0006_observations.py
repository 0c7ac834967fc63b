"""Lag samples, table states, and acknowledgement of events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_UTC = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _text(length: int) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")


def upgrade() -> None:
    with op.batch_alter_table("events") as batch:
        batch.add_column(sa.Column("table", _text(255), nullable=True))
        for name in ("remedy", "by", "acknowledged_by"):
            batch.add_column(sa.Column(name, _LONG, nullable=True))
        batch.add_column(sa.Column("acknowledged_at", _UTC, nullable=True))
    op.create_table(
        "samples",
        sa.Column("pipeline", _text(64), nullable=False),
        sa.Column("at", _UTC, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("lag_seconds", sa.Double(), nullable=True),
        sa.Column("lag_bytes", sa.BigInteger(), nullable=True),
        sa.Column("purge_hours", sa.Double(), nullable=True),
        _count("changes"),
        _count("batches"),
        sa.Column("unknown", _LONG, nullable=True),
        sa.PrimaryKeyConstraint("pipeline", "at", name="pk_samples"),
    )
    op.create_table(
        "table_states",
        *(sa.Column(name, _text(64), nullable=False) for name in ("pipeline", "database", "name")),
        sa.Column("state", _text(16), nullable=False),
        sa.Column("since", _UTC, nullable=False),
        sa.Column("position", _LONG, nullable=True),
        sa.Column("kind", _text(64), nullable=True),
        sa.Column("reason", _LONG, nullable=True),
        sa.Column("remedy", _LONG, nullable=True),
        _count("chunks_done"),
        _count("chunks_total"),
        sa.Column("definitions", _LONG, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in ("files", "bytes", "rows", "dead_rows")),
        *map(_count, ("inserts", "updates", "deletes")),
        sa.Column("last_verified_at", _UTC, nullable=True),
        sa.Column("last_verified", _LONG, nullable=True),
        sa.Column("updated_at", _UTC, nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "database", "name", name="pk_table_states"),
    )
    op.create_table(
        "alerts",
        sa.Column("pipeline", _text(64), nullable=False),
        sa.Column("kind", _text(64), nullable=False),
        sa.Column("subject", _text(255), nullable=False),
        sa.Column("since", _UTC, nullable=False),
        sa.Column("told_at", _UTC, nullable=True),
        sa.Column("detail", _LONG, nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "kind", "subject", name="pk_alerts"),
    )
