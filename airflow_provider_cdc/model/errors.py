"""Errors of the project. Every message says what happened, where, and what to do next; facts stand in fields, too.

The class decides what a caller does: the command line turns it into an exit code, a scheduler into a retry or not. No
caller looks into the words of a message.

All kinds stand here, so that an error of a Spark task, a driver or a triggerer is the same one in whatever process gets
it. What somebody else derives from them travels as the nearest class of this module.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, Self

#: The kinds of errors, by name.
ERROR_CLASSES: dict[str, type[CdcError]] = {}

#: The remedy for what must not happen.
REPORT_REMEDY = (
    "report it in the project's issue tracker, with this message, the server's version and the package's version"
)


class CdcError(Exception):
    """Base of all errors of this project.

    :param message: one line: what happened and where.
    :param remedy: one line: what to do next.
    :param facts: values of fields, by name: text or numbers. A class declares its fields as annotated attributes.
    :raises TypeError: for a field that the class does not have.
    """

    #: Exit code of the command line.
    exit_code: ClassVar[int] = 1
    #: Names of the fields that errors of this class have.
    fields: ClassVar[tuple[str, ...]] = ("table", "place", "code")

    #: The table that it concerns, ``database.table``; ``None`` if it concerns more than one, or no table.
    table: str | None = None
    #: Where in the binlog, ``file:position``.
    place: str | None = None
    #: Number of the server's error.
    code: int | None = None

    def __init_subclass__(cls) -> None:
        declared = vars(cls).get("__annotations__", {})
        cls.fields = (*cls.fields, *(name for name in declared if name not in cls.fields))
        if cls.__module__ == __name__:
            ERROR_CLASSES[cls.__name__] = cls

    def __init__(self, message: str, remedy: str = "", **facts: str | int | None) -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy
        for name, fact in facts.items():
            if name not in self.fields:
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            setattr(self, name, fact)

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message

    @property
    def facts(self) -> dict[str, str | int]:
        """The fields that have a value."""
        return {name: fact for name in self.fields if (fact := getattr(self, name)) is not None}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value: ``kind``, ``message``, ``remedy`` and the facts; :func:`error_of` turns it back."""
        return {"kind": error_kind(self), "message": self.message, "remedy": self.remedy, **self.facts}


class NotReadyError(CdcError):
    """The input or the environment is not usable: bad pipeline, missing grant, unsupported table. Exit code 2."""

    exit_code = 2


class AlreadyRunningError(NotReadyError):
    """Another stream of the pipeline is running, and there can only be one."""


class TerminalError(CdcError):
    """Needs a decision: data that cannot be understood, a lost position, a difference found. Exit code 1."""

    #: What has to be done before its table is read again; ``None`` for nothing.
    first: str | None = None

    @classmethod
    def for_table(cls, message: str, table: str, *, place: str, first: str = "", **facts: str | int | None) -> Self:
        """An error that one table alone has: reading it again gets past it, and the other tables need not wait.

        :param table: ``database.table``.
        :param first: what has to be done before that, if anything: a sentence without its full stop.
        """
        then = f"airflow-cdc resnapshot --table {table} (stream.on_table_error: suspend lets the stream get there)"
        remedy = f"{first}, then read the table again: {then}" if first else f"Read the table again: {then}"
        return cls(message, remedy, table=table, place=place, first=first or None, **facts)


class TransientError(CdcError):
    """Worth a retry: the server is unavailable, a lock was not obtained in time. Exit code 3."""

    exit_code = 3


class UnexpectedError(TransientError):
    """A process ended in an unforeseen way, or without a message: worth a retry, but not for long."""


class SlowWorkerError(TransientError):
    """Spark gave a Python worker up before it had come up: its time limit is fixed, and a busy host is slow."""


class DamageError(TransientError):
    """What came from the server cannot be what it sent: another try may do. A fault that stays at a place does not."""

    def __init__(self, message: str, remedy: str = "", **facts: str | int | None) -> None:
        remedy = remedy or "Run again; if it stays, look at what stands between the server and here"
        super().__init__(message, remedy, **facts)


class StoreError(TransientError, OSError):
    """An object store did not do what it was asked for; whether it has done it may not be known.

    It is an ``OSError`` for those who know what to do about it, and worth a retry for all others.
    """

    #: Whether an answer has begun and did not come to its end: the library asks again only if none has begun.
    response_interrupted = False


