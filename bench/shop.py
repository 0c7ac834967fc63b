"""What is copied and what it is compared with: a MySQL server with a shop, its writers, the lake, the proof."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import Any

from rich.table import Table

from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.sinks.files.layout import LocalFiles
from airflow_provider_cdc.state import StateDatabase
from bench.lake import Lake, same_for_others
from bench.screen import DemoFailed, Screen
from tests.support.oracle import below, check_ledger, compare_all, open_copy
from tests.support.servers import MySQLServer
from tests.support.workload import Counters, Writers, make_shop

DATABASE, USER = "shop", "cdc_demo"
TABLES = ("customer", "customer_address", "orders", "ledger")
#: Customer of an order that no writer touches: all others have higher numbers.
_OLD_CUSTOMER = -1_000_000


class Shop:
    """The source, the lake that a pipeline copies it to, and the proof that both hold the same.

    :param lake: where the copy goes.
    :param pipeline: name of the pipeline.
    :param customers: rows of the largest table; the two related ones have a twentieth and a fifth as many.
    :param rate: transactions a second of all writers together.
    """

    def __init__(self, screen: Screen, lake: Lake, pipeline: str, customers: int, rate: float) -> None:
        self.screen, self.lake, self.pipeline = screen, lake, pipeline
        self.customers, self.rate = customers, rate
        self.sink = lake.sink(pipeline)
        self.server = MySQLServer()

    def open(self, stack: ExitStack) -> dict[str, str]:
        """Start the server and fill it, until the stack is closed.

        :returns: ``user`` and ``password`` of a user with the least grants.
        """
        with self.screen.phase("MySQL", "Starting a MySQL server"):
            stack.enter_context(self.server)
        version = self.server.execute("SELECT VERSION()")[0][0]
        self.screen.say(f"MySQL {version} answers on {self.server.host}:{self.server.port}")
        with self.screen.phase("shop", f"Making the shop: {self.customers:,} customers, their addresses and orders"):
            if not self.server.controllable:
                if self.server.execute("SHOW DATABASES LIKE %s", (DATABASE,)):
                    raise DemoFailed(f"the server given has a database {DATABASE}: drop it, or name another server")
                stack.callback(self.server.execute, f"DROP USER IF EXISTS {USER}@'%'")
                stack.callback(self.server.execute, f"DROP DATABASE IF EXISTS {DATABASE}")
            with closing(self.server.connect()) as connection:
                n = self.customers
                make_shop(connection, DATABASE, n, addresses=n // 20, orders=n // 5)
        return self.server.create_cdc_user(USER, databases=DATABASE)

    def writers(self) -> Writers:
        return Writers(self.server.connect_args(), rate=self.rate)

    def add_invalid_date(self) -> None:
        """Add an order with a date that the copy cannot have."""
        self.screen.say("One old order has a date that does not exist, which MySQL allows: ordered_at = '2020-00-10'")
        self.server.session(
            DATABASE,
            "SET sql_mode = ''",
            f"INSERT INTO orders (customer, line, ordered_at) VALUES ({_OLD_CUSTOMER}, 0, '2020-00-10')",
        )

    def correct_date(self) -> None:
        """Give that order a date."""
        statement = f"UPDATE {DATABASE}.orders SET ordered_at = '2020-01-10' WHERE customer = {_OLD_CUSTOMER}"
        self.screen.say(statement)
        self.server.execute(statement)

    def alter(self) -> None:
        """Add a column to the orders, and fill it for some of them, while the writers write."""
        self.screen.say(f"ALTER TABLE {DATABASE}.orders ADD COLUMN note VARCHAR(40); the writers go on")
        self.server.execute(f"ALTER TABLE {DATABASE}.orders ADD COLUMN note VARCHAR(40)")
        self.server.execute(f"UPDATE {DATABASE}.orders SET note = 'checked' LIMIT 1000")

    def show_new_column(self) -> None:
        """Say that the copy has the column.

        :raises DemoFailed: if it has not.
        """
        copy = open_copy(below(self.lake.place, f"{DATABASE}/orders"))
        columns = copy.columns if copy else []
        if "note" not in columns:
            raise DemoFailed(f"the copy of {DATABASE}.orders has no column note; it has {', '.join(columns)}")
        self.screen.say(f"The copy of {DATABASE}.orders has the column note, too")

    def end(self) -> Position:
        """Where the server's binlog ends now."""
        file, position = self.server.execute("SHOW BINARY LOG STATUS")[0][:2]
        return Position(str(file), int(position))

    def applied(self, end: Position) -> bool:
        """Whether the lake has everything up to a position."""
        offset = self.sink.resume_point().read()
        return offset is not None and end <= offset.at

    def store(self) -> StateDatabase:
        """The bookkeeping."""
        return StateDatabase.open(
            f"sqlite:///{LocalFiles.for_pipeline(self.lake.path, self.pipeline).state_database}", migrate=False
        )

    def rows(self, table: str) -> int:
        return int(self.server.execute(f"SELECT COUNT(*) FROM {DATABASE}.{table}")[0][0])

    def prove(self) -> bool:
        """Compare every value of every row, while nobody writes."""
        equal = True
        with closing(self.server.connect()) as connection:
            for table in TABLES:
                differences = compare_all(connection, DATABASE, self.lake.place, [table])
                text = "".join(map(str, differences)) or f"{DATABASE}.{table}: {self.rows(table):,} rows, all equal"
                self.screen.say(text)
                equal &= not differences
        problems = check_ledger(self.lake.place, DATABASE)
        self.screen.say("; ".join(problems) or "the ledger has every number of every writer once")
        return equal and not problems

    def prove_for_others(self) -> bool:
        """Compare what other programs read with what was proved equal."""
        return same_for_others(self.lake, {f"{DATABASE}/{name}": f"{DATABASE}.{name}" for name in TABLES}, self.screen)

    def show_reader_commands(self, *, stays: bool) -> None:
        """Show how to read the copy with other programs.

        :param stays: whether the copy can be read after this, until Ctrl-C.
        """
        if commands := self.lake.reader_commands(f"{DATABASE}.customer"):
            when = "Until Ctrl-C" if stays else "As long as the catalog runs, with STAY=1"
            self.screen.say(f"{when}, other programs read the copy in another terminal:", "bold")
            for needed, command in commands.items():
                self.screen.console.print(f"# {needed}\n{command}", markup=False, soft_wrap=True)

    def tell(self, done: Counters, steady: Position) -> None:
        """Show what was copied, and how fast.

        :param done: what the writers have done.
        :param steady: where the stream had caught up with them: the lag counts from there.
        """
        with closing(self.store()) as store:
            taken = store.snapshot(self.pipeline)
            assert taken is not None and taken.finished_at is not None
            progress = store.table_progress(self.pipeline, taken.generation)
            totals, batches = store.batch_totals(self.pipeline), store.last_batches(self.pipeline, 100_000)
        tables = Table(caption="corrected: rows that the binlog changed while their chunk was read")
        tables.add_column("table")
        for name in ("rows now", "snapshot rows", "chunks", "corrected"):
            tables.add_column(name, justify="right")
        for row in progress:
            numbers = (self.rows(row.table), row.rows, row.chunks, row.corrected)
            tables.add_row(f"{row.database}.{row.table}", *(f"{n:,}" for n in numbers))
        self.screen.console.print()
        self.screen.console.print(tables)
        rows, speed = sum(row.rows for row in progress), (taken.finished_at - taken.created_at) / timedelta(seconds=1)
        late = [b for b in batches if b.changes and b.start_offset and steady <= position(b.start_offset)]
        spent = [f"{name} {seconds:.0f}" for name, seconds in self.screen.phases]
        facts = Table(show_header=False)
        facts.add_row("snapshot", f"{rows:,} rows, {rows / speed:,.0f} rows/s from plan to last commit")
        facts.add_row("stream", f"{totals.changes:,} changes applied in {totals.batches} batches")
        facts.add_row(
            "lag, from commit in MySQL\nto commit in the copy",
            f"{lag(late)} over the {len(late)} batches after the catch-up\n"
            "(approximate: percentiles of the batches' own percentiles, weighted by changes)",
        )
        facts.add_row(
            "writers", f"{done.transactions:,} transactions, {done.rows:,} rows, {done.rollbacks:,} rolled back"
        )
        facts.add_row("seconds", f"{', '.join(spent)}; sum {sum(seconds for _, seconds in self.screen.phases):.0f}")
        facts.add_row("machine", f"{os.cpu_count()} cores, load {', '.join(f'{n:.1f}' for n in os.getloadavg())}")
        self.screen.console.print(facts)


def position(offset: dict[str, Any]) -> Position:
    return Position(offset["file"], offset["position"])


def lag(batches: list[Any]) -> str:
    """Lag of batches, each counted as often as it has changes."""
    return f"p50 {_percentile(batches, 'lag_p50_ms', 0.5)} s, p95 {_percentile(batches, 'lag_p95_ms', 0.95)} s"


def _percentile(batches: list[Any], name: str, share: float) -> str:
    pairs = sorted((getattr(b, name), b.changes) for b in batches if getattr(b, name) is not None)
    left = share * sum(count for _, count in pairs)
    for value, count in pairs:
        left -= count
        if left <= 0:
            return f"{value / 1000:.1f}"
    return "-"
