"""Bookkeeping as snapshots and streams leave it, written by the store's own methods: as large as a test needs it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import update

from airflow_provider_cdc.state import StateDatabase, TableStatus, utc_now
from airflow_provider_cdc.state.models import BatchRow, ChunkGroupRow, ChunkRow, EventRow, LagSampleRow
from tests.support.chunk_rows import chunk_rows

#: Names that would be code, were they put into a page as they are.
HOSTILE = (
    "<script>document.title='pwned'</script>",
    "<img src=x onerror=\"document.title='pwned'\">",
    "'\"&amp;</td>\u202e</table>",
)


def position(number: int, file: str = "binlog.000007") -> dict[str, Any]:
    return {"server": "s", "file": file, "position": number, "gtid_set": f"uuid:1-{number}"}


def plan(store: StateDatabase, name: str, *, tables: dict[str, int], per_group: int, database: str = "shop") -> int:
    """A snapshot that is planned.

    :param tables: number of chunks of each.
    :return: how many groups it has.
    """
    store.register_pipeline(name, f"server-of-{name}")
    chunks: list[dict[str, Any]] = []
    for table, count in tables.items():
        for _ in range(count):
            place = {"database": database, "table_name": table}
            chunks.append({"chunk_no": len(chunks), "group_no": len(chunks) // per_group, **place})
    groups = -(-len(chunks) // per_group)
    names = [sorted({c["table_name"] for c in chunks[g * per_group : (g + 1) * per_group]}) for g in range(groups)]
    assert store.write_plan(
        name,
        1,
        [{"database": database, "name": table, "rows_estimate": 1000 * count} for table, count in tables.items()],
        [{"group_no": g, "tables": [[database, table] for table in names[g]]} for g in range(groups)],
        chunks,
    )
    return groups


def read(
    store: StateDatabase, name: str, group: int, *, corrected: int = 0, holder: str = "shop.snapshot[0], try 1"
) -> None:
    """A group that is read and published.

    :param corrected: in how many of its chunks the binlog corrected a row.
    """
    attempt = store.claim_group(name, 1, group, holder=holder)
    numbers = [row.chunk_no for row in chunk_rows(store, name, group)]
    results = [
        (no, attempt, position(100), position(200), 1000, 50_000, int(at < corrected), 0.25)
        for at, no in enumerate(numbers)
    ]
    store.record_read_chunks(name, 1, results)
    store.record_published_chunks(name, 1, results)
    assert store.finish_group(name, 1, group, attempt, 1000 * len(numbers))


def stream(
    store: StateDatabase, name: str, *, batches: int = 50, lag_ms: float = 400.0, age: timedelta = timedelta()
) -> int:
    """A stream that runs, and has applied batches, one a second up to now.

    :param age: of the newest batch.
    """
    store.allow_stream(name)
    epoch = store.begin_epoch(name, 0, "host-1", 4242, 1.0, details={"mode": "continuous", "log": "/logs/1.log"})
    for number in range(batches):
        places: dict[str, Any] = {"start_offset": position(number), "end_offset": position(number + 1)}
        lags: dict[str, Any] = {"lag_p50_ms": lag_ms, "lag_p95_ms": 2 * lag_ms, "lag_max_ms": 3 * lag_ms}
        store.record_batch(name, epoch, number, changes=100, bytes=5000, seconds=0.1, **places, **lags)
    # As if a second had passed between any two of them.
    with store._write_session() as session:
        for number in range(batches):
            mine = BatchRow.pipeline == name, BatchRow.epoch == epoch, BatchRow.batch_id == number
            at = utc_now() - age - timedelta(seconds=batches - 1 - number)
            session.execute(update(BatchRow).where(*mine).values(committed_at=at))
    store.record_heartbeat(name, epoch, True)
    return epoch


def large(
    store: StateDatabase,
    name: str,
    *,
    tables: int = 5_000,
    chunks: int = 100_000,
    per_group: int = 250,
    done: float = 0.5,
) -> None:
    """A large pipeline whose snapshot is being read, with a long journal, written in a few seconds.

    :param tables: how many tables; all have the same number of chunks.
    :param chunks: how many chunks in total.
    :param per_group: chunks of each group.
    :param done: which part of the groups is published; the next four are being read.
    """
    names = {f"table_{number:05}": chunks // tables for number in range(tables)}
    groups = plan(store, name, tables=names, per_group=per_group)
    published = int(groups * done)
    position_text = '{"file":"binlog.000007","position":100}'
    chunk_values = {"state": "done", "attempt": 1, "lw": position_text, "hw": position_text, "seconds": 0.2}
    counts = {"rows": 1000, "bytes": 50_000, "corrected": 0}
    now = utc_now()
    with store._write_session() as session:
        in_published = ChunkRow.pipeline == name, ChunkRow.group_no < published
        session.execute(update(ChunkRow).where(*in_published).values(**chunk_values, **counts))
        session.execute(update(ChunkRow).where(*in_published, ChunkRow.chunk_no % 97 == 0).values(corrected=1))
        half_read = ChunkRow.pipeline == name, ChunkRow.group_no == published, ChunkRow.chunk_no % 2 == 0
        session.execute(update(ChunkRow).where(*half_read).values(**chunk_values | counts | {"state": "read"}))
        is_done = ChunkGroupRow.pipeline == name, ChunkGroupRow.group_no < published
        group_values = {"attempt": 1, "started_at": now - timedelta(hours=1), "rows": 1000 * per_group}
        session.execute(update(ChunkGroupRow).where(*is_done).values(state="done", finished_at=now, **group_values))
    for group in range(published, published + 4):
        store.claim_group(name, 1, group, holder=f"{name}.snapshot[{group}], try 1", readers=2)
    columns = {f"column_{number}": "bigint" for number in range(20)}
    definitions = [{"since": None, "columns": columns, "key": ["column_0"], "changed": ""}]
    states = [TableStatus("shop", table, "snapshot", definitions=definitions) for table in names]
    suspended: dict[str, Any] = {
        "kind": "SchemaError",
        "reason": "a column that cannot be copied",
        "remedy": "drop the column",
    }
    for number in range(0, tables, max(1, tables // 7)):
        states[number] = states[number]._replace(state="suspended", **suspended)
    store.write_table_states(name, states)
    with store._write_session() as session:
        for number in range(9_900):
            table = f"shop.table_{number % tables:05}"
            row = EventRow(pipeline=name, at=now, kind="schema_change", level="info", detail=f"{table}: altered")
            row.table, row.needs_attention = table, False
            session.add(row)
    for number in range(60):
        at = now - timedelta(minutes=number)
        with store._write_session() as session:
            session.add(
                LagSampleRow(pipeline=name, at=at, epoch=None, lag_seconds=float(number), lag_bytes=5, purge_hours=48.0)
            )
