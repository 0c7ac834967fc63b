"""The command that puts the running environment into an archive."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import click

from airflow_provider_cdc.cli.base import cli
from airflow_provider_cdc.model.errors import NoRoomError, NotReadyError

_SUFFIX = ".tar.gz"
_ADDRESS = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.\-]*:/")
#: Stands for the folder in which YARN unpacks the archive, and which differs from driver to driver.
_GATEWAY = "/airflow-cdc-env"
_STORE = re.compile(r"(s3a?|gc?s|abfss?|az)://")


@cli.command()
@click.argument("target")
def pack(target: str) -> None:
    """Put this Python environment and its machine code into an archive, for the nodes of a cluster or for an image."""
    from airflow_provider_cdc.observe.reporters import make_reporter
    from airflow_provider_cdc.sinks.storage.open_storage import open_storage
    from airflow_provider_cdc.spark.packed_environment import (
        base_python,
        digest_of,
        list_environment,
        with_machine_code,
        write_archive,
    )

    if _ADDRESS.match(target) and not _STORE.match(target):
        raise NotReadyError(
            f"{target.partition(':')[0]}:// is not supported here",
            "Name a folder, then copy the archive (hdfs dfs -put), or name an address such as s3://bucket/cdc",
        )
    with make_reporter() as reporter:
        environment = list_environment()  # refuses before anything is compiled
        from airflow_provider_cdc.native.compile import target_processor
        from airflow_provider_cdc.spark.warm_up import compile_machine_code

        members = with_machine_code(environment, compile_machine_code())
        reporter.line("reading the environment")
        digest = digest_of(members)
        folder, _, name = target.rpartition("/") if target.endswith(_SUFFIX) else (target, "", f"env-{digest}{_SUFFIX}")
        storage = open_storage(folder if _STORE.match(target) else os.path.abspath(folder.removeprefix("file://")))
        if target.endswith(_SUFFIX) or storage.size(name) is None:
            reporter.line(f"writing {storage.location(name)}")
            if storage.is_remote:
                with storage.open(name, "wb") as file:
                    write_archive(members, file)
            else:
                _write_file(Path(storage.location(name)), lambda file: write_archive(members, file))
            click.echo(f"archive: {storage.location(name)}, {(storage.size(name) or 0) / 1_000_000:.1f} MB")
        else:
            click.echo(f"archive: {storage.location(name)} is already there")
    click.echo(f"base Python: {base_python()} is not in it, and must be on every node")
    click.echo(f"machine code: for the processor {target_processor()[0]}; others compile their own")
    address = re.sub("^s3://", "s3a://", storage.uri(name))  # the scheme that Hadoop knows
    jars = next((member.name for member in members if member.name.endswith("/site-packages/pyspark/jars")), None)
    click.echo(
        "\n".join(["spark:", "  conf:", *(f'    {key}: "{value}"' for key, value in _spark_conf(address, jars))])
    )


def _spark_conf(archive: str, jars: str | None) -> Iterator[tuple[str, str]]:
    """Yield the settings of drivers in YARN that run from the archive.

    :param archive: address of the archive.
    :param jars: folder in it with the jars of Spark, which are then not uploaded for each driver.
    """
    yield "spark.yarn.dist.archives", f"{archive}#env"
    yield "spark.pyspark.python", "./env/bin/python"
    if jars:
        yield "spark.yarn.jars", f"local:{_GATEWAY}/{jars}/*"
        yield "spark.yarn.config.gatewayPath", _GATEWAY
        yield "spark.yarn.config.replacementPath", "$PWD/env"


def _write_file(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file as a whole, or not at all.

    :raises NoRoomError: if the disk is full.
    :raises NotReadyError: if it cannot be written for another reason.
    """
    from airflow_provider_cdc.sinks.storage.disk import fsync_folder, translate_disk_full

    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with translate_disk_full(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            fsync_folder(path.parent)
    except OSError as error:
        if isinstance(error, NoRoomError):
            raise
        text = f"{error.filename or path}: {error.strerror or error}"
        raise NotReadyError(text, "Name a folder that this user can write to") from None
    finally:
        with suppress(OSError):
            temporary.unlink()
