"""Commands that send a control request to a running stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from airflow_provider_cdc.cli.base import TABLE_OPTION, cli, file_option, open_context

if TYPE_CHECKING:
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import StateDatabase

BY_OPTION = click.option("--by", metavar="NAME", help="Name recorded as the requester (default: OS user).")


@contextmanager
def open_for_request(path: str, by: str | None) -> Iterator[tuple[RunContext, StateDatabase, str]]:
    """Yield the run context of a planned pipeline, its state database, and the requester's name."""
    from airflow_provider_cdc.stream.control import os_user

    with open_context(path) as context:
        context.plans.require()
        with closing(context.open_state_database()) as store:
            yield context, store, by or os_user()


def _epoch_text(context: RunContext, store: StateDatabase) -> str:
    run = store.newest_epoch(context.pipeline.name)
    return f"epoch {run.epoch if run else 0}"


@cli.command()
@file_option
@BY_OPTION
def stop(path: str, by: str | None) -> None:
    """Ask the running stream to stop at a transaction boundary."""
    with open_for_request(path, by) as (context, store, name):
        epoch = store.stop_stream(context.pipeline.name, name)
        not_running = "no stream is running, and one that is starting will not begin"
        click.echo(not_running if epoch is None else f"epoch {epoch} was asked to stop")


@cli.command()
@file_option
@BY_OPTION
def pause(path: str, by: str | None) -> None:
    """Pause the running stream."""
    with open_for_request(path, by) as (context, store, name):
        accepted = store.pause_stream(context.pipeline.name, name)
        click.echo(f"{_epoch_text(context, store)} was asked to pause" if accepted else "no stream is running")


@cli.command()
@file_option
@click.option("--table", help="Table to re-snapshot, as database.table (default: resume the paused stream).")
@BY_OPTION
def resume(path: str, table: str | None, by: str | None) -> None:
    """Resume the paused stream, or (--table) let the stream re-snapshot a table; a suspended one rejoins."""
    from airflow_provider_cdc.stream.control import request_and_wait

    with open_for_request(path, by) as (context, store, name):
        if table is not None:
            click.echo(request_and_wait(context, store, "reread", table, name))
            return
        accepted = store.resume_stream(context.pipeline.name, name)
        run, is_alive = context.liveness.wait_until_known(store, context.pipeline.name)
        message = f"epoch {run.epoch} resumes" if run and is_alive else "the stream resumes when it is restarted"
        click.echo(message if accepted else "no stream is running, and none is paused")


@cli.command()
@file_option
@TABLE_OPTION
@BY_OPTION
def suspend(path: str, table: str, by: str | None) -> None:
    """Suspend the replication of one table. All others continue."""
    from airflow_provider_cdc.stream.control import request_and_wait

    with open_for_request(path, by) as (context, store, name):
        click.echo(request_and_wait(context, store, "suspend", table, name))


@cli.command()
@file_option
def reload(path: str) -> None:
    """Apply the table list in the file to the running stream."""
    from airflow_provider_cdc.resnapshot.membership import reload_tables

    with open_context(path) as context:
        with closing(context.open_state_database()) as store:
            changes = reload_tables(context, store)
        if changes is None:
            click.echo("no stream is running: the next one will copy the tables in the file")
            return
        added, removed = changes
        click.echo(f"added: {', '.join(added) or 'none'}; removed: {', '.join(removed) or 'none'}")
