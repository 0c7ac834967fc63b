"""Start Spark and its Python workers, and compile machine code, while the driver does something else."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_cdc.spark.worker_daemon import WORKER_MODULES
from airflow_provider_cdc.system.cache_folders import machine_code_folders, packed_machine_code_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Started = TypeVar("Started")


def start_in_thread(start: Callable[[], Started]) -> Future[Started]:
    """Call a function in a thread that does not keep this process alive; return its future result or error."""
    future: Future[Started] = Future()

    def run() -> None:
        try:
            future.set_result(start())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="early-start", daemon=True).start()
    return future


def compile_for_workers(report_line: Callable[[str], None]) -> None:
    """Compile what the Python workers of this host need, in other processes, if it has no machine code at all.

    Without this, compiling would begin when Spark starts the workers. They wait for it.

    :param report_line: called with a line of text if something is compiled.
    """
    if any(folder.exists() for folder in (*machine_code_folders(), packed_machine_code_folder())):
        return
    report_line("compiling machine code, once per machine")
    for module in WORKER_MODULES:
        # What goes wrong is reported by the worker that needs the code.
        command = [sys.executable, "-Pc", f"import airflow_provider_cdc.{module}"]
        start_in_thread(partial(subprocess.run, command, stdin=subprocess.DEVNULL, capture_output=True))


def start_local_workers(spark: SparkSession, report_line: Callable[[str], None]) -> None:
    """Start the Python workers of a local session in a thread, before its first job needs them.

    :param report_line: called with a line of text when they run.
    """

    def start() -> None:
        began = time.monotonic()
        # If this fails, so does the first job, which reports the error; or the session has ended meanwhile.
        with suppress(Exception):
            spark.sparkContext.parallelize(range(1), 1).count()
            report_line(f"Python workers run after {time.monotonic() - began:.1f} s")

    start_in_thread(start)
