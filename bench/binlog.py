"""The binlog side by side with others, on one MySQL server and one machine: changes a second, and bytes a second.

Everyone reads the same stretches of one binlog from the server: rows of the 18-column customer table in large
transactions, and transactions of one row each, also compressed ones. Ours and ``mysql-replication`` end with the last
change in memory (ours as Arrow columns, theirs as dictionaries), Debezium's engine with the last record handed to a
consumer that forgets it, and ``mysqlbinlog --raw`` with a file that holds the bytes as they came. Another arm of ours
is the staging of the stream: two processes, each with half of the stretch, write what they decode as typed Parquet; the
same with a condition that a tenth of the rows fulfils, and with two hashed columns. The speeds of all count the changes
in the binlog.
What counts is the median, and of ratios the median over the rounds. Of ours is told, too, how many changes it reads in
a second of its processor's time: that number means something on a machine that does other work as well.

    make bench-binlog       CDC_BENCH_ROWS=n rows (800,000), CDC_BENCH_ROUNDS=n rounds (3), CDC_BENCH_ARMS=words,of,arms
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from uuid import uuid4

from airflow_provider_cdc.apply.task import StreamJob
from airflow_provider_cdc.model.column_policy import HASH, ColumnPolicy
from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.walk.step import NEVER
from airflow_provider_cdc.mysql.binlog.walk.walker import BinlogWalker
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.files.layout import Layout
from airflow_provider_cdc.sinks.storage.open_storage import open_storage
from airflow_provider_cdc.sinks.storage.storage import write_json
from bench import debezium
from tests.support.packages import find_mysql
from tests.support.servers import MySQLServer
from tests.support.workload_tables import make_shop

OWN, STAGED, RAW = "own -> Arrow", "own, two processes -> Parquet", "mysqlbinlog --raw -> file"
FILTERED, HASHED = f"{STAGED}, a tenth of the rows", f"{STAGED}, two columns hashed"
REPLICATION, DEBEZIUM = "mysql-replication -> dictionaries", "Debezium engine -> nowhere"
BULK, SINGLE, PACKED = "rows in large transactions", "transactions of one row", "compressed transactions of one row"
#: (slower one, how many times as fast ours is to be, in which stretch).
GOALS = ((DEBEZIUM, 40.0, BULK), (REPLICATION, 80.0, BULK), (RAW, 0.3, BULK))
#: What is not run on a stretch.
LEFT_OUT = {SINGLE: (DEBEZIUM,), PACKED: (DEBEZIUM, REPLICATION, STAGED, FILTERED, HASHED)}
#: (stretch, arm, changes a second that are to be reached).
RATES = ((BULK, STAGED, 400_000), (PACKED, OWN, 200_000))
#: Rows that mysql-replication reads: it would take minutes for all.
_FEW = 20_000
_FLUSH_BYTES = 16 << 20

Stretch = tuple[Position, Position, dict[tuple[str, str], TableSchema], int]


def own(server: MySQLServer, stretch: Stretch) -> tuple[float, int]:
    """(seconds, changes)."""
    low, high, captured, _ = stretch
    lineage = Timeline("bench", low.file)
    stream = BinlogStream(
        server.connect_args(), server_id=77_000_001, replica_uuid=str(uuid4()), file=low.file, position=low.position
    )
    with stream:
        over_time = {name: DefinitionHistory.from_single(table) for name, table in captured.items()}
        walker, changes, began = (
            BinlogWalker(stream, over_time, lambda f: lineage.seq(Position(f, 0))),
            0,
            time.monotonic(),
        )
        for _ in walker.steps(high):
            if walker.held_bytes >= _FLUSH_BYTES and walker.can_take:
                changes += sum(batch.num_rows for _, batch in walker.take_changes())
        changes += sum(batch.num_rows for _, batch in walker.take_changes())
        return time.monotonic() - began, changes


def with_condition(table: TableSchema, rows: int) -> TableSchema:
    """The table, of whose rows a tenth is copied."""
    condition = "c_birth_day <= 3" if table.name == "copy" else f"a < {rows // 10}"
    return table.replace(condition=condition, condition_columns=(condition.partition(" ")[0],))


def with_hashes(table: TableSchema, _: int) -> TableSchema:
    """The table, of which two columns are hashed."""
    names = ("c_last_name", "c_email_address") if table.name == "copy" else ("b", "d")
    return table.replace(policies=tuple(ColumnPolicy(name, HASH) for name in names))


def staged(
    server: MySQLServer,
    stretch: Stretch,
    pool: ProcessPoolExecutor,
    with_rules: Callable[[TableSchema, int], TableSchema] = lambda table, _: table,
) -> tuple[float, int]:
    """(seconds, changes): what the two tasks of one batch of the stream do, at the same time."""
    low, high, captured, rows = stretch
    captured = {name: with_rules(table, rows) for name, table in captured.items()}
    ((uuid,),) = server.execute("SELECT @@server_uuid")
    with tempfile.TemporaryDirectory() as folder:
        start = Offset(str(uuid), low.file, low.position, "")
        plan = Plan(
            "bench",
            1,
            start,
            Timeline(str(uuid), low.file),
            (),
            tuple(map(DefinitionHistory.from_single, captured.values())),
            (),
        )
        storage = open_storage(folder)
        write_json(storage, Layout("bench").plan, plan.to_json())
        replicas = tuple((77_000_003 + i, str(uuid4())) for i in range(3))
        source, sink = server.connect_args(), DeltaSink(folder, "bench")
        job = StreamJob(source, replicas[0], replicas[1:], plan.timeline, sink, storage, "bench", 1, 256 << 20, NEVER)
        job = replace(job, hash_key=b"a key for a benchmark")
        with contextlib.closing(job.make_planner()) as planner:
            middle = planner.find_batch_end(start, (high.position - low.position) // 2)
        began = time.monotonic()
        tasks = [
            pool.submit(StreamJob.stage_range, job, start, middle, "first"),
            pool.submit(
                StreamJob.stage_range, job, middle, middle.replace(file=high.file, position=high.position), "second", 1
            ),
        ]
        manifests = [task.result() for task in tasks]
        seconds, changes = time.monotonic() - began, sum(table["rows"] for m in manifests for table in m["tables"])
        # Of those that are left out, only the reader knows.
        return seconds, changes if with_rules is not with_condition else rows


def replication(server: MySQLServer, stretch: Stretch) -> tuple[float, int]:
    """(seconds, changes); ends early."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import WriteRowsEvent

    low, _, captured, _ = stretch
    args = {k: v for k, v in server.connect_args().items() if k in ("host", "port", "user", "password")}
    ((_, table),) = captured
    reader = BinLogStreamReader(
        connection_settings=args,
        server_id=77_000_002,
        log_file=low.file,
        log_pos=low.position,
        resume_stream=True,
        only_events=[WriteRowsEvent],
        only_tables=[table],
    )
    changes, began = 0, time.monotonic()
    for event in reader:
        changes += len(event.rows)
        if changes >= _FEW:
            break
    seconds = time.monotonic() - began
    reader.close()
    return seconds, changes


