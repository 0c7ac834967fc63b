"""Asset windows: up to where the changes of a table were reported."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_UTC = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_NAME = sa.String(64).with_variant(mysql.VARCHAR(64, collation="utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "windows",
        *(sa.Column(name, _NAME, nullable=False) for name in ("pipeline", "audience", "database", "name")),
        sa.Column("by", _LONG, nullable=False),
        sa.Column("before", _LONG, nullable=True),
        sa.Column("after", _LONG, nullable=False),
        sa.Column("at", _UTC, nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "audience", "database", "name", name="pk_windows"),
    )
