"""Bookkeeping as snapshots and streams leave it, written by the store's own methods: as large as a test needs it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import update

from airflow_provider_cdc.state import StateDatabase, utc_now
from airflow_provider_cdc.state.models import BatchRow
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


def stream(store: StateDatabase, name: str, *, batches: int = 50, lag_ms: float = 400.0) -> int:
    """A stream that runs, and has applied batches, one a second up to now."""
    epoch = store.begin_epoch(name, 0, "host-1", 4242, 1.0, details={"mode": "continuous", "log": "/logs/1.log"})
    for number in range(batches):
        places: dict[str, Any] = {"start_offset": position(number), "end_offset": position(number + 1)}
        lags: dict[str, Any] = {"lag_p50_ms": lag_ms, "lag_p95_ms": 2 * lag_ms, "lag_max_ms": 3 * lag_ms}
        store.record_batch(name, epoch, number, changes=100, bytes=5000, seconds=0.1, **places, **lags)
    # As if a second had passed between any two of them.
    with store._write_session() as session:
        for number in range(batches):
            mine = BatchRow.pipeline == name, BatchRow.epoch == epoch, BatchRow.batch_id == number
            at = utc_now() - timedelta(seconds=batches - 1 - number)
            session.execute(update(BatchRow).where(*mine).values(committed_at=at))
    store.record_heartbeat(name, epoch, True)
    return epoch
