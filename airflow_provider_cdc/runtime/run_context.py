"""The context that all phases of one run share."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.connections import (
    ResolvedConnection,
    connect_server,
    database_url,
    mysql_connect_args,
    resolve_connection,
    spark_cluster,
    spark_master_and_conf,
)
from airflow_provider_cdc.config.hash_key import hash_key_from_connection, hash_key_id
from airflow_provider_cdc.config.spark_conf import (
    STREAM_REFUSED,
    ConnectServer,
    KubernetesCluster,
    YarnCluster,
    driver_pod_master,
    is_local_master,
)
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.ddl.schema_policy import SchemaPolicy
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.progress import ChunkProgress
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.start_mode import SNAPSHOT, format_start
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource, OpenStreamAt
from airflow_provider_cdc.mysql.chunks.planner import make_plan
from airflow_provider_cdc.mysql.client.catalog import find_tables, list_columns
from airflow_provider_cdc.mysql.client.identity import product_of
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import with_file_start_time
from airflow_provider_cdc.mysql.positions.start import plan_without_snapshot
from airflow_provider_cdc.runtime.liveness import LivenessMonitor
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.sinks.files.layout import Layout, LocalFiles, amendment_file, list_amendments, read_plan
from airflow_provider_cdc.sinks.protocol import Adoptable, Feature, InFolder
from airflow_provider_cdc.sinks.registry import open_sink
from airflow_provider_cdc.sinks.storage.open_storage import open_storage
from airflow_provider_cdc.sinks.storage.storage import Storage, write_json_once
from airflow_provider_cdc.system.failpoints import failpoint
from airflow_provider_cdc.transforms.copy_rules import CopyRules, column_names
from airflow_provider_cdc.transforms.row_transform import RowTransform
from airflow_provider_cdc.transforms.sealed_bounds import open_plan, seal_plan
from airflow_provider_cdc.transforms.shared_copies import check_shared_copies

if TYPE_CHECKING:
    from airflow_provider_cdc.sinks.protocol import PipelineSink
    from airflow_provider_cdc.state import StateDatabase


class Reporter(Protocol):
    """Receives the progress of a phase."""

    def line(self, text: str, level: int = logging.INFO) -> None:
        """Report a line of text, at a level of :mod:`logging`."""

    def progress(self, progress: ChunkProgress) -> None:
        """Report progress. Called often, even if nothing has changed."""


class SilentReporter:
    """Reporter that discards everything."""

    def line(self, text: str, level: int = logging.INFO) -> None:
        """Do nothing."""

    def progress(self, progress: ChunkProgress) -> None:
        """Do nothing."""


@dataclass
class RunContext:
    """A pipeline with its secrets resolved.

    :param pipeline: the pipeline.
    :param connect_args: pymysql.connect keyword arguments of the source.
    :param state_url: URL of the state database; ``None`` for a SQLite file.
    :param reporter: receives the progress.
    :param spark_config: Spark's master and settings.
    :param liveness: monitor of the stream's heartbeat.
    :param access: object-store settings from the sink's connection, if it has one.
    :param interrupt: set when a comparison must end before it is complete.
    :param hash_key: secret key of hashed columns; ``None`` if the pipeline hashes none.
    :param cluster: the cluster that runs the drivers; ``None`` if they run on the host of the task.
    :param kubernetes: how a Kubernetes cluster is accessed; ``None`` for the default.
    :param connect: the Spark Connect server that runs all jobs but the stream; ``None`` if Spark is started for them.
    """

    pipeline: Pipeline
    connect_args: Mapping[str, Any] = field(repr=False)
    state_url: Any = field(default=None, repr=False)
    reporter: Reporter = field(default_factory=SilentReporter)
    spark_config: tuple[str, Mapping[str, str]] = ("local[2]", {})
    liveness: LivenessMonitor = field(default_factory=LivenessMonitor, repr=False)
    access: StoreAccess | None = field(default=None, repr=False)
    interrupt: threading.Event = field(default_factory=threading.Event, repr=False)
    hash_key: bytes | None = field(default=None, repr=False)
    cluster: YarnCluster | KubernetesCluster | None = None
    kubernetes: ResolvedConnection | None = field(default=None, repr=False)
    connect: ConnectServer | None = None

    @classmethod
    def for_pipeline(
        cls,
        pipeline: Pipeline,
        reporter: Reporter | None = None,
        find_connection: Callable[[str], ResolvedConnection] = resolve_connection,
        *,
        is_driver: bool = False,
    ) -> RunContext:
        """Make a context by resolving the connections of a pipeline.

        :param find_connection: finds a connection by its id; by default in the environment.
        :param is_driver: whether this process is a driver, which has no access to the cluster that runs it.
        :raises NotReadyError: if a connection is missing or of the wrong kind.
        """
        args = mysql_connect_args(find_connection(pipeline.source.conn_id))
        url = database_url(find_connection(pipeline.state.conn_id)) if pipeline.state.conn_id else None
        spark = pipeline.spark
        master, cluster, connect = spark.master or "local[2]", None, None
        conf: Mapping[str, str] = {}
        if spark.conn_id:
            spark_connection = find_connection(spark.conn_id)
            connect = connect_server(spark_connection)
            if connect is None:
                if spark.master is not None:
                    raise NotReadyError("spark.conn_id and spark.master are both set", "Leave one of them out")
                master, conf = spark_master_and_conf(spark_connection)
                cluster = spark_cluster(spark_connection)
        sink = pipeline.sink
        access = sink.parse_connection(find_connection(sink.conn_id)) if sink.conn_id else None
        key_id = pipeline.transforms.hash_key_conn_id
        hash_key = hash_key_from_connection(find_connection(key_id)) if key_id else None
        conf = {**conf, **spark.conf}
        kubernetes = None
        if isinstance(cluster, KubernetesCluster):
            master = driver_pod_master(conf)
            if cluster.conn_id and not is_driver:
                kubernetes = find_connection(cluster.conn_id)
        return cls(
            pipeline,
            args,
            url,
            reporter or SilentReporter(),
            (master, conf),
            access=access,
            hash_key=hash_key,
            cluster=cluster,
            kubernetes=kubernetes,
            connect=connect,
        )

    def require_stream_master(self) -> None:
        """Check that there is a place where a stream can run.

        :raises NotReadyError: if the pipeline has a Spark Connect server and nothing else.
        """
        if self.connect is not None and self.pipeline.spark.master is None:
            raise NotReadyError(*STREAM_REFUSED)

    @property
    def runs_jobs_locally(self) -> bool:
        """Whether all jobs but the stream run in processes of this host."""
        return self.connect is None and is_local_master(self.spark_config[0])

    @property
    def layout(self) -> Layout:
        """Names in the sink's storage."""
        return Layout(self.pipeline.name, self.pipeline.sink.table_paths)

    @property
    def storage(self) -> Storage:
        """Storage of the plan, manifests, signals and staged batches."""
        return open_storage(self.pipeline.sink.path, self.access)

    @property
    def local_files(self) -> LocalFiles:
        """Files that are kept on this host."""
        return LocalFiles.for_pipeline(self.pipeline.sink.path, self.pipeline.name)

    @property
    def sink(self) -> PipelineSink:
        """The sink. Its module is imported on access."""
        return open_sink(self.pipeline.sink, self.pipeline.name, self.access)

    @property
    def copy_rules(self) -> CopyRules:
        """What the settings say about the columns and rows of the tables."""
        return CopyRules(self.pipeline, None if self.hash_key is None else hash_key_id(self.hash_key))

    @property
    def _patterns(self) -> tuple[tuple[str, ...], ...]:
        """What determines which tables are captured, and what their copies have of them."""
        rules = self.copy_rules.fingerprint
        return (*self.pipeline.source.patterns.values(), *([(rules,)] if rules else []))

    def row_transform(self, table: TableSchema) -> RowTransform:
        """Return the transform of a table's rows."""
        return RowTransform(table, self.hash_key)

    def require_feature(self, feature: Feature, needed_by: str) -> None:
        """Check that the sink supports a feature.

        :param needed_by: what needs the feature; the message begins with it.
        :raises NotReadyError: if the sink does not support it.
        """
        if feature not in self.sink.supports:
            raise NotReadyError(
                f"{needed_by}: a sink of kind {self.pipeline.sink.kind} does not support {feature}",
                "Use another sink.kind, or leave out what needs this",
            )

    def check_interrupted(self) -> None:
        """Check whether the work must end before it is complete.

        :raises TransientError: if so.
        """
        if self.interrupt.is_set():
            raise TransientError("the work was interrupted", "Run it again")

    def open_state_database(self, *, migrate: bool = True) -> StateDatabase:
        """Open the state database.

        :param migrate: create the database or bring it up to date if needed.
        :raises NotReadyError: if it needs that, and ``migrate`` is off.
        """
        from airflow_provider_cdc.state import StateDatabase  # imports SQLAlchemy, which not every process needs

        if self.state_url is not None:
            return StateDatabase.open(self.state_url, migrate=migrate)
        if migrate:
            self.local_files.create_folder()
        return StateDatabase.open(f"sqlite:///{self.local_files.state_database}", migrate=migrate)

    def describe_source(self, connection: Any | None = None) -> dict[str, Any]:
        """Return how people know the source: its connection, host and port, and the version if a connection is open."""
        address = {name: self.connect_args.get(name) for name in ("host", "port")}
        known = {"conn_id": self.pipeline.source.conn_id, **address}
        if connection is None:
            return known
        product = product_of(connection)
        return {**known, "version": f"{product.name} {'.'.join(map(str, product.version))}"}

    def report_event(
        self,
        store: StateDatabase,
        kind: str,
        detail: str,
        *,
        table: str | None = None,
        remedy: str | None = None,
        by: str | None = None,
        level: str | None = None,
    ) -> None:
        """Report an event as a line, a warning if it has a remedy, and add it to the journal unless that has an outage.

        See :meth:`StateDatabase.add_event` for the parameters.
        """
        self.reporter.line(f"{detail}. {remedy}" if remedy else detail, logging.WARNING if remedy else logging.INFO)
        with tolerate_outage():
            store.add_event(self.pipeline.name, kind, detail, table=table, remedy=remedy, by=by, level=level)

    def warn(self, text: str) -> None:
        """Report a line of text at WARNING."""
        self.reporter.line(text, logging.WARNING)

    def load_plan(self) -> Plan | None:
        """Load the plan from the sink, which is the authoritative copy; ``None`` if there is none yet.

        :raises NotReadyError: if the pipeline's settings no longer match those that it was planned with.
        """
        stored_plan = read_plan(self.storage, self.layout)
        if stored_plan is None:
            return None
        self._refuse_other_kind(stored_plan)
        plan = open_plan(stored_plan, self.hash_key).with_zero_dates(self.pipeline.source.zero_dates)
        if plan.patterns[2:] != self._patterns[2:]:
            changed_columns = self.find_changed_rules(plan)
            if changed_columns and self.sink.resume_point().read_with_timeline() is None:
                raise NotReadyError(
                    next(iter(changed_columns.values())),
                    "A table cannot be re-snapshotted before the stream has begun: undo the change until then, or "
                    "start with a fresh sink.path",
                )
        paths = self.pipeline.sink.table_paths
        for name, configured, planned in (
            ("table_path", paths.template, plan.table_path),
            ("lower_case", paths.lower_case, plan.lower_case),
            ("routes", paths.stored_routes, plan.routes),
        ):
            if configured != planned:
                shown = {route[0]: ", ".join(route[1:]) for route in plan.routes} if name == "routes" else planned
                raise NotReadyError(
                    f"sink.{name} of {plan.pipeline} changed since its snapshot (it was {shown})",
                    "The tables would not be found: undo the change, or start with a fresh sink.path",
                )
        if plan.start != self.pipeline.stream.start:
            raise NotReadyError(
                f"stream.start of {plan.pipeline} is {format_start(self.pipeline.stream.start)}, but it began with "
                f"{format_start(plan.start)}",
                "A pipeline can begin only once: undo the change, or start with a fresh sink.path",
            )
        return plan

    def _refuse_other_kind(self, plan: Plan) -> None:
        """Refuse a plan of a sink of another kind, before anything asks the sink. An older plan does not tell."""
        if plan.sink_kind and plan.sink_kind != self.pipeline.sink.kind:
            raise NotReadyError(
                f"sink.kind of {plan.pipeline} is {self.pipeline.sink.kind}, but its tables are of kind "
                f"{plan.sink_kind}",
                "Set it back; or, to copy into another kind of sink, use another name and a fresh sink.path",
            )

    @property
    def schema_policy(self) -> SchemaPolicy:
        """Policy for which definition changes of the tables the copies follow."""
        stream = self.pipeline.stream
        return SchemaPolicy.from_settings(
            stream.schema_changes, stream.include_schema_changes, stream.exclude_schema_changes
        )

    def find_changed_rules(self, plan: Plan) -> dict[int, str]:
        """Find tables whose copies were made by other rules than the pipeline has now. A stream re-snapshots them.

        :returns: a description of the difference for each such table, by index.
        """
        rules, captured = self.copy_rules, (i for i in plan.active_tables if self.pipeline.captures(*plan.tables[i].id))
        differences = ((index, rules.describe_difference(plan.tables[index])) for index in captured)
        return {index: difference for index, difference in differences if difference is not None}

    def refuse_unmatched_rules(self, plan: Plan) -> None:
        """Refuse rules that were changed after planning and have never matched a column, or a table.

        :raises NotReadyError: for the first one.
        """
        if plan.patterns[2:] == self._patterns[2:] or not self.copy_rules.fingerprint:
            return
        with closing(connect(self.connect_args)) as connection:
            tables = {(database, name) for database, name, _ in find_tables(connection, self.pipeline.captures)}
            columns = [*list_columns(connection, tables), *column_names(plan.all_definitions)]
        self.copy_rules.refuse_unmatched(columns)

    def resume_state(self, plan: Plan) -> tuple[Offset, Timeline]:
        """Return the resume point (P0 before the first batch) and the timeline that numbers everything now."""
        return self.sink.resume_point().read_with_timeline() or (plan.p0, plan.timeline)

    def refresh_plan(self, plan: Plan) -> Plan:
        """Return the current plan: the given one, unless amendments were stored since it was loaded."""
        layout, generation = self.layout, plan.generation
        known_files = {amendment_file(layout, generation, step) for step in plan.amendments}
        for table in range(len(plan.definitions)):
            known_files |= {
                layout.amendment(generation, table, number + 1) for number in range(plan.revision_of(table))
            }
        # The stored files may be fewer: superseded ones are removed.
        return (
            plan if known_files.issuperset(list_amendments(self.storage, layout, generation)) else self.require_plan()
        )

    def require_plan(self) -> Plan:
        """Load the plan from the sink.

        :raises NotReadyError: if there is none.
        """
        plan = self.load_plan()
        if plan is None:
            raise NotReadyError(
                f"pipeline {self.pipeline.name} has no snapshot in {self.storage.location()}",
                "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
            )
        return plan

    def binlog_source(self, slot: int, server: str | None = None) -> BinlogSource:
        """Return the source's binlog for one reader.

        :param slot: the reader's slot, one of :mod:`~airflow_provider_cdc.model.server_id_slots`.
        :param server: expected identity of the server; ``None`` accepts any.
        """
        return BinlogSource(self.connect_args, server, self.pipeline.replica_ids(slot))

    def binlog_opener(self, slot: int) -> OpenStreamAt:
        """Return a function that opens streams of the source's binlog, which end at the binlog's end.

        :param slot: as for :meth:`binlog_source`.
        """
        return self.binlog_source(slot).open_to_end

    def new_plan(self, generation: int) -> Plan:
        """Make a plan from the source as it is now. Nothing is written."""
        pipeline, settings = self.pipeline, self.pipeline.snapshot
        open_at = self.binlog_opener(slots.PLAN)
        plan_options: dict[str, Any] = {
            "patterns": self._patterns,
            "apply_rules": self.copy_rules.apply,
            "generation": generation,
            "open_at": open_at,
        }
        with closing(connect(self.connect_args)) as connection:
            if pipeline.stream.start != SNAPSHOT:
                start = pipeline.stream.start
                plan = plan_without_snapshot(connection, pipeline.name, pipeline.captures, start=start, **plan_options)
            else:
                plan_options |= {"chunk_rows": settings.chunk_rows, "group_rows": settings.group_rows}
                plan = make_plan(connection, pipeline.name, pipeline.captures, **plan_options)
            self.copy_rules.refuse_unmatched(column_names(plan.tables))
            paths = pipeline.sink.table_paths
            pipeline.sink.check_distinct_tables(table.id for table in plan.tables)
            for table in plan.tables:
                pipeline.sink.delete_policy.mode_of(table)  # refuses a mode that the table cannot have
            check_shared_copies(pipeline.sink, plan.tables)
            plan = plan.replace(table_path=paths.template, lower_case=paths.lower_case, routes=paths.stored_routes)
            plan = plan.replace(sink_kind=pipeline.sink.kind)
            return plan.replace(p0=with_file_start_time(plan.p0, open_at))

    def ensure_plan(self, state_database: StateDatabase) -> Plan:
        """Return the plan in the sink, made now if there is none, and mirror it into the state database if needed."""
        plan = self.load_plan()
        if plan is None:
            newest = state_database.snapshot(self.pipeline.name)
            plan = self.new_plan(1 if newest is None else newest.generation + 1)
            for table in plan.tables:
                if not table.key:
                    self.require_feature(Feature.KEYLESS, f"table {table.label} has no usable key")
            self._refuse_lost_plan(plan)
            self.storage.deny_others(self.layout.pipeline_folder)  # it contains key values of rows
            if not write_json_once(self.storage, self.layout.plan, seal_plan(plan, self.hash_key).to_json()):
                return self.ensure_plan(state_database)  # another process was faster: its plan counts
            summary = f"{len(plan.chunks)} chunks in {len(plan.groups())} groups"
            summary = summary if plan.start == SNAPSHOT else f"no snapshot, start at {format_start(plan.start)}"
            self.reporter.line(f"planned {len(plan.tables)} tables: {summary}, P0 at {plan.p0.at}")
            failpoint("plan.after_write")
        mirror_plan(state_database, plan, self.pipeline.snapshot.chunk_rows)
        state_database.record_source(plan.pipeline, self.describe_source())
        return plan

    def _refuse_lost_plan(self, plan: Plan) -> None:
        """Refuse sink tables that exist without a plan: tables are created after it, so their rows are unknown.

        So are folders that have a table which is not that of this sink.
        """
        for table in plan.tables:
            target = self.sink.table(table)
            if isinstance(target, InFolder) and not target.exists():
                target.check_folder_is_free()
            # Check again: a process that started at the same time may have written the plan and then created the table.
            if target.exists() and self.storage.read(self.layout.plan) is None:
                if isinstance(target, Adoptable) and target.will_adopt(plan.pipeline):
                    continue
                raise NotReadyError(
                    f"there is a {target.name}, but no plan at {self.storage.location(self.layout.plan)}",
                    "Restore the plan, or start with a fresh sink.path (or remove the table). A table that something "
                    "else has made is taken over with sink.adopt: true",
                )


def mirror_plan(state_database: StateDatabase, plan: Plan, chunk_rows: int) -> bool:
    """Mirror a plan into the state database.

    :returns: whether the plan was not there before.
    """
    state_database.register_pipeline(plan.pipeline, plan.p0.server)
    if state_database.snapshot(plan.pipeline, plan.generation) is not None:
        return False
    names = [list(t.id) for t in plan.tables]
    per_table = Counter(c.table for c in plan.chunks)
    state_database.write_plan(
        plan.pipeline,
        plan.generation,
        [
            {"database": t.database, "name": t.name, "rows_estimate": per_table[i] * chunk_rows}
            for i, t in enumerate(plan.tables)
        ],
        [
            {"group_no": no, "tables": [names[i] for i in sorted({c.table for c in chunks})]}
            for no, chunks in plan.groups().items()
        ],
        (
            {
                "chunk_no": c.number,
                "group_no": c.group,
                "database": names[c.table][0],
                "table_name": names[c.table][1],
            }
            for c in plan.chunks
        ),
    )
    return True
