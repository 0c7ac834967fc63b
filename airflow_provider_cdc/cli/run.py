"""Commands that write the sink: they run phases, or uninstall the pipeline."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing, nullcontext, suppress
from typing import TYPE_CHECKING

import click

from airflow_provider_cdc.cli.base import (
    JSON_OPTION,
    TABLE_OPTION,
    cli,
    file_option,
    open_context,
    open_for_run,
    session_for_stream,
)
from airflow_provider_cdc.model.errors import (
    CdcError,
    NotReadyError,
    StreamStoppedError,
    TransientError,
    UnexpectedError,
)
from airflow_provider_cdc.model.supervision import RestartHistory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_cdc.maintenance.uninstall import PipelineData
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import StateDatabase

#: Seconds for which a stream that makes no progress is restarted, as in Airflow.
_RESTART_SECONDS = 86_400.0
CATCH_UP_OPTION = click.option("--catch-up", is_flag=True, help="End at the source's current position.")


@cli.command()
@file_option
def snapshot(path: str) -> None:
    """Start or resume the snapshot."""
    with open_for_run(path) as (context, store, spark):
        _run_snapshot(context, store, spark)


@cli.command()
@file_option
@CATCH_UP_OPTION
def stream(path: str, catch_up: bool) -> None:
    """Follow the binlog from where the last run ended."""
    with open_for_run(path, need_snapshot=True, for_stream=True) as (context, store, spark):
        store.allow_stream(context.pipeline.name)
        _run_stream(context, store, spark, catch_up)


@cli.command()
@file_option
@CATCH_UP_OPTION
def run(path: str, catch_up: bool) -> None:
    """Run all phases in order: preflight, plan, snapshot, stream."""
    with open_for_run(path) as (context, store, spark):
        context.require_stream_master()
        store.allow_stream(context.pipeline.name)
        _run_snapshot(context, store, spark)
        with session_for_stream(context, spark) as stream_spark:
            _run_stream(context, store, stream_spark, catch_up)


@cli.command()
@file_option
@JSON_OPTION
@click.option("--purge", is_flag=True, help="Rewrite every file that has deleted rows, and merge all small files.")
def maintain(path: str, as_json: bool, purge: bool) -> None:
    """Compact the sink tables and delete old files. A stream may run at the same time."""
    from airflow_provider_cdc.driver.phases import run_maintenance

    with open_context(path, quiet=as_json) as context:
        report = run_maintenance(context, purge=purge)
        if as_json:
            click.echo(json.dumps(report, indent=2))


@cli.command()
@file_option
@TABLE_OPTION
@click.option("--where-key", metavar="CONDITION", help='Only rows whose key matches, e.g. "id >= 100 AND id < 200".')
def resnapshot(path: str, table: str, where_key: str | None) -> None:
    """Re-snapshot a table, with or without a running stream. A suspended table resumes afterwards."""
    from airflow_provider_cdc.chunk_groups.spark_job import spark_runner
    from airflow_provider_cdc.resnapshot.read import run_resnapshot

    with open_for_run(path, need_snapshot=True, allow_stream=True) as (context, store, spark):
        run_resnapshot(context, store, table, where_key, spark_runner(spark, context.warn))


@cli.command()
@file_option
@click.option("--tables", is_flag=True, help="Also delete the sink tables.")
@click.option("--yes", is_flag=True, help="Actually delete. Without this flag, only list what would be deleted.")
def forget(path: str, tables: bool, yes: bool) -> None:
    """Uninstall the pipeline: delete its state and, with --tables, its copies."""
    from airflow_provider_cdc.maintenance.uninstall import delete_pipeline, find_pipeline_data, open_state_database

    with open_context(path) as context:
        store = open_state_database(context)
        with nullcontext() if store is None else closing(store):
            data = find_pipeline_data(context, store)
            if not (data.row_counts or data.internal_folders):
                click.echo(f"nothing is left of {context.pipeline.name} at {context.storage.location()}")
                return
            _show_data(data, context.pipeline.name, tables=tables, yes=yes)
            if not yes:
                raise NotReadyError("nothing was deleted", "Run this again with --yes to delete")
            delete_pipeline(context, store, data, delete_tables=tables)
        click.echo(f"{context.pipeline.name} was removed")


def _run_snapshot(context: RunContext, store: StateDatabase, spark: SparkSession) -> None:
    from airflow_provider_cdc.chunk_groups.spark_job import spark_runner
    from airflow_provider_cdc.observe.observer import snapshot_observer
    from airflow_provider_cdc.resnapshot.purged_binlog import replan_if_purged
    from airflow_provider_cdc.snapshot.progress import table_totals
    from airflow_provider_cdc.snapshot.run import run_snapshot

    plan = replan_if_purged(context, store)
    run_snapshot(context, store, plan, spark_runner(spark, context.warn), snapshot_observer)
    for totals in table_totals(context, context.plans.refresh(plan)):
        context.reporter.line(str(totals))


def _run_stream(context: RunContext, store: StateDatabase, spark: SparkSession, catch_up: bool) -> None:
    """Follow the binlog. A continuous stream restarts after a transient failure, as in Airflow."""
    from airflow_provider_cdc.driver.phases import run_stream_epoch

    catch_up = catch_up or context.pipeline.stream.mode == "catch_up"
    restarts, stop = RestartHistory(), threading.Event()
    while not stop.is_set():
        started_at, before = time.monotonic(), _newest_epoch(context, store)
        try:
            run_stream_epoch(context, store, spark, catch_up=catch_up, stop=stop)
            return
        except StreamStoppedError as error:
            context.reporter.line(error.message)
            return
        except UnexpectedError:  # Spark itself may be gone
            raise
        except TransientError as error:
            made_progress = _newest_epoch(context, store, with_batches=True) > before
            restarts = restarts.with_failure(time.monotonic() - started_at, made_progress=made_progress, lost=False)
            if catch_up or restarts.seconds + restarts.delay > _RESTART_SECONDS:
                raise
            context.warn(f"{error}. The stream restarts in {restarts.delay:g} s")
        stop.wait(restarts.delay)
        restarts = restarts.after_delay()


def _newest_epoch(context: RunContext, store: StateDatabase, *, with_batches: bool = False) -> int:
    """Return the number of the newest epoch.

    Return 0 if there is no epoch, if ``with_batches`` and it has not applied a batch, or if the state database is
    unavailable.
    """
    with suppress(CdcError):
        run = store.newest_epoch(context.pipeline.name)
        if run is not None and (run.batches or not with_batches):
            return run.epoch
    return 0


def _show_data(data: PipelineData, name: str, *, tables: bool, yes: bool) -> None:
    click.echo(f"data of {name} that {'is' if yes else 'would be'} deleted:")
    for folder in [*data.internal_folders, *(data.table_folders if tables else ())]:
        what = f"table {folder.table}, " if folder.table else ""
        click.echo(f"  {what}{folder.location}: {folder.file_count:,} files, {folder.size:,} bytes")
    if data.row_counts:
        click.echo(
            f"  state database: {', '.join(f'{count:,} of {table}' for table, count in data.row_counts.items())}"
        )
    if data.table_folders and not tables:
        click.echo("these tables are kept but will no longer be updated:")
        for folder in data.table_folders:
            click.echo(f"  table {folder.table}, {folder.location}")
