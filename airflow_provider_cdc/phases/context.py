"""What every phase of one run works with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_cdc.connections import Connection, database_url, mysql_args, resolve, spark_settings
from airflow_provider_cdc.core.plan import Plan
from airflow_provider_cdc.exceptions import NotReadyError
from airflow_provider_cdc.mysql.planner import make_plan
from airflow_provider_cdc.mysql.session import connect
from airflow_provider_cdc.pipeline import Pipeline
from airflow_provider_cdc.sinks.layout import Layout, read_json, write_json_once
from airflow_provider_cdc.store import Segment, Store


class Reporter(Protocol):
    """Hears how far a phase is."""

    def line(self, text: str) -> None:
        """One finished thing, worth a line."""

    def progress(self, table: str, done: int, total: int, rows: int) -> None:
        """Chunks of a table done so far and the rows in them."""


class Quiet:
    """Reporter that says nothing."""

    def line(self, text: str) -> None:
        """Nothing."""

    def progress(self, table: str, done: int, total: int, rows: int) -> None:
        """Nothing."""


@dataclass
class Context:
    """A pipeline with its secrets resolved.

    :param pipeline: the pipeline.
    :param connect_args: pymysql.connect keyword arguments of the source.
    :param store_url: address of the bookkeeping database; ``None`` for a SQLite file in the sink.
    :param reporter: hears about progress.
    :param spark: Spark's master and settings.
    """

    pipeline: Pipeline
    connect_args: Mapping[str, Any] = field(repr=False)
    store_url: Any = field(default=None, repr=False)
    reporter: Reporter = field(default_factory=Quiet)
    spark: tuple[str, Mapping[str, str]] = ("local[2]", {})

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        reporter: Reporter | None = None,
        find: Callable[[str], Connection] = resolve,
    ) -> Context:
        """Resolve the connections of a pipeline.

        :param find: finds a connection by its id; by default in the environment.
        :raises NotReadyError: if one is missing or of the wrong kind.
        """
        args = mysql_args(find(pipeline.source.conn_id))
        url = database_url(find(pipeline.state.conn_id)) if pipeline.state.conn_id else None
        spark = pipeline.spark
        master, conf = spark_settings(find(spark.conn_id)) if spark.conn_id else (spark.master or "local[2]", {})
        return cls(pipeline, args, url, reporter or Quiet(), (master, {**conf, **spark.conf}))

    @property
    def layout(self) -> Layout:
        """Paths in the sink."""
        return Layout(self.pipeline.sink.path, self.pipeline.name)

    def store(self) -> Store:
        """The bookkeeping database, created or brought up to date if needed."""
        if self.store_url is not None:
            return Store.open(self.store_url, migrate=True)
        self.layout.private.mkdir(parents=True, exist_ok=True)
        return Store.open(f"sqlite:///{self.layout.bookkeeping}", migrate=True)

    def load_plan(self) -> Plan | None:
        """The plan in the sink, which is the one that counts; ``None`` if there is none yet.

        :raises NotReadyError: if the pipeline captures other tables than it was planned with.
        """
        found = read_json(self.layout.plan)
        if found is None:
            return None
        plan = Plan.from_json(found)
        if plan.patterns != (self.pipeline.source.tables, self.pipeline.source.exclude):
            raise NotReadyError(
                f"source.tables or source.exclude of {plan.pipeline} changed since its snapshot (it had "
                f"tables {list(plan.patterns[0])}, exclude {list(plan.patterns[1])})",
                "Adding and removing tables is not built yet: put them back, or start with a fresh sink.path",
            )
        return plan

    def need_plan(self) -> Plan:
        """The plan in the sink.

        :raises NotReadyError: if there is none.
        """
        plan = self.load_plan()
        if plan is None:
            raise NotReadyError(
                f"pipeline {self.pipeline.name} has no snapshot in {self.layout.root}",
                "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
            )
        return plan

    def new_plan(self, generation: int) -> Plan:
        """Plan from the source as it is now; nothing is written."""
        settings = self.pipeline.snapshot
        with closing(connect(self.connect_args)) as connection:
            return make_plan(
                connection,
                self.pipeline.name,
                self.pipeline.captures,
                patterns=(self.pipeline.source.tables, self.pipeline.source.exclude),
                generation=generation,
                chunk_rows=settings.chunk_rows,
                group_rows=settings.group_rows,
            )

    def ensure_plan(self, store: Store) -> Plan:
        """The plan in the sink, made now if there is none; mirrored into the bookkeeping if that has lost it."""
        plan = self.load_plan()
        if plan is None:
            newest = store.snapshot(self.pipeline.name)
            plan = self.new_plan(1 if newest is None else newest.generation + 1)
            self._refuse_lost_plan(plan)
            if not write_json_once(self.layout.plan, plan.to_json()):
                return self.ensure_plan(store)  # another process was faster: its plan counts
            self.reporter.line(
                f"planned {len(plan.tables)} tables: {len(plan.chunks)} chunks in {len(plan.groups())} groups, "
                f"P0 at {plan.p0.at}"
            )
        record_plan(store, plan, self.pipeline.snapshot.chunk_rows)
        return plan

    def _refuse_lost_plan(self, plan: Plan) -> None:
        """Tables are made after the plan is written: one that is there already has rows that no plan accounts for."""
        for table in plan.tables:
            folder = self.layout.table(table)
            if (folder / "_delta_log").exists():
                raise NotReadyError(
                    f"there is a Delta table at {folder}, but no plan at {self.layout.plan}",
                    "Restore the plan, or start with a fresh sink.path (or remove the table)",
                )


def record_plan(store: Store, plan: Plan, chunk_rows: int) -> bool:
    """Mirror a plan into the bookkeeping.

    :returns: whether it was not there before.
    """
    store.register(plan.pipeline, plan.p0.server)
    if store.plan(plan.pipeline, plan.generation) is not None:
        return False
    names = [list(t.id) for t in plan.tables]
    per_table = Counter(c.table for c in plan.chunks)
    store.write_plan(
        plan.pipeline,
        plan.generation,
        {"p0": plan.p0.to_json(), "lineage": plan.lineage.to_json()},
        [
            {
                "database": t.database,
                "name": t.name,
                "schema": t.to_json(),
                "fingerprint": t.fingerprint(),
                "rows_estimate": per_table[i] * chunk_rows,
            }
            for i, t in enumerate(plan.tables)
        ],
        [
            {"group_no": no, "tables": [names[i] for i in sorted({c.table for c in chunks})]}
            for no, chunks in plan.groups().items()
        ],
        [
            {
                "chunk_no": c.no,
                "group_no": c.group,
                "database": names[c.table][0],
                "table_name": names[c.table][1],
                "lower": list(c.lower),
                "upper": list(c.upper),
            }
            for c in plan.chunks
        ],
    )
    lineage = plan.lineage
    store.set_lineage(plan.pipeline, [Segment(lineage.server, lineage.start_file, plan.p0.at.position, lineage.base)])
    return True
