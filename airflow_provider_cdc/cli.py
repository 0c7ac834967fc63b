"""The command line ``airflow-cdc``: every phase of a pipeline without Airflow.

Exit codes: 0 done, 1 needs a decision or a fix, 2 usage or not ready, 3 a transient failure worth a retry.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_provider_cdc import __version__
from airflow_provider_cdc.exceptions import REPORT, CdcError, NotReadyError, TerminalError, TransientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_cdc.core.plan import Plan
    from airflow_provider_cdc.phases.context import Context
    from airflow_provider_cdc.phases.retention_guard import Forecast
    from airflow_provider_cdc.store import Store

_FILE = click.option(
    "-f", "--file", "path", required=True, type=click.Path(exists=True, dir_okay=False), help="Pipeline file (YAML)."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_CATCH_UP = click.option("--catch-up", is_flag=True, help="End at the position that the source has now.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="airflow-cdc")
def cli() -> None:
    """Copy a live MySQL database into Delta tables and keep the copy up to date."""


@cli.command()
@_FILE
@_JSON
def check(path: str, as_json: bool) -> None:
    """Check server, grants, tables, sink and runtime; write nothing."""
    from airflow_provider_cdc.phases.preflight import preflight

    with _context(path) as context:
        findings = preflight(context)
        if as_json:
            click.echo(json.dumps([f.to_json() for f in findings], indent=2))
        else:
            for finding in findings:
                click.echo(f"{finding.level:8}{finding.what}" + (f". {finding.remedy}" if finding.remedy else ""))
        if errors := [f for f in findings if f.level == "error"]:
            transient = all(f.transient for f in errors)
            raise click.exceptions.Exit((TransientError if transient else NotReadyError).exit_code)


@cli.command()
@_FILE
@_JSON
def plan(path: str, as_json: bool) -> None:
    """Show the chunk plan and what it would cost; write nothing."""
    from airflow_provider_cdc.core.start import SNAPSHOT, start_text
    from airflow_provider_cdc.mysql.server.session import connect
    from airflow_provider_cdc.phases.preflight import require
    from airflow_provider_cdc.phases.retention_guard import forecast

    with _context(path) as context:
        for finding in require(context, spark=False):
            context.reporter.line(f"{finding.level}: {finding.what}. {finding.remedy}")
        standing = context.load_plan()
        made = standing or context.new_plan(1)
        with closing(connect(context.connect_args)) as connection:
            ahead = forecast(context, connection, [t.id for t in made.tables], None)
        if as_json:
            click.echo(json.dumps(_plan_json(context, made, standing is not None, ahead), indent=2))
            return
        state = "planned before, kept" if standing else "not written"
        click.echo(f"pipeline {made.pipeline}, snapshot {made.generation} ({state}), P0 at {made.p0.at}")
        rows_a_chunk = context.pipeline.snapshot.chunk_rows
        costs = [f"; planned with {c.statements} statements, {c.rows} rows read" for c in made.costs]
        for index, table in enumerate(made.tables):
            chunks = sum(c.table == index for c in made.chunks)
            groups = len(made.groups_of(index))
            how = f"{chunks} chunks of up to about {rows_a_chunk} rows in {groups} groups, key ({', '.join(table.key)})"
            if not table.key:
                how = "no usable key, so read whole as 1 chunk"
            click.echo(f"  {table.label}: {how}" + (costs[index] if costs else ""))
        if made.start != SNAPSHOT:
            click.echo(f"no snapshot: the stream begins at P0, which is {start_text(made.start)}; no rows are read")
            return
        click.echo(f"a snapshot of {ahead}")
        click.echo(f"{len(made.chunks)} chunks in {len(made.groups())} groups, at least 4 statements a chunk")


@cli.command()
@_FILE
def snapshot(path: str) -> None:
    """Start or resume the snapshot."""
    with _work(path) as (context, store, spark):
        _snapshot(context, store, spark)


@cli.command()
@_FILE
@_CATCH_UP
def stream(path: str, catch_up: bool) -> None:
    """Follow the binlog from where the last run ended."""
    with _work(path, need_snapshot=True) as (context, store, spark):
        _stream(context, store, spark, catch_up)


@cli.command()
@_FILE
@_CATCH_UP
def run(path: str, catch_up: bool) -> None:
    """Run all phases in order: preflight, plan, snapshot, stream."""
    with _work(path) as (context, store, spark):
        _snapshot(context, store, spark)
        _stream(context, store, spark, catch_up)


@cli.command()
@_FILE
@_JSON
@click.option("--purge", is_flag=True, help="Write all files anew that have dead rows, and join all small ones.")
def maintain(path: str, as_json: bool, purge: bool) -> None:
    """Compact the sink's tables and delete old files; a stream may run."""
    from airflow_provider_cdc.driver import kept_up

    with _context(path, quiet=as_json) as context:
        found = kept_up(context, purge=purge)
        if as_json:
            click.echo(json.dumps(found, indent=2))


