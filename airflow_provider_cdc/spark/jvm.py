"""The JVM of a Spark driver: how it is started, and what it may write to standard error."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_cdc.spark.class_archive import find_class_archive
from airflow_provider_cdc.system.notices import NOTICE_PREFIX

#: Lines of the JVM that say nothing about the work: Spark always asks for this module.
_NOISE = (b"WARNING: Using incubator modules: jdk.incubator.vector",)

#: Options of a JVM that lives for one job: the optimizing compiler would cost more time than its code saves.
_QUICK_OPTIONS = ("-XX:+IgnoreUnrecognizedVMOptions", "-XX:TieredStopAtLevel=1")

#: Java would list the classes that it cannot archive, and why it does not use an archive.
_NO_ARCHIVE_LOG = "-Xlog:cds*=off"


def launch_jvm(
    settings: Mapping[str, str],
    report_line: Callable[[str], None],
    *,
    short_lived: bool = False,
    archive_to: Path | None = None,
) -> None:
    """Start the JVM of this process, unless it has one, and make it the one that the next session uses.

    :param settings: settings of the session.
    :param report_line: called with a line of text when the JVM is started, when it runs, and while it lives for what
        Python workers on this host report about themselves.
    :param short_lived: whether a quick start matters more than the speed of what runs for minutes.
    :param archive_to: file in which the JVM archives the classes that it has loaded when it ends.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    began = time.monotonic()
    report_line("starting Java")
    conf = SparkConf().setAll(list(settings.items()))
    reading, writing = os.pipe()
    threading.Thread(target=_forward_lines, args=(reading, report_line), name="jvm-output", daemon=True).start()
    try:
        with _options_in_environment(_java_options(short_lived, archive_to)):
            # Both, since a task reads its driver's output to the end, and an unused JVM may outlive the driver.
            streams = {"stdout": writing, "stderr": writing}
            gateway: Any = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)
    report_line(f"Java runs after {time.monotonic() - began:.1f} s")


def _java_options(short_lived: bool, archive_to: Path | None) -> list[str]:
    options = [*_QUICK_OPTIONS] if short_lived else []
    if archive_to is not None:
        return [*options, _NO_ARCHIVE_LOG, f"-XX:ArchiveClassesAtExit={archive_to}"]
    archive = find_class_archive(os.environ["JAVA_HOME"]) if "JAVA_HOME" in os.environ else None
    if archive is None or " " in str(archive):  # the script divides the options at spaces
        return options
    return [*options, "-Xshare:auto", _NO_ARCHIVE_LOG, f"-XX:SharedArchiveFile={archive}"]


@contextlib.contextmanager
def _options_in_environment(options: Sequence[str]) -> Iterator[None]:
    """Set the environment of Spark's start script: these options come before the user's, which therefore win.

    The script first runs a small Java program that prints the command line of the JVM, and lives for a second.
    """
    before = {name: os.environ.get(name) for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")}
    for name, value in before.items():
        all_options = [*(_QUICK_OPTIONS if name == "SPARK_LAUNCHER_OPTS" else options), value or ""]
        os.environ[name] = " ".join(all_options).strip()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def _forward_lines(source: int, report_line: Callable[[str], None]) -> None:
    """Write the lines of a pipe to standard error, except noise, and report the notices of Python workers."""
    with open(source, "rb") as lines, open(2, "wb", buffering=0, closefd=False) as target:
        for line in lines:
            if line.startswith(NOTICE_PREFIX.encode()):
                report_line(line.decode(errors="replace").removeprefix(NOTICE_PREFIX).rstrip())
            elif line.rstrip() not in _NOISE:
                target.write(line)
