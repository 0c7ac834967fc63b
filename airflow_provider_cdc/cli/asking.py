"""Commands that ask something of a stream that runs."""

from __future__ import annotations

import click

from airflow_provider_cdc.cli.base import FILE, cli, opened


@cli.command()
@FILE
def stop(path: str) -> None:
    """Ask the running stream to end at a transaction boundary."""
    with opened(path) as context:
        context.need_plan()
        store = context.store()
        try:
            epoch = store.request_stop(context.pipeline.name)
        finally:
            store.close()
        click.echo("no stream is running" if epoch is None else f"epoch {epoch} was asked to stop")


@cli.command()
@FILE
def reload(path: str) -> None:
    """Let the running stream copy the tables that the file names now."""
    from airflow_provider_cdc.phases.reload import reload as take_in

    with opened(path) as context:
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
