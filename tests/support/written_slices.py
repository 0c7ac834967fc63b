"""Slices as Spark tasks leave them, of chunks whose rows nobody has read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from airflow_provider_cdc.chunk_groups.task import SnapshotJob
from airflow_provider_cdc.model.plan import cut_into_slices
from airflow_provider_cdc.sinks.files.layout import read_group_plan
from airflow_provider_cdc.sinks.storage.storage import write_json_once


def write_slices(job: SnapshotJob, rows: int, seconds: float) -> list[dict[str, Any]]:
    """What the tasks of a job leave: for each slice a file with a row of each chunk, and a manifest.

    :param rows: rows that each chunk is said to have.
    :param seconds: seconds that each is said to have taken.
    """
    layout = job.layout
    plan = read_group_plan(job.storage, layout.group_plan(job.generation, job.group))
    assert plan is not None
    wanted, found = cut_into_slices(plan.chunks), []
    at = plan.p0.at.to_json()
    seq, now = job.timeline.seq(plan.p0.at), pa.scalar(0, pa.timestamp("us", "UTC"))
    for no in job.slice_numbers:
        chunks, table = wanted[no], plan.tables[wanted[no][0].table]
        name = layout.slice_manifest(table, job.generation, job.group, job.attempt, no)
        columns: dict[str, Any] = {"id": pa.array([c.lower[0] for c in chunks], pa.int32())}
        columns |= {column.name: pa.nulls(len(chunks), pa.int32()) for column in table.columns[1:]}
        columns["_cdc_seq"] = pa.array([seq] * len(chunks), pa.int64())
        columns |= {"_cdc_op": pa.array(["r"] * len(chunks)), "_cdc_ts": pa.array([now] * len(chunks), now.type)}
        place = f"{job.generation}/{job.group}/{job.attempt}/slice-{no:05d}"
        file = job.sink.table(table).stage(place, [pa.table(columns)])
        chunk = {"lw": at, "hw": at, "rows": rows, "corrected": 0, "seconds": seconds}
        manifest = {
            "slice": no,
            "table": chunks[0].table,
            "fingerprint": table.fingerprint(),
            "lineage": job.timeline.to_json(),
            "since": job.resume_point.to_json(),
            "reading": job.resnapshot_number,
            "binlogs": {},
            "file": file.to_json(),
            "chunks": [{"no": c.number, **chunk} for c in chunks],
        }
        write_json_once(job.storage, name, manifest)
        found.append({**manifest, "asked": {}})
    return found