def raw(server: MySQLServer, stretch: Stretch) -> tuple[float, int]:
    """(seconds, changes) of the whole file that the stretch is in, in proportion."""
    low, high, _, rows = stretch
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--host={server.host}", f"--port={server.port}", f"--user={server.user}", "--protocol=tcp"]
        command = [
            *_mysqlbinlog(),
            *options,
            "--read-from-remote-server",
            "--raw",
            f"--result-file={folder}/",
            low.file,
        ]
        began = time.monotonic()
        subprocess.run(command, check=True, env={**os.environ, "MYSQL_PWD": server.password}, capture_output=True)
        seconds = time.monotonic() - began
        size = sum(f.stat().st_size for f in Path(folder).iterdir())
    return seconds * (high.position - low.position) / size, rows


def _mysqlbinlog() -> list[str]:
    """The program of the unpacked server, with its own loader and libraries, or else the system's."""
    root = find_mysql()
    if not isinstance(root, Path):
        return ["mysqlbinlog"]
    loader = next(root.glob("usr/lib/*-linux-gnu*/ld-linux-*"))
    libraries = [loader.parent, loader.parent / "mysql", root / "usr/lib/mysql/private"]
    return [str(loader), "--library-path", ":".join(map(str, libraries)), str(root / "usr/bin/mysqlbinlog")]


def here(server: MySQLServer) -> Position:
    """End of the binlog."""
    file, position, *_ = server.execute("SHOW BINARY LOG STATUS")[0]
    return Position(str(file), int(position))


def captured(server: MySQLServer, database: str, table: str) -> dict[tuple[str, str], TableSchema]:
    """The schema of one table."""
    with contextlib.closing(connect(server.connect_args())) as connection:
        return {(database, table): read_schema(connection, database, table)}


