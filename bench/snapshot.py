"""The snapshot side by side with others, on one MySQL server and one machine: rows/s, and CPU seconds of both sides.

Every arm reads the 18-column customer table, in a process of its own, one arm after the other and that several times;
what counts is the median, and of ratios the median over the rounds. Time starts when the arm is ready to read (Python,
numba, Spark and Debezium have been started, and all their workers have read a small table) and ends when the rows are
committed, the files closed, or, for Debezium, the last record is handed over. Two arms of ours have rules: a condition
that a tenth of the rows fulfils, and two hashed columns; their speeds count all rows of the source.

    make bench-snapshot     CDC_BENCH_ROWS=n rows (4,000,000), CDC_BENCH_ROUNDS=n rounds (3), CDC_BENCH_ARMS=words
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import debezium
from bench import snapshot_arms as arms
from tests.support.servers import MySQLServer
from tests.support.workload_tables import make_shop

OWN, IDLE = "own, Spark, 8,096-row chunks", "own, threads, 8,096-row chunks"
LARGE, BUSY = "own, threads, 125,000-row chunks", "own, Spark, 2,000 changes/s meanwhile"
FILTERED, HASHED = f"{IDLE}, a tenth of the rows", f"{IDLE}, two columns hashed"
ICEBERG = "own, Spark, 8,096-row chunks, into Iceberg"
JDBC, DEBEZIUM = "Spark JDBC -> Parquet", "Debezium engine -> nowhere"
CONNECTORX = "ConnectorX -> Parquet, one process"
ARMS: dict[str, Callable[[], contextlib.AbstractContextManager[arms.Arm]]] = {
    OWN: lambda: arms.own_on_spark(8096),
    BUSY: lambda: arms.own_on_spark(8096),
    ICEBERG: lambda: arms.own_on_spark(8096, "iceberg"),
    IDLE: lambda: arms.own_in_threads(8096),
    LARGE: lambda: arms.own_in_threads(125_000),
    FILTERED: lambda: arms.own_in_threads(8096, arms.FILTER),
    HASHED: lambda: arms.own_in_threads(8096, arms.HASHES),
    JDBC: arms.spark_jdbc,
    CONNECTORX: arms.connectorx,
    DEBEZIUM: lambda: arms.debezium_engine(2),
}
#: (faster one, slower one, how many times as fast it is to be).
GOALS = (
    *((OWN, JDBC, 2.5), (OWN, DEBEZIUM, 5.0), (OWN, CONNECTORX, 0.9)),
    *((IDLE, LARGE, 0.85), (BUSY, OWN, 0.8), (ICEBERG, OWN, 0.9)),
)
CHANGES_PER_SECOND, CHANGES_PER_TRANSACTION = 2000, 20


def child(name: str) -> None:
    """Run one arm once and print what it took."""
    server = int(os.environ["CDC_BENCH_PID"])
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder:
        os.environ["CDC_BENCH_SCRATCH"] = str(Path(folder) / "scratch")
        with ARMS[name]() as run:
            run("warm", Path(folder) / "warm")
            before = time.monotonic(), _cpu_of_session(), _cpu(server)
            print("ready", flush=True)
            counted = run("shop", Path(folder) / "shop")
            after = time.monotonic(), _cpu_of_session(), _cpu(server)
        seconds, client, served = (b - a for a, b in zip(before, after, strict=True))
        took = {"seconds": seconds, "client": client, "server": served}
        print(json.dumps({**took, "rows": counted or _rows(Path(folder) / "shop")}))


def _rows(folder: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.ParquetFile(f).metadata.num_rows for f in folder.rglob("*.parquet") if "_delta_log" not in f.parts)


def _cpu_of_session() -> float:
    """CPU seconds of this process and all others of its session: Spark's JVM and Python workers."""
    return sum(_cpu(int(p.name)) for p in Path("/proc").iterdir() if p.name.isdigit() and _session(p) == os.getsid(0))


def _session(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[3])
    except OSError:
        return -1


def _cpu(pid: int) -> float:
    try:
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # Its own, and that of the children that it has waited for.
    return sum(map(int, ended[11:15])) / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------- the parent


def usable(wanted: str) -> Iterator[str]:
    """Names of the arms that can run here; says why one cannot."""
    for name in ARMS:
        if wanted not in name:
            continue
        try:
            if name in (JDBC, DEBEZIUM):
                debezium.jars()
        except (subprocess.CalledProcessError, StopIteration) as error:
            print(f"left out: {name} ({error})", file=sys.stderr)
        else:
            yield name