@cli.command()
@_FILE
@_JSON
@click.option("--show-values", is_flag=True, help="Show what differs: keys or, for tables without one, whole rows.")
@click.option("--tables", multiple=True, metavar="PATTERN", help="Only tables database.table that match; repeatable.")
@click.option("--sample", metavar="1/N", help="Only one table in N, another one each day: all in N days.")
@click.option("--seed", type=int, help="Which share of the tables --sample takes; the day's by default.")
@click.option("--max-rows-per-second", type=int, help="Rows read from the source in a second.")
@click.option("--repair", is_flag=True, help="Read the rows again that differ, and compare once more.")
def verify(path: str, as_json: bool, show_values: bool, repair: bool, **chosen: Any) -> None:
    """Compare source and sink; exit with 1 on a difference."""
    from airflow_provider_cdc.core.selection import Selection
    from airflow_provider_cdc.driver import compared

    selection = Selection.of(**chosen, today=datetime.now(UTC).toordinal())
    with _context(path, quiet=as_json) as context:
        verdicts = compared(context, show_values=show_values, selection=selection, repair=repair)
        if as_json:
            click.echo(json.dumps([v.to_json(show_values=show_values) for v in verdicts], indent=2))
        unequal = [v for v in verdicts if not v.equal]
        if unequal:
            raise TerminalError(
                f"{len(unequal)} of {len(verdicts)} tables differ ({'; '.join(map(str, unequal))})",
                f"{'See above what was not repaired' if repair else '--repair reads what differs again'}, and {REPORT}"
                + ("" if show_values else ". --show-values shows which rows"),
            )
        if not as_json:
            click.echo(f"all {len(verdicts)} tables are equal" if verdicts else "no table was to be compared")


@cli.command()
@_FILE
@_JSON
def status(path: str, as_json: bool) -> None:
    """Show phases, chunks, rates, lag and offset."""
    from airflow_provider_cdc.phases.status import status as look
    from airflow_provider_cdc.status_text import status_lines

    with _context(path) as context:
        found = look(context)
        if as_json:
            click.echo(json.dumps(found, indent=2))
            return
        for line in status_lines(found):
            click.echo(line)


@cli.command()
@_FILE
def stop(path: str) -> None:
    """Ask the running stream to end at a transaction boundary."""
    with _context(path) as context:
        context.need_plan()
        store = context.store()
        try:
            epoch = store.request_stop(context.pipeline.name)
        finally:
            store.close()
        click.echo("no stream is running" if epoch is None else f"epoch {epoch} was asked to stop")


@cli.command()
@_FILE
def reload(path: str) -> None:
    """Let the running stream copy the tables that the file names now."""
    from airflow_provider_cdc.phases.reload import reload as take_in

    with _context(path) as context:
        store = context.store()
        try:
            found = take_in(context, store)
        finally:
            store.close()
        if found is None:
            click.echo("no stream is running: the next one copies the tables of the file")
            return
        added, removed = found
        click.echo(f"added: {', '.join(added) or 'none'}; removed: {', '.join(removed) or 'none'}")


@cli.command()
@_FILE
@click.option("--table", required=True, help="The table, as database.table.")
@click.option("--where-key", metavar="CONDITION", help="Only rows whose keys are so, as in: id >= 100 AND id < 200.")
def resnapshot(path: str, table: str, where_key: str | None) -> None:
    """Read a table again, beside the stream or without one; a suspended one goes on then."""
    from airflow_provider_cdc.phases.key_ranges import read_again
    from airflow_provider_cdc.spark.snapshot_job import run_on_spark

    with _work(path, need_snapshot=True, beside=True) as (context, store, spark):
        read_again(context, store, table, where_key, run_on_spark(spark, context.reporter.line))


