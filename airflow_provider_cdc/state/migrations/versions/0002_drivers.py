"""Drivers that run in a cluster."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _text(length: int = 64) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "drivers",
        sa.Column("id", _text(), nullable=False),
        sa.Column("pipeline", _text(), nullable=False),
        sa.Column("what", _LONG, nullable=False),
        sa.Column("requester", _LONG, nullable=False),
        sa.Column("state", _text(16), nullable=False),
        sa.Column("handle", _LONG, nullable=True),
        sa.Column("link", _LONG, nullable=True),
        sa.Column("log", _LONG, nullable=True),
        sa.Column("sealed", _LONG, nullable=True),
        sa.Column("outcome", _LONG, nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("heartbeat_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_drivers"),
    )
    op.create_index("ix_drivers_pipeline_state", "drivers", ["pipeline", "state"])
