"""What goes wrong with a stream of the binlog: errors of the server and of the connection, and damage."""

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
)
from airflow_provider_cdc.mysql.client.session import ACCESS_DENIED_CODES

_ER_SOURCE_FATAL = 1236
_TORN = "nothing proves that the next file goes on with what lies before: start with a fresh sink.path"


def translate_stream_error(error: Exception, where: str) -> CdcError:
    """What an error of the server or of the connection means.

    :param where: up to where the stream has been read.
    """
    text = _error_text(error)
    code = error.args[0] if error.args else None
    if code in ACCESS_DENIED_CODES:
        return NotReadyError(
            f"the server denies the binlog to this user: {text}",
            "Check user, password and the grant REPLICATION SLAVE",
        )
    if code != _ER_SOURCE_FATAL:
        return TransientError(f"no binlog stream at {where}: {text}", "Check that the server is up, and run again")
    if "server_uuid/server_id" in text:
        remedy = "another reader has the same replica server id or uuid: stop it, or give this pipeline another id"
    elif "purged" in text or "Could not find first log file" in text:
        return PurgedError(
            f"the server refuses the binlog at {where}: {text}",
            "the server has removed this part of its binlog: start again with a fresh sink.path, "
            "and raise binlog_expire_logs_seconds",
        )
    elif "truncated in the middle of event" in text:
        return TornFileError(f"the binlog at {where} is cut off: {text}", _TORN)
    elif "max_allowed_packet" in text:
        remedy = "raise max_allowed_packet above the largest row event; if it is, the position is wrong"
    elif mode := re.search("GTID_MODE = (ON|OFF)", text):  # it was switched before this was read
        remedy = f"SET GLOBAL gtid_mode = {mode[1]}_PERMISSIVE until the stream has reached the end of the binlog"
    elif "checksum" in text:
        remedy = "see that the server can send binlog checksums (binlog_checksum=CRC32)"
    else:
        remedy = "see that this position exists in this server's binlog; if not, start again with a fresh sink.path"
    return TerminalError(f"the server refuses the binlog at {where}: {text}", remedy)


def damaged_stream_error(what: str, where: str) -> DamageError:
    """The error for bytes that cannot be what the server has written."""
    return DamageError(
        f"{what} at {where}",
        "Run again. If it stays at this place, the binlog is damaged there, or no event begins where the stream began: "
        "start with a fresh sink.path",
        place=where,
    )


def _error_text(error: Exception) -> str:
    """The error's own words; pymysql's never hold the password."""
    return str(error.args[-1]) if error.args else type(error).__name__
