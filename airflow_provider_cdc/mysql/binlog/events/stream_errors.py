"""Errors of a binlog stream: from the server, from the connection, and for damaged data."""

from __future__ import annotations

import re

from airflow_provider_cdc.model.errors import (
    CdcError,
    DamageError,
    NotReadyError,
    PurgedError,
    TerminalError,
    TornFileError,
    TransientError,
    mysql_error_text,
)
from airflow_provider_cdc.mysql.client.session import ACCESS_DENIED_CODES

_ER_SOURCE_FATAL = 1236
_TORN = "Nothing proves that the next file continues where this one ends: start with a fresh sink.path"


def translate_stream_error(error: Exception, where: str) -> CdcError:
    """Translate an error of the server or of the connection.

    :param where: position up to which the stream has been read.
    """
    text = _error_text(error)
    code = error.args[0] if error.args else None
    if code in ACCESS_DENIED_CODES:
        return NotReadyError(
            f"the server denies this user access to the binlog: {text}",
            "Check the user, the password and the privilege REPLICATION SLAVE",
        )
    if code != _ER_SOURCE_FATAL:
        return TransientError(f"no binlog stream at {where}: {text}", "Check that the server is up, and run again")
    if "server_uuid/server_id" in text:
        remedy = (
            "Another reader has the same replica server id or UUID, such as another pipeline with the same name, or "
            "the same source.server_id: stop it, or change one of the two"
        )
    elif "purged" in text or "Could not find first log file" in text:
        return PurgedError(
            f"the server refuses the binlog at {where}: {text}",
            "The server has removed this part of its binlog: start again with a fresh sink.path, "
            "and raise binlog_expire_logs_seconds",
        )
    elif "truncated in the middle of event" in text:
        return TornFileError(f"the binlog at {where} is cut off: {text}", _TORN)
    elif "max_allowed_packet" in text:
        remedy = "Raise max_allowed_packet above the largest row event; if it is already, the position is wrong"
    elif mode := re.search("GTID_MODE = (ON|OFF)", text):  # the mode was switched before this part was read
        remedy = f"SET GLOBAL gtid_mode = {mode[1]}_PERMISSIVE until the stream has reached the end of the binlog"
    elif "checksum" in text:
        remedy = "Check that the server can send binlog checksums (binlog_checksum=CRC32)"
    else:
        remedy = "Check that this position exists in the server's binlog; if not, start again with a fresh sink.path"
    return TerminalError(f"the server refuses the binlog at {where}: {text}", remedy)


def damaged_stream_error(what: str, where: str) -> DamageError:
    """Return the error for bytes that the server cannot have written."""
    return DamageError(
        f"{what} at {where}",
        "Run again. If the error persists at this place, the binlog is damaged there, or the stream did not begin at "
        "the start of an event: start with a fresh sink.path",
        place=where,
    )


def _error_text(error: Exception) -> str:
    """Return the error's text; that of pymysql never contains the password."""
    if isinstance(error, OSError):
        return str(error.args[-1]) if error.args else type(error).__name__
    return mysql_error_text(error)
