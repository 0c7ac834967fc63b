"""Commands that read the source, the sink or the state database, and change no data."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from airflow_provider_cdc.cli.base import JSON_OPTION, TABLE_OPTION, cli, file_option, open_context
from airflow_provider_cdc.model.errors import REPORT_REMEDY, NotReadyError, TerminalError, TransientError

if TYPE_CHECKING:
    from airflow_provider_cdc.model.plan import Plan
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.snapshot.retention_guard import SnapshotForecast


@cli.command()
@file_option
@JSON_OPTION
def check(path: str, as_json: bool) -> None:
    """Check the server, grants, tables, sink and runtime. Leaves nothing behind."""
    from airflow_provider_cdc.preflight.run import run_preflight

    with open_context(path) as context:
        findings = run_preflight(context)
        if as_json:
            click.echo(json.dumps([f.to_json() for f in findings], indent=2))
        else:
            for result in findings:
                click.echo(f"{result.level:8}{result}")
        if errors := [f for f in findings if f.level == "error"]:
            transient = all(f.transient for f in errors)
            raise click.exceptions.Exit((TransientError if transient else NotReadyError).exit_code)


@cli.command()
@file_option
@JSON_OPTION
def plan(path: str, as_json: bool) -> None:
    """Show the chunk plan and its estimated cost. Writes nothing."""
    from airflow_provider_cdc.model.start_mode import SNAPSHOT, format_start
    from airflow_provider_cdc.mysql.client.session import connect
    from airflow_provider_cdc.preflight.run import require_preflight
    from airflow_provider_cdc.snapshot.retention_guard import forecast_snapshot

    with open_context(path) as context:
        for result in require_preflight(context, spark=False):
            context.warn(str(result))
        recorded_plan = context.plans.load()
        shown_plan = recorded_plan or context.plans.make(1)
        with closing(connect(context.connect_args)) as connection:
            snapshot_forecast = forecast_snapshot(context, connection, [t.id for t in shown_plan.tables], None)
        if as_json:
            click.echo(
                json.dumps(_plan_json(context, shown_plan, recorded_plan is not None, snapshot_forecast), indent=2)
            )
            return
        state = "planned before, kept" if recorded_plan else "not written"
        click.echo(
            f"pipeline {shown_plan.pipeline}, snapshot {shown_plan.generation} ({state}), P0 at {shown_plan.p0.at}"
        )
        rows_a_chunk = context.pipeline.snapshot.chunk_rows
        costs = [f"; planned with {c.statements} statements, {c.rows} rows read" for c in shown_plan.costs]
        for index, table in enumerate(shown_plan.tables):
            chunks = sum(c.table == index for c in shown_plan.chunks)
            groups = len(shown_plan.groups_of(index))
            how = f"{chunks} chunks of up to about {rows_a_chunk} rows in {groups} groups, key ({', '.join(table.key)})"
            if not table.key:
                how = "no usable key, so read as 1 chunk"
            click.echo(f"  {table.label}: {how}" + (costs[index] if costs else ""))
        if shown_plan.start != SNAPSHOT:
            click.echo(
                f"no snapshot: the stream begins at P0, which is {format_start(shown_plan.start)}; no rows are read"
            )
            return
        click.echo(f"a snapshot of {snapshot_forecast}")
        click.echo(
            f"{len(shown_plan.chunks)} chunks in {len(shown_plan.groups())} groups, at least 4 statements per chunk"
        )


@cli.command()
@file_option
@JSON_OPTION
@click.option(
    "--show-values", is_flag=True, help="Show the keys of differing rows, or whole rows for tables without a key."
)
@click.option(
    "--tables", multiple=True, metavar="PATTERN", help="Compare only tables (database.table) that match. Repeatable."
)
@click.option(
    "--sample", metavar="1/N", help="Compare one in N tables, different ones each day: all of them in N days."
)
@click.option("--seed", type=int, help="Number that selects the share for --sample (default: the day).")
@click.option("--max-rows-per-second", type=int, help="Maximum rows per second to read from the source.")
@click.option(
    "--max-lag-seconds", type=int, help="Maximum age of the oldest commit missing from a copy (default: one day)."
)
@click.option("--repair", is_flag=True, help="Re-snapshot differing rows, then compare again.")
def verify(path: str, as_json: bool, show_values: bool, repair: bool, **chosen: Any) -> None:
    """Compare source and sink. Exits with 1 if they differ, and with 4 if only some tables cannot be compared now."""
    from airflow_provider_cdc.config.selection import TableSelection
    from airflow_provider_cdc.config.spark_conf import cluster_mode_refused
    from airflow_provider_cdc.driver.phases import run_verification
    from airflow_provider_cdc.verify.report import check_equal, describe_equal, repair_hint

    selection = TableSelection.from_options(**chosen, today=datetime.now(UTC).toordinal())
    with open_context(path, quiet=as_json) as context:
        if context.cluster is not None and not context.runs_jobs_locally:
            raise cluster_mode_refused("verify")
        verdicts = run_verification(context, show_values=show_values, selection=selection, repair=repair)
        if as_json:
            click.echo(json.dumps([v.to_json(show_values=show_values) for v in verdicts], indent=2))
        hint = repair_hint("--repair", repaired=repair)
        check_equal(verdicts, hint=hint, show_values="" if show_values else "--show-values")
        if not as_json:
            click.echo(describe_equal(verdicts))


@cli.command()
@file_option
@JSON_OPTION
@TABLE_OPTION
@click.option(
    "--key", "keys", required=True, multiple=True, help="Key value, in key order, or COLUMN=VALUE. Repeatable."
)
def explain(path: str, as_json: bool, table: str, keys: tuple[str, ...]) -> None:
    """Explain how a row came to be, with its values. Exits with 1 if source and copy differ."""
    from airflow_provider_cdc.explain.run import explain_row

    with open_context(path, quiet=as_json) as context:
        explanation = explain_row(context, table, keys)
        if as_json:
            click.echo(json.dumps(explanation.to_json(), indent=2))
        else:
            for line in explanation.lines():
                click.echo(line)
        if explanation.equal is False:
            raise TerminalError(
                f"source and copy of a row of {table} differ",
                f"Re-snapshot it: airflow-cdc resnapshot --table {table} --where-key CONDITION; and {REPORT_REMEDY}",
                table=table,
            )


@cli.command()
@file_option
@JSON_OPTION
def status(path: str, as_json: bool) -> None:
    """Show phases, chunks, rates, lag and offset."""
    from airflow_provider_cdc.observe.status import describe_unreadable_copies, read_status
    from airflow_provider_cdc.observe.status_text import status_lines

    with open_context(path) as context:
        report = read_status(context)
        click.echo(json.dumps(report, indent=2) if as_json else "\n".join(status_lines(report)))
        if problem := describe_unreadable_copies(report):
            raise TerminalError(problem, "The rows of these tables say why, and what to do")


@cli.command()
@file_option
@click.option("--all", "every", is_flag=True, help="Include all pipelines in the same state database.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write to a file, atomically, instead of stdout.")
@click.option("--listen", metavar="HOST:PORT", help="Serve GET /metrics there until interrupted.")
def metrics(path: str, every: bool, output: str | None, listen: str | None) -> None:
    """Print the pipeline's metrics in Prometheus format. Reads only the state database."""
    from prometheus_client import generate_latest

    from airflow_provider_cdc.observe.metrics import Measurement, measure_pipeline
    from airflow_provider_cdc.observe.prometheus import make_registry, serve_metrics, write_metrics_file

    if output and listen:
        raise click.UsageError("--output and --listen are mutually exclusive")
    with open_context(path) as context:

        def measure() -> list[Measurement]:
            with closing(context.open_state_database(migrate=False)) as store:
                names = store.pipeline_names() if every else [context.pipeline.name]
                return [measurement for name in names for measurement in measure_pipeline(store, name)]

        if listen:
            serve_metrics(listen, measure, context.reporter.line)
        elif output:
            write_metrics_file(measure, output)
        else:
            click.echo(generate_latest(make_registry(measure)).decode(), nl=False)


def _plan_json(context: RunContext, plan: Plan, written: bool, snapshot_forecast: SnapshotForecast) -> dict[str, Any]:
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
        "rows": snapshot_forecast.rows,
        "bytes": snapshot_forecast.size,
        "seconds": round(snapshot_forecast.seconds, 1) if plan.start == "snapshot" else 0.0,
        "binlog_kept_seconds": snapshot_forecast.seconds_to_purge,
    }
