"""Columns for streams that run for months."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")

#: Sums over all batches of a run, because old batches are removed.
_SUMS: dict[str, Any] = {
    "batches": sa.BigInteger(),
    "changes": sa.BigInteger(),
    "bytes": sa.BigInteger(),
    "seconds": sa.Double(),
}
_OTHERS: dict[str, Any] = {"lag_max_ms": sa.Double(), "start_offset": _LONG, "end_offset": _LONG}
#: Task names combine three Airflow names of up to 250 characters each, and more.
_NAMES = {"chunk_groups": ("holder",), "streams": ("supervisor", "stop_by")}


def _text(length: int) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    for table, names in _NAMES.items():
        with op.batch_alter_table(table) as batch:  # SQLite copies the table
            if table == "chunk_groups":
                batch.drop_column("finished_for")  # recorded in the sink instead
            for name in names:
                batch.alter_column(name, type_=_LONG, existing_type=sa.String(512), existing_nullable=True)
            for name, kind in _SUMS.items() if table == "streams" else ():
                batch.add_column(sa.Column(name, kind, nullable=False, server_default="0"))
            for name, other in _OTHERS.items() if table == "streams" else ():
                batch.add_column(sa.Column(name, other, nullable=True))
            if table == "streams":
                batch.add_column(sa.Column("machine", _text(64), nullable=True))
    _count()


def _count() -> None:
    """Initialize the sums from the existing batches."""
    names = ["pipeline", "epoch", "batch_id", *_OTHERS, *_SUMS]
    batches = sa.table("batches", *(sa.column(name) for name in names if name != "batches"))
    streams = sa.table("streams", *(sa.column(name) for name in names))
    run = batches.c.pipeline, batches.c.epoch
    sums: dict[str, Any] = {name: sa.func.sum(batches.c[name]) for name in _SUMS if name != "batches"}
    columns = [sa.func.count(), *sums.values(), sa.func.max(batches.c.lag_max_ms)]
    ends = [sa.func.min(batches.c.batch_id), sa.func.max(batches.c.batch_id)]
    connection = op.get_bind()
    for pipeline, epoch, *found, first, last in connection.execute(
        sa.select(*run, *columns, *ends).group_by(*run)
    ).all():

        def offset(name: str, number: int, pipeline: str = pipeline, epoch: int = epoch) -> Any:
            where = batches.c.pipeline == pipeline, batches.c.epoch == epoch, batches.c.batch_id == number
            return connection.execute(sa.select(batches.c[name]).where(*where)).scalar()

        values = dict(zip(("batches", *sums, "lag_max_ms"), found, strict=True))
        values |= {"start_offset": offset("start_offset", first), "end_offset": offset("end_offset", last)}
        mine = streams.c.pipeline == pipeline, streams.c.epoch == epoch
        connection.execute(sa.update(streams).where(*mine).values(values))