def fill(server: MySQLServer, rows: int) -> dict[str, Stretch]:
    """Write the stretches, each in a binlog file of its own."""
    server.execute("FLUSH BINARY LOGS")
    low = here(server)
    step = 10_000
    for first in range(0, rows, step):
        server.execute(
            f"INSERT INTO shop.copy SELECT * FROM shop.customer ORDER BY c_customer_sk LIMIT {step} OFFSET {first}"
        )
    bulk = low, here(server), captured(server, "shop", "copy"), rows
    found = {BULK: bulk}
    singles = max(1, rows // 8)
    for name, compression in ((SINGLE, "OFF"), (PACKED, "ON")):
        server.execute("FLUSH BINARY LOGS")
        low = here(server)
        call = f"CALL singles({singles})"
        server.session("shop", "TRUNCATE single", f"SET binlog_transaction_compression = {compression}", call)
        found[name] = low, here(server), captured(server, "shop", "single"), singles
    return found


def prepare(server: MySQLServer, rows: int) -> None:
    """Tables and the procedure that fills one of them."""
    with contextlib.closing(server.connect()) as connection:
        make_shop(connection, "shop", rows, addresses=1, orders=1)
    server.execute("CREATE TABLE shop.copy LIKE shop.customer")
    server.execute(
        "CREATE TABLE shop.single (a INT PRIMARY KEY, b VARCHAR(40), c DECIMAL(12,2), d DATETIME(6), e BIGINT)"
    )
    server.execute(
        "CREATE PROCEDURE shop.singles(n INT) BEGIN DECLARE i INT DEFAULT 0; WHILE i < n DO "
        "INSERT INTO shop.single VALUES (i, CONCAT('name ', i), i / 7, NOW(6), i * i); SET i = i + 1; END WHILE; END"
    )


def main() -> None:
    rows, rounds = int(os.environ.get("CDC_BENCH_ROWS", "800000")), int(os.environ.get("CDC_BENCH_ROUNDS", "3"))
    words = os.environ.get("CDC_BENCH_ARMS", "").split(",")
    arms: dict[str, Callable[[MySQLServer, Stretch], tuple[float, int]]] = {
        OWN: own,
        STAGED: lambda server, stretch: staged(server, stretch, pool),
        FILTERED: lambda server, stretch: staged(server, stretch, pool, with_condition),
        HASHED: lambda server, stretch: staged(server, stretch, pool, with_hashes),
        RAW: raw,
        REPLICATION: replication,
    }
    variables = {
        "innodb_buffer_pool_size": "1G",
        "sync_binlog": 0,
        "innodb_flush_log_at_trx_commit": 0,
        "tls_version": "",
        "max_binlog_size": 1 << 30,
    }
    taken: dict[tuple[str, str], list[tuple[float, int]]] = {}
    busy: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(MySQLServer(variables))
        pool = stack.enter_context(ProcessPoolExecutor(2, get_context("spawn")))
        prepare(server, rows)
        if any(word in DEBEZIUM for word in words):
            engine = debezium.Engine(server.connect_args(), Path(stack.enter_context(tempfile.TemporaryDirectory())))

            def change() -> None:
                server.execute("DELETE FROM shop.copy")
                server.execute("INSERT INTO shop.copy SELECT * FROM shop.customer LIMIT 1")

            engine.mark("shop", "copy", change)
            server.execute("TRUNCATE TABLE shop.copy")
            arms[DEBEZIUM] = lambda _, stretch: engine.stream("shop", "copy", stretch[3])
        stretches = fill(server, rows)
        for warm in (own, arms[STAGED]):  # once, to be warm
            warm(server, stretches[SINGLE])
        for _ in range(rounds):
            for name, stretch in stretches.items():
                for arm, run in arms.items():
                    if not any(word in arm for word in words) or arm in LEFT_OUT.get(name, ()):
                        continue
                    before = time.process_time()
                    seconds, changes = run(server, stretch)
                    if arm == OWN:
                        busy.setdefault(name, []).append(changes / (time.process_time() - before))
                    if arm != REPLICATION and changes != stretch[3]:
                        raise SystemExit(f"{arm} has read {changes:,} of {stretch[3]:,} changes")
                    taken.setdefault((name, arm), []).append((seconds, changes))
                    print(f"{name}, {arm}: {changes / seconds:,.0f}/s", file=sys.stderr)
        (mysql,) = server.execute("SELECT VERSION()")[0]
    report(taken, stretches, str(mysql))
    for name, rates in busy.items():
        print(f"- {name}, {OWN}: {statistics.median(rates):,.0f} changes a second of processor time")


def report(taken: dict[tuple[str, str], list[tuple[float, int]]], stretches: dict[str, Stretch], mysql: str) -> None:
    """Print the table and the ratios."""

    def speeds(name: str, arm: str) -> list[float]:
        return [changes / seconds for seconds, changes in taken.get((name, arm), [])]

    print("| stretch of the binlog | arm | changes/s | MB/s |")
    print("|---|---|--:|--:|")
    for name, arm in taken:
        low, high, _, rows = stretches[name]
        middle = statistics.median(speeds(name, arm))
        size = (high.position - low.position) / rows
        print(f"| {name} | {arm} | {middle:,.0f} | {middle * size / 1e6:,.0f} |")
    print()
    for slow, goal, name in GOALS:
        pairs = list(zip(speeds(name, OWN), speeds(name, slow), strict=False))
        if pairs:
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"- {OWN} : {slow} = {ratio:.2f} ({'reaches' if ratio >= goal else 'MISSES'} {goal})")
    for arm in (FILTERED, HASHED):
        for name in (BULK, SINGLE):
            if pairs := list(zip(speeds(name, arm), speeds(name, STAGED), strict=False)):
                print(f"- {name}, {arm} : plain = {statistics.median(a / b for a, b in pairs):.2f}")
    for name, arm, wanted in RATES:
        if reached := speeds(name, arm):
            rate = statistics.median(reached)
            print(f"- {name}, {arm}: {rate:,.0f}/s ({'reaches' if rate >= wanted else 'MISSES'} {wanted:,})")
    print(f"\nMySQL {mysql}, Debezium {debezium.VERSION}")


if __name__ == "__main__":
    main()
