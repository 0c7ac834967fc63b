"""What a chunk group costs if each has its own driver, beside several groups that one driver reads in turn.

Both ways read the same table into a lake of their own, by the same drivers that Airflow's tasks start; Airflow itself
is left out. The plan is made beforehand. The ways take turns, and what counts is the median of the rounds. CPU seconds
are those of the drivers and all that they have started: Spark's JVM and its Python workers.

    make bench-groups     CDC_BENCH_ROWS=n rows (200,000), CDC_BENCH_GROUPS=n groups (4), CDC_BENCH_ROUNDS=n rounds (3)
"""

from __future__ import annotations

import contextlib
import os
import statistics
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

ONE = "one group per task"


def read_snapshot(cli: Cli, per_task: int) -> tuple[float, float]:
    """Read all groups, one task after the other; seconds and CPU seconds."""
    with cli.opened() as (context, store):
        groups = sorted(context.plans.ensure(store).groups())
    cpu, began = 0.0, time.monotonic()
    for first in range(0, len(groups), per_task):
        cpu += _run_driver(context, groups[first : first + per_task])
    return time.monotonic() - began, cpu


def _run_driver(context: RunContext, groups: list[int]) -> float:
    """Read some groups as a task does; CPU seconds of the driver and all that it has started."""
    request = make_driver_request(context.pipeline, groups=groups, holder="bench")
    with start_attached(request) as driver, Meter(driver._process.pid, None) as meter:
        for _ in driver.output_lines():
            meter._look()
        published = driver.wait_for_outcome()["groups"]
        if [one["outcome"] for one in published] != ["published"] * len(groups):
            raise SystemExit(f"groups {groups} were not read: {published}")
    return sum(meter.used().values())


def main() -> None:
    """Measure both ways and print the table."""
    rows, count, rounds = (
        int(os.environ.get(f"CDC_BENCH_{name}", default))
        for name, default in (("ROWS", "200000"), ("GROUPS", "4"), ("ROUNDS", "3"))
    )
    taken: dict[str, list[tuple[float, float]]] = {ONE: [], f"{count} groups per task": []}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(MySQLServer({"innodb_buffer_pool_size": "1G", "tls_version": ""}))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cdc-bench-")))
        with contextlib.closing(server.connect()) as connection:
            make_shop(connection, "shop", rows, addresses=1, orders=1)
        server.execute("ANALYZE TABLE shop.customer")
        os.environ["AIRFLOW_CONN_CDC_SOURCE"] = server.uri()
        for number in range(rounds):
            for name in taken:
                settings = {"group_rows": rows // count, "chunk_rows": min(8096, rows // count)}
                cli = Cli(folder / f"{number}-{name}", server, "shop.customer", snapshot=settings)
                taken[name].append(read_snapshot(cli, 1 if name == ONE else count))
                print(f"{name}: {taken[name][-1][0]:.1f} s, {taken[name][-1][1]:.1f} CPU s", file=sys.stderr)
        (mysql,) = server.execute("SELECT VERSION()")[0]
    print(f"{rows:,} rows of the customer table (18 columns), {count} groups, medians of {rounds} rounds\n")
    print("| | seconds | CPU seconds |\n|---|--:|--:|")
    for name, found in taken.items():
        seconds, cpu = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"| {name} | {seconds:.1f} | {cpu:.1f} |")
    one, several = taken.values()
    pairs = list(zip(one, several, strict=True))
    ratios = [statistics.median(b[index] / a[index] for a, b in pairs) for index in (0, 1)]
    print(f"| ratio, median of the rounds | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    machine(str(mysql))


if __name__ == "__main__":
    main()
