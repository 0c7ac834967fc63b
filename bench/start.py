"""What the driver of a chunk group costs from its start until the first row is read.

Drivers read one small group each, by the same command that Airflow's tasks run; Airflow itself is left out, and the
plan is made beforehand. A round has three starts: *cold*, with an empty cache folder, so that machine code is compiled;
*warm*, with the folder as the cold start has left it; and *warmed up*, after ``airflow-cdc warm-up``, which also
archives Java classes. What counts is the median of the rounds. CPU seconds are those of the driver and all that it has
started, from its start to its end.

    make bench-start      CDC_BENCH_ROUNDS=n rounds (3), CDC_BENCH_STARTS=cold,warm,warmed-up: only some of them
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from airflow_provider_cdc.airflow.operators.base import make_driver_request
from airflow_provider_cdc.driver.launchers.local import start_attached
from airflow_provider_cdc.runtime.run_context import RunContext
from bench.meter import Meter
from bench.snapshot import machine
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.workload_tables import make_shop

#: Moments of a start, and what the line of the driver's log begins or ends with.
MOMENTS = {
    "Java is started": r" starting Java$",
    "Java runs": r" Java runs after ",
    "Spark runs": r" (Spark runs after|Spark UI at) ",
    "Python workers run": r" Python workers? runs? after ",
    "the group is claimed": r": reading \d+ chunks?$",
    "first rows are read": r" 1/1 chunks, ",
}
ENDED = "the driver has ended"
#: What the meter calls the processes, and what the table does.
PROCESSES = {"driver: merges": "driver", "Spark's JVM": "Java", "tasks: decode, compact": "Python workers"}
#: Rows of the group that a driver reads.
_GROUP_ROWS = 100


def start_once(context: RunContext, group: int) -> dict[str, float]:
    """Let a driver read a group; seconds until each moment, and CPU seconds by process."""
    request = make_driver_request(context.pipeline, groups=[group], holder="bench")
    taken: dict[str, float] = {}
    began = time.monotonic()
    with start_attached(request) as driver, Meter(driver._process.pid, None) as meter:
        for line in driver.output_lines():
            meter._look()
            for moment, pattern in MOMENTS.items():
                if re.search(pattern, line):
                    taken.setdefault(moment, time.monotonic() - began)
        (published,) = driver.wait_for_outcome()["groups"]
        taken[ENDED] = time.monotonic() - began
    if published["outcome"] != "published":
        raise SystemExit(f"group {group} was not read: {published}")
    cpu = meter.used()
    by_process = {f"CPU seconds, {name}": cpu.get(key, 0.0) for key, name in PROCESSES.items()}
    return taken | by_process | {"CPU seconds, all": sum(cpu.values())}


def main() -> None:
    """Measure the starts and print the table."""
    rounds = int(os.environ.get("CDC_BENCH_ROUNDS", "3"))
    kinds = os.environ.get("CDC_BENCH_STARTS", "cold,warm,warmed-up").split(",")
    starts: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(MySQLServer({"tls_version": ""}))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cdc-bench-")))
        with contextlib.closing(server.connect()) as connection:
            make_shop(connection, "shop", _GROUP_ROWS * (rounds * len(kinds) + 1), addresses=1, orders=1)
        os.environ["AIRFLOW_CONN_CDC_SOURCE"] = server.uri()
        settings = {"group_rows": _GROUP_ROWS, "chunk_rows": _GROUP_ROWS}
        cli = Cli(folder, server, "shop.customer", snapshot=settings)
        with cli.opened() as (context, store):
            groups = iter(sorted(context.plans.ensure(store).groups()))
        for number in range(rounds):
            if "cold" in kinds:  # else the cache folder of the user is used
                os.environ["XDG_CACHE_HOME"] = str(folder / f"cache-{number}")
            for kind in kinds:
                if kind == "warmed-up":
                    subprocess.run([sys.executable, "-m", "airflow_provider_cdc", "warm-up"], check=True)
                starts[kind].append(start_once(context, next(groups)))
                print(f"{kind}: {_summary(starts[kind][-1])}", file=sys.stderr)
        (mysql,) = server.execute("SELECT VERSION()")[0]
    print(f"one group of {_GROUP_ROWS} rows, medians of {rounds} starts; seconds since the driver was started\n")
    print("| | " + " | ".join(kinds) + " |\n|---|" + "--:|" * len(kinds))
    names = [*MOMENTS, ENDED, *(f"CPU seconds, {name}" for name in (*PROCESSES.values(), "all"))]
    for name in names:
        values = [[start[name] for start in starts[kind] if name in start] for kind in kinds]
        if any(values):
            print(f"| {name} | " + " | ".join(f"{statistics.median(v):.1f}" if v else "" for v in values) + " |")
    machine(str(mysql))


def _summary(start: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in start.items())


if __name__ == "__main__":
    main()
