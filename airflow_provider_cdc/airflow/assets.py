"""Assets: one for each table of a pipeline, for DAGs that begin when there is something new in it.

An asset's URI is the place of the copy, so whoever knows that place can name the asset without this package. Tasks emit
through an alias, since the tables of a pipeline are known only when it runs, and since an asset that is declared
without its watcher in one DAG loses it in all.
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

#: What tables emit events about.
SNAPSHOT, CHANGES, VERIFY, REPAIR = "snapshot", "changes", "verify", "repair"


def cdc_asset(pipeline: PipelineLike, table: str, *, watch: bool | None = None, min_seconds: float = 60.0) -> Asset:
    """The asset of a table: a DAG with it in its schedule begins when there is something new in the copy.

    :param pipeline: a :class:`~airflow_provider_cdc.Pipeline`, its plain values without templates, or YAML: an absolute
        path, or the text itself.
    :param table: the table, as ``database.table``.
    :param watch: whether the triggerer emits what a running stream applies; by default it does unless ``stream.mode``
        is ``catch_up``: then the stream's task does, at its end. Name a table in the same way in all DAGs.
    :param min_seconds: seconds between two such events.
    :raises NotReadyError: if the pipeline is not usable, or does not copy the table.
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
    """The alias through which the tasks of a pipeline emit: a DAG with it in its schedule begins for any of its tables.

    :param pipeline: as of :func:`cdc_asset`.
    """
    return pipeline_alias(load_pipeline(to_plain(pipeline)).name)


def pipeline_alias(name: str) -> AssetAlias:
    """The alias of a pipeline, by its name."""
    return AssetAlias(f"cdc:{name}")


def table_uri(pipeline: Pipeline, database: str, table: str) -> str:
    """URI of a table's copy. It has ASCII characters only: Airflow on MySQL takes no others."""
    folder, path = pipeline.sink.table_paths.path_of(database, table), pipeline.sink.path
    if (address := StoreAddress.parse(path)) is not None:
        return address.uri(folder)
    return "file://" + quote(f"{(local_folder_of(path) or '').rstrip('/')}/{folder}", safe="/=")


def parse_table_label(pipeline: Pipeline, label: str) -> tuple[str, str]:
    """Database and name of a captured table. Names may have dots in them.

    :raises NotReadyError: if the pipeline does not copy it.
    """
    parts = label.split(".")
    for i in range(1, len(parts)):
        table = ".".join(parts[:i]), ".".join(parts[i:])
        if pipeline.captures(*table):
            return table
    raise NotReadyError(
        f"pipeline {pipeline.name} copies no table {label}",
        "Name it as database.table, as one of source.tables matches it",
    )


def declare_outlets(operator: Any, enabled: bool) -> None:
    """Let a task emit, and let Airflow know that when it reads the DAG.

    :param operator: with ``pipeline`` and ``outlets``.
    :param enabled: whether it is to.
    """
    operator.assets = enabled
    name = operator.pipeline.get("name") if isinstance(operator.pipeline, Mapping) else None
    if enabled and isinstance(name, str) and "{{" not in name:
        operator.outlets = [*operator.outlets, pipeline_alias(name)]


def is_partition_run(context: Context) -> bool:
    """Whether the task's run is one for a partition: Airflow gives its key to all that it emits (3.2 and newer)."""
    return getattr(context["dag_run"], "partition_key", None) is not None


def emit_asset_events(
    operator: Any, context: Context, pipeline: Pipeline, events: Mapping[tuple[str, str], Any]
) -> None:
    """Have Airflow emit events of tables when the task has succeeded, if :func:`declare` was told so.

    In a run for a partition only changes are told: anything else would say too early that the partition is complete.

    :param pipeline: as the task has it now: its name may have been a template.
    :param events: what there is to say of a table, by database and name.
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
