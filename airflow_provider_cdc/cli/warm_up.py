"""The command that prepares a machine or an image for drivers."""

from __future__ import annotations

import click

from airflow_provider_cdc.cli.base import cli


@cli.command("warm-up")
def warm_up() -> None:
    """Compile machine code and archive Java classes, so that drivers start faster."""
    from airflow_provider_cdc.observe.reporters import make_reporter
    from airflow_provider_cdc.spark.warm_up import archive_java_classes, compile_machine_code

    with make_reporter() as reporter:
        folders = compile_machine_code()
        size = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
        for parent in sorted({folder.parent for folder in folders}):
            click.echo(f"machine code: {parent}, {_megabytes(size)}")
        archive = archive_java_classes(reporter.line)
        click.echo(f"Java classes: {archive}, {_megabytes(archive.stat().st_size)}")


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB"
