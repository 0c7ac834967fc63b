"""Errors of the project. Every message says what happened, where, and what to do next.

The class decides what a caller does: the command line turns it into an exit code, a scheduler into a retry or not.
"""

from __future__ import annotations

import json
import re

#: The remedy for what must not happen.
REPORT = "report it in the project's issue tracker, with this message, the server's version and the package's version"


class CdcError(Exception):
    """Base of all errors of this project.

    :param message: one line: what happened and where.
    :param remedy: one line: what to do next.
    """

    #: Exit code of the command line.
    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message


class NotReadyError(CdcError):
    """The input or the environment is not usable: bad pipeline, missing grant, unsupported table. Exit code 2."""

    exit_code = 2


class TerminalError(CdcError):
    """Needs a decision or a fix: data that cannot be understood, a lost position, a difference. Exit code 1."""


class TransientError(CdcError):
    """Worth a retry: the server is unavailable, a lock was not obtained in time. Exit code 3."""

    exit_code = 3


class UnexpectedError(TransientError):
    """A process ended in an unforeseen way, or without a message: worth a retry, but not for long."""


class DamageError(TransientError):
    """What came from the server cannot be what it sent: another try may do. A fault that stays at a place does not.

    :param place: where in the binlog, if it was read.
    """

    def __init__(self, message: str, remedy: str = "", place: str = "") -> None:
        super().__init__(message, remedy or "Run again; if it stays, look at what stands between the server and here")
        self.place = place


class OtherServerError(TerminalError):
    """The connection reaches another server than the one that positions are of."""


class PurgedError(TerminalError):
    """The server has removed binlogs that were never read."""


class TornFileError(TerminalError):
    """A binlog file ends in the middle of a transaction, as a server leaves it that was killed."""


class OtherHistoryError(TerminalError):
    """The server's binlog is not the one that was read: it was reset, or an older copy of the server was restored.

    :param found: what shows it.
    """

    def __init__(self, found: str, remedy: str = "") -> None:
        super().__init__(
            found,
            remedy
            or "The server's binlogs were reset, or an older copy of it was restored, so the sink may hold what the "
            "server does not, and lack what it has: start with a fresh sink.path (or remove the old one)",
        )


class TableAlteredError(TerminalError):
    """A table was altered while its snapshot was running. The message begins with :func:`altered`."""


def altered(table: str) -> str:
    """How the message of :class:`TableAlteredError` begins.

    :param table: ``database.table``.
    """
    return f"table {table} was altered while it was read"


class FencedError(TerminalError):
    """A newer run of the same pipeline has taken over; this one must not commit any more."""


def kind_of(error: CdcError) -> str:
    """Name of an error's class; of one that is made elsewhere, that of the class in this module that it is based on."""
    return next(c.__name__ for c in type(error).__mro__ if c.__module__ == __name__)


_MARK = re.compile(r"<<cdc (\{.*?\}) cdc>>", re.DOTALL)


def pack(error: CdcError) -> str:
    """An error as text that survives being quoted in somebody else's traceback; :func:`unpack` finds it there."""
    value = {"kind": kind_of(error), "message": error.message, "remedy": error.remedy}
    return f"<<cdc {json.dumps(value)} cdc>>"


def error_of(kind: str | None, message: str, remedy: str = "") -> CdcError:
    """An error by the name of its class; :class:`UnexpectedError` for one that is not the project's own."""
    known = globals().get(kind or "")
    is_error = isinstance(known, type) and issubclass(known, CdcError)
    return known(message, remedy) if is_error else UnexpectedError(message, remedy)  # type: ignore[misc]


def unpack(text: str) -> CdcError | None:
    """The error that :func:`pack` put into a text, ``None`` if there is none."""
    match = _MARK.search(text)
    if match is None:
        return None
    try:
        value = json.loads(match[1])
    except ValueError:
        return None
    return error_of(value["kind"], value["message"], value["remedy"])
