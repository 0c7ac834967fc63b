"""How fast source and sink are compared, and what it takes: seconds, CPU seconds of both sides, and memory.

A table of 18 columns is copied, then ``verify`` runs in a process of its own, several times; what counts is the median.
Once with the source idle, once while 2,000 changes a second are written to the table and no stream runs. Beside it
stands what decided how the source is read (docs/decisions/0026-sums-of-hashes.md): the same rows read and hashed by our
own reader, and checksums that MySQL computes of them, both chunk by chunk over two connections.

    make bench-verify    CDC_BENCH_ROWS=n rows (10,000,000), CDC_BENCH_ROUNDS=n rounds (3), CDC_BENCH_ARMS=words
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.snapshot import _cpu, _cpu_of_session, changes, machine
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.workload_tables import CUSTOMER, make_shop

IDLE, BUSY = "verify, source idle", "verify, 2,000 changes/s meanwhile"
SOURCE, SINK = "the source's rows, read and hashed", "the sink's rows, read and hashed"
SHA, CRC = "checksums by MySQL, 128 bits (of SHA2)", "checksums by MySQL, 32 bits (CRC32)"
_KEY, _NAMES = "c_customer_sk", [name for name, _, _ in CUSTOMER.columns]


def _verify(cli: Cli) -> None:
    from airflow_provider_cdc.verify.run import verify_tables

    (found,) = verify_tables(cli.context)
    assert found.is_equal, found


def _told(cli: Cli) -> Any:
    from airflow_provider_cdc.verify.task import RowHasher

    (table,) = cli.context.plans.require().tables
    return RowHasher(tuple(c.name for c in table.copied_columns), table.key, (1, 2))


def _source(cli: Cli) -> None:
    from airflow_provider_cdc.config.load_limits import LoadLimits
    from airflow_provider_cdc.verify.source_scan import TableSource
    from airflow_provider_cdc.verify.task import RowCollector

    context, told = cli.context, _told(cli)
    plan = context.plans.require()
    lineage = context.resume_state(plan)[1]
    source = TableSource(context, plan.tables[0], plan.definitions_for(lineage)[0], lineage, LoadLimits())
    source.read_chunks(plan.chunks, lambda: RowCollector(told))


def _sink(cli: Cli) -> None:
    from airflow_provider_cdc.verify.task import SinkScan, run_scans_in_threads, split_evenly
    from tests.support.delta import delta_table

    context, told = cli.context, _told(cli)
    files, _ = delta_table(context, context.plans.require().tables[0]).plan_scan()
    run_scans_in_threads([SinkScan(share, told) for share in split_evenly(files, 32)])


def _by_mysql(expression: str) -> Callable[[Cli], None]:
    """Checksums of chunks, over two connections."""

    def run(cli: Cli) -> None:
        from airflow_provider_cdc.mysql.client.key_sql import chunk_condition, table_name
        from airflow_provider_cdc.mysql.client.session import connect, query_rows

        context = cli.context
        plan = context.plans.require()
        (table,) = plan.tables

        def read(worker: int) -> None:
            with contextlib.closing(connect(context.connect_args)) as connection:
                for chunk in plan.chunks[worker::2]:
                    condition = chunk_condition(table, chunk)
                    query_rows(connection, f"SELECT COUNT(*), {expression} FROM {table_name(table)} WHERE {condition}")

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(read, range(2)))

    return run


_ROW = f"CONCAT_WS('#', {', '.join(_NAMES)}, CONCAT({', '.join(f'ISNULL({name})' for name in _NAMES)}))"
_HALF = f"BIT_XOR(CAST(CONV(SUBSTRING(SHA2({_ROW}, 256), {{}}, 16), 16, 10) AS UNSIGNED))"
ARMS: dict[str, Callable[[Cli], None]] = {
    IDLE: _verify,
    BUSY: _verify,
    SOURCE: _source,
    SINK: _sink,
    SHA: _by_mysql(f"{_HALF.format(1)}, {_HALF.format(17)}"),
    CRC: _by_mysql(f"BIT_XOR(CRC32({_ROW}))"),
}


class _Existing(Cli):
    """A pipeline whose file and copy another process has made."""

    def write(self) -> None:
        """It is there."""


def child(name: str, warm: str, folder: str, uri: str, pid: int) -> None:
    """Run one arm once, and print what it took."""

    class Server:
        def uri(self, **_: str) -> str:
            return uri

    ARMS[name](_Existing(Path(warm), Server(), name="warm"))  # type: ignore[arg-type]
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    before = time.monotonic(), _cpu_of_session(), _cpu(pid)
    print("ready", flush=True)
    ARMS[name](_Existing(Path(folder), Server()))  # type: ignore[arg-type]
    after = time.monotonic(), _cpu_of_session(), _cpu(pid)
    seconds, client, server = (b - a for a, b in zip(before, after, strict=True))
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    print(json.dumps({"seconds": seconds, "client": client, "server": server, "peak": peak}))


def measure(server: MySQLServer, name: str, arguments: Sequence[str], keys: Sequence[int]) -> dict[str, float]:
    """Run an arm once, in a process of its own."""
    command = [sys.executable, "-m", "bench.verify", "--arm", name, *arguments]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        )
        assert process.stdout
        ready = next((line for line in process.stdout if line == "ready\n"), "")
        changed = stack.enter_context(changes(server, keys)) if ready and name == BUSY else None
        said = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{name} failed")
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return {**found, "changes": changed[0] / changed[1] if changed else 0.0}


def main() -> None:
    rows, rounds = int(os.environ.get("CDC_BENCH_ROWS", "10000000")), int(os.environ.get("CDC_BENCH_ROUNDS", "3"))
    names = [name for name in ARMS if os.environ.get("CDC_BENCH_ARMS", "") in name]
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with (
        MySQLServer({"innodb_buffer_pool_size": "4G", "tls_version": ""}) as server,
        tempfile.TemporaryDirectory(prefix="cdc-bench-") as scratch,
    ):
        for name, database, size in (("warm", "warm", 100_000), ("p", "shop", rows)):
            with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SET sql_log_bin = 0")
                make_shop(connection, database, size, addresses=1, orders=1)
            cli = Cli(Path(scratch) / name, server, f"{database}.customer", name=name)
            cli.snapshot()
            cli.catch_up()
        (keys,) = zip(*server.execute(f"SELECT {_KEY} FROM shop.customer LIMIT 1000000"), strict=True)
        arguments = [str(Path(scratch) / name) for name in ("warm", "p")] + [server.uri(), str(server.pid or 0)]
        for _ in range(rounds):
            for name in names:
                taken[name].append(measure(server, name, arguments, keys))
                print(f"{name}: {taken[name][-1]['seconds']:.1f} s", file=sys.stderr)
        (mysql,) = server.execute("SELECT VERSION()")[0]
    print(f"{rows:,} rows of the customer table (18 columns), medians of {rounds} rounds\n")
    print("| | seconds | rows/s | client CPU s | server CPU s | peak of memory, MB |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, found in taken.items():
        middle = {k: statistics.median(f[k] for f in found) for k in found[0]}
        print(
            f"| {name} | {middle['seconds']:.1f} | {rows / middle['seconds']:,.0f} | {middle['client']:.1f} | "
            f"{middle['server']:.1f} | {middle['peak']:.0f} |"
        )
    if BUSY in taken:
        print(f"\nchanges a second meanwhile: {statistics.median(f['changes'] for f in taken[BUSY]):,.0f}")
    machine(str(mysql))


if __name__ == "__main__":
    given: list[Any] = sys.argv[1:]
    if given[:1] == ["--arm"]:
        child(given[1], given[2], given[3], given[4], int(given[5]))
    else:
        main()
