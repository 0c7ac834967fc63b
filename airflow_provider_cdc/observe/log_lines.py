"""Lines of a driver's log: the driver writes time, level and text, and its task passes on the text at this level."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterable
from typing import Any

#: Name of the logger for everything that a driver reports.
LOGGER_NAME = "airflow_provider_cdc.driver"
#: Prefix of the line with the error that ended a driver. Its task raises this error, so it does not log the line.
FINAL_ERROR_PREFIX = "ended by an error: "

_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)", re.DOTALL)
#: Levels of lines that other programs write, such as the JVM, and Python when it crashes.
_OTHER_LINES = ((re.compile(r"(?:WARNING|warning): (.*)"), logging.WARNING), (re.compile(r"(Fatal .*)"), logging.ERROR))


class LineFormatter(logging.Formatter):
    """Formats each line of a record as UTC time, level and text."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as lines that :func:`parse_log_line` understands."""
        text = super().format(record)
        prefix = f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%SZ')} {record.levelname} "
        return "\n".join(prefix + line for line in text.splitlines() or [""])


def log_to_standard_error(level: int) -> None:
    """Write the records of all loggers to standard error, and Python's warnings with them.

    :param level: lowest level of the driver's own lines that are written; those of libraries begin at WARNING.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.root.handlers = [handler]
    logging.getLogger(LOGGER_NAME).setLevel(level)
    logging.captureWarnings(True)


def parse_log_line(line: str) -> tuple[int, str]:
    """Return level and text of a line of a driver's log; a line without a level is INFO."""
    if match := _LINE.fullmatch(line):
        return logging.getLevelNamesMapping()[match[1]], match[2]
    for pattern, level in _OTHER_LINES:
        if match := pattern.fullmatch(line):
            return level, match[1]
    return logging.INFO, line


def relay_log_lines(lines: Iterable[str], log: Any) -> None:
    """Write lines of a driver's log to a task's log: each at its level, without the driver's time.

    :param lines: the lines.
    :param log: the task's logger.
    """
    for line in lines:
        level, text = parse_log_line(line)
        if not text.startswith(FINAL_ERROR_PREFIX):
            log.log(level, "%s", text)
