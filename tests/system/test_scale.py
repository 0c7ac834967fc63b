"""A hundred thousand chunks: planned, tracked and published in bounded memory, at a cost that grows as they do.

``python -m tests.system.test_scale PIPELINE`` is the process that is measured: everything that the driver of a snapshot
does, on a real plan of a real table. Only the rows are not read: what tasks leave for each slice is written as it
would be.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables, read_coverage
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.observe.status import read_status
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.snapshot.run import adopt_published_groups, run_snapshot
from tests import ROOT
from tests.support.written_slices import write_slices

if TYPE_CHECKING:
    from tests.support.servers import MySQLServer

#: Rows, which are chunks: few ones and many. The bound of the memory is that of 100,000, reckoned on from fewer.
SIZES = [pytest.param(sizes, marks=pytest.mark.long) for sizes in ((10_000, 40_000), (20_000, 100_000))]
#: Chunks of a group: as many as with the default settings.
IN_GROUP = 494


def measure(file: str) -> dict[str, Any]:
    """CPU seconds of each step of a snapshot's driver, and the peak of its memory in MB."""
    steps: dict[str, float] = {}
    began = time.process_time()

    def lap(name: str) -> None:
        nonlocal began
        now = time.process_time()
        steps[name], began = now - began, now

    context = RunContext.for_pipeline(Pipeline.load(file))
    lap("start")
    with closing(context.open_state_database()) as store:
        plan = context.plans.ensure(store)
        chunks = len(plan.chunks)
        lap("plan")
        run_snapshot(context, store, plan, partial(write_slices, rows=1, seconds=0.001))
        lap("track and publish")
    told = read_status(context)
    assert told["snapshot"]["complete"] and told["snapshot"]["chunks_done"] == chunks
    lap("status")
    held = read_coverage(context, plan, open_sink_tables(context, plan))
    assert held is not None and sum(len(table.high_watermarks) for table in held) == chunks
    lap("coverage")
    for part in (Path(context.pipeline.sink.path) / "_cdc").rglob("bookkeeping.db*"):
        part.unlink()
    with closing(context.open_state_database()) as store:
        assert adopt_published_groups(context, store, context.plans.require())
    lap("rebuild the bookkeeping")
    assert "numba" not in sys.modules, "what decodes is for the tasks: it would be 100 MB of the driver's memory"
    # Not ru_maxrss: that one begins with the memory of the process which started this one.
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert peak is not None
    return {"chunks": chunks, "peak": int(peak[1]) >> 10, "steps": steps}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_hundred_thousand_chunks(
    sizes: tuple[int, int], mysql_server: MySQLServer, cdc_user: dict[str, str], tmp_path: Path
) -> None:
    from tests.support.harness import Lake  # which imports more than the process does that is measured

    found = {}
    for size in sizes:
        database = f"scale_{size}"
        mysql_server.execute(f"CREATE DATABASE {database}")
        try:
            mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
            # Chunks of one row, as far as the server's estimate of the rows allows: from 0.7 to 1.5 for each row.
            digits = " UNION ALL ".join(f"SELECT {n} AS d" for n in range(10))
            power = ", ".join(f"({digits}) AS d{n}" for n in range(6))
            number = " + ".join(f"d{n}.d * {10 ** (n + 1)}" for n in range(6))
            mysql_server.execute(f"INSERT INTO {database}.t SELECT {number} AS id FROM {power} HAVING id < {10 * size}")
            mysql_server.execute(f"ANALYZE TABLE {database}.t")
            lake = Lake(tmp_path / database, "scale")
            file = lake.write_pipeline(database, chunk_rows=1, group_rows=IN_GROUP)
            env = {**os.environ, "AIRFLOW_CONN_CDC_SOURCE": mysql_server.uri(**cdc_user)}
            command = [sys.executable, "-m", "tests.system.test_scale", str(file)]
            run = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
            found[size] = json.loads(run.stdout.splitlines()[-1])
            print(size, found[size])
        finally:
            mysql_server.execute(f"DROP DATABASE {database}")
    small, large = (found[size] for size in sizes)
    assert 2 * small["chunks"] < large["chunks"] and large["chunks"] > sizes[1] / 2
    for_one = (large["peak"] - small["peak"]) / (large["chunks"] - small["chunks"])
    assert large["peak"] + for_one * (100_000 - large["chunks"]) < 500, "MB at the peak of 100,000 chunks"
    for name, seconds in large["steps"].items():
        # A cost that grew with the square of n times as many chunks would be n squared times as high.
        assert seconds < 3 * large["chunks"] / small["chunks"] * max(small["steps"][name], 0.2), name


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