class NoRoomError(TransientError, OSError):
    """A disk is full, or a quota is used up: what was to be written there is not.

    It is an ``OSError`` for those who know what to do about it, and worth a retry for all others.
    """


class TableChangedError(TransientError):
    """The definition of a table changed while it was read: reading it again may do."""


class OtherServerError(TerminalError):
    """The connection reaches another server than the one that positions are of."""


class PurgedError(TerminalError):
    """The server has removed binlogs that were never read."""


class TornFileError(TerminalError):
    """A binlog file ends in the middle of a transaction, as a server leaves it that was killed."""


class UnlistedError(TerminalError):
    """The server could not list the events of a binlog file."""


class OtherHistoryError(TerminalError):
    """The server's binlog is not the one that was read: it was reset, or an older copy of the server was restored.

    :param message: what shows it.
    """

    def __init__(self, message: str, remedy: str = "", **facts: str | int | None) -> None:
        remedy = remedy or (
            "The server's binlogs were reset, or an older copy of it was restored, so the sink may hold what the "
            "server does not, and lack what it has: start with a fresh sink.path (or remove the old one)"
        )
        super().__init__(message, remedy, **facts)


class UnknownPrepareError(TerminalError):
    """An XA transaction is committed whose rows are not in the binlog, or not any more: no other epoch finds them."""


class OtherColumnsError(TerminalError):
    """The server's columns are not those that were asked for; the connection is closed."""


class DdlError(TerminalError):
    """A statement changed a captured table in a way that the stream cannot follow."""


class NotFollowedError(DdlError):
    """A DDL changed one table in a way that is not followed: read again, it is what it is now."""

    #: Whether it is certain that it dropped the table.
    dropped: bool | None = None


class TableAlteredError(TerminalError):
    """A table was altered while its snapshot was running; ``table`` says which."""


class TableSuspendedError(TerminalError):
    """The stream went on without some tables, each of which cannot go on; ``suspended`` says how many."""

    #: Number of suspended tables.
    suspended: int | None = None


class NotComparableError(TerminalError):
    """Some tables cannot be compared with their copies now, and no difference was found in the others. Exit code 4."""

    exit_code = 4


class NotComparableYetError(TransientError):
    """The same, where another try may do without anybody's help. Exit code 4."""

    exit_code = 4


class UnfitError(TerminalError):
    """A value of the source cannot be carried exactly. See :mod:`airflow_provider_cdc.model.unsupported_values`."""

    #: Name of the column; ``None`` if it cannot be told.
    column: str | None = None
    #: What is wrong with the value: ``date``, ``text``, ``key`` or ``damaged``.
    reason: str | None = None


class FencedError(TerminalError):
    """A newer run of the same pipeline has taken over; this one must not commit any more."""


def error_kind(error: CdcError) -> str:
    """Name of an error's class; of one that is made elsewhere, that of the class in this module that it is based on."""
    return next(c.__name__ for c in type(error).__mro__ if c.__module__ == __name__)


def make_error(kind: str | None, message: str, remedy: str = "", **facts: Any) -> CdcError:
    """An error by the name of its class; :class:`UnexpectedError` for one that is not the project's own.

    :param facts: its fields; those that the class does not have, as of a newer version, are left out.
    """
    error_class = ERROR_CLASSES.get(kind or "", UnexpectedError)
    return error_class(message, remedy, **{name: fact for name, fact in facts.items() if name in error_class.fields})


_EMBEDDED_ERROR = re.compile(r"<<cdc (\{.*?\}) cdc>>", re.DOTALL)


def embed_error(error: CdcError) -> str:
    """An error as text that survives being quoted in somebody else's traceback; :func:`unpack` finds it there."""
    return f"<<cdc {json.dumps(error.to_json())} cdc>>"


def extract_error(text: str) -> CdcError | None:
    """The error that :func:`pack` put into a text, ``None`` if there is none."""
    match = _EMBEDDED_ERROR.search(text)
    if match is None:
        return None
    try:
        value = json.loads(match[1])
    except ValueError:
        return None
    return make_error(**value)


ERROR_CLASSES[CdcError.__name__] = CdcError
