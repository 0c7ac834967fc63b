"""The JVM of a Spark driver: how it is started, and what it may write to standard error."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_cdc.system.notices import NOTICE_PREFIX

#: Lines of the JVM that say nothing about the work: Spark always asks for this module.
_NOISE = (b"WARNING: Using incubator modules: jdk.incubator.vector",)


def launch_jvm(settings: Mapping[str, str], report_line: Callable[[str], None]) -> None:
    """Start the JVM of this process, unless it has one, and make it the one that the next session uses.

    :param settings: settings of the session.
    :param report_line: called with a line of text when the JVM is started, when it runs, and while it lives for what
        Python workers on this host report about themselves.
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
        gateway: Any = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)
    report_line(f"Java runs after {time.monotonic() - began:.1f} s")


def _forward_lines(source: int, report_line: Callable[[str], None]) -> None:
    """Write the lines of a pipe to standard error, except noise, and report the notices of Python workers."""
    with open(source, "rb") as lines, open(2, "wb", buffering=0, closefd=False) as target:
        for line in lines:
            if line.startswith(NOTICE_PREFIX.encode()):
                report_line(line.decode(errors="replace").removeprefix(NOTICE_PREFIX).rstrip())
            elif line.rstrip() not in _NOISE:
                target.write(line)
