"""The JVM of a Spark driver: how it is started, and what it may write to standard error."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

#: Lines of the JVM that say nothing about the work: Spark always asks for this module.
_NOISE = (b"WARNING: Using incubator modules: jdk.incubator.vector",)


def launch_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process, unless it has one, and make it the one that the next session uses.

    :param settings: settings of the session.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf().setAll(list(settings.items()))
    reading, writing = os.pipe()
    threading.Thread(target=_forward_lines, args=(reading,), name="jvm-output", daemon=True).start()
    try:
        gateway: Any = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _forward_lines(source: int) -> None:
    """Write the lines of a pipe to standard error, except noise."""
    with open(source, "rb") as lines, open(2, "wb", buffering=0, closefd=False) as target:
        for line in lines:
            if line.rstrip() not in _NOISE:
                target.write(line)