@contextlib.contextmanager
def changes(server: MySQLServer, keys: Sequence[int]) -> Iterator[list[float]]:
    """Change rows with these keys all the time; what is given tells the changes and the seconds at the end."""
    over, found = threading.Event(), [0.0, 0.0]

    def write() -> None:
        pause = CHANGES_PER_TRANSACTION / CHANGES_PER_SECOND
        with contextlib.closing(server.connect(database="shop")) as connection, connection.cursor() as cursor:
            began = due = time.monotonic()
            while not over.is_set():
                some = ", ".join(str(k) for k in random.sample(keys, CHANGES_PER_TRANSACTION))
                found[0] += cursor.execute(
                    f"UPDATE customer SET c_birth_year = 1900 + (IFNULL(c_birth_year, 0) + 1) % 100 "
                    f"WHERE c_customer_sk IN ({some})"
                )
                due += pause
                time.sleep(max(0.0, due - time.monotonic()))
            found[1] = time.monotonic() - began

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def measure(server: MySQLServer, name: str, keys: Sequence[int]) -> dict[str, float]:
    """Run an arm once, in a process of its own, on a table with these keys."""
    env = {
        **os.environ,
        "CDC_BENCH_SERVER": json.dumps(server.connect_args()),
        "CDC_BENCH_PID": str(server.pid or 0),
    }
    command = [sys.executable, "-m", "bench.snapshot", "--arm", name]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
        )
        assert process.stdout
        ready = next((line for line in process.stdout if line == "ready\n"), "")
        changed = stack.enter_context(changes(server, keys)) if ready and name == BUSY else None
        said = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{name} failed")
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    expected = len(keys)
    if name == FILTERED and expected / 20 < found["rows"] < expected / 5:
        found["rows"] = expected  # also those that are left out were looked at
    if found["rows"] != expected:
        raise SystemExit(f"{name} has read {found['rows']:,.0f} of {expected:,} rows")
    if changed:
        found["changes"] = changed[0] / changed[1]
    return found


def main() -> None:
    rows = int(os.environ.get("CDC_BENCH_ROWS", "4000000"))
    rounds = int(os.environ.get("CDC_BENCH_ROUNDS", "3"))
    names = [*usable(os.environ.get("CDC_BENCH_ARMS", ""))]
    if not names:
        raise SystemExit("no arm can run")
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    # Nobody encrypts on the loopback, and the table fits into memory.
    with MySQLServer({"innodb_buffer_pool_size": "2G", "tls_version": ""}) as server:
        for database, size in (("warm", 300_000), ("shop", rows)):
            with contextlib.closing(server.connect()) as connection:
                make_shop(connection, database, size, addresses=1, orders=1)
        (keys,) = zip(*server.execute("SELECT c_customer_sk FROM shop.customer"), strict=True)
        for _ in range(rounds):
            for name in names:
                taken[name].append(measure(server, name, keys))
                print(f"{name}: {rows / taken[name][-1]['seconds']:,.0f} rows/s", file=sys.stderr)
        (mysql,) = server.execute("SELECT VERSION()")[0]
    report(rows, taken, str(mysql))


def report(rows: int, taken: dict[str, list[dict[str, float]]], mysql: str) -> None:
    """Print the table, the ratios and what they were measured on."""
    print(f"{rows:,} rows of the customer table (18 columns), medians of {len(next(iter(taken.values())))} rounds\n")
    print("| arm | rows/s | client CPU s | server CPU s |")
    print("|---|--:|--:|--:|")
    for name, found in taken.items():
        middle = {k: statistics.median(f[k] for f in found) for k in ("seconds", "client", "server")}
        print(f"| {name} | {rows / middle['seconds']:,.0f} | {middle['client']:.2f} | {middle['server']:.2f} |")
    print()
    for fast, slow, goal in GOALS:
        if fast in taken and slow in taken:
            pairs = zip(taken[fast], taken[slow], strict=True)
            ratio = statistics.median(b["seconds"] / a["seconds"] for a, b in pairs)
            print(f"- {fast} : {slow} = {ratio:.2f} ({'reaches' if ratio >= goal else 'MISSES'} {goal})")
    for name in (FILTERED, HASHED):
        if name in taken and IDLE in taken:
            pairs = zip(taken[name], taken[IDLE], strict=True)
            print(f"- {name} : plain = {statistics.median(b['seconds'] / a['seconds'] for a, b in pairs):.2f}")
    if BUSY in taken:
        print(f"- changes a second meanwhile: {statistics.median(f['changes'] for f in taken[BUSY]):,.0f}")
    machine(mysql, f"Debezium {debezium.VERSION}, ")


def machine(mysql: str = "", more: str = "") -> None:
    """Print what was measured on.

    :param mysql: version of the server, if there was one.
    """
    with contextlib.suppress(OSError):
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        print(f"\n{len(models)} x {models[0].partition(':')[2].strip()}")
    listed = []
    for package in ("numba", "pyarrow", "pyspark", "connectorx", "deltalake"):
        with contextlib.suppress(PackageNotFoundError):
            listed.append(f"{package} {version(package)}")
    today = datetime.datetime.now(datetime.UTC).date()
    server = f"MySQL {mysql}, " if mysql else ""
    print(f"{server}{more}Python {platform.python_version()}, {', '.join(listed)}; {today}")


if __name__ == "__main__":
    arguments: list[Any] = sys.argv[1:]
    if arguments[:1] == ["--arm"]:
        child(arguments[1])
    else:
        main()
