"""Number of compactions of a table's copy; time and duration of the last one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_UTC = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def upgrade() -> None:
    with op.batch_alter_table("table_states") as batch:
        batch.add_column(sa.Column("compactions", sa.BigInteger(), nullable=True))
        batch.add_column(sa.Column("compacted_at", _UTC, nullable=True))
        batch.add_column(sa.Column("compaction_seconds", sa.Double(), nullable=True))
