"""Errors of the project. Each message says what happened, where, and what to do next; fields hold the facts.

Callers decide by the class: the command line maps it to an exit code, a scheduler to a retry. No caller parses the text
of a message.

All classes are defined in this module, so that an error of a Spark task, a driver or a triggerer keeps its class in
every process. An error of a subclass defined elsewhere is transferred as its nearest base class in this module.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, Self

#: Error classes by name.
ERROR_CLASSES: dict[str, type[CdcError]] = {}

#: Kinds of :class:`~airflow_provider_cdc.model.plan_history.Suspension` that are no error class: a table that was added
#: and not read yet, one that was removed, and one that was suspended at the request of a user.
ADDED, REMOVED, REQUESTED = NO_ERROR_KINDS = ("added", "removed", "asked")

#: The remedy for errors that should never happen.
REPORT_REMEDY = (
    "report it in the project's issue tracker, with this message, the server's version and the package's version"
)

#: What helps a process that runs out of memory.
LESS_MEMORY_REMEDY = (
    "Give Spark's hosts more memory (on a cluster, spark.executor.memoryOverhead; in a pod, the resources of its "
    "template or, if it has none there, spark.driver.memoryOverhead), or lower snapshot.parallelism and "
    "snapshot.chunk_rows, or stream.parallelism, stream.max_batch_bytes and sink.index_bytes"
)


class CdcError(Exception):
    """Base of all errors of this project.

    :param message: one line: what happened and where.
    :param remedy: one line: what to do next.
    :param facts: field values by name, text or numbers. A class declares its fields as annotated attributes.
    :raises TypeError: for a field that the class does not have.
    """

    #: Exit code of the command line for this error.
    exit_code: ClassVar[int] = 1
    #: Names of the fields that errors of this class have.
    fields: ClassVar[tuple[str, ...]] = ("table", "place", "code")

    #: The affected table, ``database.table``; ``None`` if it is not exactly one.
    table: str | None = None
    #: Position in the binlog, ``file:position``.
    place: str | None = None
    #: The server's error number.
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
        """Return a plain JSON value with ``kind``, ``message``, ``remedy`` and the facts.

        :func:`make_error` is the inverse.
        """
        return {"kind": error_kind(self), "message": self.message, "remedy": self.remedy, **self.facts}


class NotReadyError(CdcError):
    """The input or the environment is not usable: invalid pipeline, missing grant, unsupported table. Exit code 2."""

    exit_code = 2


class AlreadyRunningError(NotReadyError):
    """Another stream of the pipeline is running; only one is allowed."""


class StreamStoppedError(NotReadyError):
    """A user has asked the stream to stop before it began."""


class TerminalError(CdcError):
    """The error requires a decision: unreadable data, a lost position, a difference found. Exit code 1."""

    #: What must be done before the table is re-snapshotted; ``None`` for nothing.
    first: str | None = None

    @classmethod
    def for_table(cls, message: str, table: str, *, place: str, first: str = "", **facts: str | int | None) -> Self:
        """Make an error that affects one table only; a re-snapshot resolves it, and other tables continue.

        :param table: ``database.table``.
        :param place: position in the binlog, ``file:position``.
        :param first: what must be done before the re-snapshot, if anything: a sentence without its full stop.
        """
        then = (
            f"airflow-cdc resnapshot --table {table}, or CdcResnapshotOperator (needs stream.on_table_error: suspend)"
        )
        remedy = f"{first}, then re-snapshot the table: {then}" if first else f"Re-snapshot the table: {then}"
        return cls(message, remedy, table=table, place=place, first=first or None, **facts)


class TransientError(CdcError):
    """A retry may succeed: the server is unavailable, a lock was not obtained in time. Exit code 3."""

    exit_code = 3


class UnexpectedError(TransientError):
    """A process ended unexpectedly or without a message. Worth a few retries."""


class SlowWorkerError(TransientError):
    """Spark stopped waiting for a Python worker to start; the time limit is fixed, and a busy host is slow."""


class DamageError(TransientError):
    """Data from the server is corrupt. A retry may succeed, unless the fault recurs at the same place."""

    def __init__(self, message: str, remedy: str = "", **facts: str | int | None) -> None:
        remedy = remedy or "Run again. If the error persists, check the network path to the server"
        super().__init__(message, remedy, **facts)


class StoreError(TransientError, OSError):
    """A request to an object store failed; it may be unknown whether it took effect.

    It is an ``OSError`` for callers that handle those, and a transient error for all others.
    """

    #: Whether a response was cut off after it had begun: the library only retries if none has begun.
    response_interrupted = False


class NoRoomError(TransientError, OSError):
    """A disk is full or a quota is used up, so a file was not written.

    It is an ``OSError`` for callers that handle those, and a transient error for all others.
    """


class OutOfMemoryError(TransientError):
    """A process could not allocate memory. A retry may succeed if the host has more memory then."""

    def __init__(
        self, message: str = "a process ran out of memory", remedy: str = "", **facts: str | int | None
    ) -> None:
        super().__init__(message, remedy or f"{LESS_MEMORY_REMEDY}, then run again: no data is lost", **facts)


class TableChangedError(TransientError):
    """The definition of a table changed while the table was read; reading it again may succeed."""


class OtherServerError(TerminalError):
    """The connection reaches a different server from the one that the positions belong to."""


class PurgedError(TerminalError):
    """The server has purged binlogs that were never read."""


class TornFileError(TerminalError):
    """A binlog file ends in the middle of a transaction, as a killed server leaves it."""


class UnlistedError(TerminalError):
    """The server could not list the events of a binlog file."""


class OtherHistoryError(TerminalError):
    """The binlog is not the one read before: it was reset, or an older copy of the server was restored.

    :param message: the evidence.
    """

    def __init__(self, message: str, remedy: str = "", **facts: str | int | None) -> None:
        remedy = remedy or (
            "The server's binlogs were reset, or an older copy of it was restored, so the sink may no longer match the "
            "server: start with a fresh sink.path (or remove the old one)"
        )
        super().__init__(message, remedy, **facts)


class RetentionError(TerminalError):
    """The binlog with which the stream has to begin is gone, or will be gone before the snapshot is complete."""


class UnknownPrepareError(TerminalError):
    """An XA transaction was committed whose rows are missing from the binlog, so no later epoch can find them."""


class OtherColumnsError(TerminalError):
    """The server returned columns other than those requested; the connection is closed."""


class DdlError(TerminalError):
    """A statement changed a captured table in a way that the stream cannot follow."""


class NotFollowedError(DdlError):
    """A DDL changed a single table in a way that is not followed; a re-snapshot resolves it."""

    #: Whether the DDL certainly dropped the table.
    dropped: bool | None = None


class TableAlteredError(TerminalError):
    """A table was altered while its snapshot was running; ``table`` names it."""


class TableSuspendedError(TerminalError):
    """The stream continued without some tables, which are suspended; ``suspended`` is their number."""

    #: Number of suspended tables.
    suspended: int | None = None


class GroupsFailedError(TerminalError):
    """Some chunk groups of a task failed; the others are published."""

    #: Numbers of the groups that are not published.
    groups: str | None = None


class GroupsUnfinishedError(TransientError):
    """Like :class:`GroupsFailedError`, but a retry may help at least one of the groups."""

    #: Numbers of the groups that are not published.
    groups: str | None = None


class NotComparableError(TerminalError):
    """Some tables cannot be compared with their copies now; the others are equal. Exit code 4."""

    exit_code = 4


class NotComparableYetError(TransientError):
    """Like :class:`NotComparableError`, but a retry may succeed without intervention. Exit code 4."""

    exit_code = 4


class DuplicateKeyError(TerminalError):
    """A row has a key that a row of another table has, and both are copied into one table with unique keys."""

    #: ``database.table`` of the other row.
    other: str | None = None


class UnfitError(TerminalError):
    """A value of the source cannot be copied exactly. See :mod:`airflow_provider_cdc.model.unsupported_values`."""

    #: Name of the column; ``None`` if it cannot be determined.
    column: str | None = None
    #: What is wrong with the value: ``date``, ``text``, ``key`` or ``damaged``.
    reason: str | None = None


class FencedError(TerminalError):
    """A newer run of the same pipeline has taken over; this one must not commit any more."""


def error_kind(error: CdcError) -> str:
    """Return the name of an error's class, or of its nearest base class in this module."""
    return next(c.__name__ for c in type(error).__mro__ if c.__module__ == __name__)


