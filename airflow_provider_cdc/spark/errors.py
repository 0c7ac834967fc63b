"""The translation of errors that Spark reports."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_cdc import __version__
from airflow_provider_cdc.model.errors import (
    LESS_MEMORY_REMEDY,
    CdcError,
    NoRoomError,
    NotReadyError,
    OutOfMemoryError,
    SlowWorkerError,
    UnexpectedError,
    extract_error,
)

#: How Python, Arrow, NumPy, compressors, the C++ library, the system and Java report that memory ran out.
_NO_MEMORY = re.compile(
    "MemoryError|[Nn]ot enough memory|Cannot allocate memory|can't start new thread|std::bad_alloc|out of memory"
)


#: How Spark reports that the interpreter of its workers is missing, lacks this package, or is another Python.
_UNFIT_WORKER = re.compile(
    r'Cannot run program "[^"\n]*python[^"\n]*".*(?:No such file|Permission denied).*'
    r"|No module named '?airflow_provider_cdc.*|Python in worker has different version: .*"
)


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Convert exceptions that Spark reports back into this project's errors."""
    try:
        yield
    except CdcError:
        raise
    except Exception as error:
        raise to_cdc_error(error) from None


def to_cdc_error(error: BaseException) -> CdcError:
    """Return the project's error inside an exception that Spark reports, or an error that quotes Spark.

    Whether other errors are transient is unknown (a lost executor is, an error in a batch is not), so they are worth a
    few retries.
    """
    text = str(error)
    project_error = extract_error(text)
    if project_error is not None:
        return project_error
    if (why := _UNFIT_WORKER.search(text)) is not None:
        return NotReadyError(
            f"Spark's workers cannot run this package: {' '.join(why[0].split())}",
            f"Install airflow-provider-cdc {__version__} with Python {sys.version_info[0]}.{sys.version_info[1]} on "
            "the Spark workers, or set spark.pyspark.python in spark.conf to an interpreter that has it",
        )
    if "Python worker failed to connect back" in text:
        return SlowWorkerError(
            "a Python worker of Spark did not start within Spark's limit of 10 s",
            "The host of the driver is overloaded: run again when it is less busy, or start fewer drivers at a time",
        )
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return OutOfMemoryError(f"Spark ran out of memory: {main_error_line(text) or type(error).__name__}")
    if "Python worker exited unexpectedly" in text:
        return UnexpectedError(
            "a Python worker of Spark was killed, or crashed",
            f"If the kernel's log or the cluster manager shows that memory ran out: {LESS_MEMORY_REMEDY}. Otherwise, "
            "see the log of the Spark driver",
        )
    if "No space left on device" in text:
        return NoRoomError(
            f"Spark failed: {main_error_line(text)}",
            "Free disk space for sink.path, and for SPARK_LOCAL_DIRS on Spark's hosts, then run again",
        )
    return UnexpectedError(
        f"Spark failed: {main_error_line(text) or type(error).__name__}", "See the log of the Spark driver"
    )


def main_error_line(text: str) -> str:
    """Return the most informative line of a long error text."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat")]
    python = [line for line in reversed(lines) if "Error" in line]
    java = [line[2:] for line in lines if line.startswith(": ")]
    return next(iter(python + java + lines), "")[:500]
