"""Notices: lines in which a process without a log says what it is doing, such as a Python worker of Spark.

Spark passes standard error of local workers to its JVM, and the driver reports such a line in its own log. Elsewhere,
the line is readable as it is.
"""

from __future__ import annotations

import sys

#: Begins each notice.
NOTICE_PREFIX = "airflow-cdc: "


def write_notice(text: str) -> None:
    """Write a notice to standard error, as one line in one piece."""
    if sys.stderr is not None:
        sys.stderr.write(f"{NOTICE_PREFIX}{text}\n")
        sys.stderr.flush()
