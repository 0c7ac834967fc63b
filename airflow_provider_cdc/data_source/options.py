"""Options of the data source, and the wording of its errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_provider_cdc.config.connections import mysql_connect_args, read_connection_file, resolve_connection
from airflow_provider_cdc.data_source.table_changes import TableChanges
from airflow_provider_cdc.model.errors import CdcError, NotReadyError

#: Options and their defaults.
_DEFAULTS = {
    "conn_id": "",
    "conn_file": "",
    "table": "",
    "start": "",
    "end": "latest",
    "max_bytes_per_batch": str(256 << 20),
    "max_bytes_per_partition": str(64 << 20),
    "before_images": "false",
    "zero_dates": "error",
    "exclude_columns": "",
    "server_id": "",
}
_LOGIN_WORDS = ("password", "user", "username", "login", "host", "port", "url", "uri")
_MAX_BYTES = (1 << 31) - 1
#: Server ids in use: the planner's two readers come first, followed by two for each task.
PLANNER_READERS, READERS_PER_TASK = 2, 2
# Terms of the pipeline that occur in the errors of lower layers.
_REWORDINGS = (
    (re.compile(r"a fresh sink\.path(?: \(or remove the old one\))?"), "a new checkpoint and another `start`"),
    (re.compile(r"\b(?:this|the) pipeline\b"), "this reader"),
    (re.compile(r"source\.(zero_dates|exclude_columns)"), r"the option \1"),
)


@dataclass(frozen=True)
class ConnectionLookup:
    """Where to look up the connection. It holds no secret.

    :param conn_id: id of a connection in the environment, or ``None``.
    :param conn_file: path of a file that has the connection, or ``None``.
    """

    conn_id: str | None = None
    conn_file: str | None = None

    def __call__(self) -> dict[str, Any]:
        """Return the keyword arguments of ``pymysql.connect``.

        :raises NotReadyError: if there is no such connection, or it is not a MySQL connection.
        """
        return mysql_connect_args(
            read_connection_file(self.conn_file) if self.conn_file else resolve_connection(self.conn_id or "")
        )


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options of a reader.

    :param login: where to look up the connection.
    :param table: (database, table).
    :param start: where to begin, or ``None`` if not given.
    :param end: where a range ends.
    :param batch_bytes: approximate number of bytes of binlog in one batch of a stream.
    :param partition_bytes: approximate number of bytes of binlog that one task reads.
    :param exclude: columns to leave out.
    """

    login: ConnectionLookup
    table: tuple[str, str]
    start: str | None
    end: str
    batch_bytes: int
    partition_bytes: int
    before_images: bool
    zero_dates: str
    exclude: tuple[str, ...]
    server_id: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse the options.

        :raises NotReadyError: for an option that is unknown, missing or invalid.
        """
        for name in sorted(options):
            if name.lower() not in _DEFAULTS:  # its value is not shown: it may be a password
                hint = "A login is never an option: see conn_id and conn_file. " if name.lower() in _LOGIN_WORDS else ""
                raise NotReadyError(f"unknown option {name}", f"{hint}Known options: {', '.join(_DEFAULTS)}")
        values = _DEFAULTS | {name.lower(): value.strip() for name, value in options.items()}
        if bool(values["conn_id"]) == bool(values["conn_file"]):
            raise NotReadyError(
                "give exactly one of conn_id and conn_file", "This option specifies the connection to the server"
            )
        database, _, table = values["table"].partition(".")
        if not table:
            raise NotReadyError(f"option table is {values['table']!r}", "Give database.table")
        batch = _number(values, "max_bytes_per_batch", 1, _MAX_BYTES)
        server_id = _number(values, "server_id", 1, (1 << 32) - 1 - (1 << 20)) if values["server_id"] else None
        return cls(
            ConnectionLookup(values["conn_id"] or None, values["conn_file"] or None),
            (database, table),
            values["start"] or None,
            values["end"],
            batch,
            min(batch, _number(values, "max_bytes_per_partition", 1, _MAX_BYTES)),
            _choice(values, "before_images", ("true", "false")) == "true",
            _choice(values, "zero_dates", ("error", "null")),
            tuple(name for part in values["exclude_columns"].split(",") if (name := part.strip())),
            server_id,
        )

    def make_table_changes(self) -> TableChanges:
        """Look the table up on the server."""
        return TableChanges.look_up(
            self.login,
            *self.table,
            self.zero_dates,
            self.exclude,
            range_bytes=self.partition_bytes,
            before_images=self.before_images,
            server_id=self.server_id,
        )


def _number(option_values: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = option_values[name]
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise NotReadyError(f"option {name} is {text!r}", f"Give a whole number from {low} to {high}")
    return int(text)


def _choice(option_values: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    if option_values[name].lower() not in choices:
        raise NotReadyError(f"option {name} is {option_values[name]!r}", f"Give {' or '.join(choices)}")
    return option_values[name].lower()


@contextmanager
def reword_errors() -> Iterator[None]:
    """Rephrase errors of the pipeline's code in the terms of this data source."""
    try:
        yield
    except CdcError as error:
        texts = [error.message, error.remedy]
        for pattern, words in _REWORDINGS:
            texts = [pattern.sub(words, text) for text in texts]
        raise type(error)(*texts) from None
