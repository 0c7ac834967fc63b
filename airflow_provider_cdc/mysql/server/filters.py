"""Replication filters of a server that is a replica: tables whose changes it does not take from its source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.mysql.server.throttle import replica_channels

_DO_DB, _IGNORE_DB = "Replicate_Do_DB", "Replicate_Ignore_DB"
_DO, _IGNORE = "Replicate_Do_Table", "Replicate_Ignore_Table"
_WILD_DO, _WILD_IGNORE = "Replicate_Wild_Do_Table", "Replicate_Wild_Ignore_Table"
NAMES = (_DO_DB, _IGNORE_DB, _DO, _IGNORE, _WILD_DO, _WILD_IGNORE)


def filters(connection: Connection[Any]) -> list[dict[str, str]]:
    """The filters of each channel that has any: name -> comma-separated list.

    :raises NotReadyError: if the user may not look.
    """
    channels = replica_channels(connection)
    found = [{name: text for name in NAMES if (text := channel.get(name))} for channel in channels]
    return [one for one in found if one]


def left_out(found: Mapping[str, str], database: str, table: str) -> str | None:
    """The filter by which row changes of a table are left out; ``None`` if they are taken.

    The server's own order for row format: databases first, then tables, then patterns; the first that matches decides,
    and where there are lists of what to take, what is in none of them is left out.

    :param found: filters of one channel.
    """
    lists = {name: [part.strip().replace("`", "") for part in found.get(name, "").split(",") if part] for name in NAMES}
    name = f"{database}.{table}"
    if lists[_DO_DB]:
        if database not in lists[_DO_DB]:
            return _DO_DB
    elif database in lists[_IGNORE_DB]:
        return _IGNORE_DB
    if name in lists[_DO]:
        return None
    if name in lists[_IGNORE]:
        return _IGNORE
    if _matches(lists[_WILD_DO], name):
        return None
    if _matches(lists[_WILD_IGNORE], name):
        return _WILD_IGNORE
    return _DO if lists[_DO] else _WILD_DO if lists[_WILD_DO] else None


def _matches(patterns: Iterable[str], name: str) -> bool:
    """Whether a name matches one of the server's patterns: ``%``, ``_``, a backslash before what is meant itself."""
    signs = {"%": ".*", "_": "."}
    for pattern in patterns:
        parts = re.findall(r"\\.|.", pattern, re.DOTALL)
        if re.fullmatch("".join(signs.get(p, re.escape(p[-1])) for p in parts), name, re.DOTALL):
            return True
    return False
