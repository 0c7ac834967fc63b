"""Prepare this machine for drivers: compile all machine code, and archive the Java classes that Spark loads."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.spark.class_archive import find_class_archive, new_class_archive
from airflow_provider_cdc.spark.java import ensure_java_home
from airflow_provider_cdc.spark.session import start_session

#: All modules with machine code.
MACHINE_CODE_MODULES = (
    "mysql.binlog.kernels.json_kernel",
    "mysql.binlog.kernels.payloads",
    "mysql.binlog.kernels.row_kernel",
    "mysql.binlog.kernels.walk_kernel",
    "mysql.resultset.row_kernel",
    "native.hmac_sha256",
    "native.murmur3",
    "native.siphash",
)
_REMEDY = "Set XDG_CACHE_HOME to a folder that this user can write to, and no other user"


def compile_machine_code() -> list[Path]:
    """Compile all machine code that is not cached yet.

    :returns: the folders that contain it.
    :raises NotReadyError: if no cache folder is writable and safe from other users.
    """
    for name in MACHINE_CODE_MODULES:
        import_module(f"airflow_provider_cdc.{name}")
    from airflow_provider_cdc.native.compile import used_folders

    folders = used_folders()
    if None in folders:
        raise NotReadyError("machine code has no cache folder that this user can write to, and no other user", _REMEDY)
    return sorted(folder for folder in folders if folder is not None)


def archive_java_classes(report_line: Callable[[str], None]) -> Path:
    """Make the archive of Java classes for the Java runtime and the Spark of this machine, unless there is one.

    This process cannot start Spark again afterwards.

    :param report_line: called with a line of text for each slow part.
    :raises NotReadyError: if there is no Java, it cannot make archives, or no cache folder is writable and safe.
    """
    java_home = ensure_java_home()
    existing = find_class_archive(java_home)
    if existing is not None:
        return existing
    archive = new_class_archive(java_home)
    if archive is None:
        raise NotReadyError("Java classes have no cache folder that this user can write to, and no other user", _REMEDY)
    unfinished = archive.with_name(f"{archive.stem}-{uuid.uuid4().hex[:8]}.unfinished")
    try:
        _run_jobs(unfinished, report_line)
        os.chmod(unfinished, 0o444)
        os.replace(unfinished, archive)
    except FileNotFoundError:
        raise NotReadyError(
            f"the Java runtime in {java_home} has made no archive of its classes",
            "Drivers run without it; to start them faster, install openjdk-17-jre-headless or set JAVA_HOME",
        ) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
    return archive


def _run_jobs(archive_to: Path, report_line: Callable[[str], None]) -> None:
    """Start Spark, run what drivers run, and wait until the JVM has ended."""
    spark = start_session("warm-up", "local[1]", report_line=report_line, short_lived=True, archive_to=archive_to)
    spark.sparkContext.parallelize(range(1), 1).count()
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
    process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    report_line("archiving Java classes")
    process.stdin.close()  # the JVM ends when this closes
    process.wait()
