"""Digests of the settings that a run was started with, to detect a changed pipeline."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("streams") as batch:
        batch.add_column(sa.Column("settings", sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")))
