"""What a stream that runs for months needs."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Which task a group was finished for is noted in the sink.
    op.drop_column("chunk_groups", "finished_for")
