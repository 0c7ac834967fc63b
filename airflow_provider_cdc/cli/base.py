"""Code shared by the commands: their group, options, and the run context of a pipeline file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from airflow_provider_cdc import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_cdc.config import Pipeline
    from airflow_provider_cdc.config.connections import ResolvedConnection
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import StateDatabase

_Command = TypeVar("_Command", bound="Callable[..., Any] | click.Command")


def _keep_pipeline_name(context: click.Context, _: click.Parameter, name: str | None) -> None:
    context.meta[_NAME_KEY] = name


def file_option(command: _Command) -> _Command:
    """Add ``--file`` and ``--pipeline`` to a command, which gets the path of the file."""
    file = click.option(
        "-f",
        "--file",
        "path",
        required=True,
        type=click.Path(exists=True, dir_okay=False),
        help="Pipeline file (YAML), or DAG file (Python).",
    )
    name = click.option(
        "--pipeline",
        metavar="NAME",
        expose_value=False,
        callback=_keep_pipeline_name,
        help="Name of the pipeline, if a DAG file has several.",
    )
    return file(name(command))


JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
TABLE_OPTION = click.option("--table", required=True, help="The table, as database.table.")
_NAME_KEY = "airflow_provider_cdc.pipeline"
#: Passwords that must not appear in any output.
known_secrets: list[str] = []


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="airflow-cdc")
def cli() -> None:
    """Copy a live MySQL database into Delta or Iceberg tables and keep the copy up to date."""


@contextmanager
def open_context(path: str, quiet: bool = False) -> Iterator[RunContext]:
    """Yield the run context of a pipeline file or a DAG file.

    :param path: path of the file.
    :param quiet: whether to show no progress.
    """
    from airflow_provider_cdc.config.connections import remove_airflow_variables
    from airflow_provider_cdc.observe.reporters import make_reporter
    from airflow_provider_cdc.runtime.run_context import RunContext

    pipeline, resolve_connection = _load_pipeline(path, click.get_current_context().meta.get(_NAME_KEY))
    for conn_id in pipeline.connection_ids:
        known_secrets.extend(resolve_connection(conn_id).secrets)
    context = RunContext.for_pipeline(pipeline, find_connection=resolve_connection)
    remove_airflow_variables()  # before any process is started: even the preflight runs Java
    if quiet:
        yield context
        return
    with make_reporter() as shown_reporter:
        context.reporter = shown_reporter
        yield context


def _load_pipeline(path: str, name: str | None) -> tuple[Pipeline, Callable[[str], ResolvedConnection]]:
    """Return the pipeline of a file, and what finds its connections.

    :param name: name of the pipeline, if a DAG file has several.
    :raises NotReadyError: if the file has no such pipeline.
    """
    from airflow_provider_cdc.config import Pipeline
    from airflow_provider_cdc.config.connections import resolve_connection
    from airflow_provider_cdc.model.errors import NotReadyError

    if path.endswith(".py"):
        from airflow_provider_cdc.airflow.dag_file import find_connection, load_dag_file

        return load_dag_file(path, name), find_connection
    pipeline = Pipeline.load(path)
    if name not in (None, pipeline.name):
        raise NotReadyError(f"{path} has no pipeline {name}, but {pipeline.name}", "Leave out --pipeline")
    return pipeline, resolve_connection


@contextmanager
def open_for_run(
    path: str, need_snapshot: bool = False, allow_stream: bool = False, *, for_stream: bool = False
) -> Iterator[tuple[RunContext, StateDatabase, SparkSession]]:
    """Run the preflight, and yield the run context, the state database and a Spark session for a command that changes
    data.

    :param need_snapshot: whether a plan must exist.
    :param allow_stream: whether a stream may be running.
    :param for_stream: whether the session is for a stream.
    """
    from airflow_provider_cdc.config.spark_conf import cluster_mode_refused
    from airflow_provider_cdc.preflight.run import require_preflight
    from airflow_provider_cdc.spark.session import stop_session

    with open_context(path) as context:
        if context.cluster is not None:
            raise cluster_mode_refused(str(click.get_current_context().info_name))
        if for_stream:
            context.require_stream_master()
        for result in require_preflight(context, for_stream=for_stream):
            context.warn(str(result))
        if need_snapshot:
            context.plans.require()
        with closing(context.open_state_database()) as store:
            if not allow_stream:
                context.liveness.refuse_if_running(store, context.pipeline.name)
            spark = _open_session(context, for_stream=for_stream)
            try:
                yield context, store, spark
            finally:
                stop_session(spark)


@contextmanager
def session_for_stream(context: RunContext, spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a session for a stream: that of the jobs, unless it belongs to a Spark Connect server."""
    if context.connect is None:
        yield spark
        return
    own = _open_session(context, for_stream=True)
    try:
        yield own
    finally:
        own.stop()


def _open_session(context: RunContext, *, for_stream: bool) -> SparkSession:
    if context.connect is not None and not for_stream:
        from airflow_provider_cdc.spark.connect import open_connect_session

        return open_connect_session(context.connect, context.reporter.line)
    from airflow_provider_cdc.spark.session import start_session

    return start_session(context.pipeline.name, *context.spark_config, report_line=context.reporter.line)
