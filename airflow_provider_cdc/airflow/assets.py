"""Assets: one for each table of a pipeline, for DAGs that are scheduled on new data in it.

An asset's URI is the location of the copy, so the asset can also be named without this package. Tasks emit events
through an alias for two reasons: the tables of a pipeline are known only when it runs, and an asset that is declared
without its watcher in one DAG loses the watcher in all DAGs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias, AssetWatcher

from airflow_provider_cdc.airflow.operators.base import PipelineLike, load_pipeline, to_plain
from airflow_provider_cdc.config.store_address import StoreAddress, local_folder_of
from airflow_provider_cdc.model.errors import NotReadyError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.config import Pipeline

#: Kinds of asset events.
SNAPSHOT, CHANGES, VERIFY, REPAIR = "snapshot", "changes", "verify", "repair"


def cdc_asset(pipeline: PipelineLike, table: str, *, watch: bool | None = None, min_seconds: float = 60.0) -> Asset:
    """Return the asset of a table. A DAG that is scheduled on it runs when there is new data in the copy.

    :param pipeline: a :class:`~airflow_provider_cdc.Pipeline`, its plain values without templates, or YAML: an absolute
        path, or the text itself.
    :param table: the table, as ``database.table``.
    :param watch: whether the triggerer emits events for what a running stream applies. Default: true, unless
        ``stream.mode`` is ``catch_up``, in which case the stream's task emits an event at its end. Use the same value
        for a table in all DAGs.
    :param min_seconds: minimum time between two such events, in seconds.
    :raises NotReadyError: if the pipeline is invalid or does not copy the table.
    """
    pipeline_config = load_pipeline(to_plain(pipeline))
    database, name = parse_table_label(pipeline_config, table)
    watchers = []
    if pipeline_config.stream.mode != "catch_up" if watch is None else watch:
        from airflow_provider_cdc.airflow.triggers.asset_windows import CdcTableTrigger

        trigger = CdcTableTrigger(
            pipeline=pipeline_config.name,
            database=database,
            table=name,
            state_conn_id=pipeline_config.state.conn_id,
            sink_path=pipeline_config.sink.path,
            min_seconds=min_seconds,
        )
        watchers = [AssetWatcher(name=f"cdc {pipeline_config.name} {table}", trigger=trigger)]
    return Asset(uri=table_uri(pipeline_config, database, name), watchers=watchers)


def cdc_assets(pipeline: PipelineLike) -> AssetAlias:
    """Return the alias through which the tasks of a pipeline emit events. A DAG that is scheduled on it runs for any
    table.

    :param pipeline: as in :func:`cdc_asset`.
    """
    return pipeline_alias(load_pipeline(to_plain(pipeline)).name)


def pipeline_alias(name: str) -> AssetAlias:
    """Return the alias of a pipeline, by the pipeline's name."""
    return AssetAlias(f"cdc:{name}")


def table_uri(pipeline: Pipeline, database: str, table: str) -> str:
    """Return the URI of a table's copy, in ASCII because Airflow on MySQL accepts no other characters."""
    folder, path = pipeline.sink.table_paths.path_of(database, table), pipeline.sink.path
    if (address := StoreAddress.parse(path)) is not None:
        return address.uri(folder)
    return "file://" + quote(f"{(local_folder_of(path) or '').rstrip('/')}/{folder}", safe="/=")


def parse_table_label(pipeline: Pipeline, label: str) -> tuple[str, str]:
    """Return database and name of a captured table. Both may contain dots.

    :raises NotReadyError: if the pipeline does not copy it.
    """
    parts = label.split(".")
    for i in range(1, len(parts)):
        table = ".".join(parts[:i]), ".".join(parts[i:])
        if pipeline.captures(*table):
            return table
    raise NotReadyError(
        f"pipeline {pipeline.name} copies no table {label}",
        "Use database.table, with a table that source.tables matches",
    )


def declare_outlets(operator: Any, enabled: bool) -> None:
    """Declare the outlets of a task that emits asset events, so that Airflow knows them when it parses the DAG.

    :param operator: an operator with ``pipeline`` and ``outlets``.
    :param enabled: whether the task emits events.
    """
    operator.assets = enabled
    name = operator.pipeline.get("name") if isinstance(operator.pipeline, Mapping) else None
    if enabled and isinstance(name, str) and "{{" not in name:
        operator.outlets = [*operator.outlets, pipeline_alias(name)]


def is_partition_run(context: Context) -> bool:
    """Return whether the run is for a partition, whose key Airflow adds to all asset events (3.2 and newer)."""
    return getattr(context["dag_run"], "partition_key", None) is not None


def emit_asset_events(
    operator: Any, context: Context, pipeline: Pipeline, events: Mapping[tuple[str, str], Any]
) -> None:
    """Emit asset events, which Airflow publishes when the task has succeeded. Do nothing unless the operator's
    ``assets`` is true.

    In a run for a partition, only changes are emitted: any other event would mark the partition as complete too early.

    :param pipeline: the pipeline with its rendered name, which may have been a template.
    :param events: extra of each event, by database and name of the table.
    """
    if not operator.assets:
        return
    alias = pipeline_alias(pipeline.name)
    if alias not in operator.outlets:
        operator.outlets = [*operator.outlets, alias]
    for table, extra in events.items():
        if is_partition_run(context) and extra["kind"] != CHANGES:
            continue
        event_extra = {"pipeline": pipeline.name, "table": ".".join(table)}
        context["outlet_events"][alias].add(Asset(uri=table_uri(pipeline, *table)), extra={**event_extra, **extra})