def make_error(kind: str | None, message: str, remedy: str = "", **facts: Any) -> CdcError:
    """Make an error from the name of its class; an unknown name gives :class:`UnexpectedError`.

    :param facts: its fields; unknown ones, as written by a newer version, are ignored.
    """
    error_class = ERROR_CLASSES.get(kind or "", UnexpectedError)
    return error_class(message, remedy, **{name: fact for name, fact in facts.items() if name in error_class.fields})


_EMBEDDED_ERROR = re.compile(r"<<cdc (\{.*?\}) cdc>>", re.DOTALL)


def embed_error(error: CdcError) -> str:
    """Return an error as text that survives being quoted in a foreign traceback.

    :func:`extract_error` finds it there.
    """
    return f"<<cdc {json.dumps(error.to_json())} cdc>>"


def extract_error(text: str) -> CdcError | None:
    """Return the error that :func:`embed_error` wrote into a text; ``None`` if there is none."""
    match = _EMBEDDED_ERROR.search(text)
    if match is None:
        return None
    try:
        value = json.loads(match[1])
    except ValueError:
        return None
    return make_error(**value)


ERROR_CLASSES[CdcError.__name__] = CdcError


def mysql_error_text(error: BaseException) -> str:
    """Return what an error of the driver says, such as ``MySQL error 2003: Can't connect to MySQL server on 'db'``.

    :param error: its ``args`` are the number and the text of the error, or only a text.
    """
    has_number = bool(error.args) and isinstance(error.args[0], int)
    texts = error.args[1:] if has_number else error.args
    text = str(texts[0] if texts else "") or type(error).__name__
    return f"MySQL error {error.args[0]}: {text}" if has_number and error.args[0] else text
