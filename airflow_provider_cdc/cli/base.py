"""What the commands share: their group, options, and the pipeline that a command works for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from airflow_provider_cdc import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_cdc.runtime.run_context import Context
    from airflow_provider_cdc.state import Store

FILE = click.option(
    "-f", "--file", "path", required=True, type=click.Path(exists=True, dir_okay=False), help="Pipeline file (YAML)."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
#: Passwords that no line may show.
secrets: list[str] = []


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="airflow-cdc")
def cli() -> None:
    """Copy a live MySQL database into Delta tables and keep the copy up to date."""


@contextmanager
def opened(path: str, quiet: bool = False) -> Iterator[Context]:
    """The pipeline of a file, with its connections; ``quiet``: without progress."""
    from airflow_provider_cdc.config import Pipeline
    from airflow_provider_cdc.config.connections import resolve, strip_environment
    from airflow_provider_cdc.observe.progress_bar import reporter
    from airflow_provider_cdc.runtime.run_context import Context

    pipeline = Pipeline.load(path)
    for conn_id in (pipeline.source.conn_id, pipeline.sink.conn_id, pipeline.state.conn_id):
        if conn_id:
            secrets.extend(resolve(conn_id).secrets)
    context = Context.for_pipeline(pipeline)
    strip_environment()  # before anything is started: the preflight already asks Java for its version
    if quiet:
        yield context
        return
    with reporter() as shown_reporter:
        context.reporter = shown_reporter
        yield context


@contextmanager
def working(
    path: str, need_snapshot: bool = False, allow_stream: bool = False
) -> Iterator[tuple[Context, Store, SparkSession]]:
    """Preflight, bookkeeping and Spark for the commands that change something; ``allow_stream``: while a stream may run."""
    from airflow_provider_cdc.preflight.run import require
    from airflow_provider_cdc.spark.session import start

    with opened(path) as context:
        for result in require(context):
            context.reporter.line(f"{result.level}: {result}")
        if need_snapshot:
            context.require_plan()
        store = context.open_state_database()
        try:
            if not allow_stream:
                context.liveness.refuse_if_running(store, context.pipeline.name)
            spark = start(context.pipeline.name, *context.spark_config)
            try:
                yield context, store, spark
            finally:
                spark.stop()
        finally:
            store.close()
