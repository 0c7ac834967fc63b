"""The try of a task that a driver in a cluster works for, and who stops and starts a stream."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TEXT = sa.String(64).with_variant(mysql.VARCHAR(64, collation="utf8mb4_bin"), "mysql", "mariadb")
_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    with op.batch_alter_table("drivers") as batch:
        batch.add_column(sa.Column("owner", _TEXT, nullable=True))
    with op.batch_alter_table("pipelines") as batch:
        batch.add_column(sa.Column("stop_requested_by", _LONG, nullable=True))
        batch.add_column(sa.Column("start_request", _LONG, nullable=True))
