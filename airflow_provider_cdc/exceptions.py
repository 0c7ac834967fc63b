"""Errors of the project. Every message says what happened, where, and what to do next.

The class decides what a caller does: the command line turns it into an exit code, a scheduler into a retry or not.
"""

from __future__ import annotations

import json
import re


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
    """A person is needed: data that cannot be understood, a lost position, a difference found. Exit code 1."""


class TransientError(CdcError):
    """Worth another try: the server is away, a lock was not had in time. Exit code 3."""

    exit_code = 3


class OtherServerError(TerminalError):
    """The connection reaches another server than the one that positions are of."""


class PurgedError(TerminalError):
    """The server has removed binlogs that were never read."""


class TableAlteredError(TerminalError):
    """A table was altered while its snapshot was running. The message begins with :func:`altered`."""


def altered(table: str) -> str:
    """How the message of :class:`TableAlteredError` begins.

    :param table: ``database.table``.
    """
    return f"table {table} was altered while it was read"


class FencedError(TerminalError):
    """A newer run of the same pipeline has taken over; this one must not commit any more."""


_MARK = re.compile(r"<<cdc (\{.*?\}) cdc>>", re.DOTALL)


def pack(error: CdcError) -> str:
    """An error as text that survives being quoted in somebody else's traceback; :func:`unpack` finds it there."""
    value = {"kind": type(error).__name__, "message": error.message, "remedy": error.remedy}
    return f"<<cdc {json.dumps(value)} cdc>>"


def unpack(text: str) -> CdcError | None:
    """The error that :func:`pack` put into a text, ``None`` if there is none."""
    match = _MARK.search(text)
    if match is None:
        return None
    try:
        value = json.loads(match[1])
    except ValueError:
        return None
    kinds = {
        c.__name__: c
        for c in (NotReadyError, TerminalError, TransientError, TableAlteredError, OtherServerError, FencedError)
    }
    return kinds.get(value["kind"], TerminalError)(value["message"], value["remedy"])
