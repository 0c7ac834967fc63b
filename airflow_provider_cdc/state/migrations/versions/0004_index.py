"""Sizes of a stream's key index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("streams") as batch:
        for name in ("index_bytes", "index_disk_bytes"):
            batch.add_column(sa.Column(name, sa.BigInteger(), nullable=True))
