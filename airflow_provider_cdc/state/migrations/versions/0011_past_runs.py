"""Totals of the stream's runs that are no longer kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("pipelines") as batch:
        for name in ("past_batches", "past_changes", "past_bytes"):
            batch.add_column(sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("past_seconds", sa.Double(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("past_lag_max_ms", sa.Double(), nullable=True))
