"""The command that uninstalls a pipeline."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

import click

from airflow_provider_cdc.cli.base import FILE_OPTION, cli, open_context
from airflow_provider_cdc.model.errors import NotReadyError

if TYPE_CHECKING:
    from airflow_provider_cdc.maintenance.uninstall import PipelineData


@cli.command()
@FILE_OPTION
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
        click.echo(f"{context.pipeline.name} is forgotten")


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
