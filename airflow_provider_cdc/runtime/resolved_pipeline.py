"""A pipeline with its secrets resolved: what it opens, and where it reports."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.hash_key import hash_key_id
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.ddl.schema_policy import SchemaPolicy
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.progress import ChunkProgress
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource, OpenStreamAt
from airflow_provider_cdc.mysql.client.identity import product_of
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.sinks.files.layout import Layout, LocalFiles
from airflow_provider_cdc.sinks.protocol import Feature
from airflow_provider_cdc.sinks.registry import open_sink
from airflow_provider_cdc.sinks.storage.open_storage import open_storage
from airflow_provider_cdc.sinks.storage.storage import Storage
from airflow_provider_cdc.transforms.copy_rules import CopyRules
from airflow_provider_cdc.transforms.row_transform import RowTransform

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
class ResolvedPipeline:
    """A pipeline with its secrets resolved.

    :param pipeline: the pipeline.
    :param connect_args: pymysql.connect keyword arguments of the source.
    :param state_url: URL of the state database; ``None`` for a SQLite file.
    :param reporter: receives the progress.
    :param access: object-store settings from the sink's connection, if it has one.
    :param hash_key: secret key of hashed columns; ``None`` if the pipeline hashes none.
    """

    pipeline: Pipeline
    connect_args: Mapping[str, Any] = field(repr=False)
    state_url: Any = field(default=None, repr=False)
    reporter: Reporter = field(default_factory=SilentReporter)
    access: StoreAccess | None = field(default=None, repr=False)
    hash_key: bytes | None = field(default=None, repr=False)

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

    @property
    def schema_policy(self) -> SchemaPolicy:
        """Policy for which definition changes of the tables the copies follow."""
        stream = self.pipeline.stream
        return SchemaPolicy.from_settings(
            stream.schema_changes, stream.include_schema_changes, stream.exclude_schema_changes
        )

    def resume_state(self, plan: Plan) -> tuple[Offset, Timeline]:
        """Return the resume point (P0 before the first batch) and the timeline that numbers everything now."""
        return self.sink.resume_point().read_with_timeline() or (plan.p0, plan.timeline)

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
