"""Object-store request counts of chunk groups, batches and runs of the stream."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("chunk_groups", "batches", "streams"):
        with op.batch_alter_table(table) as batch:
            kind = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
            batch.add_column(sa.Column("traffic", kind, nullable=True))
