"""Holders of chunk groups, and supervisors of streams."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _text(length: int) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    columns: dict[str, dict[str, Any]] = {
        "chunk_groups": {"holder": _text(512), "heartbeat_at": _TIME, "finished_for": _text(512)},
        "streams": {
            "error_kind": _text(32),
            "mode": _text(16),
            "log": _LONG,
            "ui": _text(512),
            "supervisor": _text(512),
            "supervised_at": _TIME,
            "stop_by": _text(512),
        },
    }
    for table, added in columns.items():
        for name, kind in added.items():
            op.add_column(table, sa.Column(name, kind, nullable=True))