@cli.command()
@_FILE
@click.option("--all", "every", is_flag=True, help="All pipelines of the same bookkeeping database.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write to a file, in one step, instead.")
@click.option("--listen", metavar="HOST:PORT", help="Answer GET /metrics there until it is ended, instead.")
def metrics(path: str, every: bool, output: str | None, listen: str | None) -> None:
    """Print the numbers of the pipeline as Prometheus reads them; only the bookkeeping is asked."""
    from airflow_provider_cdc.core.metrics import prometheus_text
    from airflow_provider_cdc.metrics import measure, serve, write_file

    if output and listen:
        raise click.UsageError("--output and --listen exclude each other")
    with _context(path) as context:

        def text() -> str:
            with closing(context.store(migrate=False)) as store:
                names = store.pipelines() if every else [context.pipeline.name]
                return prometheus_text(one for name in names for one in measure(store, name))

        if listen:
            serve(listen, text, context.reporter.line)
        elif output:
            write_file(text(), Path(output))
        else:
            click.echo(text(), nl=False)


def _snapshot(context: Context, store: Store, spark: SparkSession) -> None:
    from airflow_provider_cdc.phases.next_snapshot import planned
    from airflow_provider_cdc.phases.snapshot import run_snapshot
    from airflow_provider_cdc.phases.snapshot_progress import table_totals
    from airflow_provider_cdc.spark.snapshot_job import run_on_spark

    plan = planned(context, store)
    run_snapshot(context, store, plan, run_on_spark(spark, context.reporter.line))
    for totals in table_totals(context, context.newest(plan)):
        context.reporter.line(str(totals))


def _stream(context: Context, store: Store, spark: SparkSession, catch_up: bool) -> None:
    from airflow_provider_cdc.driver import follow

    follow(context, store, spark, catch_up=catch_up or context.pipeline.stream.mode == "catch_up")


def _plan_json(context: Context, plan: Plan, written: bool, ahead: Forecast) -> dict[str, Any]:
    return {
        "pipeline": plan.pipeline,
        "generation": plan.generation,
        "written": written,
        "p0": plan.p0.to_json(),
        "start": plan.start,
        "chunk_rows": context.pipeline.snapshot.chunk_rows,
        "tables": [
            {
                "table": table.label,
                "key": list(table.key),
                "chunks": sum(c.table == index for c in plan.chunks),
                "groups": sorted(plan.groups_of(index)),
                "planning": asdict(plan.costs[index]) if plan.costs else None,
            }
            for index, table in enumerate(plan.tables)
        ],
        "chunks": len(plan.chunks),
        "groups": len(plan.groups()),
        "rows": ahead.rows,
        "bytes": ahead.size,
        "seconds": round(ahead.seconds, 1) if plan.start == "snapshot" else 0.0,
        "binlog_kept_seconds": ahead.purge_in,
    }


_secrets: list[str] = []


@contextmanager
def _context(path: str, quiet: bool = False) -> Iterator[Context]:
    from airflow_provider_cdc.connections import resolve, strip_environment
    from airflow_provider_cdc.phases.context import Context
    from airflow_provider_cdc.pipeline import Pipeline
    from airflow_provider_cdc.progress_bar import reporter

    pipeline = Pipeline.load(path)
    for conn_id in (pipeline.source.conn_id, pipeline.sink.conn_id, pipeline.state.conn_id):
        if conn_id:
            _secrets.extend(resolve(conn_id).secrets)
    context = Context.of(pipeline)
    strip_environment()  # before anything is started: the preflight already asks Java for its version
    if quiet:
        yield context
        return
    with reporter() as shown:
        context.reporter = shown
        yield context


@contextmanager
def _work(
    path: str, need_snapshot: bool = False, beside: bool = False
) -> Iterator[tuple[Context, Store, SparkSession]]:
    """Preflight, bookkeeping and Spark for the commands that change something; ``beside``: while a stream may run."""
    from airflow_provider_cdc.phases.preflight import require
    from airflow_provider_cdc.spark.session import start

    with _context(path) as context:
        for finding in require(context):
            context.reporter.line(f"{finding.level}: {finding.what}. {finding.remedy}")
        if need_snapshot:
            context.need_plan()
        store = context.store()
        try:
            if not beside:
                context.watcher.refuse(store, context.pipeline.name)
            spark = start(context.pipeline.name, *context.spark)
            try:
                yield context, store, spark
            finally:
                spark.stop()
        finally:
            store.close()


def main() -> None:
    """Entry point: errors become one line and an exit code."""
    from airflow_provider_cdc.connections import scrub

    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except CdcError as error:
        click.echo(scrub(f"error: {error}".replace("\n", " "), _secrets), err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"error: {error.format_message().rstrip('.')}. See airflow-cdc --help".replace("\n", " "), err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        if os.environ.get("CDC_DEBUG"):
            click.echo(scrub(traceback.format_exc(), _secrets), err=True)
        text = f"error: unexpected {type(error).__name__}: {error}. Set CDC_DEBUG=1 to see where, and {REPORT}"
        click.echo(scrub(text.replace("\n", " "), _secrets), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
