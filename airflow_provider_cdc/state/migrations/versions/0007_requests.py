"""Control requests to a running stream: suspend, re-snapshot, pause."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_UTC = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _text(length: int) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    with op.batch_alter_table("streams") as batch:
        batch.add_column(sa.Column("paused_by", _LONG, nullable=True))
    op.create_table(
        "requests",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("pipeline", _text(64), nullable=False),
        sa.Column("at", _UTC, nullable=False),
        sa.Column("by", _LONG, nullable=False),
        sa.Column("kind", _text(16), nullable=False),
        sa.Column("table", _text(255), nullable=False),
        sa.Column("condition", _LONG, nullable=True),
        sa.Column("state", _text(16), nullable=False),
        sa.Column("outcome", _LONG, nullable=True),
        sa.Column("finished_at", _UTC, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_requests"),
    )
    op.create_index("ix_requests_pipeline_state", "requests", ["pipeline", "state"])
